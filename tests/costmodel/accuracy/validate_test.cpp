#include "costmodel/accuracy/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "costmodel/interchange/pictures.h"
#include "tests/costmodel/documents.h"

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

ValidatedRun run(const std::string& model, const std::string& schedule, int ranks, double predicted, double measured) {
  return {.name = model + schedule,
          .model = model,
          .schedule = schedule,
          .ranks = ranks,
          .step_samples = 8,
          .times = {.predicted = Seconds(predicted), .low = {}, .high = {}, .measured = Seconds(measured), .group = 0}};
}

TEST(ValidatedRun, TakesTheStepAndTheInterval) {
  // Measured steps of 4 and 3.5 s; without skipping the median is 3.75 s. 4 microbatches of 2 samples.
  const ValidatedRun r = validated_run("m.json", full_prediction(), full_measurement(), 0);
  EXPECT_EQ(r.name, "m.json");
  EXPECT_EQ(r.ranks, 2);
  EXPECT_EQ(r.step_samples, 8);
  EXPECT_EQ(r.times.predicted, 4_s);
  EXPECT_EQ(r.times.measured, 3.75_s);
  EXPECT_EQ(r.times.low, 3.5_s);
  EXPECT_EQ(r.times.high, 4.5_s);
}

TEST(Validated, ScoresAllRunsAndWhereTheyDiffer) {
  // Errors 0.1, -0.2, 0.3 for a, a, b. The two runs of a with 2 ranks are predicted in the right order: 1.1 < 1.6, 1
  // < 2.
  const Validation v =
      validated({run("a", "1f1b", 2, 1.1, 1), run("a", "gpipe", 2, 0.8 * 2, 2), run("b", "1f1b", 2, 1.3, 1)});
  ASSERT_EQ(v.regimes.size(), 5U);  // all, two models, two schedules; the ranks are equal
  EXPECT_EQ(v.regimes[0].name, "all");
  EXPECT_EQ(v.regimes[0].errors.n, 3U);
  EXPECT_NEAR(v.regimes[0].errors.median, 0.2, 1e-12);
  EXPECT_EQ(v.regimes[0].order.pairs, 1U);
  EXPECT_EQ(v.regimes[0].order.tau, 1.0);  // 1.1 < 1.6 and 1 < 2
  EXPECT_EQ(v.regimes[1].name, "model a");
  EXPECT_EQ(v.regimes[1].errors.n, 2U);
  EXPECT_EQ(v.regimes[2].name, "model b");
  EXPECT_NEAR(v.regimes[2].errors.bias, 0.3, 1e-12);
  EXPECT_FALSE(v.regimes[2].order.tau.has_value());
  EXPECT_EQ(v.regimes[3].name, "schedule 1f1b");
  EXPECT_EQ(v.regimes[4].name, "schedule gpipe");
}

TEST(Validated, OnlyAlternativesAreOrdered) {
  const Validation v = validated({run("a", "1f1b", 1, 1, 2), run("a", "1f1b", 2, 2, 1)});
  EXPECT_EQ(v.regimes[0].order.pairs, 0U);
  EXPECT_EQ(v.regimes.back().name, "2 ranks");
  EXPECT_THROW((void)validated({}), std::invalid_argument);
}

TEST(Validated, CountsPairsBeyondTheNoise) {
  // Measured 1 and 1.02, predicted the other way round: wrong, but not told apart by runs that differ by 3 %.
  const std::vector runs{run("a", "1f1b", 2, 1.1, 1), run("a", "gpipe", 2, 1, 1.02)};
  EXPECT_EQ(validated(runs).regimes[0].order.tau, -1.0);
  EXPECT_EQ(validated(runs, 0.03).regimes[0].order.pairs, 0U);
}

TEST(Validated, SaysWhichNoiseItTook) {
  const std::vector runs{run("a", "1f1b", 2, 1.1, 1)};
  EXPECT_EQ(validated(runs).noise, 0);
  EXPECT_EQ(validated(runs, 0.03).noise, 0.03);
  const std::string line = "tau: of pairs whose measured times differ by more than 3.0 %\n";
  EXPECT_THAT(validation_text(validated(runs, 0.03), 200), ::testing::EndsWith(line));
  EXPECT_THAT(validation_text(validated(runs), 200), Not(HasSubstr("tau: of pairs")));
}

TEST(ValidationText, ShowsEveryRunAndRegime) {
  Validation v = validated({run("a", "1f1b", 2, 1.1, 1)});
  EXPECT_THAT(validation_text(v, 200), HasSubstr("+10.0 %"));
  EXPECT_THAT(validation_text(v, 200), Not(HasSubstr("inside\n")));
  v.runs[0].times.low = 0.5_s;
  v.runs[0].times.high = 2_s;
  EXPECT_THAT(validation_text(validated(v.runs), 200), HasSubstr("inside"));
}

TEST(ScatterPicture, DrawsEachRunInItsPlace) {
  // The scale reaches from 1 / 1.25 to 4 * 1.25, a factor of 6.25; predicted 2 lies at log(2.5) / log(6.25) = 0.5 of
  // the square of 480 at 80: 320. Measured 2 lies in the middle too: 30 + 240.
  const Validation v = validated({run("a", "x", 1, 2, 2), run("b<&", "x", 1, 1, 4)});
  const std::string svg = interchange::scatter_picture(v);
  EXPECT_THAT(svg, HasSubstr("<circle cx=\"320.00\" cy=\"270.00\""));
  EXPECT_THAT(svg, HasSubstr("b&lt;&amp;"));
  EXPECT_THAT(svg, ::testing::StartsWith("<svg "));
  EXPECT_THAT(svg, ::testing::EndsWith("</svg>\n"));
}

TEST(ScatterPicture, GivesEachModelAColourAndAShape) {
  const std::string svg = interchange::scatter_picture(validated({run("a", "x", 1, 1, 1), run("b", "x", 1, 1, 2)}));
  EXPECT_THAT(svg, HasSubstr("<circle"));
  EXPECT_THAT(svg, HasSubstr("#0072b2"));
  EXPECT_THAT(svg, HasSubstr("#d55e00"));
}

TEST(ScatterPicture, RefusesWhatALogarithmCannotShow) {
  EXPECT_THROW((void)interchange::scatter_picture({}), std::invalid_argument);
  EXPECT_THROW((void)interchange::scatter_picture(validated({run("a", "x", 1, 0, 1)})), std::invalid_argument);
}

}  // namespace
}  // namespace stagecraft

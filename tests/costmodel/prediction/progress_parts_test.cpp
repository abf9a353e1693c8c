#include "costmodel/prediction/progress_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "costmodel/analysis/explain.h"
#include "costmodel/analysis/scaling.h"
#include "costmodel/analysis/whatif.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

/// Options whose progress is noted in `told`.
PredictOptions noting(std::vector<double>& told) {
  PredictOptions out;
  out.progress = [&told](double done) { told.push_back(done); };
  return out;
}

// Weights 1, 1 and 2 of 4: the parts begin at 0, 1/4 and 2/4.
TEST(ProgressParts, AreOneProgress) {
  std::vector<double> told;
  const PredictOptions options = noting(told);
  ProgressParts parts(options, 4);
  parts.next().progress(0.5);
  parts.next().progress(1);
  parts.next(2).progress(0.5);
  EXPECT_THAT(told, ElementsAre(0, 0.125, 0.25, 0.5, 0.5, 0.75));
}

// The first of 4 expected parts ends at 1/4; then 2 more are left, each of 3/8.
TEST(ProgressParts, ShareWhatIsLeft) {
  std::vector<double> told;
  const PredictOptions options = noting(told);
  ProgressParts parts(options, 4);
  (void)parts.next();
  parts.set_left(2);
  (void)parts.next();
  parts.next().progress(1);
  EXPECT_THAT(told, ElementsAre(0, 0.25, DoubleEq(0.625), 1));
}

TEST(ProgressParts, NeedNobodyWhoListens) {
  const PredictOptions silent;
  ProgressParts parts(silent, 2);
  EXPECT_FALSE(parts.next().progress);
}

/// Three layers on two stages, with links, so that intervals need more predictions.
Scenario small_scenario() {
  Scenario out{testing::chain_graph({1, 1, 1}, {2, 2, 2}, Bytes(500)), testing::flat_topology(2, 1000), {}};
  out.plan = make_plan(out.graph, out.topology, {{0, 0, 1}, {1, 1}}, {.microbatches = 4});
  return out;
}

void expect_one_progress(const std::vector<double>& told, const char* of) {
  SCOPED_TRACE(of);
  ASSERT_GE(told.size(), 3U);
  EXPECT_EQ(told.front(), 0);
  EXPECT_GE(told.back(), 0.5);
  EXPECT_LE(told.back(), 1);
  EXPECT_TRUE(std::ranges::is_sorted(told));
}

TEST(ProgressParts, CoverEveryQuestionThatNeedsSeveralPredictions) {
  const Scenario scenario = small_scenario();
  std::vector<double> told;
  const PredictOptions options = noting(told);
  const BoundPlan plan(scenario.plan);
  (void)predict_with_intervals(scenario.graph, scenario.topology, plan, {}, options);
  expect_one_progress(told, "predict");
  told.clear();
  (void)what_if(scenario, {"compute=2x"}, {}, options);
  expect_one_progress(told, "whatif");
  told.clear();
  (void)predict_scaling(scenario, {1, 2, 4}, ScaledWork::PerCopy, {}, options);
  expect_one_progress(told, "scaling");
  told.clear();
  (void)explain(scenario.graph, scenario.topology, plan, {.predict = options});
  expect_one_progress(told, "explain");
}

}  // namespace
}  // namespace stagecraft

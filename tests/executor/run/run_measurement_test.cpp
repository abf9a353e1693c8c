#include "executor/run/run_measurement.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <thread>

#include "costmodel/index.h"
#include "executor/channel/channel_local.h"
#include "executor/channel/control_tags.h"
#include "executor/run/run.h"
#include "tests/support/chains.h"
#include "tests/support/models/planned_models.h"

namespace stagecraft::run {
namespace {

using stagecraft::testing::cut_plan;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr auto F = ActionKind::Forward;
constexpr auto B = ActionKind::Backward;
constexpr auto U = ActionKind::Update;

/// Two replicas of one stage, one microbatch each.
BoundPlan two_replicas() {
  const Graph graph = testing::chain_graph({1.0}, {1.0});
  return BoundPlan(testing::one_layer_a_stage(graph, testing::flat_topology(2), {2}, "gpipe", 2));
}

std::vector<Action> actions_of(int rank) {
  return {{F, 0, rank, -1}, {B, 0, rank, -1}, {ActionKind::Reduce, 0, -1, -1}, {U, 0, -1, -1}};
}

/// Spans of `rank` in `step`; each action takes a second, and rank 1 is half a second late.
std::vector<Span> spans_of(int rank, int step) {
  std::vector<Span> out;
  double time = 100 + 4 * step + 0.5 * rank;
  for (const Action& action : actions_of(rank)) {
    out.push_back({rank, step, action, Seconds(time), Seconds(time + 1)});
    time += 1;
  }
  return out;
}

/// Runs `steps` steps on two ranks; returns what rank 0 saved during the run, then its final measurement. `pauses`: by
/// the step before them.
std::vector<Measurement> run(int steps, int first_step = 0, const std::map<int, std::pair<double, double>>& pauses = {},
                             milliseconds save_every = milliseconds(0)) {
  const BoundPlan plan = two_replicas();
  const auto channels = channel::make_local_channels(2, milliseconds(20000));
  std::vector<Measurement> out;
  const auto rank = [&](int number) {
    RunMeasurement measurement(
        plan, actions_of(number), number, *channels[to_index(number)], first_step,
        [&](const Measurement& sofar) { out.push_back(sofar); }, save_every);
    for (int step = first_step; step < first_step + steps; ++step) {
      measurement.add(spans_of(number, step));
      if (number == 0) measurement.add_loss(step);
      if (const auto pause = pauses.find(step); pause != pauses.end())
        measurement.pause(Seconds(pause->second.first), Seconds(pause->second.second));
      measurement.after_step(step);
    }
    Check check;
    check.values = 10 + number;
    check.cancelled = 1 + number;
    check.largest_error = 0.25 * number;
    check.worst = "worst of rank " + std::to_string(number);
    const Measurement end = measurement.finish(steps, {number, Bytes(5), {}}, check);
    if (number != 0) return;
    EXPECT_EQ(check.values, 21);
    EXPECT_EQ(check.cancelled, 3);
    EXPECT_EQ(check.worst, "worst of rank 1");
    out.push_back(end);
  };
  {
    const std::jthread other([&] { rank(1); });
    rank(0);
  }
  return out;
}

TEST(RunMeasurement, HoldsLossesAndTimesOfAllStepsAndSpansOfSome) {
  for (const int steps : {1, 20, 300}) {
    for (const int first_step : {0, 7}) {
      const Measurement end = run(steps, first_step).back();
      EXPECT_TRUE(end.ended);
      EXPECT_EQ(end.losses.size(), to_index(steps));
      ASSERT_EQ(end.timeline.steps.size(), to_index(steps));
      for (int k = 0; k < steps; ++k) {
        // Rank 0 begins the first step at 0, rank 1 ends step k at 4 (k + 1) + 0.5.
        const StepTime& step = end.timeline.steps[to_index(k)];
        EXPECT_EQ(step.step, first_step + k);
        EXPECT_DOUBLE_EQ(step.start.value, k == 0 ? 0 : 4 * k + 0.5);
        EXPECT_DOUBLE_EQ(step.end.value, 4 * (k + 1) + 0.5);
      }
      EXPECT_EQ(end.timeline.memory.size(), 2U);
      const int kept = static_cast<int>(std::ranges::count_if(end.timeline.steps, [&](const StepTime& step) {
        const int place = step.step - first_step;
        return place < end.kept.first || place >= steps - end.kept.last || place % end.kept.every == 0;
      }));
      EXPECT_EQ(end.timeline.spans.size(), to_index(2 * 4 * kept));
      EXPECT_LE(kept, SpanKeeper::kMost);
      EXPECT_EQ(end.timeline.spans.front(), (Span{0, first_step, actions_of(0)[0], Seconds(0), Seconds(1)}));
    }
  }
}

TEST(RunMeasurement, LeavesPausesOut) {
  // Rank 1 ends steps 0, 1 and 2 at 104.5, 108.5 and 112.5, half a second after rank 0. The pauses are 104.25 to 104.5
  // and 108.5 to 110.5, in which rank 0 would run two actions of step 2 more.
  const Measurement end = run(3, 0, {{0, {104.25, 104.5}}, {1, {108.5, 110.5}}}).back();
  ASSERT_EQ(end.timeline.steps.size(), 3U);
  EXPECT_EQ(end.timeline.steps[0].end, Seconds(4.25));
  EXPECT_EQ(end.timeline.steps[1].end, Seconds(8.25));
  EXPECT_EQ(end.timeline.steps[2].end, Seconds(12.5 - 2.25));
  EXPECT_EQ(end.timeline.steps[2].start, Seconds(8.25));
}

TEST(RunMeasurement, SavesDuringTheRun) {
  const std::vector<Measurement> saved = run(100);
  // Saved after each of the first eight steps, then after 9, 10, ..., 16, then after 18, 20, ... (an eighth more each
  // time).
  ASSERT_GT(saved.size(), 20U);
  for (std::size_t i = 0; i + 1 < saved.size(); ++i) {
    const Measurement& sofar = saved[i];
    EXPECT_FALSE(sofar.ended);
    if (i > 0) { EXPECT_GT(sofar.losses.size(), saved[i - 1].losses.size()); }
    EXPECT_EQ(sofar.timeline.steps.size(), sofar.losses.size());
    if (i < 8) { EXPECT_EQ(sofar.losses.size(), i + 1); }
    const std::int64_t of_rank_1 =
        std::ranges::count(sofar.timeline.spans, 1, [](const Span& span) { return span.rank; });
    EXPECT_EQ(of_rank_1 * 2, static_cast<std::int64_t>(sofar.timeline.spans.size()));
  }
  EXPECT_GT(saved[saved.size() - 2].losses.size(), 85U);
}

TEST(RunMeasurement, GathersRarelySoThatRanksDoNotWaitForEachOther) {
  const std::vector<Measurement> saved = run(300, 0, {}, std::chrono::hours(24));
  ASSERT_EQ(saved.size(), 2U);
  EXPECT_EQ(saved.front().losses.size(), 1U);
  EXPECT_EQ(saved.back().timeline.steps.size(), 300U);
}

TEST(RunMeasurement, RefusesAnImpossibleAnswerOfRankZero) {
  const BoundPlan plan = two_replicas();
  const auto channels = channel::make_local_channels(2, milliseconds(20000));
  RunMeasurement measurement(plan, actions_of(1), 1, *channels[1], 0, [](const Measurement&) {}, milliseconds(0));
  const at::Tensor answer = at::zeros({1}, at::kLong);
  (void)channels[0]->send(answer, 1, channel::kNextResultTag);
  measurement.add(spans_of(1, 0));
  measurement.after_step(0);
  EXPECT_THAT([&] { measurement.after_step(1); },
              ThrowsMessage<meeting::PeerError>("rank 0 wants results after 0 steps"));
}

TEST(RunMeasurement, RefusesSpansInAnotherOrderThanTheListSays) {
  const BoundPlan plan = two_replicas();
  const auto channels = channel::make_local_channels(2, milliseconds(20000));
  RunMeasurement measurement(plan, actions_of(0), 0, *channels[0], 0, {});
  std::vector<Span> spans = spans_of(0, 0);
  std::swap(spans[0], spans[1]);
  EXPECT_THAT([&] { measurement.add(spans); },
              ThrowsMessage<meeting::PeerError>(
                  "the run did not follow its plan: rank 0, step 1, entry 1: measured \"0B0\", the list has \"0F0\""));
}

TEST(RunMeasurement, RefusesARunThatEndsTooEarly) {
  const BoundPlan plan = two_replicas();
  const auto channels = channel::make_local_channels(2, milliseconds(20000));
  RunMeasurement measurement(plan, actions_of(0), 0, *channels[0], 0, {});
  measurement.add(spans_of(0, 0));
  Check check;
  EXPECT_THAT([&] { (void)measurement.finish(2, {}, check); },
              ThrowsMessage<meeting::PeerError>(HasSubstr("rank 0, step 2, entry 1: measured nothing, the list has")));
}

TEST(RunMeasurement, OfARealRunDoesNotGrowWithItsSpans) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "4"}, {"width", "4"}, {"layers", "2"}}, 1);
  for (const char* schedule : {"1f1b", "pipedream"}) {
    const Plan plan = cut_plan(planned, {2}, {1, 1}, schedule, 2);
    const auto spans = [&](std::int64_t steps) {
      RunOptions options;
      options.steps = steps;
      int saves = 0;
      options.save = [&](const Measurement& sofar) {
        ++saves;
        EXPECT_FALSE(sofar.ended);
      };
      const Measurement end = run_local(plan, planned.model, *planned.data, options, milliseconds(60000)).measurement;
      EXPECT_GE(saves, 1);
      EXPECT_EQ(end.losses.size(), to_index(steps));
      EXPECT_EQ(end.timeline.steps.size(), to_index(steps));
      return end.timeline.spans.size();
    };
    const std::size_t of_32 = spans(32);
    EXPECT_EQ(of_32 % 32, 0U) << schedule;
    EXPECT_LE(spans(400), of_32 * SpanKeeper::kMost / 32) << schedule;
  }
}

}  // namespace
}  // namespace stagecraft::run

#include "costmodel/simulation/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "costmodel/bound_plan.h"
#include "costmodel/format/files/files.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/simulation/closed_forms.h"
#include "tests/costmodel/interleavings.h"
#include "tests/support/chains.h"
#include "tests/support/places.h"

namespace stagecraft {
namespace {

using stagecraft::testing::chain_graph;
using stagecraft::testing::flat_topology;
using stagecraft::testing::one_layer_a_stage;
using stagecraft::testing::row_plan;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A pipeline without replicas, from plain numbers: every hop costs `hop`, nothing is shared.
struct Numbers {
  std::string schedule;
  std::vector<double> forward;
  std::vector<double> backward;
  double weight_gradient = 0;
  int microbatches = 1;
  int chunks = 1;
  double hop = 0;
};

SimulationInput input_of(const Numbers& n, TransferMode mode = TransferMode::Latency) {
  BoundPlan plan(row_plan(n.schedule, std::vector<int>(n.forward.size(), 1), n.microbatches, n.chunks));
  auto lists = plan.action_lists();
  SimulationInput input{.plan = std::move(plan), .lists = std::move(lists), .stages = {}};
  for (std::size_t s = 0; s < n.forward.size(); ++s) {
    input.stages.push_back(
        {Seconds(n.forward[s]), Seconds(n.backward[s]), Seconds(n.weight_gradient), Seconds(0), Seconds(0)});
    input.stages.back().whole_backward = Seconds(n.backward[s] + n.weight_gradient);
  }
  input.mode = mode;
  const double hop = n.hop;
  input.transfer = [hop](int, bool, int, int) { return Transfer{Seconds(hop), Seconds(0), -1, -1}; };
  return input;
}

double time_of(const Numbers& numbers) {
  return std::get<Timeline>(simulate(input_of(numbers))).steps.front().end.value;
}

TEST(Vectors, AllScheduleTimesAreReproduced) {
  const auto vectors =
      nlohmann::json::parse(format::read_text(source_folder() + "/tests/golden/costmodel/vectors.json"));
  int cases = 0;
  for (const auto& v : vectors.at("schedules")) {
    Numbers n;
    n.schedule = v.at("schedule");
    n.microbatches = v.at("M");
    double low = 0;
    double high = 1e300;
    if (n.schedule == "gpipe" || n.schedule == "1f1b") {
      n.forward = v.at("F").get<std::vector<double>>();
      n.backward = v.at("B").get<std::vector<double>>();
      n.hop = v.at("c");
      low = v.value("LB", low);
      high = v.value("UB", high);
    } else if (n.schedule == "interleaved") {
      n.schedule = "interleaved-1f1b";
      n.chunks = v.at("v");
      const std::size_t stages = v.at("p").get<std::size_t>() * static_cast<std::size_t>(n.chunks);
      n.forward.assign(stages, v.at("F_per_device").get<double>() / n.chunks);
      n.backward.assign(stages, v.at("B_per_device").get<double>() / n.chunks);
    } else {
      n.forward.assign(v.at("p").get<std::size_t>(), v.at("F"));
      n.backward.assign(v.at("p").get<std::size_t>(), v.at("B"));
      n.weight_gradient = v.at("W");
    }
    const double expected = v.at("T");
    const double found = time_of(n);
    EXPECT_NEAR(found, expected, 1e-9 * expected) << v.dump();
    EXPECT_GE(found, low - 1e-9);
    EXPECT_LE(found, high + 1e-9);
    ++cases;
  }
  EXPECT_EQ(cases, 156);
}

TEST(Vectors, BracketCounterexamplesLieInsideTheSafeBracket) {
  const auto vectors =
      nlohmann::json::parse(format::read_text(source_folder() + "/tests/golden/costmodel/vectors.json"));
  for (const auto& v : vectors.at("bracket_counterexamples")) {
    StageTimes times;
    for (const double f : v.at("F").get<std::vector<double>>()) times.forward.emplace_back(f);
    for (const double b : v.at("B").get<std::vector<double>>()) times.backward.emplace_back(b);
    const Bracket bracket = one_forward_one_backward_bracket(times, v.at("M"));
    EXPECT_DOUBLE_EQ(bracket.low.value, v.at("LB").get<double>());
    EXPECT_DOUBLE_EQ(bracket.high.value, v.at("UB_safe").get<double>());
    const Numbers n{"1f1b", v.at("F"), v.at("B"), 0, v.at("M"), 1, 0};
    EXPECT_DOUBLE_EQ(time_of(n), v.at("T").get<double>());
  }
}

/// p devices, v stages on each, M microbatches.
struct Grid {
  int positions;
  int chunks;
  int microbatches;
};

/// Whose stages take F, I and W: the gradients of inputs and of weights. The schedules that do not split their backward
/// have backwards of I + W.
double step_of(const std::string& schedule, const Grid& grid, double f, double i, double w) {
  const bool splits = schedule_by_name(schedule).splits_backward;
  const std::size_t stages = static_cast<std::size_t>(grid.positions * grid.chunks);
  return time_of({schedule, std::vector<double>(stages, f), std::vector<double>(stages, splits ? i : i + w),
                  splits ? w : 0, grid.microbatches, grid.chunks, 0});
}

class ChunkedSchedules : public ::testing::TestWithParam<Grid> {};

INSTANTIATE_TEST_SUITE_P(Grids, ChunkedSchedules, ::testing::ValuesIn([] {
                           std::vector<Grid> out;
                           for (int p = 1; p <= 8; ++p) {
                             for (int chunks = 1; chunks <= 4; ++chunks) {
                               for (int m = 1; m <= 4 * p; ++m) out.push_back({p, chunks, m});
                             }
                           }
                           return out;
                         }()),
                         [](const auto& grid) {
                           return std::to_string(grid.param.positions) + "_" + std::to_string(grid.param.chunks) + "_" +
                                  std::to_string(grid.param.microbatches);
                         });

TEST_P(ChunkedSchedules, TakeTheTimesOfTheirClosedForms) {
  const auto [p, v, m] = GetParam();
  const Grid grid = GetParam();
  if (m % p == 0) {
    EXPECT_DOUBLE_EQ(step_of("interleaved-1f1b", grid, 3, 2, 1.5),
                     interleaved_time(Seconds(3 * v), Seconds(3.5 * v), p, v, m).value);
    EXPECT_DOUBLE_EQ(step_of("looped-bfs", grid, 3, 2, 1.5),
                     interleaved_time(Seconds(3 * v), Seconds(3.5 * v), p, v, m).value);
    const double times[][3] = {{1, 1, 1}, {3, 2, 1}, {2, 3, 1}, {1, 2, 4}, {3, 1, 2}};
    for (const auto& [f, i, w] : times) {
      EXPECT_DOUBLE_EQ(step_of("interleaved-zb", grid, f, i, w),
                       interleaved_zero_bubble_time(Seconds(f * v), Seconds(i * v), Seconds(w * v), p, v, m).value)
          << f << " " << i << " " << w;
    }
  }
  if (v != 2) return;
  if (m >= 2 * p - 1) { EXPECT_DOUBLE_EQ(step_of("zb-v", grid, 2, 2, 2), zero_bubble_v_time(Seconds(4), p, m).value); }
  if (m >= p && p % 2 == 0) { EXPECT_DOUBLE_EQ(step_of("v-half", grid, 2, 2, 2), v_half_time(Seconds(4), p, m).value); }
  if (m >= 2 * p) {
    for (const double w : {0.0, 0.5, 2.0, 3.0})
      EXPECT_DOUBLE_EQ(step_of("dualpipev", grid, 3, 3, w),
                       dualpipev_time(Seconds(6), Seconds(6), Seconds(2 * w), p, m).value)
          << w;
  }
}

// Zero-bubble README: 2/3 of the idle time of 1f1b, which is 6 (p - 1), in the limit of many devices.
TEST(VMin, IdlesAsLongAsItsPatternSays) {
  for (const auto& [p, idle] : {std::pair{4, 11.0}, {8, 27.0}, {12, 45.0}, {16, 59.0}}) {
    for (const int m : {p, 2 * p, 3 * p + 1}) EXPECT_DOUBLE_EQ(step_of("v-min", {p, 2, m}, 1, 1, 1), 6 * m + idle) << p;
  }
}

// By the time from its first action to its last, no rank of zb-v waits.
TEST(ZbV, RunsOnWithoutAGap) {
  for (const int p : {2, 3, 5}) {
    const int m = 3 * p;
    const std::vector<double> equal(static_cast<std::size_t>(2 * p), 1);
    const auto timeline = std::get<Timeline>(simulate(input_of({"zb-v", equal, equal, 1, m, 2, 0})));
    std::vector<double> first(static_cast<std::size_t>(p), 1e9);
    std::vector<double> last(static_cast<std::size_t>(p), 0);
    for (const Span& span : timeline.spans) {
      if (!is_compute(span.action.kind)) continue;
      const std::size_t rank = static_cast<std::size_t>(span.rank);
      first[rank] = std::min(first[rank], span.start.value);
      last[rank] = std::max(last[rank], span.end.value);
    }
    for (std::size_t rank = 0; rank < first.size(); ++rank) EXPECT_DOUBLE_EQ(last[rank] - first[rank], 6 * m) << rank;
  }
}

TEST(Simulate, EqualsTheClosedFormsForEqualStages) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 12; ++m) {
      const std::size_t n = static_cast<std::size_t>(p);
      const Numbers gpipe{"gpipe", std::vector<double>(n, 3), std::vector<double>(n, 5), 0, m, 1, 0};
      EXPECT_DOUBLE_EQ(
          time_of(gpipe),
          gpipe_time({std::vector<Seconds>(n, Seconds(3)), std::vector<Seconds>(n, Seconds(5))}, m, Seconds(0)).value);
      const Numbers onef{"1f1b", std::vector<double>(n, 3), std::vector<double>(n, 5), 0, m, 1, 0};
      EXPECT_DOUBLE_EQ(time_of(onef), (m + p - 1) * 8.0);
      if (m % p == 0 && p >= 2) {
        Numbers hops = onef;
        hops.hop = 0.25;
        EXPECT_DOUBLE_EQ(time_of(hops),
                         one_forward_one_backward_time(Seconds(3), Seconds(5), p, m, Seconds(0.25)).value);
        if (p * m <= 36) {
          Numbers zero{"zb-h1", std::vector<double>(n, 3), std::vector<double>(n, 3), 2, m, 1, 0};
          EXPECT_DOUBLE_EQ(time_of(zero), zero_bubble_h1_time(Seconds(3), Seconds(3), Seconds(2), p, m).value);
        }
        Numbers chunks{
            "interleaved-1f1b", std::vector<double>(2 * n, 1.5), std::vector<double>(2 * n, 2.5), 0, m, 2, 0};
        EXPECT_DOUBLE_EQ(time_of(chunks), interleaved_time(Seconds(3), Seconds(5), p, 2, m).value);
      }
    }
  }
}

TEST(Simulate, LiesInTheBracketForRandomStages) {
  const unsigned seed = 7;
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> time(0.1, 5);
  for (int i = 0; i < 500; ++i) {
    const std::size_t p = 1 + random() % 6;
    Numbers n{"1f1b", {}, {}, 0, static_cast<int>(1 + random() % 12), 1, 0};
    StageTimes times;
    for (std::size_t s = 0; s < p; ++s) {
      n.forward.push_back(time(random));
      n.backward.push_back(time(random));
      times.forward.emplace_back(n.forward.back());
      times.backward.emplace_back(n.backward.back());
    }
    const Bracket bracket = one_forward_one_backward_bracket(times, n.microbatches);
    const double found = time_of(n);
    EXPECT_GE(found, bracket.low.value * (1 - 1e-12)) << "seed " << seed << " case " << i;
    EXPECT_LE(found, bracket.high.value * (1 + 1e-12)) << "seed " << seed << " case " << i;
  }
}

TEST(Simulate, IsTheSameUnderRendezvousWhenMessagesAreFree) {
  for (const char* schedule : {"gpipe", "1f1b"}) {
    const Numbers n{schedule, {1, 4, 2, 3}, {2, 8, 4, 6}, 0, 6, 1, 0};
    const auto timeline = std::get<Timeline>(simulate(input_of(n, TransferMode::Rendezvous)));
    EXPECT_DOUBLE_EQ(timeline.steps.front().end.value, time_of(n));
  }
}

TEST(Simulate, NamesTheRanksThatWaitForEachOther) {
  SimulationInput input = input_of({"1f1b", {1, 1}, {1, 1}, 0, 2, 1, 0});
  // Rank 0 waits for the gradient of microbatch 0 before it has sent the activation.
  auto& list = input.lists[0];
  list = {{ActionKind::ReceiveGradient, 0, 0, 1}, {ActionKind::Backward, 0, 0, -1}, {ActionKind::Forward, 0, 0, -1}};
  const auto result = simulate(input);
  ASSERT_TRUE(std::holds_alternative<Infeasible>(result));
  EXPECT_THAT(std::get<Infeasible>(result).reason,
              HasSubstr("rank 0 (stage 0) is blocked at backward of microbatch 0"));
  EXPECT_THAT(std::get<Infeasible>(result).reason, HasSubstr("rank 1 (stage 1) is blocked at forward of microbatch 0"));
}

TEST(Simulate, RefusesEndsThatDisagreeOnOrder) {
  SimulationInput input = input_of({"gpipe", {1, 1}, {1, 1}, 0, 2, 1, 0}, TransferMode::Rendezvous);
  for (Action& a : input.lists[1]) {
    if (a.kind == ActionKind::ReceiveActivation) a.microbatch = 1 - a.microbatch;
  }
  EXPECT_THAT(
      [&] { (void)simulate(input); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("rank 0 sends microbatch 0 where rank 1 receives microbatch 1")));
}

TEST(Simulate, TwoFlowsShareAPortEqually) {
  // Stage 0 feeds stages 1 and 2 through one port, 1 s for each transfer alone: both arrive after 2 s.
  Numbers n{"gpipe", {1, 1, 1}, {1, 1, 1}, 0, 1, 1, 0};
  SimulationInput input = input_of(n, TransferMode::Rendezvous);
  Plan fan = row_plan("gpipe", {1, 1, 1}, 1);
  const BoundaryTensor mask{"l0", 0, Bytes(1), {}, "", false};
  fan.boundaries = {{0, 1, {mask}}, {0, 2, {mask}}};
  input.plan = BoundPlan(fan);
  input.lists = {
      {{ActionKind::Forward, 0, 0, -1}, {ActionKind::SendActivation, 0, 0, 1}, {ActionKind::SendActivation, 0, 0, 2}},
      {{ActionKind::ReceiveActivation, 1, 0, 0}, {ActionKind::Forward, 1, 0, -1}},
      {{ActionKind::ReceiveActivation, 2, 0, 0}, {ActionKind::Forward, 2, 0, -1}}};
  input.ports = 1;
  input.transfer = [](int, bool, int, int) { return Transfer{Seconds(0), Seconds(1), 0, -1}; };
  EXPECT_DOUBLE_EQ(std::get<Timeline>(simulate(input)).steps.front().end.value, 1 + 2 + 1);
  input.transfer = [](int, bool, int, int) { return Transfer{Seconds(0), Seconds(1), -1, -1}; };
  EXPECT_DOUBLE_EQ(std::get<Timeline>(simulate(input)).steps.front().end.value, 1 + 1 + 1);
}

TEST(Simulate, RanksOfOneHostSlowEachOtherDown) {
  // Two ranks compute 4 s each on a host where two at a time take twice as long: 8 s; on separate hosts 4 s.
  const StageCost cost{{}, {}, {}, {}, Seconds(4)};
  SimulationInput input{.plan = BoundPlan(row_plan("gpipe", {1, 1}, 1)),
                        .lists = {{{ActionKind::Update, 0, -1, -1}}, {{ActionKind::Update, 1, -1, -1}}},
                        .stages = {cost, cost}};
  EXPECT_DOUBLE_EQ(std::get<Timeline>(simulate(input)).steps.front().end.value, 4);
  input.hosts.of_rank = {0, 0};
  input.hosts.slowdown = {1, 2};
  EXPECT_DOUBLE_EQ(std::get<Timeline>(simulate(input)).steps.front().end.value, 8);
  // 1 s and 4 s: the short one ends at 2 s, when the long one is a quarter done and needs 3 s more by itself.
  input.stages[0].update = Seconds(1);
  EXPECT_DOUBLE_EQ(std::get<Timeline>(simulate(input)).steps.front().end.value, 5);
}

TEST(Simulate, ReplicasWaitForEachOtherInReduce) {
  // Replica 0 runs microbatches 0 and 2, replica 1 microbatch 1: reduce starts at 2 (1 + 2).
  const Graph graph = chain_graph({1}, {2}, Bytes(0), Bytes(500'000'000));
  const Topology topology = flat_topology(2, 1e9);
  const Plan plan = one_layer_a_stage(graph, topology, {2}, "1f1b", 3);
  const auto prediction = std::get<Prediction>(predict(graph, topology, BoundPlan(plan)));
  // A ring of 2 takes 2 steps, each half the bytes at 1e9 bytes/s: 0.5 s.
  EXPECT_DOUBLE_EQ(prediction.iteration.value, 2 * 3 + 0.5);
}

TEST(Simulate, BucketsAreReducedDuringTheLastBackward) {
  // A backward of 8 s ends at 10 on both replicas. The first bucket is ready at 4 and takes 3: until 7. The second is
  // ready at 6, waits for the first, and takes 2: until 9. The third is ready at the end and takes 1.
  const std::vector<Action> list{
      {ActionKind::Forward, 0, 0, -1}, {ActionKind::Backward, 0, 0, -1}, {ActionKind::Reduce, 0, -1, -1}};
  SimulationInput input{.plan = BoundPlan(row_plan("gpipe", {2}, 2)), .lists = {list, list}, .stages = {}};
  input.lists[1][0].microbatch = input.lists[1][1].microbatch = 1;
  StageCost cost{Seconds(2), Seconds(8), {}, {}, {}};
  cost.buckets = {{Seconds(3), Seconds(6)}, {Seconds(2), Seconds(4)}, {Seconds(1), Seconds(0)}};
  input.stages = {cost};
  const auto end = [&] { return std::get<Timeline>(simulate(input)).steps.front().end.value; };
  EXPECT_DOUBLE_EQ(end(), 11);
  // A slower second bucket delays the third: 7 + 5 + 1.
  input.stages[0].buckets[1].time = Seconds(5);
  EXPECT_DOUBLE_EQ(end(), 13);
  // Parameters that several stages share are reduced after all buckets.
  input.stages[0].reduce = Seconds(0.5);
  EXPECT_DOUBLE_EQ(end(), 13.5);
}

TEST(Predict, ReducesInBucketsThatThePlanSays) {
  // Three layers of backward 1, 2 and 4 s and 5e8, 1e9 and 1e9 bytes on two replicas; a ring of 2 moves the bytes once:
  // 0.5, 1 and 1 s. In one piece: 2.5 s after the backward of 7 s. In three: the last layer's gradients are ready 3 s
  // before the end, the middle one's 1 s before: both are reduced by the end, and 0.5 s is left.
  const Graph graph = chain_graph({1, 1, 1}, {1, 2, 4}, Bytes(0), Bytes(0));
  Graph heavy = graph;
  heavy.layers[0].parameter_bytes = Bytes(500'000'000);
  heavy.layers[1].parameter_bytes = heavy.layers[2].parameter_bytes = Bytes(1'000'000'000);
  const Topology topology = flat_topology(2, 1e9);
  Plan plan = make_plan(heavy, topology, {.stage_of_layer = {0, 0, 0}, .replicas = {2}}, {.microbatches = 2});
  const auto iteration = [&] {
    return std::get<Prediction>(predict(heavy, topology, BoundPlan(plan))).iteration.value;
  };
  EXPECT_DOUBLE_EQ(iteration(), 3 + 7 + 2.5);
  plan.gradient_bucket_bytes = Bytes(1);
  EXPECT_DOUBLE_EQ(iteration(), 3 + 7 + 0.5);
  // Two buckets: that of the last two layers is ready 1 s before the end and takes 2 s; 0.5 s follow.
  plan.gradient_bucket_bytes = Bytes(1'000'000'001);
  EXPECT_DOUBLE_EQ(iteration(), 3 + 7 + 1 + 0.5);
}

}  // namespace
}  // namespace stagecraft

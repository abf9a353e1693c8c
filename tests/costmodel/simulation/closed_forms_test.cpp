#include "costmodel/simulation/closed_forms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "costmodel/format/files/files.h"
#include "costmodel/prediction/step_replay.h"
#include "costmodel/simulation/simulate.h"
#include "tests/costmodel/interleavings.h"
#include "tests/support/chains.h"
#include "tests/support/places.h"
#include "tests/support/table_names.h"

// simulate_test compares the schedules' forms with event simulation.

namespace stagecraft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::row_plan;

/// Random stages with whole seconds, whose sums are exact.
StageTimes random_stages(std::mt19937& random) {
  StageTimes out;
  for (auto n = 1 + random() % 6; n > 0; --n) {
    out.forward.emplace_back(static_cast<double>(1 + random() % 9));
    out.backward.emplace_back(static_cast<double>(1 + random() % 9));
  }
  return out;
}

// The last stage ends its forwards at 1 + 0.5 + 2 * 2 = 5.5 and its backwards of 4 s at 9.5 and 13.5; the last gradient
// reaches stage 0 at 14, where the last backward of 3 s ends at 17.
TEST(GpipeTime, AddsTheSlowestStageForEachFurtherMicrobatch) {
  EXPECT_EQ(gpipe_time({{1_s, 2_s}, {3_s, 4_s}}, 2, 0.5_s), 17_s);
  EXPECT_EQ(gpipe_time({{2_s}, {3_s}}, 4, 9_s), 20_s);  // one stage has no hops
}

/// When the last of `microbatches` leaves the last station; each station serves one at a time.
double flow_shop(const std::vector<Seconds>& stations, int microbatches, double hop) {
  std::vector<double> arrived(static_cast<std::size_t>(microbatches), 0);
  for (std::size_t s = 0; s < stations.size(); ++s) {
    double free = 0;
    for (double& at : arrived) {
      free = std::max(free, at + (s > 0 ? hop : 0)) + stations[s].value;
      at = free;
    }
  }
  return arrived.back();
}

TEST(GpipeTime, IsThatOfTwoFlowShops) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const StageTimes stages = random_stages(random);
    const int microbatches = 1 + static_cast<int>(random() % 9);
    const double hop = 0.25 * static_cast<double>(random() % 5);
    std::vector<Seconds> back(stages.backward.rbegin(), stages.backward.rend());
    EXPECT_DOUBLE_EQ(gpipe_time(stages, microbatches, Seconds(hop)).value,
                     flow_shop(stages.forward, microbatches, hop) + flow_shop(back, microbatches, hop))
        << "seed " << seed;
  }
}

//   stage 0  F0 0-1   F1 1-2                   B0 4.5-6.5           B1 7.5-9.5
//   stage 1     F0 1.25-2.25  B0 2.25-4.25  F1 4.25-5.25  B1 5.25-7.25
TEST(OneForwardOneBackwardTime, WaitsForHopsThereAndBack) {
  EXPECT_EQ(one_forward_one_backward_time(1_s, 2_s, 2, 2, 0.25_s), 9.5_s);
  EXPECT_EQ(one_forward_one_backward_time(1_s, 2_s, 2, 2, 0_s), 9_s);
  EXPECT_EQ(one_forward_one_backward_time(1_s, 2_s, 1, 4, 0.25_s), 12_s);  // one stage has no hops
}

// With one chunk per device, two microbatches fill two devices like 1F1B; two chunks halve the idle time.
TEST(InterleavedTime, DividesTheIdleTimeByTheChunks) {
  EXPECT_EQ(interleaved_time(1_s, 2_s, 2, 1, 2), one_forward_one_backward_time(1_s, 2_s, 2, 2, 0_s));
  EXPECT_EQ(interleaved_time(1_s, 2_s, 2, 2, 2), 7.5_s);
  EXPECT_EQ(interleaved_time(1_s, 2_s, 4, 3, 8), 27_s);  // 8 * 3 + 3 * 3 / 3
}

// Two stages, two microbatches, all parts 1 s:
//   stage 0  F0 F1 .  B0 W0 B1 W1
//   stage 1  .  F0 B0 F1 B1 W0 W1
TEST(ZeroBubbleTime, FillsTheIdleTimeWithWeightGradients) {
  EXPECT_EQ(zero_bubble_h1_time(1_s, 1_s, 1_s, 2, 2), 7_s);
  EXPECT_EQ(zero_bubble_h1_time(3_s, 3_s, 2_s, 4, 8), 76_s);  // 8 * 8 + 3 * (3 + 3 - 2)
}

TEST(ClosedForms, AreTheComputeAloneOnOneStage) {
  for (int m = 1; m <= 5; ++m) {
    const Seconds compute = 8.0 * m * 1_s;
    EXPECT_EQ(gpipe_time({{3_s}, {5_s}}, m, 1_s), compute);
    EXPECT_EQ(one_forward_one_backward_time(3_s, 5_s, 1, m, 1_s), compute);
    EXPECT_EQ(interleaved_time(3_s, 5_s, 1, 2, m), compute);
    EXPECT_EQ(zero_bubble_h1_time(3_s, 3_s, 2_s, 1, m), compute);
    EXPECT_EQ(one_forward_one_backward_bracket({{3_s}, {5_s}}, m).low, compute);
    EXPECT_EQ(one_forward_one_backward_bracket({{3_s}, {5_s}}, m).high, compute);
  }
}

// Stages of 1 + 2 s and 4 + 1 s, three microbatches: low = max(3 * 3, 3 * 5 + 3), high = 3 + 5 + 2 (4 + 2).
TEST(OneForwardOneBackwardBracket, CountsTheSlowestStageAndAllBefore) {
  const Bracket bracket = one_forward_one_backward_bracket({{1_s, 4_s}, {2_s, 1_s}}, 3);
  EXPECT_EQ(bracket.low, 18_s);
  EXPECT_EQ(bracket.high, 20_s);
}

TEST(OneForwardOneBackwardBracket, ClosesOnEqualStagesAndOneMicrobatch) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const StageTimes stages = random_stages(random);
    const Bracket one = one_forward_one_backward_bracket(stages, 1);
    Seconds all;
    for (std::size_t s = 0; s < stages.forward.size(); ++s) all += stages.forward[s] + stages.backward[s];
    EXPECT_EQ(one.low, all) << "seed " << seed;
    EXPECT_EQ(one.high, all) << "seed " << seed;
    const int microbatches = 1 + static_cast<int>(random() % 9);
    const Bracket any = one_forward_one_backward_bracket(stages, microbatches);
    EXPECT_LE(any.low, any.high) << "seed " << seed;
    const int p = static_cast<int>(stages.forward.size());
    StageTimes equal = stages;
    std::ranges::fill(equal.forward, 3_s);
    std::ranges::fill(equal.backward, 5_s);
    EXPECT_EQ(one_forward_one_backward_bracket(equal, microbatches).low,
              one_forward_one_backward_time(3_s, 5_s, p, microbatches, 0_s));
  }
}

TEST(TransformerBytes, FollowTheFormulasByHand) {
  TransformerShape shape;
  shape.hidden = 2;
  shape.heads = 1;
  shape.layers = 1;
  shape.sequence = 3;
  shape.microbatch_samples = 1;
  EXPECT_EQ(transformer_static_bytes(shape), 864_B);                // 18 * 12 * 2 * 2
  EXPECT_EQ(transformer_activation_bytes(shape), 249_B);            // 6 (10 + 24 + 5 * 1 * 3 / 2)
  EXPECT_EQ(transformer_selective_activation_bytes(shape), 204_B);  // 6 * 34
  shape.tensor_parallel = 2;
  EXPECT_EQ(transformer_static_bytes(shape), 432_B);
  EXPECT_EQ(transformer_activation_bytes(shape), 154_B);  // 6 (10 + 12 + 3.75) = 154.5
  EXPECT_EQ(transformer_selective_activation_bytes(shape), 102_B);
}

TEST(TransformerBytes, GrowByTheChunksOfTheFirstStage) {
  TransformerShape shape{2, 1, 1, 3, 1, 1, 2, 1};
  EXPECT_EQ(transformer_static_bytes(shape), 432_B);                // the layer split over two stages
  EXPECT_EQ(transformer_selective_activation_bytes(shape), 204_B);  // p / p of the microbatches in flight
  shape.chunks = 2;
  EXPECT_EQ(transformer_selective_activation_bytes(shape), 255_B);  // 204 (1 + 1 / 4)
}

TEST(WeightVersions, AreAsManyRoundsAsThePipelineHoldsMicrobatches) {
  EXPECT_THAT(weight_versions({1, 1, 1, 1}), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(weight_versions({2, 1}), ElementsAre(2, 1));  // 3 replicas in rounds of 2
  EXPECT_THAT(weight_versions({1, 3, 2}), ElementsAre(6, 2, 1));
  EXPECT_THAT(weight_versions({}), IsEmpty());
}

TEST(Vectors, TransformerMemoryFormulasGiveThePublishedValues) {
  const auto vectors =
      nlohmann::json::parse(format::read_text(source_folder() + "/tests/golden/costmodel/vectors.json"));
  for (const auto& v : vectors.at("memory_korthikanti_GiB")) {
    const TransformerShape shape{v.at("h"), v.at("a"), v.at("L"), v.at("q"),
                                 v.at("b"), v.at("t"), v.at("p"), v.at("v")};
    EXPECT_NEAR(transformer_static_bytes(shape) / 1_GiB, v.at("param_opt_GiB").get<double>(), 0.0051);
    EXPECT_NEAR(transformer_activation_bytes(shape) / 1_GiB, v.at("act_tp_GiB").get<double>(), 0.0051);
    EXPECT_NEAR(transformer_selective_activation_bytes(shape) / 1_GiB, v.at("act_sp_sel_GiB").get<double>(), 0.0051);
  }
  for (const auto& v : vectors.at("pipedream_versions")) {
    EXPECT_EQ(weight_versions(v.at("replicas")), v.at("versions").get<std::vector<int>>());
  }
}

/// Costs of the stages of a plan, messages of `hop` in either direction, and the plan's own lists.
SimulationInput input_of(const Plan& plan, const std::vector<std::pair<double, double>>& stages, double hop,
                         TransferMode mode) {
  BoundPlan bound(plan);
  const int steps = bound.step_window().steps;
  auto lists = bound.action_lists(steps);
  SimulationInput out{.plan = std::move(bound), .lists = std::move(lists), .stages = {}, .steps = steps, .mode = mode};
  for (const auto& [forward, backward] : stages)
    out.stages.push_back({Seconds(forward), Seconds(backward), Seconds(0), Seconds(0), Seconds(0)});
  out.transfer = [hop](int, bool, int, int) { return Transfer{Seconds(0), Seconds(hop), -1, -1}; };
  return out;
}

/// What the bounds are bounds of.
Seconds step_of(const SimulationInput& input) {
  const Timeline timeline = std::get<Timeline>(simulate(input));
  if (!input.plan.asynchronous()) return timeline.steps.front().end;
  const StepWindow window = input.plan.step_window();
  return (timeline.steps[to_index(window.last)].end - timeline.steps[to_index(window.first)].end) /
         static_cast<double>(window.last - window.first);
}

// Stages of 1 + 2 s and 4 + 1 s, three microbatches. Low: three microbatches of 5 s on stage 1, after a forward of 1 s
// and before a backward of 2 s. High: a period of 5 s; stage 0's backward begins one period and a forward after its
// forward, 6 s, so the last one begins at 6 + 2 * 5 s and takes 2 s.
TEST(StepBracket, ClosesOnAStageThatIsAlwaysBusy) {
  const SimulationInput input = input_of(row_plan("1f1b", {1, 1}, 3), {{1, 2}, {4, 1}}, 0, TransferMode::Latency);
  EXPECT_EQ(step_bracket(input)->low, 18_s);
  EXPECT_EQ(step_bracket(input)->high, 18_s);
  EXPECT_EQ(step_of(input), 18_s);
}

// Stage 0 has two replicas of 2 + 4 s, stage 1 one of 1 + 2 s: both can do a microbatch in 3 s. Warm-ups are 1 and 0.
// Low: stage 1's four microbatches of 3 s between a forward and a backward of stage 0: 2 + 12 + 4. High: a period of 3
// s; a replica's backward begins two periods and a forward after its forward: 8 + 3 * 3 + 4.
//   stage 0, replica 0  F0 0-2  F2 2-4          B0 5-9   B2 11-15
//            replica 1  F1 0-2  F3 2-4          B1 8-12  B3 14-18
//   stage 1  F0 2-3  B0 3-5  F1 5-6  B1 6-8  F2 8-9  B2 9-11  F3 11-12  B3 12-14
TEST(StepBracket, CountsReplicas) {
  const SimulationInput input = input_of(row_plan("1f1b", {2, 1}, 4), {{2, 4}, {1, 2}}, 0, TransferMode::Latency);
  EXPECT_EQ(step_of(input), 18_s);
  EXPECT_EQ(step_bracket(input)->low, 18_s);
  EXPECT_EQ(step_bracket(input)->high, 21_s);
}

// Two stages of 1 + 2 s, two microbatches, messages of 0.25 s that do not occupy links (9.5 s, see
// closed_forms_test). Low: 1 + 0.25 s before stage 1's 6 s, and 0.25 + 2 s after. High: a period of 3 s, and a backward
// of stage 0 that begins 1 + 0.25 + 1 + 2 + 0.25 s after its forward: 4.5 + 3 + 2.
TEST(StepBracket, CountsMessages) {
  const SimulationInput input = input_of(row_plan("1f1b", {1, 1}, 2), {{1, 2}, {1, 2}}, 0.25, TransferMode::Latency);
  EXPECT_EQ(step_of(input), 9.5_s);
  EXPECT_EQ(step_bracket(input)->low, 9.5_s);
  EXPECT_EQ(step_bracket(input)->high, 9.5_s);
}

TEST(StepBracket, IsTheClosedFormOfGpipe) {
  const std::vector<std::pair<double, double>> stages{{1, 3}, {4, 1}, {2, 2}};
  const SimulationInput input = input_of(row_plan("gpipe", {1, 1, 1}, 5), stages, 0.5, TransferMode::Latency);
  const Seconds exact = gpipe_time({{1_s, 4_s, 2_s}, {3_s, 1_s, 2_s}}, 5, 0.5_s);
  EXPECT_DOUBLE_EQ(step_bracket(input)->low.value, exact.value);
  EXPECT_DOUBLE_EQ(step_bracket(input)->high.value, exact.value);
}

TEST(StepBracket, ClosesOnEqualStages) {
  for (int p = 1; p <= 5; ++p) {
    for (int m = 1; m <= 8; ++m) {
      const std::vector<int> ones(static_cast<std::size_t>(p), 1);
      const std::vector<std::pair<double, double>> stages(static_cast<std::size_t>(p), {3, 5});
      const Bracket bracket = *step_bracket(input_of(row_plan("1f1b", ones, m), stages, 0, TransferMode::Latency));
      EXPECT_EQ(bracket.low, (m + p - 1) * 8_s) << p << " " << m;
      EXPECT_EQ(bracket.high, (m + p - 1) * 8_s) << p << " " << m;
    }
  }
}

TEST(StepBracket, IsAbsentWhereNoneIsKnown) {
  SimulationInput input = input_of(row_plan("1f1b", {1, 1}, 2), {{1, 2}, {1, 2}}, 0.25, TransferMode::Rendezvous);
  EXPECT_TRUE(step_bracket(input));
  input.hosts.of_rank = {0, 0};
  EXPECT_FALSE(step_bracket(input)) << "ranks share a host";
  input.hosts.of_rank = {};
  input.transfer = [](int, bool, int, int) {
    return Transfer{.latency = 1_s, .transmission = 0_s, .sender = {1_s, 0_s}, .receiver = {}};
  };
  EXPECT_FALSE(step_bracket(input)) << "messages take processor time";
  EXPECT_TRUE(step_bracket(input_of(row_plan("pipedream", {1, 1}, 2), {{1, 2}, {1, 2}}, 0, TransferMode::Latency)));
  EXPECT_FALSE(step_bracket(input_of(row_plan("pipedream", {2, 1}, 2), {{1, 2}, {1, 2}}, 0, TransferMode::Latency)))
      << "replicas of an asynchronous schedule";
}

/// Random plans, costs and messages.
class RandomStep {
 public:
  explicit RandomStep(unsigned seed) : random_(seed) {}

  SimulationInput of_schedule(const std::string& name) {
    Plan plan = plan_of(name == "listed" ? listable() : name);
    if (name == "listed") plan = listed(plan);
    BoundPlan bound(plan);
    const int steps = bound.step_window().steps;
    auto lists = bound.action_lists(steps, 2 + below(2));
    SimulationInput out{.plan = std::move(bound), .lists = std::move(lists), .stages = {}, .steps = steps};
    out.mode = below(3) == 0 ? TransferMode::Latency : TransferMode::Rendezvous;
    add_costs(out);
    add_messages(out);
    return out;
  }

 private:
  int below(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }
  /// A time between 0.01 and 10 s, any power of ten as likely as another; now and then 0 or one that others have too.
  Seconds time() {
    const int kind = below(8);
    if (kind == 0) return Seconds(0);
    if (kind <= 2) return Seconds(1 + below(2));
    return Seconds(std::pow(10, std::uniform_real_distribution<double>(-2, 1)(random_)));
  }
  std::string listable() {
    const std::vector<std::string> names{"gpipe", "1f1b", "zb-h1"};
    return names[static_cast<std::size_t>(below(3))];
  }
  Plan plan_of(const std::string& name) {
    const ScheduleEntry& schedule = schedule_by_name(name);
    const bool asynchronous = schedule.weights != Weights::Flushed;
    const int least = least_chunks(schedule);
    const int chunks = least > 1 ? least : schedule.chunked ? 1 + below(3) : 1;
    const int positions = 1 + below(asynchronous ? 4 : 5);
    std::vector<int> replicas(static_cast<std::size_t>(positions * chunks), 1);
    if (!asynchronous) {
      const int kind = below(schedule.equal_replicas || chunks > 1 ? 2 : 3);
      const int equal = 1 + below(3);
      for (int& count : replicas) count = kind == 0 ? 1 : kind == 1 ? equal : 1 + below(4);
    }
    int microbatches = 1 + below(12);
    if (chunks > 1) microbatches = positions * replicas.front() * (1 + below(3));
    if (name == "dualpipev") microbatches += positions * replicas.front();
    if (asynchronous) microbatches = positions + below(4);
    Plan plan = row_plan(name, replicas, microbatches, chunks);
    if (below(4) == 0) plan.warmups = warmup_counts(replicas, below(4));
    if (name == "pipedream-2bw") plan.microbatches = std::max(plan.microbatches, plan.warmups.front() + 1);
    // Now and then a stage reads the one before the last, too.
    if (plan.stages.size() > 2 && below(3) == 0) {
      const int from = below(static_cast<int>(plan.stages.size()) - 2);
      plan.boundaries.push_back(
          {from, from + 2, {{"l" + std::to_string(from), 0, Bytes(8), {}, "float32", below(2) == 0}}});
    }
    return plan;
  }
  /// The same plan with its computations as lists by hand.
  static Plan listed(Plan plan) {
    const BoundPlan bound(plan);
    const PipelineShape shape = bound.shape();
    for (int position = 0; position < bound.positions(); ++position) {
      for (int replica = 0; replica < bound.replicas(position); ++replica)
        plan.listed.push_back(bound.schedule().compute_actions(shape, position, replica));
    }
    plan.schedule = "listed";
    return plan;
  }
  void add_costs(SimulationInput& input) {
    const bool equal = below(4) == 0;
    for (int s = 0; s < input.plan.stages(); ++s) {
      StageCost cost{time(), time(), time(), time(), time()};
      if (below(3) == 0) cost.tied = time();
      if (input.plan.schedule().mixes_backwards && below(2) == 0) cost.whole_backward = time();
      for (int bucket = below(3); bucket > 0; --bucket) cost.buckets.push_back({time(), time()});
      input.stages.push_back(equal && s > 0 ? input.stages.front() : cost);
    }
  }
  void add_messages(SimulationInput& input) {
    const int ports = below(3);  // none; two of each rank; one for all
    const double scale = below(3) == 0 ? 0 : std::pow(10, -below(3));
    input.ports = ports == 1 ? 2 * static_cast<int>(input.plan.ranks().size()) : ports == 2 ? 1 : 0;
    std::map<std::tuple<int, bool, int, int>, Transfer> costs;
    for (int b = 0; b < static_cast<int>(input.plan.plan().boundaries.size()); ++b) {
      for (const bool gradient : {false, true}) {
        for (int from = 0; from < static_cast<int>(input.plan.ranks().size()); ++from) {
          for (int to = 0; to < static_cast<int>(input.plan.ranks().size()); ++to) {
            Transfer cost{time() * scale, time() * scale, -1, -1};
            if (ports == 1) cost.egress = 2 * from, cost.ingress = 2 * to + 1;
            if (ports == 2) cost.egress = 0;
            costs[{b, gradient, from, to}] = cost;
          }
        }
      }
    }
    input.transfer = [costs](int b, bool gradient, int from, int to) { return costs.at({b, gradient, from, to}); };
  }

  std::mt19937 random_;
};

// Of sums of positive times, rounded to 53 bits one by one.
constexpr double kRounding = 1e-12;

class EveryStepBracket : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryStepBracket, HoldsTheStep) {
  for (unsigned seed = 1; seed <= 2000; ++seed) {
    const SimulationInput input = RandomStep(seed).of_schedule(GetParam());
    const std::optional<Bracket> bracket = step_bracket(input);
    ASSERT_TRUE(bracket) << "seed " << seed;
    const Seconds step = step_of(input);
    EXPECT_GE(step.value, bracket->low.value * (1 - kRounding)) << "seed " << seed;
    EXPECT_LE(step.value, bracket->high.value * (1 + kRounding)) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, EveryStepBracket, ::testing::ValuesIn(testing::names_of(schedules())),
                         testing::AfterEntry());

// Of graphs on clusters of two levels, with ports that all devices of a server share.
TEST(StepBracket, HoldsThePredictedStep) {
  for (unsigned seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto below = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
    std::vector<double> forward;
    std::vector<double> backward;
    std::vector<int> replicas;
    const std::vector<std::string> names{"gpipe", "1f1b", "zb-h1", "pipedream"};
    const std::string& name = names[static_cast<std::size_t>(below(4))];
    for (int left = 2 + below(3); left > 0; --left) {
      forward.push_back(0.5 + below(8));
      backward.push_back(0.5 + below(8));
      replicas.push_back(name == "gpipe" || name == "1f1b" ? 1 + below(3) : 1);
    }
    const Graph graph = testing::chain_graph(forward, backward, Bytes(1 + below(1000)), Bytes(below(1000)));
    Topology topology = testing::flat_topology(4, 100 + below(1000), 0.01 * below(3));
    topology.levels.push_back({"rack", 4, {BytesPerSecond(50 + below(500)), Seconds(0.1 * below(2)), {}, {}}});
    const Plan plan = testing::one_layer_a_stage(graph, topology, replicas, name, 4 + below(8));
    const SimulationInput input = simulation_input(graph, topology, BoundPlan(plan));
    const Bracket bracket = *step_bracket(input);
    const Seconds step = step_of(input);
    EXPECT_GE(step.value, bracket.low.value * (1 - kRounding)) << name;
    EXPECT_LE(step.value, bracket.high.value * (1 + kRounding)) << name;
  }
}

}  // namespace
}  // namespace stagecraft

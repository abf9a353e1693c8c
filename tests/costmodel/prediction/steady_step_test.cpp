#include "costmodel/prediction/steady_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "costmodel/index.h"
#include "costmodel/simulation/simulate.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using stagecraft::testing::chain_graph;
using stagecraft::testing::flat_topology;
using stagecraft::testing::one_layer_a_stage;

/// Rank 0 works from 0 to 6 s; rank 1 waits for 2 s, then works until 7 s.
Timeline two_ranks() {
  Timeline out;
  out.ranks = 2;
  out.stage_of_rank = {0, 1};
  out.steps = {{0, Seconds(0), Seconds(7)}};
  const auto add = [&](int rank, ActionKind kind, double start, double end) {
    out.spans.push_back({rank, 0, {kind, rank, 0, -1}, Seconds(start), Seconds(end)});
  };
  add(0, ActionKind::Forward, 0, 2);
  add(0, ActionKind::ReceiveGradient, 2, 4);
  add(0, ActionKind::Backward, 4, 6);
  add(1, ActionKind::ReceiveActivation, 0, 2);
  add(1, ActionKind::Forward, 2, 3);
  add(1, ActionKind::Backward, 3, 4);
  add(1, ActionKind::WeightGradient, 4, 7);
  return out;
}

TEST(SteadyStep, LetsRanksBeginTheNextStepWhileOthersEndThisOne) {
  Prediction prediction;
  prediction.iteration = Seconds(7);
  prediction.timeline = two_ranks();
  EXPECT_EQ(steady_step(prediction), Seconds(6));
}

TEST(SteadyStep, IsTheIterationOfAnAsynchronousScheduleOrWithoutATimeline) {
  Prediction prediction;
  prediction.iteration = Seconds(7);
  EXPECT_EQ(steady_step(prediction), Seconds(7));
  prediction.timeline = two_ranks();
  prediction.timeline.steps.push_back({1, Seconds(7), Seconds(14)});
  EXPECT_EQ(steady_step(prediction), Seconds(7));
}

/// Mean time of the last steps of several, simulated without a pause between them.
Seconds repeated(SimulationInput input, int steps) {
  const int microbatches = input.plan.plan().microbatches;
  for (std::vector<Action>& list : input.lists) {
    const std::vector<Action> one = list;
    for (int step = 1; step < steps; ++step) {
      for (Action action : one) {
        if (action.microbatch >= 0) action.microbatch += step * microbatches;
        list.push_back(action);
      }
    }
  }
  input.steps = steps;
  const Timeline timeline = std::get<Timeline>(simulate(input));
  const int from = steps / 2;
  return (timeline.steps.back().end - timeline.steps[to_index(from)].end) / (steps - 1 - from);
}

TEST(SteadyStep, IsThatOfManyStepsWithoutAPauseBetweenThem) {
  const unsigned seed = 34;
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> time(0.1, 5);
  int shorter = 0;
  int equal = 0;
  for (int i = 0; i < 300; ++i) {
    const char* const schedules[] = {"gpipe", "1f1b", "zb-h1"};
    const std::size_t stages = 2 + random() % 3;
    std::vector<double> forward(stages);
    std::vector<double> backward(stages);
    for (double& f : forward) f = time(random);
    for (double& b : backward) b = time(random);
    Graph graph = chain_graph(forward, backward, Bytes(4), Bytes(8));
    for (Layer& layer : graph.layers) layer.update = Timing{Seconds(time(random)), {}, 7};
    const Topology topology = flat_topology(to_int(stages), 10, 0.1);
    const BoundPlan plan(one_layer_a_stage(graph, topology, std::vector<int>(stages, 1), schedules[random() % 3],
                                           static_cast<int>(2 + random() % 6)));
    const auto alone = std::get<Prediction>(predict(graph, topology, plan));
    const Seconds steady = steady_step(alone);
    const Seconds measured = repeated(simulation_input(graph, topology, plan), 12);
    EXPECT_LE(measured.value, steady.value * (1 + 1e-9)) << "seed " << seed << " case " << i;
    if (steady < alone.iteration * 0.999) ++shorter;
    if (std::abs(measured / steady - 1) < 1e-9) ++equal;
  }
  EXPECT_GT(shorter, 50);
  EXPECT_GT(equal, 200);
}

}  // namespace
}  // namespace stagecraft

#include <chrono>
#include <cstdio>
#include <variant>

#include "executor/intake/builtin/blocks.h"
#include "executor/run/run.h"
#include "partitioner/strategies/strategies.h"
#include "profiler/profile.h"

using namespace stagecraft;

// Defines a model, profiles it, plans it for two devices, and trains it on Fashion-MNIST with a thread per rank.
int main() {
  const model::Model net = intake::built_model("net", [](intake::GraphBuilder& graph) {
    intake::ValueIndex x = graph.input({"image", "float32", {1, 28, 28}});
    x = linear(graph, "hidden", flatten(graph, "flatten", x), {.in = 784, .out = 256});
    x = linear(graph, "output", relu(graph, "relu", x), {.in = 256, .out = 10});
    return cross_entropy(graph, x, graph.input({"target", "int64", {}, 10}));
  });
  const auto data = data::make_data_source("fashion-mnist", net, 1);

  profiler::ProfileOptions profiling;
  profiling.microbatch_samples = 32;
  profiling.rule.most_seconds = 1;
  const Graph graph = profiler::profile_model(net, *data, profiling).graph;

  Level host{"host", 2, {}};
  host.link.bandwidth = BytesPerSecond(5e9);
  host.link.latency = Seconds(1e-5);
  Topology topology;
  topology.levels = {host};
  partitioner::Constraints constraints;
  constraints.plan.microbatches = 4;
  const auto answer = partitioner::plan_with("optimal", graph, topology, partitioner::simulated_costs(), constraints);
  const auto& best = std::get<partitioner::Ranking>(answer).plans.front();  // throws if no plan fits

  run::RunOptions training;
  training.steps = 100;
  training.optimizer.learning_rate = 0.1;
  const auto measured = run::run_local(best.plan, net, *data, training, std::chrono::seconds(60)).measurement;
  for (const Stage& stage : best.plan.stages)
    std::printf("%zu layers on %zu devices\n", stage.layers.size(), stage.devices.size());
  std::printf("step %.3f ms, predicted %.3f ms; loss %.3f to %.3f\n", step_time(measured.timeline, 2).value * 1e3,
              best.prediction.iteration.value * 1e3, measured.losses.front(), measured.losses.back());
}

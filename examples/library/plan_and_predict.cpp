#include <cstdio>
#include <exception>
#include <string>
#include <variant>

#include "costmodel/format/graph_json.h"
#include "costmodel/format/topology_json.h"
#include "partitioner/strategies/strategies.h"

// plan_and_predict GRAPH TOPOLOGY MICROBATCHES: plans, and prints each stage and the predicted step.
int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: plan_and_predict graph.json topology.json MICROBATCHES\n");
    return 2;
  }
  try {
    const stagecraft::Graph graph = stagecraft::format::read_graph(argv[1]);
    const stagecraft::Topology topology = stagecraft::format::read_topology(argv[2]);
    stagecraft::partitioner::Constraints constraints;
    constraints.plan.microbatches = std::stoi(argv[3]);

    const auto result = stagecraft::partitioner::plan_with(stagecraft::partitioner::kDefaultStrategy, graph, topology,
                                                           stagecraft::partitioner::simulated_costs(), constraints);
    if (const auto* none = std::get_if<stagecraft::Infeasible>(&result)) {
      std::fprintf(stderr, "no plan: %s\n", none->reason.c_str());
      return 1;
    }
    const auto& best = std::get<stagecraft::partitioner::Ranking>(result).plans.front();
    for (const stagecraft::Stage& stage : best.plan.stages)
      std::printf("%zu layers on %zu devices\n", stage.layers.size(), stage.devices.size());
    std::printf("predicted step: %.6g s\n", best.prediction.iteration.value);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "plan_and_predict: %s\n", e.what());
    return 1;
  }
}

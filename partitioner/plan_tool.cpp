#include "costmodel/command/tool.h"
#include "partitioner/command/make_plan.h"
#include "partitioner/command/plan_command.h"
#include "partitioner/objective/objective_command.h"

namespace {

constexpr const char* kExample =
    "stagecraft plan graph.json topology.json --microbatches 8 -o plan.json\n"
    "  stagecraft plan graph.json topology.json --strategy profile --replicas 2,1 -o plan.json\n"
    "  stagecraft plan graph.json topology.json --schedule interleaved-1f1b --chunks 2 -o plan.json\n"
    "  stagecraft plan graph.json topology.json --split-at layer2.0,layer4.0 --schedule gpipe -o plan.json\n"
    "  stagecraft plan graph.json topology.json --from pipedream-conf hybrid_conf.json -o plan.json\n"
    "  stagecraft plan graph-4.json topology.json --global-batch 256 --settings best --more-graphs graph-16.json "
    "-o plan.json\n"
    "  stagecraft plan graph.json -n 4 4 -b 12.5e9 1.25e9 --activation-compression-ratio 1 -o plan.json";

}  // namespace

int main(int argc, char** argv) {
  namespace partitioner = stagecraft::partitioner;
  if (partitioner::asks_for_objective(argc, argv)) return partitioner::run_objective_command(argc, argv);
  partitioner::PlanRequest request;
  return stagecraft::run_tool(
      {"plan", "Divides a graph into pipeline stages on a topology.", kExample}, argc, argv,
      [&](CLI::App& app) { declare_plan(app, request); },
      [&] {
        make_plan(request);
        return 0;
      });
}

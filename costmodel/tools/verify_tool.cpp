#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "costmodel/command/tool.h"
#include "costmodel/command/tool_inputs.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/interchange/torch_pipelining.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/verify.h"
#include "costmodel/text/progress.h"

namespace {

/// A plan, or one made only from lists. JSON begins with a bracket, a list never.
stagecraft::Plan read(const std::string& path) {
  const std::string text = stagecraft::format::read_text(path);
  const auto first = text.find_first_not_of(" \t\r\n");
  const bool json = first == text.npos || text[first] == '{' || text[first] == '[';
  if (json) return stagecraft::format::parse_plan(text, path);
  const auto lists = stagecraft::interchange::parse_actions_csv(text, path);
  try {
    return stagecraft::interchange::plan_of_lists(lists);
  } catch (const std::invalid_argument& e) {
    throw stagecraft::InputError(stagecraft::kind_of(e), path + ": " + e.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string plan_path;
  std::string graph_path;
  stagecraft::TopologyRequest topology_request;
  std::string queues = "edge";
  int prefetch = 2;
  int steps = 0;
  return stagecraft::run_tool(
      {"verify",
       "Proves, before a launch, that a plan's action lists terminate and do what the plan says. Otherwise names the "
       "action, or the cycle of actions that wait for each other.",
       "stagecraft verify plan.json\n  stagecraft verify plan.json --graph graph.json --topology topology.json\n"
       "  stagecraft verify schedule.csv"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("PLAN", plan_path,
                       "plan.json, or action lists in the CSV format of torch.distributed.pipelining; - is standard "
                       "input")
            ->required();
        CLI::Option* const graph =
            app.add_option("--graph", graph_path, "graph.json, to check memory too")->type_name("FILE");
        app.add_option("--topology", topology_request.file, "topology.json, with --graph")
            ->type_name("FILE")
            ->needs(graph);
        stagecraft::declare_devices(app, topology_request);
        app.add_option("--queues", queues,
                       "what shares a queue of transfers on a rank: edge (one queue for each directed edge), boundary "
                       "(for each boundary and direction), pair (for each other rank) or rank (one for all)")
            ->capture_default_str();
        app.add_option("--prefetch", prefetch,
                       "number of receives posted ahead per edge; 1: just before they are "
                       "needed")
            ->transform(stagecraft::integer(1))
            ->capture_default_str();
        app.add_option("--steps", steps,
                       "steps of an asynchronous schedule (default: enough to cover the steady "
                       "state)")
            ->transform(stagecraft::integer(1));
        app.callback([&] {
          if (!graph_path.empty()) stagecraft::check_topology(topology_request);
          if (graph_path.empty() && !topology_request.devices.empty()) throw CLI::RequiresError("--devices", "--graph");
        });
      },
      [&] {
        stagecraft::VerifyOptions options;
        options.queues = stagecraft::usage("--queues", [&] { return stagecraft::queues_by_name(queues); });
        stagecraft::StepProgress progress("proving");
        options.progress = progress.teller();
        progress.tell("reading the plan");
        const stagecraft::BoundPlan plan(read(plan_path));
        options.steps = steps > 0 ? steps : plan.step_window().steps;
        std::optional<stagecraft::Graph> graph;
        std::optional<stagecraft::Topology> topology;
        if (!graph_path.empty()) {
          graph = stagecraft::format::read_graph(graph_path);
          topology = stagecraft::topology_of(topology_request);
          take_kind(*topology, *graph);
        }
        try {
          if (graph) validate(plan.plan(), *graph, *topology);
          progress.tell("making the action lists");
          const auto lists = plan.action_lists(options.steps, prefetch);
          const auto proof = stagecraft::answer_of(graph ? verify(plan, lists, *graph, *topology, options)
                                                         : verify(plan, lists, options));
          progress.end();
          fmt::print("{}: proved of {}; hash {:016x}\n", plan_path, proof.summary, stagecraft::format::plan_hash(plan));
        } catch (const std::exception& e) {
          throw stagecraft::NoAnswerError(plan_path + ": ", {e.what(), stagecraft::kind_of(e)});
        }
        return 0;
      });
}

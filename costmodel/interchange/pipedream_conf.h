#pragma once

#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/plan.h"

namespace stagecraft {

// PipeDream's run configuration, as its convert_graph_to_model.py writes it beside the modules that it generates:
//   "module_to_stage_map"  a stage for each module; the modules are the stages' own and, last, the loss;
//   "stage_to_rank_map"    a list of ranks for each stage, whose number is the key;
//   "stage_to_depth_map"   optional: minibatches that a rank of the stage takes before its first backward.
// It names no layers: those of module m are the ones that the converted graph gives stage_id m.

/// What one configuration carries.
struct PipedreamConf {
  std::vector<int> module_to_stage;
  std::vector<std::vector<int>> ranks;  ///< of each stage
  std::vector<int> depths;              ///< of each stage; empty: not given, the runtime has a rule of its own
  friend bool operator==(const PipedreamConf&, const PipedreamConf&) = default;
};

/// The configuration in `text`. Throws FormatError "FILE: POINTER: found, wanted" for text that is not JSON, another
/// key, fewer than two modules, stages other than 0, 1, .. each with modules and ranks, a loss outside the last stage,
/// a rank that appears twice, ranks other than 0, 1, .., or depths that not every stage has.
[[nodiscard]] PipedreamConf parse_pipedream_conf(const std::string& text, const std::string& file);
/// The inverse, laid out as PipeDream's own files.
[[nodiscard]] std::string pipedream_conf_text(const PipedreamConf& conf);

/// The three configurations of a conversion.
struct PipedreamConfs {
  PipedreamConf data_parallel;   ///< dp_conf.json: all modules in stage 0, on all ranks
  PipedreamConf model_parallel;  ///< mp_conf.json: one rank a stage
  PipedreamConf hybrid;          ///< hybrid_conf.json: the plan's replicas; rank r is the plan's r-th device by number
};

/// Those of `plan`, one module a stage; with `depths`, the hybrid one carries the plan's warm-ups. Throws
/// std::invalid_argument for a plan with several stages on a device, which PipeDream's runtime cannot run.
[[nodiscard]] PipedreamConfs pipedream_confs(const Plan& plan, bool depths = false);

/// Those of stages on these ranks, one module a stage.
[[nodiscard]] PipedreamConfs pipedream_confs(const std::vector<std::vector<int>>& ranks_of_stages);

/// What PipeDream's runtime does otherwise than `plan` says, a line each: schedules other than its own, recomputation,
/// half precision, and tensors that two later stages read, which it delivers to the last of them alone.
[[nodiscard]] std::vector<std::string> pipedream_conf_warnings(const Plan& plan);

/// `graph` with the plan's stages as Layer::stage, stage 0 for inputs: the graph that a configuration is read beside.
/// Throws std::invalid_argument naming a layer that stands in one of them alone.
[[nodiscard]] Graph staged_graph(Graph graph, const Plan& plan);

/// The partition of `conf` for a graph whose layers carry stages: those with stage m are module m. Throws
/// std::invalid_argument for a layer without a stage and for another number of modules.
[[nodiscard]] Partition pipedream_conf_partition(const PipedreamConf& conf, const Graph& graph);

}  // namespace stagecraft

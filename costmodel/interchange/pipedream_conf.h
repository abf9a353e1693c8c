#pragma once

#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/plan.h"

namespace stagecraft::interchange {

// PipeDream's run configuration, as its convert_graph_to_model.py writes it next to the generated modules:
//   "module_to_stage_map"  a stage for each module; the modules are one or more per stage and, last, the loss;
//   "stage_to_rank_map"    a list of ranks for each stage, keyed by the stage's number;
//   "stage_to_depth_map"   optional: minibatches that a rank of the stage takes before its first backward.
// It names no layers: those of module m have stage_id m in the converted graph.

/// The content of one configuration.
struct PipedreamConf {
  std::vector<int> module_to_stage;
  std::vector<std::vector<int>> ranks;  ///< of each stage
  std::vector<int> depths;              ///< for each stage; empty: not given, the runtime uses its own rule
  friend bool operator==(const PipedreamConf&, const PipedreamConf&) = default;
};

/// The configuration in `text`. Throws FormatError "FILE: POINTER: found, expected" for text that is not JSON, another
/// key, fewer than two modules, stages other than 0, 1, .. each with modules and ranks, a loss outside the last stage,
/// a rank that appears twice, ranks other than 0, 1, .., or depths that are missing for a stage.
[[nodiscard]] PipedreamConf parse_pipedream_conf(const std::string& text, const std::string& file);
/// The inverse, in the layout of PipeDream's own files.
[[nodiscard]] std::string pipedream_conf_text(const PipedreamConf& conf);

/// The three configurations of a conversion.
struct PipedreamConfs {
  PipedreamConf data_parallel;   ///< dp_conf.json: all modules in stage 0, on all ranks
  PipedreamConf model_parallel;  ///< mp_conf.json: one rank per stage
  PipedreamConf hybrid;          ///< hybrid_conf.json: the plan's replicas; rank r is the plan's r-th device by number
};

/// The configurations of `plan`, one module per stage; with `depths`, the hybrid one carries the plan's warm-ups.
/// Throws std::invalid_argument for a plan with several stages on a device, which PipeDream's runtime cannot run.
[[nodiscard]] PipedreamConfs pipedream_confs(const Plan& plan, bool depths = false);

/// The configurations of stages on these ranks, one module per stage.
[[nodiscard]] PipedreamConfs pipedream_confs(const std::vector<std::vector<int>>& ranks_of_stages);

/// Differences between PipeDream's runtime and `plan`, one line each: schedules other than its own, recomputation, half
/// precision, and tensors that two later stages read, which it delivers only to the last of them.
[[nodiscard]] std::vector<std::string> pipedream_conf_warnings(const Plan& plan);

/// `graph` with the plan's stages as Layer::stage, stage 0 for inputs: the graph to read together with a configuration.
/// Throws std::invalid_argument naming a layer that is in only one of them.
[[nodiscard]] Graph staged_graph(Graph graph, const Plan& plan);

/// The partition of `conf` for a graph whose layers carry stages: those with stage m are module m. Throws
/// std::invalid_argument for a layer without a stage and for a different number of modules.
[[nodiscard]] Partition pipedream_conf_partition(const PipedreamConf& conf, const Graph& graph);

}  // namespace stagecraft::interchange

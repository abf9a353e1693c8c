#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/format/results/objective_json.h"
#include "costmodel/graph.h"
#include "costmodel/interchange/problems/dnn_partitioning.h"
#include "costmodel/interchange/problems/piper.h"
#include "costmodel/plan.h"
#include "costmodel/topology.h"
#include "partitioner/objective/load_solver.h"
#include "partitioner/search/pipedream_search.h"

namespace stagecraft::partitioner {

/// Other planners' cost models: the same problem in their terms, and the best plan by them.
struct ObjectiveProfile {
  std::string name;
  std::string help;     ///< one line: what it minimises
  std::string problem;  ///< the format of problems that it reads besides graphs; empty: only graphs
  std::string schedule = PlanSettings().schedule;  ///< of its plans
};

/// All of them, by name.
[[nodiscard]] const std::vector<ObjectiveProfile>& objective_profiles();

/// The profile of that name. Throws std::invalid_argument with the known names.
[[nodiscard]] const ObjectiveProfile& objective_profile(const std::string& name);

/// Parameters of the profiles in addition to the problem.
struct ObjectiveOptions {
  int microbatches = 4;               ///< of a step, for dapple, flush, gpipe and piper on a graph
  std::optional<Bytes> memory_limit;  ///< of a device, on a graph
  std::optional<int> devices;         ///< replaces a problem's number of accelerators
  PipedreamOptions pipedream;
  SearchLimits limits;
};

/// The best plan of `graph` on the topology's devices by a profile; Infeasible if there is none. Links: the slowest
/// level's bandwidth, but all levels for pipedream-parity.
[[nodiscard]] std::variant<format::ObjectiveAnswer, Infeasible> answer_objective(const std::string& profile,
                                                                                 const Graph& graph,
                                                                                 const Topology& topology,
                                                                                 const ObjectiveOptions& options);
/// The same for an input of dnn-partitioning, for max-load.
[[nodiscard]] std::variant<format::ObjectiveAnswer, Infeasible> answer_objective(
    const interchange::DnnPartitioning& problem, interchange::Units units, const ObjectiveOptions& options);
/// The same for an input of Piper.
[[nodiscard]] std::variant<format::ObjectiveAnswer, Infeasible> answer_objective(const interchange::Piper& problem,
                                                                                 interchange::Units units,
                                                                                 const ObjectiveOptions& options);

}  // namespace stagecraft::partitioner

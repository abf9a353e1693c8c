#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/topology.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// A graph for one microbatch size, and the microbatches of a step.
struct SizedGraph {
  Graph graph;
  int microbatches = 1;
  std::string origin;       ///< ResizedGraph::origin; empty if nothing says how many samples a microbatch has
  bool is_measured = true;  ///< else interpolated
  std::string file = {};    ///< of the profile, where it is known
};

/// The graphs that a search may choose from.
struct SizedGraphs {
  std::vector<SizedGraph> graphs;  ///< ascending by size
  std::vector<std::string> notes;  ///< which sizes are left out and why
};

/// A graph for every microbatch size that divides `global_batch`, from the smallest to the largest size of the
/// profiles; times are never extrapolated. Leaves out sizes with which a step would have more than kMostMicrobatches,
/// and sizes for which the profiles cannot be interpolated. Throws std::invalid_argument as graph_of_samples does for
/// profiles that do not belong together, and if no size is left.
[[nodiscard]] SizedGraphs sized_graphs(const std::vector<Graph>& profiles, std::int64_t global_batch);

/// The settings of a step besides its stages, replicas and chunks.
struct StepSettings {
  std::size_t graph = 0;  ///< in SettingSpace::graphs: the microbatch size
  PlanSettings plan;      ///< schedule, microbatches, recomputation, gradient buckets, sharding
};

/// What a search may choose from, all with the same samples per step.
struct SettingSpace {
  std::vector<SizedGraph> graphs;      ///< not empty, ascending by size
  std::optional<std::size_t> asked;    ///< the request's own graph in `graphs`; absent: none has its microbatch size
  std::vector<std::string> schedules;  ///< not empty
  bool recomputation = true;           ///< also with recomputation; else as in the constraints
  bool buckets = true;                 ///< also with gradient buckets; else as in the constraints
  bool sharding = true;                ///< also with the optimizer's state divided; else as in the constraints
  Constraints constraints;             ///< of every plan; its plan settings are those of the request
};

/// What is known about plans with some settings.
struct SettingTrial {
  StepSettings settings;
  std::optional<RankedPlan> plan = {};  ///< the best that was found
  std::string reason = {};              ///< why no plan exists; empty if unknown
  Seconds lower_bound = {};             ///< of every plan with these settings; kForever if none exists
  std::optional<Bytes> need = {};       ///< memory of the candidate that needs the least, if none was found that fits
  bool is_exhausted = false;            ///< a search with these settings was not cut off: see ShorterPlan::is_complete
};

/// The plans of one request with several settings.
struct SettingsSearch {
  std::vector<SettingTrial> trials;
  std::size_t best = 0;  ///< the one whose plan has the shortest step in a run, of those that fit if one does
  /// No plan that was considered has a shorter step: the smallest of the trials' bounds; the best plan's step if none
  /// is smaller. Absent if no bound is known for one of the plans. If another plan's single step is shorter than the
  /// best's, no plan with the best's settings.
  std::optional<Seconds> lower_bound = {};
};

/// The schedules that `--schedule best` tries, in the table's order: all that train and give the gradients of one
/// process. The asynchronous ones do not, and "listed" has no lists.
[[nodiscard]] std::vector<std::string> schedules_to_compare();

/// Ways to recompute a graph of so many layers, as Stage::recompute_every: 0 for whole stages, then 1, 2, 4, ...
/// layers.
[[nodiscard]] std::vector<int> recomputation_steps(int layers);

/// All settings of the space, by size, schedule, recomputation and buckets, the simplest first. Recomputation, of whole
/// stages and of 1, 2, 4, ... layers, is tried where memory is limited and the schedule trains. Buckets of the largest
/// powers of two up to a 4th, 16th and 64th of all parameters are tried where gradients are summed over devices.
/// StateSharding::Optimizer, without buckets, is tried where memory is limited and the optimizer keeps state.
[[nodiscard]] std::vector<StepSettings> settings_of(const SettingSpace& space, const Topology& topology);

/// Whether recomputation, buckets and sharding are those of the request.
[[nodiscard]] bool is_plain(const StepSettings& settings, const SettingSpace& space);

/// "none", "stages" or "every 2"; `every`: Stage::recompute_every.
[[nodiscard]] std::string recomputation_text(bool recompute, int every);

/// "8 microbatches of 4 samples, 1f1b, recompute every 2, buckets of 4.0 MiB".
[[nodiscard]] std::string settings_text(const StepSettings& settings, const SettingSpace& space);

}  // namespace stagecraft::partitioner

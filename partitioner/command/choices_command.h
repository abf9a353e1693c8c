#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/topology.h"
#include "partitioner/candidate.h"
#include "partitioner/choices/choice.h"
#include "partitioner/choices/gather.h"
#include "partitioner/strategy.h"

// For plan_tool.cpp only: the options of stagecraft plan that choose among plans.

namespace stagecraft::partitioner {

struct ChoiceRequest {
  std::optional<int> top;
  bool front = false;
  bool all = false;
  bool json = false;
  bool explain = false;
  std::string picture;  ///< file; empty: none
  std::string folder;   ///< --top-to
  Goal goal;
  bool objective_given = false;
  std::optional<double> price;
  std::optional<std::int64_t> global_batch;
  bool settings = false;                 ///< --settings: those of a step are searched together
  std::vector<std::string> more_graphs;  ///< with it: profiles with other microbatch sizes
  std::vector<std::string> pins, no_cuts;
  std::string improve;    ///< plan file; empty: none
  bool complete = false;  ///< stages given by hand get replicas and placement

  /// Whether plans are compared here and not by the strategy alone.
  [[nodiscard]] bool is_asked() const {
    return lists() || objective_given || goal.min_samples_per_s || constrains_stages();
  }
  /// Whether the user says where layers are.
  [[nodiscard]] bool constrains_stages() const { return !pins.empty() || !no_cuts.empty(); }
  /// Whether a list is printed.
  [[nodiscard]] bool lists() const { return top || front || explain; }
};

/// Declares the options.
void declare_choices(CLI::App& app, ChoiceRequest& request);

/// Throws CLI::ValidationError for options that do not go together. `given`: the stages are given by --split-at or
/// --from. `strategy`: the one that is named, empty for none.
void check_choices(const ChoiceRequest& request, bool given, const std::string& strategy);

/// The number of microbatches that make `global_batch` samples. Throws std::invalid_argument if the graph does not give
/// its microbatch, or with the nearest numbers that it divides.
[[nodiscard]] int microbatches_of(std::int64_t global_batch, const Graph& graph);

/// What messages and files need to know besides the request.
struct ChoiceContext {
  std::string graph;     ///< the file
  std::string strategy;  ///< empty: none was named
  std::string mark;      ///< before every figure
  std::vector<std::string> inputs;
  std::string output;  ///< the best plan's file
  bool force = false;
  std::function<void()> end_progress = [] {};  ///< before something is printed: removes what shows the progress
};

/// Throws as the writing of --top-to, --picture and the best plan would, before the work.
void check_choice_outputs(const ChoiceRequest& request, const ChoiceContext& context);

/// The best plan of those that the request chooses from. Prints the list on stderr, its document on stdout if asked,
/// and writes the plans. Throws std::runtime_error if no plan is possible or reaches the throughput.
[[nodiscard]] RankedPlan best_choice(const ChoiceRequest& request, const ChoiceContext& context, const Graph& graph,
                                     const Topology& topology, const CostModel& costs, const Constraints& constraints);

/// The plan of `start` improved: by --improve in all ways, by --complete in its replicas, placement and recomputation,
/// unless --recompute is given. Prints the previous step time on stderr. Throws std::runtime_error if it does not fit
/// in memory or does not reach the throughput.
[[nodiscard]] RankedPlan improved_choice(const ChoiceRequest& request, const ChoiceContext& context, const Graph& graph,
                                         const Topology& topology, const CostModel& costs,
                                         const Constraints& constraints, const Candidate& start);

/// The plan as a start for improved_choice; `constraints` get its schedule, microbatches, chunks, recomputation and
/// buckets. Throws std::invalid_argument if it is not valid for graph and topology.
[[nodiscard]] Candidate start_of(const Plan& plan, const Graph& graph, const Topology& topology,
                                 Constraints& constraints);

}  // namespace stagecraft::partitioner

#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "costmodel/graph.h"
#include "costmodel/topology.h"
#include "partitioner/command/plan_command.h"
#include "partitioner/strategy.h"

// For plan_tool.cpp only: stagecraft plan --settings.

namespace stagecraft::partitioner {

/// Declares --settings and --more-graphs.
void declare_settings(CLI::App& app, PlanRequest& request);

/// Throws CLI::ValidationError for options that do not go together with them.
void check_settings(const PlanRequest& request);

/// A plan with the graph of its microbatch size.
struct SizedPlan {
  RankedPlan ranked;
  Graph graph;
};

/// The best plan of all settings. Reads the profiles of --more-graphs. Prints how each setting fared on stderr, with
/// `mark` before each figure, and, if asked, the document on stdout; calls `end_progress` before. Throws NoAnswerError
/// if no plan fits; std::invalid_argument, which begins with the file's name, if the profiles do not fit each other or
/// the global batch.
[[nodiscard]] SizedPlan best_of_settings(const PlanRequest& request, const Graph& graph, const Topology& topology,
                                         const CostModel& costs, const std::string& mark,
                                         const std::function<void()>& end_progress);

}  // namespace stagecraft::partitioner

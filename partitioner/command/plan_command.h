#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "costmodel/command/tool_inputs.h"
#include "partitioner/command/choices_command.h"
#include "partitioner/command/shared_options.h"
#include "partitioner/strategy.h"

// For plan_tool.cpp only: the command line of stagecraft plan.

namespace stagecraft::partitioner {

struct PlanRequest {
  std::string graph;
  TopologyRequest topology;
  std::string strategy;               ///< empty: the one whose options are given, else the default
  std::vector<std::string> split_at;  ///< first layers of the stages after the first
  std::vector<std::string> from;      ///< format and file of another program's plan; or empty
  Constraints constraints;
  ChoiceRequest choice;
  std::vector<std::string> schedules;  ///< to try, if there are several or --settings is given
  bool strategy_named = false;
  bool microbatches_given = false;
  bool recomputation_given = false;  ///< --settings keeps it
  bool sharding_given = false;       ///< likewise
  Acceptance acceptance;
  std::vector<std::string> graphs_for;  ///< of add_graph_for_option
  std::string other_device;             ///< accepted_differences
  std::string output;                   ///< empty: none, only a summary
  bool force = false;
};

/// The file with the action lists that --schedule names; empty if it names a schedule.
[[nodiscard]] std::string lists_file(const PlanRequest& request);

/// Declares the options. After parsing, the request names a strategy and one schedule, or several to try. Parsing
/// throws CLI::ValidationError for options that do not go together.
void declare_plan(CLI::App& app, PlanRequest& request);

/// The files named on the command line.
[[nodiscard]] std::vector<std::string> inputs_of(const PlanRequest& request);

}  // namespace stagecraft::partitioner

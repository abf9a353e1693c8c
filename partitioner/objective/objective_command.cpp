#include "partitioner/objective/objective_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "costmodel/command/tool.h"
#include "costmodel/command/tool_inputs.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/results/objective_json.h"
#include "costmodel/index.h"
#include "costmodel/text/progress.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"
#include "partitioner/candidate.h"
#include "partitioner/command/shared_options.h"
#include "partitioner/objective/profiles.h"
#include "partitioner/strategies/pipedream.h"

namespace stagecraft::partitioner {
namespace {

using format::ObjectiveAnswer;
using format::ObjectiveStage;

constexpr const char* kOption = "--objective-profile";

constexpr const char* kExample =
    "stagecraft plan --objective-profile max-load --from-problem bert24.json --units fixed\n"
    "  stagecraft plan --objective-profile piper --from-problem bert32.json --devices 64 --json\n"
    "  stagecraft plan --objective-profile flush graph.json topology.json --microbatches 32 -o plan.json\n"
    "  stagecraft plan --objective-profile pipedream-parity graph.json -n 4 4 -b 12.5e9 1.25e9";

struct Request {
  std::string profile;
  std::string graph;
  TopologyRequest topology;
  std::string problem;
  std::string units = "published";
  ObjectiveOptions options;
  OptionValues pipedream;  ///< options of PipeDream's optimizer, for pipedream-parity
  Acceptance acceptance;
  double downsets = 4e6;
  std::optional<double> time_limit;
  bool json = false;
  std::string output;
  bool force = false;
};

void check_usage(const Request& request, const CLI::App& app) {
  const ObjectiveProfile& profile =
      usage(kOption, [&]() -> const ObjectiveProfile& { return objective_profile(request.profile); });
  if (request.problem.empty()) {
    if (request.graph.empty()) throw CLI::ValidationError("GRAPH", "give a graph, or --from-problem");
    check_topology(request.topology);
    if (app.count("--units") > 0) throw CLI::ValidationError("--units", "only valid with --from-problem");
    return;
  }
  if (profile.problem.empty())
    throw CLI::ValidationError("--from-problem", "profile " + profile.name + " only reads graphs");
  if (!request.graph.empty()) throw CLI::ValidationError("GRAPH", "--from-problem gives the problem; remove it");
  if (request.topology.devices.size() > 1)
    throw CLI::ValidationError("--devices", "a problem's devices are one level, give one number");
  for (const char* option : {"--bandwidths", "--memory-limit", "--microbatches", "--output"}) {
    if (app.count(option) > 0)
      throw CLI::ValidationError(option, "only valid with a graph; a problem has its own devices and microbatches");
  }
}

void declare(CLI::App& app, Request& request) {
  std::string names;
  for (const ObjectiveProfile& profile : objective_profiles()) {
    names += fmt::format("\n  {}: {}", profile.name, profile.help);
    if (!profile.problem.empty()) names += fmt::format(" (--from-problem: {})", profile.problem);
  }
  app.add_option("GRAPH", request.graph, "graph.json; - is standard input; or use --from-problem");
  app.add_option("TOPOLOGY", request.topology.file, "topology.json; or use --devices");
  app.add_option(kOption, request.profile, "planner whose cost model to use:" + names)->required();
  app.add_option("--from-problem", request.problem, "an input of that planner; replaces GRAPH and TOPOLOGY")
      ->type_name("FILE");
  app.add_option("--units", request.units,
                 "of --from-problem: published reads all numbers in the units that the format states; fixed detects "
                 "and corrects times in another unit, and reports them")
      ->check(one_of("units", {"published", "fixed"}))
      ->capture_default_str();
  declare_devices(app, request.topology, ". With --from-problem: of the file's accelerators");
  app.add_option("--microbatches", request.options.microbatches,
                 "microbatches per step, for dapple, flush, gpipe and piper")
      ->transform(integer(1, kMostMicrobatches, "the maximum of a plan file"))
      ->capture_default_str();
  add_bytes_option(app, "--memory-limit", request.options.memory_limit,
                   "memory limit per device, such as 16e9 or 16GiB, by the profile's own rule");
  declare_options(app, pipedream_strategy(), "pipedream-parity", request.pipedream);
  app.add_option("--time-limit", request.time_limit,
                 "time limit; returns the best plan so far and its bound (default: none)")
      ->transform(number_above(0))
      ->type_name("SECONDS");
  app.add_option("--most-downsets", request.downsets,
                 "maximum number of down-sets to enumerate; graphs with more are cut as a list, with a bound")
      ->transform(number_above(0))
      ->capture_default_str();
  add_acceptance_options(app, request.acceptance);
  app.add_flag("--json", request.json, "print the answer as JSON");
  app.add_option("-o,--output", request.output, "also write the stages of a graph as a plan; - is standard output")
      ->type_name("FILE");
  add_force_option(app, request.force);
  app.callback([&request, &app] { check_usage(request, app); });
}

std::string answer_text(const ObjectiveAnswer& answer, const Screen& screen) {
  std::string out =
      fmt::format("{} of {}: {:.9g} {}\n", answer.profile, answer.source, answer.value.value, answer.unit);
  if (is_exact(answer)) {
    out += fmt::format("lower bound {:.9g}, gap 0 %: exact\n", answer.lower_bound.value);
  } else if (std::isfinite(gap(answer))) {
    out += fmt::format("lower bound {:.9g}, gap {:.2g} %\n", answer.lower_bound.value, 100 * gap(answer));
  } else {
    out += "lower bound 0\n";
  }
  std::vector<std::vector<std::string>> rows;
  const auto has = [&](auto&& test) { return std::ranges::any_of(answer.stages, test); };
  const bool tensor = has([](const ObjectiveStage& stage) { return stage.tensor_devices > 1; });
  const bool memory = has([](const ObjectiveStage& stage) { return stage.memory_bytes.has_value(); });
  const bool modes = has([](const ObjectiveStage& stage) { return stage.modes.size() > 1; });
  std::vector<TableColumn> columns{{.title = "stage"}, {.title = "device", .left = true}, {.title = "replicas"}};
  if (tensor) columns.push_back({.title = "tensor-parallel"});
  columns.push_back({.title = "layers"});
  columns.push_back({.title = "time"});
  if (memory) columns.push_back({.title = "memory"});
  if (modes) columns.push_back({.title = "modes", .left = true, .can_be_cut = true});
  columns.push_back({.title = "first .. last", .left = true, .can_be_cut = true});
  for (std::size_t s = 0; s < answer.stages.size(); ++s) {
    const ObjectiveStage& stage = answer.stages[s];
    std::vector<std::string>& row = rows.emplace_back();
    row = {std::to_string(s), stage.device, std::to_string(stage.replicas)};
    if (tensor) row.push_back(std::to_string(stage.tensor_devices));
    row.push_back(std::to_string(stage.layers.size()));
    row.push_back(format_seconds(stage.time));
    if (memory) {
      row.push_back(stage.memory_bytes
                        ? format_bytes(Bytes(static_cast<std::int64_t>(std::min(*stage.memory_bytes, 1e18))))
                        : "");
    }
    if (modes) {
      std::string text;
      for (const auto& [mode, count] : stage.modes)
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, mode);
      row.push_back(std::move(text));
    }
    row.push_back(stage.layers.empty() ? "" : stage.layers.front() + " .. " + stage.layers.back());
  }
  out += table_text(columns, rows, screen);
  if (answer.downsets > 0)
    out += fmt::format("{} nodes, {} down-sets, {} pairs of them evaluated\n", answer.nodes, answer.downsets,
                       answer.pairs);
  if (!answer.stopped.empty()) out += answer.stopped + "\n";
  for (const std::string& note : answer.notes) out += "note: " + note + "\n";
  return out;
}

/// The stages of the answer as a plan.
Plan plan_of(const Request& request, const Graph& graph, const Topology& topology, const ObjectiveAnswer& answer) {
  Candidate candidate;
  std::map<std::string, int> stage_of;
  for (std::size_t s = 0; s < answer.stages.size(); ++s) {
    for (const std::string& id : answer.stages[s].layers) stage_of[id] = to_int(s);
    candidate.partition.replicas.push_back(answer.stages[s].replicas);
  }
  for (const Layer& layer : graph.layers) {
    const auto stage = stage_of.find(layer.id);
    candidate.partition.stage_of_layer.push_back(stage == stage_of.end() ? -1 : stage->second);
  }
  PlanSettings settings;
  settings.microbatches = request.options.microbatches;
  settings.strategy = answer.profile;
  settings.schedule = objective_profile(answer.profile).schedule;
  Plan plan = plan_of_candidate(graph, topology, candidate, settings);
  list_parameters(graph, plan);
  sign(plan.provenance);
  return plan;
}

/// What `solve` answers, with its progress meanwhile.
ObjectiveAnswer found(const Request& request, const std::string& source,
                      const std::function<std::variant<ObjectiveAnswer, Infeasible>()>& solve) {
  auto answer = [&] {
    const LiveProgress progress(
        [&](Seconds passed) { return request.profile + ": " + time_text(passed, request.options.limits.time); });
    return answer_of(solve(), source + ": ");
  }();
  answer.source = source;
  return answer;
}

int run(Request& request) {
  request.options.limits.downsets = static_cast<std::size_t>(std::min(request.downsets, 1e9));
  request.options.pipedream = pipedream_options(request.pipedream);
  if (request.time_limit) request.options.limits.time = Seconds(*request.time_limit);
  if (!request.problem.empty()) {
    if (!request.topology.devices.empty()) request.options.devices = request.topology.devices.front();
    const interchange::Units units = interchange::units_by_name(request.units);
    const std::string text = format::read_text(request.problem);
    const std::string& format = objective_profile(request.profile).problem;
    const ObjectiveAnswer answer = found(request, request.problem, [&] {
      return format == "piper"
                 ? answer_objective(interchange::parse_piper(text, request.problem), units, request.options)
                 : answer_objective(interchange::parse_dnn_partitioning(text, request.problem), units, request.options);
    });
    format::write_text("-", request.json ? objective_json(answer) : answer_text(answer, output_screen()));
    return 0;
  }
  if (!request.output.empty())
    format::check_outputs({request.graph, request.topology.file}, {{request.output, "stagecraft.plan"}}, request.force);
  Graph graph = format::read_graph(request.graph);
  Topology topology = topology_of(request.topology);
  check_links("stagecraft-plan", request.topology, topology, request.acceptance);
  const std::string other = check_times("stagecraft-plan", request.graph, graph, topology, request.acceptance);
  ObjectiveAnswer answer = found(request, request.graph,
                                 [&] { return answer_objective(request.profile, graph, topology, request.options); });
  if (!other.empty()) answer.notes.push_back("times of another device: " + other);
  const Screen screen = request.output == "-" ? error_screen() : output_screen();
  const std::string shown = request.json ? objective_json(answer) : answer_text(answer, screen);
  if (request.output.empty()) {
    format::write_text("-", shown);
    return 0;
  }
  const std::string plan = format::plan_json(plan_of(request, graph, topology, answer));
  if (request.output == "-") {
    std::cerr << shown;
  } else {
    format::write_text("-", shown);
  }
  format::write_text(request.output, plan);
  return 0;
}

}  // namespace

bool asks_for_objective(int argc, char** argv) {
  return std::any_of(argv + 1, argv + argc, [](const char* argument) {
    const std::string_view text = argument;
    return text == kOption || text.starts_with(std::string(kOption) + "=");
  });
}

int run_objective_command(int argc, char** argv) {
  Request request;
  return run_tool(
      {"plan",
       "With --objective-profile: plans with another planner's cost model, for comparison, and prints the "
       "plan's value, a lower bound on all plans and the gap.",
       kExample},
      argc, argv, [&](CLI::App& app) { declare(app, request); }, [&] { return run(request); });
}

}  // namespace stagecraft::partitioner

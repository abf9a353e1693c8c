#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>
#include <variant>
#include <vector>

#include "costmodel/command/tool.h"
#include "costmodel/command/tool_inputs.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/json.h"
#include "costmodel/index.h"
#include "costmodel/interchange/actions_csv.h"
#include "costmodel/interchange/plan_formats.h"
#include "costmodel/text/progress.h"
#include "costmodel/text/table.h"
#include "partitioner/candidate.h"
#include "partitioner/choices/choices_command.h"
#include "partitioner/choices/schedule_search.h"
#include "partitioner/given_split.h"
#include "partitioner/objective/objective_command.h"
#include "partitioner/ranking.h"
#include "partitioner/search/optimal.h"
#include "partitioner/strategy.h"

namespace {

namespace partitioner = stagecraft::partitioner;
using partitioner::OptionKind;
using partitioner::Strategy;
using stagecraft::Graph;
using stagecraft::Plan;
using stagecraft::Stage;
using stagecraft::Topology;

constexpr const char* kExample =
    "stagecraft plan graph.json topology.json --microbatches 8 -o plan.json\n"
    "  stagecraft plan graph.json topology.json --strategy profile --replicas 2,1 -o plan.json\n"
    "  stagecraft plan graph.json topology.json --schedule interleaved-1f1b --chunks 2 -o plan.json\n"
    "  stagecraft plan graph.json topology.json --split-at layer2.0,layer4.0 --schedule gpipe -o plan.json\n"
    "  stagecraft plan graph.json topology.json --from pipedream-conf hybrid_conf.json -o plan.json\n"
    "  stagecraft plan graph.json -n 4 4 -b 12.5e9 1.25e9 --activation-compression-ratio 1 -o plan.json";

/// --schedule for all that schedules_to_compare gives.
constexpr const char* kBestSchedule = "best";

/// Prefix of the file with the action lists of the schedule.
constexpr const char* kCsv = "csv:";

/// Maximum in a plan file, see plan.schema.json.
constexpr int kMostMicrobatches = 1 << 20;

/// Plan::strategy of a split by hand.
constexpr const char* kSplitAt = "split-at";

/// The command line.
struct Request {
  std::string graph;
  std::string topology;
  std::vector<int> devices;
  std::vector<double> bandwidths;
  std::string strategy;               ///< empty: the one whose options are given, else the default
  std::vector<std::string> split_at;  ///< first layers of the stages after the first
  std::vector<std::string> from;      ///< format and file of another program's plan; or empty
  partitioner::Constraints constraints;
  partitioner::ChoiceRequest choice;
  std::vector<std::string> schedules;  ///< to try, if there are several
  bool strategy_named = false;
  bool microbatches_given = false;
  stagecraft::Acceptance acceptance;
  std::vector<std::string> graphs_for;  ///< of add_graph_for_option
  std::string other_device;             ///< accepted_differences
  std::string output = "-";
  bool force = false;
};

void note(const std::string& text) { fmt::print(stderr, "note: {}\n", text); }

void warn(const std::string& text) { fmt::print(stderr, "stagecraft-plan: warning: {}\n", text); }

/// Levels of plain counts and bandwidths, innermost first.
Topology plain_topology(const Request& request) {
  Topology topology;
  topology.name = "command line";
  for (std::size_t i = 0; i < request.devices.size(); ++i) {
    stagecraft::Level level;
    level.name = fmt::format("level {}", i + 1);
    level.count = request.devices[i];
    level.link.bandwidth = stagecraft::BytesPerSecond(i < request.bandwidths.size() ? request.bandwidths[i] : 1e9);
    topology.levels.push_back(level);
  }
  validate(topology);
  return topology;
}

/// The strategy that has the first of the given options; nullptr if none is given.
const Strategy* owner_of_options(const partitioner::OptionValues& given) {
  for (const Strategy& strategy : partitioner::strategies()) {
    const auto is_given = [&](const partitioner::Option& option) { return given.contains(option.names.front()); };
    if (std::ranges::any_of(strategy.options, is_given)) return &strategy;
  }
  return nullptr;
}

/// "PipeDream's and optimal's": the owners of all strategies that have options.
std::string titles_of_options() {
  std::vector<std::string> out;
  for (const Strategy& strategy : partitioner::strategies()) {
    if (!strategy.options.empty()) out.push_back(strategy.options_title + "'s");
  }
  return fmt::format("{}", fmt::join(out, " and "));
}

/// The strategy that the command line names or implies, with its name as typed.
void choose_strategy(Request& request) {
  partitioner::Constraints& constraints = request.constraints;
  const Strategy* owner = owner_of_options(constraints.options);
  if (request.strategy.empty()) request.strategy = owner != nullptr ? owner->name : partitioner::kDefaultStrategy;
  if (owner != nullptr && request.strategy != owner->name) {
    throw CLI::ValidationError("--strategy",
                               request.strategy + " does not take " + owner->options_title + "'s options");
  }
  const Strategy chosen =
      stagecraft::usage("--strategy", [&] { return partitioner::strategy_by_name(request.strategy); });
  if (chosen.decides_stages && constraints.stages)
    throw CLI::ValidationError("--stages", "strategy " + chosen.name + " finds the number of stages itself");
}

/// Takes the names from a --schedule that has several.
void take_schedules(Request& request) {
  std::string& schedule = request.constraints.plan.schedule;
  if (schedule.starts_with(kCsv) || (schedule != kBestSchedule && schedule.find(',') == std::string::npos)) return;
  if (request.choice.is_asked() || request.choice.complete || !request.choice.improve.empty()) {
    throw CLI::ValidationError("--schedule",
                               "give one schedule with options that choose among plans; several are compared only by "
                               "the step of the best plan with each");
  }
  request.schedules =
      schedule == kBestSchedule ? partitioner::schedules_to_compare() : CLI::detail::split(schedule, ',');
  for (const std::string& name : request.schedules)
    stagecraft::usage("--schedule", [&] { return stagecraft::schedule_by_name(name).name; });
  schedule = request.schedules.front();
}

void check_usage(Request& request) {
  take_schedules(request);
  const bool given = !request.split_at.empty() || !request.from.empty();
  const bool has_options = owner_of_options(request.constraints.options) != nullptr;
  if (given && (!request.strategy.empty() || has_options || request.constraints.stages)) {
    throw CLI::ValidationError(request.from.empty() ? "--split-at" : "--from",
                               "gives the stages; remove --strategy, --stages and " + titles_of_options() + " options");
  }
  check_choices(request.choice, given, request.strategy);
  request.strategy_named = !request.strategy.empty() || has_options;
  choose_strategy(request);
  const std::string& schedule = request.constraints.plan.schedule;
  if (!schedule.starts_with(kCsv)) {
    const bool chunked =
        stagecraft::usage("--schedule", [&] { return stagecraft::schedule_by_name(schedule).chunked; });
    if (request.schedules.empty() && request.constraints.chunks.value_or(1) > 1 && !chunked) {
      throw CLI::ValidationError(
          "--chunks", "schedule " + schedule + " runs one stage per device; " + "use --schedule interleaved-1f1b");
    }
  }
  if (!request.from.empty())
    stagecraft::usage("--from", [&] { (void)stagecraft::interchange::plan_format(request.from[0]); });
  if (request.topology.empty() == request.devices.empty()) {
    throw CLI::ValidationError("TOPOLOGY", "give either a topology file or --devices");
  }
  if (!request.bandwidths.empty() && request.devices.empty()) {
    throw CLI::ValidationError("--bandwidths", "only valid with --devices; a topology file has its own");
  }
  if (request.bandwidths.size() > request.devices.size()) {
    throw CLI::ValidationError("--bandwidths", fmt::format("found {} values for {} levels of --devices",
                                                           request.bandwidths.size(), request.devices.size()));
  }
}

/// Declares one strategy's own options.
void declare_options(CLI::App& app, const Strategy& strategy, partitioner::OptionValues& values) {
  for (const partitioner::Option& option : strategy.options) {
    std::vector<std::string> names;
    for (const std::string& name : option.names) names.push_back((name.size() == 1 ? "-" : "--") + name);
    std::ranges::stable_sort(names, {}, [](const std::string& name) { return name.starts_with("--"); });
    const std::string declared = fmt::format("{}", fmt::join(names, ","));
    const std::string key = option.names.front();
    CLI::Option* made = nullptr;
    switch (option.kind) {
      case OptionKind::Flag:
        made = app.add_flag_callback(declared, [&values, key] { values[key] = true; }, option.help);
        break;
      case OptionKind::Positive:
        made = app.add_option_function<double>(
                      declared, [&values, key](double value) { values[key] = value; }, option.help)
                   ->transform(stagecraft::number_above(0));
        break;
      case OptionKind::Bytes:
        made = app.add_option_function<std::string>(
                      declared,
                      [&values, key, declared](const std::string& text) {
                        values[key] = stagecraft::usage(declared, [&] { return stagecraft::parse_bytes(text); });
                      },
                      option.help)
                   ->type_name("BYTES");
        break;
    }
    made->group(strategy.options_title);
  }
}

void declare(CLI::App& app, Request& request) {
  std::string names;
  for (const Strategy& strategy : partitioner::strategies()) {
    names += fmt::format("\n  {}: {}", strategy.name, strategy.help);
  }
  app.add_option("GRAPH", request.graph, "graph.json; - is standard input")->required();
  app.add_option("TOPOLOGY", request.topology, "topology.json; or use --devices");
  app.add_option("-n,--devices", request.devices, "number of devices per level, innermost first; replaces TOPOLOGY")
      ->delimiter(',')
      ->transform(stagecraft::integer(1))
      ->type_name("COUNT ...");
  app.add_option("-b,--bandwidths", request.bandwidths, "bandwidth of each level of --devices (default: 1e9)")
      ->delimiter(',')
      ->transform(stagecraft::number_above(0))
      ->type_name("BYTES_PER_S ...");
  app.add_option("--strategy", request.strategy,
                 fmt::format("strategy (default: {}, or the one whose options are given):{}",
                             partitioner::kDefaultStrategy, names));
  std::string formats;
  for (const stagecraft::interchange::PlanFormat& format : stagecraft::interchange::plan_formats())
    formats += "\n  " + format.name;
  app.add_option("--split-at", request.split_at,
                 "cut by hand: the first layer of every stage but the first; layer ids or module paths")
      ->delimiter(',')
      ->type_name("LAYER ...");
  app.add_option("--from", request.from,
                 "take the stages from another program's file; action lists give schedule, replicas and microbatches, "
                 "and need --split-at. Formats:" +
                     formats)
      ->expected(2)
      ->type_name("FORMAT FILE");
  app.add_option("--stages", request.constraints.stages,
                 "number of stages, for all strategies but pipedream (default: one per device, or --chunks per device)")
      ->transform(stagecraft::integer(1));
  app.add_option(
         "--chunks", request.constraints.chunks,
         "stages per device, for schedule interleaved-1f1b: device d of p has the stages d, d + p, d + 2p, ...; "
         "not for strategy pipedream (default: 1; optimal and auto try 1, 2, 4 and 8)")
      ->transform(stagecraft::integer(1));
  app.add_option("--replicas", request.constraints.replicas, "replicas per stage, for all strategies but pipedream")
      ->delimiter(',')
      ->transform(stagecraft::integer(1))
      ->type_name("COUNT ...");
  app.add_option("--microbatches", request.constraints.plan.microbatches, "microbatches per step")
      ->transform(stagecraft::integer(1, kMostMicrobatches, "the maximum of a plan file"))
      ->capture_default_str();
  app.add_option("--schedule", request.constraints.plan.schedule,
                 "schedule; or several with commas, or best for all synchronous ones, to take the one whose plan is "
                 "fastest; or "
                 "csv:FILE for action lists in the CSV format of torch.distributed.pipelining, which also give stages, "
                 "replicas "
                 "and microbatches")
      ->capture_default_str();
  stagecraft::add_bytes_option(
      app, "--memory-limit", request.constraints.memory_limit,
      "memory limit per device, such as 16e9 or 16GiB; pipedream applies PipeDream's own rule");
  app.add_flag("--recompute", request.constraints.plan.recompute,
               "recompute: stages drop activations after the forward and run it again before the backward");
  app.add_option("--recompute-every", request.constraints.plan.recompute_every,
                 "like --recompute, in segments of this many layers; keeps the values between segments (default: the "
                 "whole stage)")
      ->transform(stagecraft::integer(1))
      ->type_name("LAYERS");
  stagecraft::add_bytes_option(app, "--gradient-bucket-bytes", request.constraints.plan.gradient_bucket_bytes,
                               "largest gradient bucket, such as 25e6 or 25MiB (default: one bucket per stage)");
  declare_choices(app, request.choice);
  stagecraft::add_graph_for_option(app, request.graphs_for);
  add_acceptance_options(app, request.acceptance,
                         "; ignores the slowdown of shared hosts and marks every figure with ~");
  app.add_option_function<std::string>(
         "--objective-profile", [](const std::string&) {},
         "plan by another planner's arithmetic, with other options: see stagecraft plan --objective-profile max-load "
         "--help")
      ->type_name("NAME");
  app.add_option("-o,--output", request.output, "output file; - is standard output")->capture_default_str();
  stagecraft::add_force_option(app, request.force);

  for (const Strategy& strategy : partitioner::strategies())
    declare_options(app, strategy, request.constraints.options);
  app.callback([&request, &app] {
    if (app.count("--recompute-every") > 0) request.constraints.plan.recompute = true;
    if (request.constraints.plan.gradient_bucket_bytes &&
        *request.constraints.plan.gradient_bucket_bytes < stagecraft::Bytes(1))
      throw CLI::ValidationError("--gradient-bucket-bytes", "found 0, must be at least 1 byte");
    request.microbatches_given = app.count("--microbatches") > 0;
    for (const char* name :
         {"--strategy", "--stages", "--replicas", "--chunks", "--microbatches", "--global-batch", "--schedule",
          "--split-at", "--from", "--recompute", "--recompute-every", "--gradient-bucket-bytes"}) {
      if (!request.choice.improve.empty() && app.count(name) > 0)
        throw CLI::ValidationError("--improve", std::string("takes it from the plan; remove ") + name);
    }
    if (request.choice.complete && app.count("--replicas") > 0)
      throw CLI::ValidationError("--complete", "finds the replicas; remove --replicas");
    check_usage(request);
  });
}

/// Mark before every figure that comes from times measured on another device.
std::string mark_of(const Request& request) { return request.other_device.empty() ? "" : "~"; }

void print(const Request& request, const Graph& graph, const partitioner::RankedPlan& ranked) {
  const Plan& plan = ranked.plan;
  const stagecraft::Prediction& prediction = ranked.prediction;
  const std::string mark = mark_of(request);
  std::vector<std::vector<std::string>> rows;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    stagecraft::Seconds time;
    stagecraft::Bytes parameters;
    for (const std::string& id : stage.layers) {
      const stagecraft::Layer& layer = graph.layers[stagecraft::to_index(stagecraft::layer_index(graph, id))];
      time += layer.forward.median + layer.backward.median;
      parameters += layer.parameter_bytes;
    }
    rows.push_back({std::to_string(s), std::to_string(stage.devices.size()), stagecraft::format_ranges(stage.devices),
                    std::to_string(stage.layers.size()), mark + stagecraft::format_seconds(time),
                    mark + stagecraft::format_bytes(parameters), stage.layers.front() + " .. " + stage.layers.back()});
  }
  std::string out = stagecraft::table_text({{.title = "stage"},
                                            {.title = "replicas"},
                                            {.title = "devices", .can_be_cut = true},
                                            {.title = "layers"},
                                            {.title = "fwd + bwd"},
                                            {.title = "parameters"},
                                            {.title = "first .. last", .left = true, .can_be_cut = true}},
                                           rows, stagecraft::line_width());
  // A strategy without the end of a step in its model does not see that replicas beyond the microbatches are idle.
  const bool endless = ranked.endless && !prediction.idle_devices.empty();
  if (plan.steady_state) {
    out +=
        fmt::format("slowest {} {}{} per microbatch, estimated by {}{}", plan.chunks > 1 ? "device" : "stage", mark,
                    stagecraft::format_seconds(*plan.steady_state), plan.strategy, endless ? " in steady state" : "");
  }
  if (plan.iteration) out += fmt::format("; predicted step {}{}", mark, stagecraft::format_seconds(*plan.iteration));
  if (plan.iteration && plan.lower_bound)
    out += fmt::format(": {} on these devices", partitioner::gap_text(*plan.iteration, *plan.lower_bound));
  if (!mark.empty())
    out += "\n~ marks figures that were not measured on this topology's devices: " + request.other_device;
  fmt::print(stderr, "{}\n", out);
}

void warn_of_caveat(const Request& request) {
  const auto& caveat = partitioner::strategy_by_name(request.strategy).caveat;
  const std::string text = caveat ? caveat(request.constraints.options) : "";
  if (!text.empty()) warn(text);
}

/// The compared plans, best first; only the first ones of many.
void print(const Request& request, const partitioner::Ranking& ranking) {
  constexpr std::size_t kShown = 12;
  const std::vector<partitioner::RankedPlan>& plans = ranking.plans;
  const std::string mark = mark_of(request);
  std::vector<std::vector<std::string>> rows;
  for (const partitioner::RankedPlan& r : std::span(plans).first(std::min(plans.size(), kShown))) {
    std::vector<std::size_t> replicas;
    for (const Stage& stage : r.plan.stages) replicas.push_back(stage.devices.size());
    stagecraft::Bytes peak;
    for (const auto& memory : r.prediction.timeline.memory) peak = std::max(peak, memory.total);
    std::string shown = fmt::format("{}", fmt::join(replicas, "-"));
    if (shown.size() > 18) shown = fmt::format("{} stages", replicas.size());
    rows.push_back({r.origin, std::move(shown), mark + stagecraft::format_seconds(r.prediction.iteration),
                    mark + stagecraft::format_bytes(peak), r.fits ? "" : "does not fit"});
  }
  std::string out = stagecraft::table_text({{.title = "plan", .left = true, .can_be_cut = true},
                                            {.title = "replicas"},
                                            {.title = "step"},
                                            {.title = "peak memory"},
                                            {.title = "", .left = true}},
                                           rows, stagecraft::line_width());
  if (plans.size() > kShown) out += fmt::format("and {} more\n", plans.size() - kShown);
  if (ranking.slower > 0) {
    out += fmt::format("{} more skipped: {} compute time alone exceeds the best step\n", ranking.slower,
                       ranking.slower == 1 ? "its" : "their");
  }
  const auto ties = std::ranges::count_if(plans, [&](const partitioner::RankedPlan& r) {
    return r.fits && r.prediction.iteration <= plans.front().prediction.iteration * (1 + partitioner::kTie);
  });
  if (ties > 1 && !ranking.lower_bound) {
    out += fmt::format("steps within {:g} % are ties: fewer devices, then fewer stages win\n", partitioner::kTie * 100);
  }
  if (const std::string text = skipped_text(ranking.skipped); !text.empty()) out += text + "\n";
  fmt::print(stderr, "{}", out);
}

/// The cost model, which shows the progress of a long prediction on a separate line.
partitioner::CostModel telling(stagecraft::ProgressLine& line) {
  return partitioner::simulated_costs(
      [&line](double done) { line.show(fmt::format("simulated {:.0f} % of a plan", done * 100)); });
}

/// The first plan of `result`; throws NoAnswerError if there is none.
partitioner::RankedPlan first_of(const Request& request, partitioner::StrategyResult result) {
  partitioner::Ranking ranking = stagecraft::answer_of(std::move(result), request.graph + ": ");
  return std::move(ranking.plans.front());
}

/// The plan of the given stages, or why there is none.
partitioner::StrategyResult plan_given(const Request& request, const Graph& graph, const Topology& topology,
                                       const partitioner::Candidate& given,
                                       const partitioner::Constraints& constraints) {
  const partitioner::CandidateOf same = [&](const Graph&, const Topology& t) -> std::optional<partitioner::Candidate> {
    if (t.levels != topology.levels) return std::nullopt;
    return given;
  };
  stagecraft::ProgressLine line;
  return rank_one(request.strategy, graph, topology, given, telling(line), constraints, same);
}

/// The plan with the best of several schedules, after a table of them.
partitioner::RankedPlan best_schedule(const Request& request, const Graph& graph, const Topology& topology,
                                      const std::optional<partitioner::Candidate>& given) {
  const auto plan_one = [&](const partitioner::Constraints& constraints) {
    if (given) return plan_given(request, graph, topology, *given, constraints);
    stagecraft::ProgressLine line;
    return partitioner::plan_with(request.strategy, graph, topology, telling(line), constraints);
  };
  partitioner::ScheduleSearch search = search_schedules(request.schedules, request.constraints, plan_one);
  fmt::print(stderr, "{}", trials_text(search, mark_of(request), stagecraft::line_width()));
  auto ranked = std::get<partitioner::RankedPlan>(search.trials[search.best].answer);
  ranked.plan.lower_bound = search.lower_bound;
  ranked.plan.provenance.notes["schedules"] = trials_note(search);
  if (!ranked.fits) warn(memory_excess(ranked, topology, request.constraints) + " (by the cost model)");
  return ranked;
}

/// The given stages, or those of --improve, improved.
partitioner::RankedPlan improved(Request& request, partitioner::ChoiceContext context, const Graph& graph,
                                 const Topology& topology, const std::optional<partitioner::Candidate>& given) {
  partitioner::Candidate start;
  if (given) {
    start = *given;
    context.strategy = request.strategy;
  } else {
    const std::string& path = request.choice.improve;
    const Plan before = stagecraft::format::read_plan(path);
    context.strategy = before.strategy + ", improved";
    try {
      start = start_of(before, graph, topology, request.constraints);
    } catch (const std::invalid_argument& e) {
      throw stagecraft::InputError(stagecraft::kind_of(e), path + ": " + e.what());
    }
  }
  stagecraft::ProgressLine line;
  return improved_choice(request.choice, context, graph, topology, telling(line), request.constraints, start);
}

/// The best of the plans that the request chooses from, after their list.
partitioner::RankedPlan chosen_plan(const Request& request, const partitioner::ChoiceContext& context,
                                    const Graph& graph, const Topology& topology) {
  stagecraft::ProgressLine line;
  return best_choice(request.choice, context, graph, topology, telling(line), request.constraints);
}

/// The best plan of the requested strategy, after a table of what it compared.
partitioner::RankedPlan best_plan(const Request& request, const Graph& graph, const Topology& topology) {
  auto result = [&] {
    stagecraft::ProgressLine line;
    return partitioner::plan_with(request.strategy, graph, topology, telling(line), request.constraints);
  }();
  const auto* ranking = std::get_if<partitioner::Ranking>(&result);
  if (ranking != nullptr && partitioner::strategy_by_name(request.strategy).compares) print(request, *ranking);
  partitioner::RankedPlan ranked = first_of(request, std::move(result));
  // For a strategy with its own memory rule, that rule decides.
  if (!ranked.fits) warn(memory_excess(ranked, topology, request.constraints) + " (by the cost model)");
  return ranked;
}

/// Takes schedule, stages, replicas and microbatches from lists that came without a plan.
void take_lists(Request& request, const Plan& shape) {
  if (request.constraints.chunks && *request.constraints.chunks != shape.chunks) {
    throw std::invalid_argument(
        fmt::format("found {} stages per rank, --chunks is {}", shape.chunks, *request.constraints.chunks));
  }
  if (request.microbatches_given && request.constraints.plan.microbatches != shape.microbatches) {
    throw std::invalid_argument(fmt::format("found {} microbatches, --microbatches is {}", shape.microbatches,
                                            request.constraints.plan.microbatches));
  }
  if (!request.split_at.empty() && request.split_at.size() + 1 != shape.stages.size()) {
    throw std::invalid_argument(
        fmt::format("found {} stages, --split-at gives {}", shape.stages.size(), request.split_at.size() + 1));
  }
  request.constraints.plan.microbatches = shape.microbatches;
  request.constraints.plan.schedule = shape.schedule;
  request.constraints.plan.listed = shape.listed;
  partitioner::Constraints& constraints = request.constraints;
  constraints.stages = stagecraft::to_int(shape.stages.size());
  constraints.chunks = shape.chunks;
  constraints.replicas.clear();
  for (const Stage& stage : shape.stages) constraints.replicas.push_back(stagecraft::to_int(stage.devices.size()));
  if (request.strategy == partitioner::kDefaultStrategy) request.strategy = "profile";
}

/// take_lists with those of csv:FILE.
void take_csv(Request& request) {
  const std::string path = request.constraints.plan.schedule.substr(std::string(kCsv).size());
  const auto lists = stagecraft::interchange::parse_actions_csv(stagecraft::format::read_text(path), path);
  try {
    take_lists(request, stagecraft::interchange::plan_of_lists(lists));
  } catch (const std::invalid_argument& e) {
    throw stagecraft::InputError(stagecraft::kind_of(e), path + ": " + e.what());
  }
}

/// The stages that the command line or another program's file gives; absent if a strategy finds them.
std::optional<partitioner::Candidate> given_stages(Request& request, const Graph& graph) {
  std::optional<partitioner::Candidate> out;
  if (!request.from.empty()) {
    const std::string& path = request.from[1];
    const stagecraft::interchange::PlanFormat& format = stagecraft::interchange::plan_format(request.from[0]);
    stagecraft::interchange::ForeignPlan plan = format.read({stagecraft::format::read_text(path), path}, graph);
    try {
      if (plan.lists) take_lists(request, *plan.lists);
      if (plan.partition) {
        if (!request.split_at.empty()) throw std::invalid_argument("gives the stages; remove --split-at");
        request.strategy = format.name;
        out = partitioner::given_candidate(graph, std::move(*plan.partition), std::move(plan.devices),
                                           std::move(plan.warmups), request.constraints.replicas,
                                           partitioner::microbatches_of_a_step(request.constraints.plan),
                                           request.constraints.chunks.value_or(1));
      }
    } catch (const std::invalid_argument& e) {
      throw stagecraft::InputError(stagecraft::kind_of(e), path + ": " + e.what());
    }
  }
  if (!request.split_at.empty()) {
    request.strategy = kSplitAt;
    try {
      out = partitioner::split_candidate(graph, request.split_at, request.constraints.replicas,
                                         partitioner::microbatches_of_a_step(request.constraints.plan),
                                         request.constraints.chunks.value_or(1));
    } catch (const std::invalid_argument& e) {
      throw stagecraft::InputError(stagecraft::kind_of(e), "--split-at: " + std::string(e.what()));
    }
  }
  return out;
}

/// Takes the number of microbatches from --global-batch.
void take_batch(Request& request, const Graph& graph) {
  if (!request.choice.global_batch) return;
  if (!request.constraints.plan.listed.empty()) {
    throw std::invalid_argument("--global-batch: the action lists give the number of microbatches");
  }
  try {
    request.constraints.plan.microbatches = partitioner::microbatches_of(*request.choice.global_batch, graph);
  } catch (const std::invalid_argument& e) {
    throw stagecraft::InputError(stagecraft::kind_of(e), request.graph + ": " + e.what());
  }
}

/// The files named on the command line.
std::vector<std::string> inputs_of(const Request& request) {
  std::vector<std::string> out{request.graph, request.topology};
  if (!request.from.empty()) out.push_back(request.from[1]);
  if (!request.choice.improve.empty()) out.push_back(request.choice.improve);
  for (const std::string& each : request.graphs_for) out.push_back(each.substr(each.find('=') + 1));
  const std::string& schedule = request.constraints.plan.schedule;
  if (schedule.starts_with(kCsv)) out.push_back(schedule.substr(std::string(kCsv).size()));
  return out;
}

int plan(Request& request) {
  partitioner::ChoiceContext context{request.graph, "", "", inputs_of(request), request.output, request.force};
  check_choice_outputs(request.choice, context);
  if (request.constraints.plan.schedule.starts_with(kCsv)) take_csv(request);
  warn_of_caveat(request);
  Graph graph = stagecraft::format::read_graph(request.graph);
  const Topology topology =
      request.devices.empty() ? stagecraft::format::read_topology(request.topology) : plain_topology(request);
  graph = stagecraft::with_profiles(std::move(graph), topology, request.graphs_for, request.acceptance);
  request.other_device = check_times("stagecraft-plan", request.graph, graph, topology, request.acceptance);
  take_batch(request, graph);
  const std::optional<partitioner::Candidate> given = given_stages(request, graph);
  context.strategy = request.strategy_named ? request.strategy : "";
  context.mark = mark_of(request);
  const bool improves = request.choice.complete || !request.choice.improve.empty();
  partitioner::RankedPlan ranked =
      improves                     ? improved(request, context, graph, topology, given)
      : !request.schedules.empty() ? best_schedule(request, graph, topology, given)
      : given                     ? first_of(request, plan_given(request, graph, topology, *given, request.constraints))
      : request.choice.is_asked() ? chosen_plan(request, context, graph, topology)
                                  : best_plan(request, graph, topology);
  // Bounds are those of the graph's own times.
  if (!topology.others.empty()) ranked.plan.lower_bound.reset();
  ranked.plan.provenance.tool = std::string("stagecraft-plan ") + stagecraft::version();
  const std::string idle = idle_text(ranked.prediction);
  if (!idle.empty()) ranked.plan.provenance.notes["idle devices"] = idle;
  if (!request.other_device.empty()) ranked.plan.provenance.notes["other device"] = request.other_device;
  const std::string& parts = ranked.prediction.backward_parts;
  if (!parts.empty()) ranked.plan.provenance.notes["backward parts"] = parts;
  print(request, graph, ranked);
  if (!idle.empty()) note(idle);
  if (!parts.empty()) note(parts);
  if (const std::string& text = ranked.prediction.message_processing; !text.empty()) note(text);
  if (const std::string text = slowdown_assumption(graph, topology); !text.empty()) note(text);
  if (!request.choice.json || request.output != "-")
    stagecraft::format::write_text(request.output, stagecraft::format::plan_json(ranked.plan));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (partitioner::asks_for_objective(argc, argv)) return partitioner::run_objective_command(argc, argv);
  Request request;
  return stagecraft::run_tool(
      {"plan", "Divides a graph into pipeline stages on a topology.", kExample}, argc, argv,
      [&](CLI::App& app) { declare(app, request); }, [&] { return plan(request); });
}

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>
#include <variant>
#include <vector>

#include "costmodel/device_match.h"
#include "costmodel/format/files.h"
#include "costmodel/format/json.h"
#include "costmodel/format/outputs.h"
#include "costmodel/interchange/actions_csv.h"
#include "costmodel/interchange/plan_formats.h"
#include "costmodel/progress.h"
#include "costmodel/table.h"
#include "costmodel/tool.h"
#include "partitioner/given_split.h"
#include "partitioner/ranking.h"
#include "partitioner/remedies.h"
#include "partitioner/strategy.h"

namespace {

using stagecraft::Graph;
using stagecraft::Plan;
using stagecraft::Stage;
using stagecraft::Topology;

constexpr const char* kExample =
    "stagecraft plan graph.json topology.json --microbatches 8 -o plan.json\n"
    "  stagecraft plan graph.json topology.json --strategy profile --replicas 2,1 -o plan.json\n"
    "  stagecraft plan graph.json topology.json --split-at layer2.0,layer4.0 --schedule gpipe -o plan.json\n"
    "  stagecraft plan graph.json topology.json --from pipedream-conf hybrid_conf.json -o plan.json\n"
    "  stagecraft plan graph.json -n 4 4 -b 12.5e9 1.25e9 --activation-compression-ratio 1 -o plan.json";

/// The strategy that tries the others and takes the plan with the shortest predicted step.
constexpr const char* kAll = "auto";

/// Before the file of lists that are to be the schedule.
constexpr const char* kCsv = "csv:";

/// Of a plan file, see plan.schema.json.
constexpr int kMostMicrobatches = 1 << 20;

/// Plan::strategy of a split by hand.
constexpr const char* kSplitAt = "split-at";

/// What the command line says.
struct Request {
  std::string graph;
  std::string topology;
  std::vector<int> devices;
  std::vector<double> bandwidths;
  std::string strategy;               ///< empty: pipedream where one of its options stands, else all
  std::vector<std::string> split_at;  ///< first layers of the stages after the first
  std::vector<std::string> from;      ///< format and file of another program's plan; or empty
  std::optional<stagecraft::Bytes> memory;
  stagecraft::StrategyOptions options;
  stagecraft::PlanSettings settings;
  bool microbatches_given = false;
  bool accept_other_device = false;
  std::string other_device;  ///< accepted_differences
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

void check_usage(Request& request) {
  const stagecraft::PipedreamOptions& p = request.options.pipedream;
  const bool pipedreams_own = p.straight_pipeline || p.use_memory_constraint || p.use_fewer_machines ||
                              p.activation_compression_ratio || request.memory;
  const bool given = !request.split_at.empty() || !request.from.empty();
  if (given && (!request.strategy.empty() || pipedreams_own || request.options.constraints.stages)) {
    throw CLI::ValidationError(request.from.empty() ? "--split-at" : "--from",
                               "says the stages, so that --strategy, --stages and PipeDream's options have no place");
  }
  if (request.strategy.empty()) request.strategy = pipedreams_own ? "pipedream" : kAll;
  if (pipedreams_own && request.strategy != "pipedream") {
    throw CLI::ValidationError("--strategy", request.strategy + " takes none of PipeDream's options");
  }
  if (request.strategy == "pipedream" && request.options.constraints.stages)
    throw CLI::ValidationError("--stages", "strategy pipedream finds the number of stages itself");
  if (request.strategy != kAll) {
    try {
      (void)stagecraft::strategy_by_name(request.strategy);
    } catch (const std::invalid_argument& e) {
      throw CLI::ValidationError("--strategy", std::string(e.what()) + ", " + kAll);
    }
  }
  const std::string& schedule = request.settings.schedule;
  if (!schedule.starts_with(kCsv))
    stagecraft::usage("--schedule", [&] { (void)stagecraft::schedule_by_name(schedule); });
  if (!request.from.empty())
    stagecraft::usage("--from", [&] { (void)stagecraft::plan_format(request.from[0]); });
  if (request.topology.empty() == request.devices.empty()) {
    throw CLI::ValidationError("TOPOLOGY", "one of a topology file and --devices is wanted");
  }
  if (!request.bandwidths.empty() && request.devices.empty()) {
    throw CLI::ValidationError("--bandwidths", "only --devices needs them, a topology file has its own");
  }
  if (request.bandwidths.size() > request.devices.size()) {
    throw CLI::ValidationError("--bandwidths", fmt::format("found {} for {} levels of --devices",
                                                           request.bandwidths.size(), request.devices.size()));
  }
}

void declare(CLI::App& app, Request& request) {
  std::string names = fmt::format(
      "\n  {}: all of them, also on fewer devices; the shortest predicted step wins, of those within 1 % the one with "
      "the "
      "fewest devices, then stages",
      kAll);
  for (const stagecraft::Strategy& strategy : stagecraft::strategies()) {
    names += fmt::format("\n  {}: {}", strategy.name, strategy.help);
  }
  app.add_option("GRAPH", request.graph, "graph.json; - is standard input")->required();
  app.add_option("TOPOLOGY", request.topology, "topology.json; or give --devices");
  app.add_option("-n,--devices", request.devices, "devices of each level, innermost first, instead of TOPOLOGY")
      ->delimiter(',')
      ->transform(stagecraft::integer(1))
      ->type_name("COUNT ...");
  app.add_option("-b,--bandwidths", request.bandwidths, "bytes per second of each level of --devices; 1e9 if absent")
      ->delimiter(',')
      ->transform(stagecraft::number_above(0))
      ->type_name("BYTES_PER_S ...");
  app.add_option("--strategy", request.strategy,
                 "how to part the graph; auto if absent, or pipedream with one of its options:" + names);
  std::string formats;
  for (const stagecraft::PlanFormat& format : stagecraft::plan_formats()) formats += "\n  " + format.name;
  app.add_option("--split-at", request.split_at,
                 "the stages by hand: the first layers of all but the first stage, ids of layers or paths of modules")
      ->delimiter(',')
      ->type_name("LAYER ...");
  app.add_option("--from", request.from,
                 "the stages as another program's file has them; lists of actions say schedule, replicas and "
                 "microbatches, and go with --split-at. Formats:" +
                     formats)
      ->expected(2)
      ->type_name("FORMAT FILE");
  app.add_option("--stages", request.options.constraints.stages,
                 "how many stages, for all strategies but pipedream; one a device if absent")
      ->transform(stagecraft::integer(1));
  app.add_option("--replicas", request.options.constraints.replicas,
                 "replicas of each stage, for all strategies but pipedream")
      ->delimiter(',')
      ->transform(stagecraft::integer(1))
      ->type_name("COUNT ...");
  app.add_option("--microbatches", request.settings.microbatches, "microbatches of one step")
      ->transform(stagecraft::integer(1, kMostMicrobatches, "the most that a plan file holds"))
      ->capture_default_str();
  app.add_option(
         "--schedule", request.settings.schedule,
         "order of work in a stage, or csv:FILE for lists as torch.distributed.pipelining's CSV, which then say "
         "stages, replicas and microbatches too")
      ->capture_default_str();
  stagecraft::add_bytes_option(
      app, "--memory-limit", request.options.constraints.memory_limit,
      "what a plan may use of one device, 16e9 or 16GiB; pipedream keeps it by PipeDream's own rule");
  app.add_flag("--recompute", request.settings.recompute,
               "every stage drops its activations after forward and runs it again before backward");
  app.add_option("--recompute-every", request.settings.recompute_every,
                 "as --recompute, but so many layers are run again at once, and what crosses between such segments is "
                 "kept; the whole stage if absent")
      ->transform(stagecraft::integer(1))
      ->type_name("LAYERS");
  stagecraft::add_bytes_option(app, "--gradient-bucket-bytes", request.settings.gradient_bucket_bytes,
                               "replicas sum their gradients in buckets of at most so much, 25e6 or 25MiB; all of a "
                               "stage in one if absent");
  app.add_flag("--accept-other-device", request.accept_other_device,
               "plan though the graph was measured on another device than the topology's: without the slowdown of "
               "ranks that share a host, every figure marked with ~");
  app.add_option("-o,--output", request.output, "where the plan goes; - is standard output")->capture_default_str();
  stagecraft::add_force_option(app, request.force);

  const std::string group = "PipeDream";
  stagecraft::PipedreamOptions& p = request.options.pipedream;
  app.add_flag("--straight-pipeline,--straight_pipeline", p.straight_pipeline, "no replicas")->group(group);
  app.add_flag("--use-memory-constraint,--use_memory_constraint", p.use_memory_constraint,
               "PipeDream's memory rule with the limit --memory-size")
      ->group(group);
  stagecraft::add_bytes_option(app, "-s,--memory-size,--memory_size", request.memory, "its limit, 16e9 if absent")
      ->group(group);
  app.add_flag("--use-fewer-machines,--use_fewer_machines", p.use_fewer_machines, "devices may stay idle")
      ->group(group);
  app.add_option("--activation-compression-ratio,--activation_compression_ratio", p.activation_compression_ratio,
                 "transfers are divided by it; if absent they cost nothing")
      ->transform(stagecraft::number_above(0))
      ->group(group);
  app.callback([&request, &app] {
    if (app.count("--recompute-every") > 0) request.settings.recompute = true;
    if (request.settings.gradient_bucket_bytes && *request.settings.gradient_bucket_bytes < stagecraft::Bytes(1))
      throw CLI::ValidationError("--gradient-bucket-bytes", "found 0, at least 1 byte is wanted");
    request.microbatches_given = app.count("--microbatches") > 0;
    check_usage(request);
  });
}

/// What goes before every figure of times that were measured on another device.
std::string mark_of(const Request& request) { return request.other_device.empty() ? "" : "~"; }

void print(const Request& request, const Graph& graph, const stagecraft::RankedPlan& ranked) {
  const Plan& plan = ranked.plan;
  const stagecraft::Prediction& prediction = ranked.prediction;
  const std::string mark = mark_of(request);
  std::vector<std::vector<std::string>> rows;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    stagecraft::Seconds time;
    stagecraft::Bytes parameters;
    for (const std::string& id : stage.layers) {
      const stagecraft::Layer& layer = graph.layers[static_cast<std::size_t>(stagecraft::layer_index(graph, id))];
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
  // PipeDream knows no end of a step, at which replicas beyond the number of microbatches would have nothing to do.
  const bool endless = plan.strategy.starts_with("pipedream") && !prediction.idle_devices.empty();
  if (plan.steady_state) {
    out += fmt::format("slowest stage {}{} per microbatch, as {} reckons{}", mark,
                       stagecraft::format_seconds(*plan.steady_state), plan.strategy,
                       endless ? " for an endless stream of them" : "");
  }
  if (plan.iteration) out += fmt::format("; predicted step {}{}", mark, stagecraft::format_seconds(*plan.iteration));
  if (!mark.empty()) out += "\n~ is not of this topology's devices: " + request.other_device;
  fmt::print(stderr, "{}\n", out);
}

void warn_of_blind_spots(const Request& request) {
  if (request.strategy == "pipedream" && !request.options.pipedream.activation_compression_ratio) {
    warn("transfers between stages cost nothing, as in PipeDream; --activation-compression-ratio 1 prices them");
  }
}

/// What was compared, best first; of many the first.
void print(const Request& request, const stagecraft::Ranking& ranking) {
  constexpr std::size_t kShown = 12;
  const std::vector<stagecraft::RankedPlan>& plans = ranking.plans;
  const std::string mark = mark_of(request);
  std::vector<std::vector<std::string>> rows;
  for (const stagecraft::RankedPlan& r : std::span(plans).first(std::min(plans.size(), kShown))) {
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
    out += fmt::format("{} more not simulated: {} compute alone takes longer than the best step\n", ranking.slower,
                       ranking.slower == 1 ? "its" : "their");
  }
  const auto ties = std::ranges::count_if(plans, [&](const stagecraft::RankedPlan& r) {
    return r.fits && r.prediction.iteration <= plans.front().prediction.iteration * (1 + stagecraft::kTie);
  });
  if (ties > 1) {
    out += fmt::format("steps within {:g} % count as equally fast, then fewer devices and fewer stages come first\n",
                       stagecraft::kTie * 100);
  }
  if (const std::string text = skipped_text(ranking.skipped); !text.empty()) out += text + "\n";
  fmt::print(stderr, "{}", out);
}

/// Of one step, where each ends before the next.
std::optional<int> microbatches_of_a_step(const stagecraft::PlanSettings& settings) {
  if (stagecraft::schedule_by_name(settings.schedule).weights != stagecraft::Weights::Flushed) return std::nullopt;
  return settings.microbatches;
}

/// `options` that tell on `line` how far a prediction is.
stagecraft::StrategyOptions telling(stagecraft::StrategyOptions options, stagecraft::ProgressLine& line) {
  options.progress = [&line](double done) { line.show(fmt::format("replayed {:.0f} % of a plan", done * 100)); };
  return options;
}

/// The best plan of all strategies, after a table of them.
stagecraft::RankedPlan best_of_all(const Request& request, const Graph& graph, const Topology& topology) {
  auto result = [&] {
    stagecraft::ProgressLine line;
    return stagecraft::rank_plans(graph, topology, request.settings, telling(request.options, line));
  }();
  if (const auto* infeasible = std::get_if<stagecraft::Infeasible>(&result)) {
    throw std::runtime_error(request.graph + ": " + infeasible->reason);
  }
  auto& ranking = std::get<stagecraft::Ranking>(result);
  print(request, ranking);
  return std::move(ranking.plans.front());
}

/// The plan of one candidate; throws where it needs more memory than there is, with what would fit. `again` gives the
/// candidate of another graph and topology, if that differs.
stagecraft::RankedPlan plan_of(
    const Request& request, const Graph& graph, const Topology& topology, const stagecraft::Candidate& candidate,
    const std::function<std::optional<stagecraft::Candidate>(const Graph&, const Topology&)>& again) {
  stagecraft::RankedPlan ranked = [&] {
    stagecraft::ProgressLine line;
    return stagecraft::predicted_plan(graph, topology, candidate, request.settings, telling(request.options, line));
  }();
  const std::string excess = stagecraft::memory_excess(ranked, topology, request.options);
  // PipeDream's own memory rule has the last word where its strategy was asked for by name.
  if (!excess.empty() && request.strategy == "pipedream") warn(excess + ", as the cost model counts");
  if (!excess.empty() && request.strategy != "pipedream") {
    const stagecraft::NeedOf need = [&](const Graph& g, const Topology& t,
                                        const stagecraft::PlanSettings& settings) -> std::optional<stagecraft::Bytes> {
      const auto other = again(g, t);
      if (!other) return std::nullopt;
      return need_of(g, plan_of_candidate(g, t, *other, settings));
    };
    throw std::runtime_error(
        request.graph + ": " + excess +
        remedies_text(graph, topology, request.settings, *stagecraft::memory_limit(topology, request.options), need));
  }
  return ranked;
}

stagecraft::RankedPlan best_of_one(const Request& request, const Graph& graph, const Topology& topology) {
  const auto result = stagecraft::partition(request.strategy, graph, topology, request.options);
  if (const auto* infeasible = std::get_if<stagecraft::Infeasible>(&result)) {
    throw std::runtime_error(request.graph + ": " + infeasible->reason);
  }
  const auto again = [&](const Graph& g, const Topology& t) -> std::optional<stagecraft::Candidate> {
    const stagecraft::Constraints& told = request.options.constraints;
    if ((told.stages || !told.replicas.empty()) && t.levels != topology.levels) return std::nullopt;
    auto other = stagecraft::partition(request.strategy, g, t, request.options);
    if (std::holds_alternative<stagecraft::Infeasible>(other)) return std::nullopt;
    return std::move(std::get<std::vector<stagecraft::Candidate>>(other).front());
  };
  return plan_of(request, graph, topology, std::get<std::vector<stagecraft::Candidate>>(result).front(), again);
}

/// Takes schedule, stages, replicas and microbatches from lists that came without a plan.
void take_lists(Request& request, const Plan& shape) {
  if (shape.chunks > 1) throw std::invalid_argument("several stages on a rank, plan gives each stage its own devices");
  if (request.microbatches_given && request.settings.microbatches != shape.microbatches) {
    throw std::invalid_argument(fmt::format("found {} microbatches, --microbatches says {}", shape.microbatches,
                                            request.settings.microbatches));
  }
  if (!request.split_at.empty() && request.split_at.size() + 1 != shape.stages.size()) {
    throw std::invalid_argument(
        fmt::format("found {} stages, --split-at says {}", shape.stages.size(), request.split_at.size() + 1));
  }
  request.settings.microbatches = shape.microbatches;
  request.settings.schedule = shape.schedule;
  request.settings.listed = shape.listed;
  stagecraft::Constraints& constraints = request.options.constraints;
  constraints.stages = static_cast<int>(shape.stages.size());
  constraints.replicas.clear();
  for (const Stage& stage : shape.stages) constraints.replicas.push_back(static_cast<int>(stage.devices.size()));
  if (request.strategy == kAll) request.strategy = "profile";
}

/// take_lists with those of csv:FILE.
void take_csv(Request& request) {
  const std::string path = request.settings.schedule.substr(std::string(kCsv).size());
  const auto lists = stagecraft::parse_actions_csv(stagecraft::read_text(path), path);
  try {
    take_lists(request, stagecraft::plan_of_lists(lists));
  } catch (const std::invalid_argument& e) { throw std::invalid_argument(path + ": " + e.what()); }
}

/// The stages that the command line or another program's file says; absent where a strategy is to find them.
std::optional<stagecraft::Candidate> given_stages(Request& request, const Graph& graph) {
  std::optional<stagecraft::Candidate> out;
  if (!request.from.empty()) {
    const std::string& path = request.from[1];
    const stagecraft::PlanFormat& format = stagecraft::plan_format(request.from[0]);
    stagecraft::ForeignPlan plan = format.read({stagecraft::read_text(path), path}, graph);
    try {
      if (plan.lists) take_lists(request, *plan.lists);
      if (plan.partition) {
        if (!request.split_at.empty()) throw std::invalid_argument("says the stages, --split-at does too");
        request.strategy = format.name;
        out = given_candidate(graph, std::move(*plan.partition), std::move(plan.devices), std::move(plan.warmups),
                              request.options.constraints.replicas, microbatches_of_a_step(request.settings));
      }
    } catch (const std::invalid_argument& e) { throw std::invalid_argument(path + ": " + e.what()); }
  }
  if (!request.split_at.empty()) {
    request.strategy = kSplitAt;
    try {
      out = split_candidate(graph, request.split_at, request.options.constraints.replicas,
                            microbatches_of_a_step(request.settings));
    } catch (const std::invalid_argument& e) { throw std::invalid_argument("--split-at: " + std::string(e.what())); }
  }
  return out;
}

/// The files that the command line names.
std::vector<std::string> inputs_of(const Request& request) {
  std::vector<std::string> out{request.graph, request.topology};
  if (!request.from.empty()) out.push_back(request.from[1]);
  const std::string& schedule = request.settings.schedule;
  if (schedule.starts_with(kCsv)) out.push_back(schedule.substr(std::string(kCsv).size()));
  return out;
}

int plan(Request& request) {
  stagecraft::check_outputs(inputs_of(request), {{request.output, "stagecraft.plan"}}, request.force);
  if (request.settings.schedule.starts_with(kCsv)) take_csv(request);
  warn_of_blind_spots(request);
  if (request.memory) request.options.pipedream.memory_limit = *request.memory;
  Graph graph = stagecraft::read_graph(request.graph);
  const Topology topology =
      request.devices.empty() ? stagecraft::read_topology(request.topology) : plain_topology(request);
  try {
    stagecraft::check_has_times(graph);
    request.other_device = stagecraft::accepted_differences(graph, topology, request.accept_other_device);
  } catch (const std::invalid_argument& e) { throw std::invalid_argument(request.graph + ": " + e.what()); }
  const std::optional<stagecraft::Candidate> given = given_stages(request, graph);
  request.settings.strategy = request.strategy;
  request.options.microbatches = microbatches_of_a_step(request.settings);
  const auto same = [&](const Graph&, const Topology& t) { return t.levels == topology.levels ? given : std::nullopt; };
  const bool all = !given && request.strategy == kAll;
  stagecraft::RankedPlan ranked = given ? plan_of(request, graph, topology, *given, same)
                                  : all ? best_of_all(request, graph, topology)
                                        : best_of_one(request, graph, topology);
  if (all) ranked.plan.strategy = ranked.origin;
  ranked.plan.provenance.tool = std::string("stagecraft-plan ") + stagecraft::version();
  const std::string idle = idle_text(ranked.prediction);
  if (!idle.empty()) ranked.plan.provenance.notes["idle devices"] = idle;
  if (!request.other_device.empty()) ranked.plan.provenance.notes["other device"] = request.other_device;
  print(request, graph, ranked);
  if (!idle.empty()) note(idle);
  if (const std::string text = slowdown_assumption(graph, topology); !text.empty()) note(text);
  stagecraft::write_text(request.output, stagecraft::plan_json(ranked.plan));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Request request;
  return stagecraft::run_tool(
      {"plan", "Parts a graph into the stages of a pipeline on a topology.", kExample}, argc, argv,
      [&](CLI::App& app) { declare(app, request); }, [&] { return plan(request); });
}

#include "partitioner/command/settings_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <utility>
#include <vector>

#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/index.h"
#include "costmodel/text/table.h"
#include "partitioner/choices/listing.h"
#include "partitioner/choices/settings_search.h"
#include "partitioner/strategies/strategies.h"

namespace stagecraft::partitioner {
namespace {

/// Settings that are shown without --all.
constexpr int kLines = 10;

/// Title of the options in the help: they choose among plans, too.
constexpr const char* kGroup = "Choosing among plans";

/// The profiles of all sizes: the request's graph, which was checked, and the others.
std::vector<Graph> profiles_of(const PlanRequest& request, const Graph& graph, const Topology& topology) {
  if (!request.choice.more_graphs.empty() && !graph.profiles.empty())
    throw std::invalid_argument(
        "--more-graphs: profiles of other sizes have no times for --graph-for; remove one of them");
  std::vector<Graph> out{graph};
  for (const std::string& path : request.choice.more_graphs) {
    out.push_back(format::read_graph(path));
    Topology same = topology;
    // The links were warned of already.
    same.conditions = {};
    for (Level& level : same.levels) level.link.distrust.clear();
    (void)check_times("stagecraft-plan", path, out.back(), same, request.acceptance);
  }
  return out;
}

/// The file of the `index`-th of them.
const std::string& file_of_profile(const PlanRequest& request, std::size_t index) {
  return index == 0 ? request.graph : request.choice.more_graphs[index - 1];
}

/// Of profiles on a host that ranks share, some may lack their slowdown: steps of that size then look too short.
void note_missing_slowdowns(const PlanRequest& request, const std::vector<Graph>& profiles) {
  const auto most =
      std::ranges::max_element(profiles, {}, [](const Graph& profile) { return profile.slowdown.size(); });
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    if (profiles[i].slowdown.size() == most->slowdown.size()) continue;
    fmt::print(stderr,
               "warning: {}: the slowdown of {} ranks on one host was not measured, as it was for microbatches of {} "
               "samples; steps of this size look too short; profile it again with a larger --max-seconds\n",
               file_of_profile(request, i), most->slowdown.size(), most->microbatch_samples.value_or(1));
  }
}

/// What is searched, and which microbatch sizes are not.
SizedGraphs graphs_of(const PlanRequest& request, const Graph& graph, const Topology& topology) {
  const std::optional<std::int64_t>& batch = request.choice.global_batch;
  if (!batch) return {{{graph, request.constraints.plan.microbatches, "", true}}, {}};
  const std::vector<Graph> profiles = profiles_of(request, graph, topology);
  note_missing_slowdowns(request, profiles);
  SizedGraphs out = within(request.graph, [&] { return sized_graphs(profiles, *batch); });
  for (SizedGraph& sized : out.graphs) {
    const auto profile = std::ranges::find(profiles, sized.graph.microbatch_samples, &Graph::microbatch_samples);
    if (profile != profiles.end()) sized.file = file_of_profile(request, to_index(profile - profiles.begin()));
  }
  return out;
}

SettingSpace space_of(const PlanRequest& request, std::vector<SizedGraph> graphs, const Graph& graph) {
  SettingSpace out;
  out.graphs = std::move(graphs);
  for (std::size_t i = 0; i < out.graphs.size(); ++i) {
    if (out.graphs[i].graph.microbatch_samples == graph.microbatch_samples) out.asked = i;
  }
  out.schedules = request.schedules;
  out.recomputation = !request.recomputation_given;
  out.buckets = !request.constraints.plan.gradient_bucket_bytes;
  out.sharding = !request.sharding_given;
  out.constraints = request.constraints;
  return out;
}

/// Says which graph predicts the plan, unless it is the request's.
void note_graph(const PlanRequest& request, const Graph& graph, const SizedGraph& chosen) {
  if (chosen.graph.microbatch_samples == graph.microbatch_samples) return;
  const std::int64_t samples = chosen.graph.microbatch_samples.value_or(1);
  const std::string graph_text =
      chosen.is_measured ? chosen.file
                         : fmt::format("the graph of: stagecraft estimate {} --more-graphs {} --microbatch {}",
                                       request.graph, fmt::join(request.choice.more_graphs, " "), samples);
  fmt::print(stderr, "note: the plan has microbatches of {} samples, {}; to predict it, use {}\n", samples,
             chosen.origin, graph_text);
}

}  // namespace

void declare_settings(CLI::App& app, PlanRequest& request) {
  app.add_option_function<std::string>(
         "--settings", [&request](const std::string&) { request.choice.settings = true; },
         "best: search schedules, recomputation (where memory is limited), gradient buckets, stages and, with "
         "--global-batch, microbatch sizes together, within one --time-limit; an option that sets one of them fixes it")
      ->check([](const std::string& value) {
        return value == "best" ? std::string() : "found " + value + ", expected best";
      })
      ->type_name("best")
      ->group(kGroup);
  app.add_option(
         "--more-graphs", request.choice.more_graphs,
         "with --settings and --global-batch: profiles of the same model with microbatches of other sizes; sizes "
         "between them are interpolated")
      ->type_name("GRAPH ...")
      ->group(kGroup);
}

void check_settings(const PlanRequest& request) {
  const ChoiceRequest& choice = request.choice;
  if (!choice.more_graphs.empty() && !(choice.settings && choice.global_batch)) {
    throw CLI::ValidationError("--more-graphs", "only valid with --settings best and --global-batch");
  }
  if (!choice.settings) return;
  const auto refuse = [](const std::string& why) { throw CLI::ValidationError("--settings", why); };
  if (!request.split_at.empty() || !request.from.empty() || choice.complete || !choice.improve.empty())
    refuse("searches stages too; remove --split-at, --from and --improve");
  if (choice.is_asked()) refuse("finds the plan with the shortest step; remove other options that choose among plans");
  if (!request.strategy.empty() && request.strategy != kDefaultStrategy)
    refuse(std::string("searches with strategy ") + kDefaultStrategy + "; remove --strategy " + request.strategy);
  const Strategy* owner = owner_of_options(request.constraints.options);
  if (owner != nullptr && owner->name != kDefaultStrategy)
    refuse(std::string("searches with strategy ") + kDefaultStrategy + "; remove " + owner->options_title +
           "'s options");
}

SizedPlan best_of_settings(const PlanRequest& request, const Graph& graph, const Topology& topology,
                           const CostModel& costs, const std::string& mark, const std::function<void()>& end_progress) {
  SizedGraphs graphs = graphs_of(request, graph, topology);
  const SettingSpace space = space_of(request, std::move(graphs.graphs), graph);
  SettingsSearch search = [&] {
    try {
      return search_settings(space, topology, costs);
    } catch (const NoAnswerError& e) { throw NoAnswerError(request.graph + ": ", {e.what(), e.kind()}); }
  }();
  end_progress();
  SettingTrial& best = search.trials[search.best];
  format::PlanList list = settings_list(search, space, topology);
  for (const std::string& text : graphs.notes) list.skipped.emplace_back(text, 1);
  fmt::print(stderr, "{}", settings_list_text(list, request.choice.all ? 0 : kLines, mark, error_screen()));
  for (const std::string& text : graphs.notes) fmt::print(stderr, "note: {}\n", text);
  const SizedGraph& chosen = space.graphs[best.settings.graph];
  note_graph(request, graph, chosen);
  if (request.choice.json) format::write_text("-", format::plan_list_json(list));
  SizedPlan out{std::move(*best.plan), chosen.graph};
  out.ranked.plan.lower_bound = search.lower_bound;
  out.ranked.plan.provenance.notes["settings"] = settings_note(search, space);
  return out;
}

}  // namespace stagecraft::partitioner

#include "partitioner/command/make_plan.h"

#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "costmodel/accuracy/intervals.h"
#include "costmodel/command/tool.h"
#include "costmodel/command/tool_inputs.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/graph.h"
#include "costmodel/index.h"
#include "costmodel/interchange/plan_formats.h"
#include "costmodel/interchange/torch_pipelining.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/stage_costs.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"
#include "partitioner/candidate.h"
#include "partitioner/choices/advice.h"
#include "partitioner/choices/listing.h"
#include "partitioner/choices/settings_search.h"
#include "partitioner/command/choices_command.h"
#include "partitioner/command/plan_command.h"
#include "partitioner/command/plan_text.h"
#include "partitioner/command/settings_command.h"
#include "partitioner/strategies/list_strategies.h"
#include "partitioner/strategies/strategies.h"

namespace stagecraft::partitioner {
namespace {

/// Plan::strategy of a split by hand.
constexpr const char* kSplitAt = "split-at";

/// Takes schedule, stages, replicas and microbatches from lists that came without a plan.
void take_lists(PlanRequest& request, const Plan& shape) {
  if (request.constraints.chunks && *request.constraints.chunks != shape.chunks) {
    throw std::invalid_argument(fmt::format("found {} per rank, --chunks is {}", count_text(shape.chunks, "stage"),
                                            *request.constraints.chunks));
  }
  if (request.microbatches_given && request.constraints.plan.microbatches != shape.microbatches) {
    throw std::invalid_argument(fmt::format("found {}, --microbatches is {}",
                                            count_text(shape.microbatches, "microbatch", "microbatches"),
                                            request.constraints.plan.microbatches));
  }
  if (!request.split_at.empty() && request.split_at.size() + 1 != shape.stages.size()) {
    throw std::invalid_argument(fmt::format("found {}, --split-at gives {}", count_text(shape.stages.size(), "stage"),
                                            request.split_at.size() + 1));
  }
  request.constraints.plan.microbatches = shape.microbatches;
  request.constraints.plan.schedule = shape.schedule;
  request.constraints.plan.listed = shape.listed;
  Constraints& constraints = request.constraints;
  constraints.stages = to_int(shape.stages.size());
  constraints.chunks = shape.chunks;
  constraints.replicas = replicas_of(shape);
  if (request.strategy == kDefaultStrategy) request.strategy = kProfileStrategy;
}

/// Takes schedule, stages, replicas and microbatches from the request's lists_file, if it has one. Throws
/// std::invalid_argument, beginning with the file, for lists that are wrong or contradict the command line.
void take_csv(PlanRequest& request) {
  const std::string path = lists_file(request);
  if (path.empty()) return;
  const auto lists = interchange::parse_actions_csv(format::read_text(path), path);
  within(path, [&] { take_lists(request, interchange::plan_of_lists(lists)); });
}

/// Takes the number of microbatches from --global-batch, if it is given. Throws std::invalid_argument as
/// microbatches_of does, and for action lists, which give it themselves.
void take_batch(PlanRequest& request, const Graph& graph) {
  if (!request.choice.global_batch) return;
  if (!request.constraints.plan.listed.empty()) {
    throw std::invalid_argument("--global-batch: the action lists give the number of microbatches");
  }
  request.constraints.plan.microbatches =
      within(request.graph, [&] { return microbatches_of(*request.choice.global_batch, graph); });
}

/// The stages of --split-at or --from; absent if a strategy finds them. From --from the request also takes schedule,
/// replicas and microbatches, if the file gives them. Throws std::invalid_argument, beginning with the option or the
/// file.
std::optional<Candidate> given_stages(PlanRequest& request, const Graph& graph) {
  std::optional<Candidate> out;
  if (!request.from.empty()) {
    const std::string& path = request.from[1];
    const interchange::PlanFormat& format = interchange::plan_format(request.from[0]);
    interchange::ForeignPlan plan = format.read({format::read_text(path), path}, graph);
    within(path, [&] {
      if (plan.lists) take_lists(request, *plan.lists);
      if (plan.partition) {
        if (!request.split_at.empty()) throw std::invalid_argument("gives the stages; remove --split-at");
        request.strategy = format.name;
        out = given_candidate(graph, std::move(*plan.partition), std::move(plan.devices), std::move(plan.warmups),
                              request.constraints.replicas, microbatches_of_a_step(request.constraints.plan),
                              chunk_counts(request.constraints).front(), placement_of(request.constraints.plan));
      }
    });
  }
  if (!request.split_at.empty()) {
    request.strategy = kSplitAt;
    out = within("--split-at", [&] {
      return split_candidate(graph, request.split_at, request.constraints.replicas,
                             microbatches_of_a_step(request.constraints.plan),
                             chunk_counts(request.constraints).front(), placement_of(request.constraints.plan));
    });
  }
  return out;
}

/// Prints a part of the summary: on standard output, unless a plan is written.
void print_summary(const PlanRequest& request, const auto& text_on) {
  const bool is_all = request.output.empty() && !request.choice.json;
  fmt::print(is_all ? stdout : stderr, "{}", text_on(is_all ? output_screen() : error_screen()));
}

void note(const std::string& text) { fmt::print(stderr, "note: {}\n", text); }

void warn_user(const std::string& text) { warn("stagecraft-plan", text); }

/// Mark before every figure that comes from times measured on another device.
std::string mark_of(const PlanRequest& request) { return request.other_device.empty() ? "" : "~"; }

void warn_of_caveat(const PlanRequest& request) {
  const auto& caveat = strategy_by_name(request.strategy).caveat;
  const std::string text = caveat ? caveat(request.constraints.options) : "";
  if (!text.empty()) warn_user(text);
}

/// The first plan of `result`; throws NoAnswerError if there is none.
RankedPlan first_of(const PlanRequest& request, StrategyResult result) {
  Ranking ranking = answer_of(std::move(result), request.graph + ": ");
  return std::move(ranking.plans.front());
}

/// The plan of the given stages, or why there is none.
StrategyResult plan_given(const PlanRequest& request, const Graph& graph, const Topology& topology,
                          const Candidate& given, const CostModel& costs, const Constraints& constraints) {
  const CandidateOf same = [&](const Graph&, const Topology& t) -> std::optional<Candidate> {
    if (t.levels != topology.levels) return std::nullopt;
    return given;
  };
  return rank_one(request.strategy, graph, topology, given, costs, constraints, same);
}

/// The same for the request's own constraints, with its progress.
StrategyResult plan_shown(const PlanRequest& request, const Graph& graph, const Topology& topology,
                          const Candidate& given) {
  const ShownSearch shown;
  return plan_given(request, graph, topology, given, shown.costs(), request.constraints);
}

/// The plan with the best of several schedules, after a table of them.
RankedPlan best_schedule(const PlanRequest& request, const Graph& graph, const Topology& topology,
                         const std::optional<Candidate>& given) {
  ShownSearch shown;
  std::size_t number = 0;
  const auto plan_one = [&](const Constraints& constraints) {
    const ToldPart part(shown.costs().progress,
                        fmt::format("{} ({} of {})", constraints.plan.schedule, ++number, request.schedules.size()));
    if (given) return plan_given(request, graph, topology, *given, shown.costs(), constraints);
    return plan_with(request.strategy, graph, topology, shown.costs(), constraints);
  };
  SettingsSearch search = search_schedules(request.schedules, request.constraints, plan_one);
  shown.end();
  fmt::print(stderr, "{}", schedules_text(search, mark_of(request), error_screen()));
  RankedPlan ranked = *search.trials[search.best].plan;
  ranked.plan.lower_bound = search.lower_bound;
  ranked.plan.provenance.notes["schedules"] = schedules_note(search);
  if (!ranked.fits) warn_user(memory_excess(ranked, topology, request.constraints) + " (by the cost model)");
  return ranked;
}

/// The given stages, or those of --improve, improved.
RankedPlan improved(PlanRequest& request, ChoiceContext context, const Graph& graph, const Topology& topology,
                    const std::optional<Candidate>& given) {
  Candidate start;
  if (given) {
    start = *given;
    context.strategy = request.strategy;
  } else {
    const std::string& path = request.choice.improve;
    const Plan before = format::read_plan(path);
    context.strategy = before.strategy + ", improved";
    start = within(path, [&] { return start_of(before, graph, topology, request.constraints); });
  }
  ShownSearch shown;
  context.end_progress = [&shown] { shown.end(); };
  return improved_choice(request.choice, context, graph, topology, shown.costs(), request.constraints, start);
}

/// The best of the plans that the request chooses from, after their list.
RankedPlan chosen_plan(const PlanRequest& request, ChoiceContext context, const Graph& graph,
                       const Topology& topology) {
  ShownSearch shown;
  context.end_progress = [&shown] { shown.end(); };
  return best_choice(request.choice, context, graph, topology, shown.costs(), request.constraints);
}

/// The best plan of the requested strategy, after a table of what it compared; `notes` about it.
RankedPlan best_plan(const PlanRequest& request, const Graph& graph, const Topology& topology,
                     std::vector<std::string>& notes) {
  // Of the time limit, beyond the search.
  constexpr double kAdviceShare = 0.2;
  auto result = [&] {
    const ShownSearch shown;
    auto out = plan_with(request.strategy, graph, topology, shown.costs(), request.constraints);
    const auto* ranking = std::get_if<Ranking>(&out);
    if (ranking != nullptr && strategy_by_name(request.strategy).compares) {
      const Seconds time = time_limit(request.constraints.options) * kAdviceShare;
      notes = advice(graph, topology, shown.costs(), request.constraints, *ranking, time, mark_of(request));
    }
    return out;
  }();
  const auto* ranking = std::get_if<Ranking>(&result);
  if (ranking != nullptr && strategy_by_name(request.strategy).compares)
    print_summary(request, [&](const auto& screen) { return ranking_text(*ranking, mark_of(request), screen); });
  RankedPlan ranked = first_of(request, std::move(result));
  // For a strategy with its own memory rule, that rule decides.
  if (!ranked.fits) warn_user(memory_excess(ranked, topology, request.constraints) + " (by the cost model)");
  return ranked;
}

/// The best plan of all settings, after a table of them; `graph` becomes that of its microbatch size.
RankedPlan of_settings(const PlanRequest& request, Graph& graph, const Topology& topology) {
  ShownSearch shown;
  const auto end_progress = [&shown] { shown.end(); };
  SizedPlan found = best_of_settings(request, graph, topology, shown.costs(), mark_of(request), end_progress);
  graph = std::move(found.graph);
  return std::move(found.ranked);
}

}  // namespace

void make_plan(PlanRequest& request) {
  ChoiceContext context{request.graph, "", "", inputs_of(request), request.output, request.force};
  check_choice_outputs(request.choice, context);
  take_csv(request);
  warn_of_caveat(request);
  Graph graph = format::read_graph(request.graph);
  Topology topology = topology_of(request.topology);
  check_links("stagecraft-plan", request.topology, topology, request.acceptance);
  graph = with_profiles(std::move(graph), topology, request.graphs_for, request.acceptance);
  request.other_device = check_times("stagecraft-plan", request.graph, graph, topology, request.acceptance);
  if (!request.choice.settings) take_batch(request, graph);
  const std::optional<Candidate> given = given_stages(request, graph);
  context.strategy = request.strategy_named ? request.strategy : "";
  context.mark = mark_of(request);
  const bool improves = request.choice.complete || !request.choice.improve.empty();
  std::vector<std::string> notes;
  RankedPlan ranked = request.choice.settings      ? of_settings(request, graph, topology)
                      : improves                   ? improved(request, context, graph, topology, given)
                      : !request.schedules.empty() ? best_schedule(request, graph, topology, given)
                      : given                      ? first_of(request, plan_shown(request, graph, topology, *given))
                      : request.choice.is_asked()  ? chosen_plan(request, context, graph, topology)
                                                   : best_plan(request, graph, topology, notes);
  list_parameters(graph, ranked.plan);
  check_proved(ranked, graph, topology, request.graph);
  // Bounds are those of the graph's own times.
  if (!topology.others.empty()) ranked.plan.lower_bound.reset();
  sign(ranked.plan.provenance);
  const std::string idle = idle_text(ranked.prediction);
  if (!idle.empty()) ranked.plan.provenance.notes["idle devices"] = idle;
  if (!request.other_device.empty()) ranked.plan.provenance.notes["other device"] = request.other_device;
  const std::string& parts = ranked.prediction.backward_parts;
  if (!parts.empty()) ranked.plan.provenance.notes["backward parts"] = parts;
  print_summary(request, [&](const auto& screen) { return stages_text(graph, ranked, request.other_device, screen); });
  std::fflush(stdout);
  if (!idle.empty()) note(idle + idle_reason_text(graph, ranked));
  for (const std::string& text : notes) note(text);
  if (!parts.empty()) note(parts);
  if (const std::string& text = ranked.prediction.message_processing; !text.empty()) note(text);
  if (const std::string text = data_wait_text(graph, topology, BoundPlan(ranked.plan)); !text.empty()) note(text);
  for (const std::string& text : {launches_text(graph), slowdown_assumption(graph, topology)}) {
    if (!text.empty()) note(text);
  }
  for (const auto& part : unmeasured(graph, topology, BoundPlan(ranked.plan))) note(part.text);
  if (!request.output.empty() && !(request.choice.json && request.output == "-"))
    format::write_text(request.output, format::plan_json(ranked.plan));
}

}  // namespace stagecraft::partitioner

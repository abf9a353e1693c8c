#include "partitioner/command/choices_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/index.h"
#include "costmodel/report/pictures.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"
#include "partitioner/candidate.h"
#include "partitioner/choices/improve.h"
#include "partitioner/choices/listing.h"
#include "partitioner/choices/reasons.h"
#include "partitioner/choices/stage_constraints.h"
#include "partitioner/strategies/auto.h"
#include "partitioner/strategies/strategies.h"

namespace stagecraft::partitioner {
namespace {

constexpr int kMostPlans = 1000;
constexpr int kLines = 10;
/// Plans that --explain compares unless --top or --front says which.
constexpr int kExplained = 3;
/// Plans that are improved by a goal or with layers where the user wants them.
constexpr int kStarts = 12;

std::string file_name(std::size_t rank, std::size_t plans) {
  return fmt::format("plan-{:0{}}.json", rank + 1, std::to_string(plans).size());
}

/// Whether a file in the folder of --top-to may be replaced.
bool is_plan(const std::string&, const std::string& text) { return format::text_kind(text) == "stagecraft.plan"; }

/// Writes the plans of a list to the folder and notes their files.
void write_plans(const std::string& folder, const std::vector<RankedPlan>& plans, bool force, format::PlanList& list) {
  std::map<std::string, std::string> files;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    Plan plan = plans[i].plan;
    sign(plan.provenance);
    const std::string name = file_name(i, plans.size());
    files[name] = format::plan_json(plan);
    list.plans[i].file = folder + (folder.ends_with('/') ? "" : "/") + name;
  }
  format::write_folder(folder, files,
                       [&](const std::string& name, const std::string& text) { return force || is_plan(name, text); });
}

/// The request's settings with the plan's recomputation and sharding.
Constraints constraints_like(Constraints constraints, const Plan& plan) {
  constraints.plan.recompute = plan.stages.front().recompute;
  constraints.plan.recompute_every = plan.stages.front().recompute_every;
  constraints.plan.sharding = plan.sharding;
  return constraints;
}

/// Improves the best plans by the question's goal, with layers where the user wants them: plans of `gathered` that have
/// them elsewhere are left out, and their layers moved for a start.
void improve_best(Gathered& gathered, const Question& question, const StageConstraints& hand) {
  std::vector<RankedPlan> sources = std::move(gathered.plans);
  sort_by_goal(sources, question.goal);
  gathered.plans.clear();
  const auto add = [&](RankedPlan ranked) {
    const bool known = std::ranges::any_of(
        gathered.plans, [&](const RankedPlan& other) { return is_same_choice(other.plan, ranked.plan, false); });
    if (!ranked.fits || known) return;
    // A bound of all plans is one of those with layers by hand.
    if (ranked.plan.stages.front().recompute == question.constraints.plan.recompute && !hand.is_empty())
      ranked.plan.lower_bound = gathered.lower_bound;
    gathered.plans.push_back(std::move(ranked));
  };
  std::vector<std::pair<Candidate, const RankedPlan*>> starts;
  for (const RankedPlan& source : sources) {
    const Partition before = partition_of(question.graph, source.plan);
    if (honours(before, hand)) add(source);
    const auto after = with_stage_constraints(question.graph, before, hand);
    if (!after || to_int(starts.size()) >= kStarts) continue;
    starts.emplace_back(
        given_candidate(question.graph, *after, {}, {}, {}, microbatches_of_a_step(question.constraints.plan),
                        source.plan.chunks, schedule_of(source.plan).placement),
        &source);
  }
  std::size_t number = 0;
  for (const auto& [start, source] : starts) {
    const ToldPart part(question.costs.progress, fmt::format("plan {} of {}", ++number, starts.size()));
    ImproveOptions options;
    options.goal = question.goal;
    options.hand = hand;
    options.time = time_limit(question.constraints.options) / static_cast<double>(starts.size());
    try {
      add(improved_plan(source->origin + (hand.is_empty() ? ", improved" : ", by hand"), question.graph,
                        question.topology, question.costs, constraints_like(question.constraints, source->plan), start,
                        options));
    } catch (const std::invalid_argument&) {  // the schedule cannot run it
    } catch (const std::runtime_error&) {     // its lists deadlock
    }
  }
  sort_by_goal(gathered.plans, question.goal);
}

/// Says with which changes a plan fits in memory.
void print_changes(const std::vector<std::string>& changes) {
  if (changes.empty()) return;
  std::string text = "the smallest changes that make a plan fit in memory (each was tried):\n";
  for (const std::string& change : changes) text += "  " + change + "\n";
  fmt::print(stderr, "{}", text);
}

/// Why no plan has the throughput: the fastest one's.
std::string too_slow(const std::vector<RankedPlan>& plans, double wanted) {
  const RankedPlan* fastest = &plans.front();
  for (const RankedPlan& ranked : plans) {
    if (ranked.prediction.iteration < fastest->prediction.iteration) fastest = &ranked;
  }
  return fmt::format("no plan reaches {:g} samples/s; the fastest ({}) reaches {:.4g}", wanted, fastest->origin,
                     fastest->prediction.samples_per_s.value_or(0));
}

}  // namespace

void declare_choices(CLI::App& app, ChoiceRequest& request) {
  const char* group = "Choosing among plans";
  app.add_option("--top", request.top, "list the K best distinct plans, of all strategies or of --strategy")
      ->transform(integer(1, kMostPlans, "the most that a list holds"))
      ->type_name("K")
      ->group(group);
  app.add_flag("--front", request.front,
               "list the Pareto front: the plans that no other plan beats in step, devices and memory; also tries "
               "fewer devices and recomputation")
      ->group(group);
  app.add_flag("--all", request.all, "show the whole list instead of its first 10 plans")->group(group);
  app.add_flag("--json", request.json,
               "print the list as a stagecraft.plans document on standard output; the best plan is then written only "
               "with -o")
      ->group(group);
  app.add_flag(
         "--explain", request.explain,
         "explain where the step time of the listed plans goes, why the first is better, and which constraints bind; "
         "if no plan fits in memory, list the smallest changes that make one fit (without --top: for the 3 best plans)")
      ->group(group);
  app.add_option("--picture", request.picture, "with --front: draw throughput against memory as an SVG picture")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--top-to", request.folder, "write the plans of the list to this folder: plan-1.json is the best")
      ->type_name("FOLDER")
      ->group(group);
  app.add_option_function<std::string>(
         "--objective",
         [&request](const std::string& name) {
           request.goal.objective = usage("--objective", [&] { return objective_by_name(name); });
           request.objective_given = true;
         },
         "what to minimise: the predicted step (time), devices times step (cost), or the peak memory of a device "
         "(memory); cost and memory also try fewer devices (default: time)")
      ->type_name("time|cost|memory")
      ->group(group);
  app.add_option("--min-throughput", request.goal.min_samples_per_s,
                 "only consider plans with at least this many samples/s")
      ->transform(number_above(0))
      ->type_name("SAMPLES_PER_S")
      ->group(group);
  app.add_option("--price", request.price, "price of one device-hour; the list then shows the price of 1000 steps")
      ->transform(number_above(0))
      ->type_name("PER_DEVICE_HOUR")
      ->group(group);
  const char* hand = "Stages by hand";
  const std::string by_hand_for = strategies_with(&Strategy::takes_hand) + ", and for --improve";
  app.add_option("--pin", request.pins,
                 "put a layer, or all layers of a module, in a stage, counted from 0; for " + by_hand_for)
      ->delimiter(',')
      ->type_name("LAYER=STAGE ...")
      ->group(hand);
  app.add_option("--no-cut-in", request.no_cuts, "keep the layers from FIRST to LAST in one stage; for " + by_hand_for)
      ->delimiter(',')
      ->type_name("FIRST..LAST ...")
      ->group(hand);
  app.add_option("--improve", request.improve,
                 "take a plan and improve it step by step: layers, replicas, stages, recomputation of each stage, "
                 "placement; keeps its schedule and microbatches")
      ->type_name("PLAN")
      ->group(hand);
  app.add_flag(
         "--complete", request.complete,
         "find replicas, recomputation (unless --recompute is given) and placement for the stages of --split-at or "
         "--from")
      ->group(hand);
  app.add_option("--global-batch", request.global_batch,
                 "samples per step; the number of microbatches follows from the graph's microbatch")
      ->transform(integer(1))
      ->excludes("--microbatches")
      ->type_name("SAMPLES");
}

void check_choices(const ChoiceRequest& request, bool given, const std::string& strategy) {
  if (request.top && request.front) throw CLI::ValidationError("--front", "give either --top or --front");
  const auto needs_list = [&](bool is_given, const char* name) {
    if (is_given && !request.lists()) throw CLI::ValidationError(name, "only valid with --top, --front or --explain");
  };
  if (!request.picture.empty() && !request.front) throw CLI::ValidationError("--picture", "only valid with --front");
  if (!request.settings) {
    needs_list(request.all, "--all");
    needs_list(request.json, "--json");
  }
  needs_list(!request.folder.empty(), "--top-to");
  needs_list(request.price.has_value(), "--price");
  const auto refuse_with = [&](bool is_given, const char* name, const std::string& what) {
    if (is_given) throw CLI::ValidationError(name, what);
  };
  const bool improves = request.complete || !request.improve.empty();
  refuse_with(request.complete && !given, "--complete", "only valid with --split-at or --from");
  if (given || improves) {
    const std::string other = request.improve.empty() ? "--split-at and --from" : "--improve";
    const std::string what = "chooses among a strategy's plans; remove " + other;
    refuse_with(request.top.has_value(), "--top", what);
    refuse_with(request.front, "--front", what);
    refuse_with(request.explain, "--explain", what);
    refuse_with(request.objective_given && !improves, "--objective", what);
    refuse_with(request.goal.min_samples_per_s && !improves, "--min-throughput", what);
    const std::string fixed = "the stages are given; remove --split-at and --from";
    refuse_with(!request.pins.empty() && given, "--pin", fixed);
    refuse_with(!request.no_cuts.empty() && given, "--no-cut-in", fixed);
  }
  refuse_with(request.explain && request.constrains_stages(), "--explain",
              "does not try plans without --pin and --no-cut-in; compare two runs of plan instead");
  if (!request.constrains_stages() || strategy.empty()) return;
  if (!usage("--strategy", [&] { return strategy_by_name(strategy).takes_hand; })) {
    throw CLI::ValidationError(
        request.pins.empty() ? "--no-cut-in" : "--pin",
        "strategy " + strategy + " does not take it; " + strategies_with(&Strategy::takes_hand) + " do");
  }
}

int microbatches_of(std::int64_t global_batch, const Graph& graph) {
  if (!graph.microbatch_samples) {
    throw std::invalid_argument(
        "does not say how many samples a microbatch has, which --global-batch needs; give --microbatches");
  }
  const std::int64_t samples = *graph.microbatch_samples;
  if (global_batch % samples != 0) {
    const std::int64_t below = global_batch / samples * samples;
    throw std::invalid_argument(
        fmt::format("its microbatches have {} samples, which do not divide --global-batch {}; {}{} would do", samples,
                    global_batch, below == 0 ? "" : fmt::format("{} or ", below), below + samples));
  }
  if (global_batch / samples > kMostMicrobatches) {
    throw std::invalid_argument(fmt::format("--global-batch {} would be {} microbatches, at most {} are possible",
                                            global_batch, global_batch / samples, kMostMicrobatches));
  }
  return to_int(global_batch / samples);
}

void check_choice_outputs(const ChoiceRequest& request, const ChoiceContext& context) {
  format::check_outputs(context.inputs, {{context.output, "stagecraft.plan"}, {request.picture, "SVG picture"}},
                        context.force);
  if (request.folder.empty()) return;
  format::check_can_write_folder(request.folder, [&](const std::string& name, const std::string& text) {
    return context.force || is_plan(name, text);
  });
}

RankedPlan best_choice(const ChoiceRequest& request, const ChoiceContext& context, const Graph& graph,
                       const Topology& topology, const CostModel& costs, const Constraints& constraints) {
  if (request.goal.min_samples_per_s && !graph.microbatch_samples) {
    throw std::invalid_argument(context.graph +
                                ": does not say how many samples a microbatch has, which --min-throughput needs");
  }
  const StageConstraints hand = stage_constraints(graph, request.pins, request.no_cuts);
  GatherOptions options;
  if (hand.is_empty()) options.strategy = context.strategy;  // else its candidates are few
  options.fewer_devices = request.front || request.goal.objective != Objective::Time;
  options.recomputation = request.front;
  // Searches compare steps: only of a list by step can they prove that no plan is missing.
  const bool proves_list =
      request.top && hand.is_empty() && !request.front && request.goal.objective == Objective::Time;
  Constraints searched = constraints;
  if (proves_list) searched.wanted = *request.top;
  Gathered gathered = gather(graph, topology, costs, searched, options);
  if (!proves_list) gathered.others_lower_bound.reset();
  const Question question{graph, topology, costs, constraints, options, request.goal};
  if (gathered.plans.empty()) {
    if (request.explain && memory_limit(topology, constraints)) {
      const std::vector<std::string> changes = smallest_changes(question);
      context.end_progress();
      print_changes(changes);
    }
    throw NoAnswerError(context.graph + ": ", gathered.reason);
  }
  // For short steps there is the strategy optimal.
  if (!hand.is_empty() || (request.goal.objective != Objective::Time && context.strategy.empty()))
    improve_best(gathered, question, hand);
  if (gathered.plans.empty()) {
    throw NoAnswerError(context.graph + ": ",
                        {"no plan that fits has its layers where --pin and --no-cut-in put them; each stage "
                         "needs a layer, and the devices allow at most " +
                         std::to_string(device_count(topology)) + " stages per chunk"});
  }
  const int most = request.explain && !request.front ? request.top.value_or(kExplained) : request.top.value_or(0);
  const ListRequest wanted{request.front, most, request.goal, request.price, memory_limit(topology, constraints)};
  std::vector<RankedPlan> plans = chosen(gathered.plans, wanted);
  if (plans.empty())
    throw NoAnswerError(context.graph + ": ",
                        {too_slow(gathered.plans, *request.goal.min_samples_per_s), ErrorKind::TooSlow});
  if (request.lists()) {
    for (RankedPlan& ranked : plans) {
      list_parameters(graph, ranked.plan);
      check_proved(ranked, graph, topology, context.graph);
    }
    format::PlanList list = plan_list(plans, gathered, wanted);
    if (request.explain) {
      for (std::size_t i = 0; i < plans.size() && i < to_index(kLines); ++i) {
        const auto parts = step_parts(graph, topology, plans[i].plan);
        if (!parts) continue;
        list.plans[i].parts = parts;
        list.plans[i].explained = true;
      }
      list.relaxations = relaxations(question, plans.front());
    }
    context.end_progress();
    if (!request.folder.empty()) write_plans(request.folder, plans, context.force, list);
    std::string text = list_text(list, request.all ? 0 : kLines, context.mark, error_screen());
    const int more = request.top.value_or(0) - to_int(plans.size());
    if (more > 0)
      text += fmt::format("there are no more than these {} distinct plans among the candidates\n", plans.size());
    if (gathered.not_simulated > 0)
      text += fmt::format("{} more were not simulated: time was up, see --time-limit\n", gathered.not_simulated);
    if (const std::string skipped = skipped_text(gathered.skipped); !skipped.empty()) text += skipped + "\n";
    if (request.explain) text += reasons_text(list, context.mark, error_screen());
    fmt::print(stderr, "{}", text);
    if (!request.picture.empty())
      format::write_text(request.picture, picture_file(report::front_picture("front", list, list.memory_limit)));
    if (request.json) format::write_text("-", format::plan_list_json(list));
  }
  RankedPlan best = plans.front();
  if (request.goal.objective != Objective::Time) best.plan.lower_bound.reset();  // of the step, which is not the aim
  return best;
}

RankedPlan improved_choice(const ChoiceRequest& request, const ChoiceContext& context, const Graph& graph,
                           const Topology& topology, const CostModel& costs, const Constraints& constraints,
                           const Candidate& start) {
  const std::string origin = context.strategy.empty() ? "improved" : context.strategy;
  ImproveOptions options;
  options.goal = request.goal;
  options.hand = stage_constraints(graph, request.pins, request.no_cuts);
  options.layers = !request.complete;
  options.recomputation = !request.complete || !constraints.plan.recompute;  // what is asked for stays
  options.time = time_limit(constraints.options);
  Candidate first = start;
  if (!honours(first.partition, options.hand)) {
    const auto moved = with_stage_constraints(graph, first.partition, options.hand);
    if (!moved) {
      throw NoAnswerError(request.improve,
                          {": its stages cannot have their layers where --pin and --no-cut-in put them"});
    }
    first.partition = *moved;
  }
  const RankedPlan before = predicted_plan(origin, graph, topology, first, costs, constraints);
  RankedPlan out = improved_plan(origin, graph, topology, costs, constraints, first, options);
  context.end_progress();
  fmt::print(stderr, "step improved from {0}{1} to {0}{2}\n", context.mark, format_seconds(before.prediction.iteration),
             format_seconds(out.prediction.iteration));
  if (!out.fits)
    throw NoAnswerError(context.graph + ": ", {memory_excess(out, topology, constraints), ErrorKind::DoesNotFit});
  if (!meets(out, request.goal))
    throw NoAnswerError(context.graph + ": ", {too_slow({out}, *request.goal.min_samples_per_s), ErrorKind::TooSlow});
  return out;
}

Candidate start_of(const Plan& plan, const Graph& graph, const Topology& topology, Constraints& constraints) {
  validate(plan, graph, topology);
  PlanSettings& settings = constraints.plan;
  settings.schedule = plan.schedule;
  settings.microbatches = plan.microbatches;
  settings.listed = plan.listed;
  settings.recompute = plan.stages.front().recompute;
  settings.recompute_every = plan.stages.front().recompute_every;
  settings.gradient_bucket_bytes = plan.gradient_bucket_bytes;
  settings.sharding = plan.sharding;
  constraints.chunks = plan.chunks;
  std::vector<std::vector<int>> devices;
  int next = 0;
  bool in_order = true;
  for (const Stage& stage : plan.stages) {
    devices.push_back(stage.devices);
    for (const int device : stage.devices) in_order = device == next++ && in_order;
  }
  if (in_order) devices.clear();
  Candidate out = given_candidate(graph, partition_of(graph, plan), std::move(devices), {}, {},
                                  microbatches_of_a_step(settings), plan.chunks, schedule_of(plan).placement);
  for (const Stage& stage : plan.stages) out.recomputation.push_back({stage.recompute, stage.recompute_every});
  return out;
}

}  // namespace stagecraft::partitioner

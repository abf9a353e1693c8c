#include "partitioner/choices/reasons.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>
#include <variant>

#include "costmodel/analysis/explain.h"
#include "costmodel/index.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"
#include "partitioner/candidate.h"
#include "partitioner/choices/listing.h"
#include "partitioner/choices/settings.h"
#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/strategies/auto.h"
#include "partitioner/strategies/strategies.h"

namespace stagecraft::partitioner {
namespace {

constexpr int kMostDevices = 4096;  ///< more devices are not tried
constexpr int kMostTimes = 8;       ///< times the existing groups
constexpr double kSameStep = 5e-4;  ///< steps that differ by less are called equal
constexpr int kShown = 10;          ///< plans in the table of reasons

/// The best plan of a question; absent if there is none.
std::optional<RankedPlan> best_of(const Question& question) {
  try {
    Gathered gathered =
        gather(question.graph, question.topology, question.costs, question.constraints, question.options);
    std::vector<RankedPlan> plans = chosen(std::move(gathered.plans), {false, 1, question.goal, {}});
    if (plans.empty()) return std::nullopt;
    return std::move(plans.front());
  } catch (const std::invalid_argument&) {  // the strategy cannot do without
    return std::nullopt;
  }
}

Topology with_groups(const Topology& topology, int groups) {
  Topology out = topology;
  out.levels.back().count = groups;
  return out;
}

std::string numbers(const std::vector<int>& values) { return fmt::format("{}", fmt::join(values, ",")); }

/// Least memory of a device of the question's candidates, whatever the limit; absent if it has none.
std::optional<Bytes> need_of(const Question& question) {
  try {
    Constraints free = question.constraints;
    free.memory_limit.reset();
    const std::string& strategy = question.options.strategy;
    Topology unlimited = question.topology;
    unlimited.device.memory.reset();
    const Strategy& owner = strategy_by_name(strategy.empty() ? kDefaultStrategy : strategy);
    if (owner.least_need) return owner.least_need(question.graph, unlimited, question.costs, free);
    auto result = plan_with(strategy, question.graph, unlimited, question.costs, free);
    const auto* ranking = std::get_if<Ranking>(&result);
    if (ranking == nullptr) return std::nullopt;
    const BoundPlan plan(ranking->plans.front().plan);
    return question.costs.memory(question.graph, question.topology, plan).peak;
  } catch (const std::invalid_argument&) { return std::nullopt; }
}

bool fits(const Question& question, Bytes limit) {
  const std::optional<Bytes> need = need_of(question);
  return need && *need <= limit;
}

std::string percent(double ratio) { return fmt::format("{:+.1f} %", (ratio - 1) * 100); }

/// "--recompute", "--recompute-every 2", whichever makes the shortest step; absent if none fits.
std::optional<std::string> recomputation(const Question& question, Bytes limit) {
  const PlanSettings& settings = question.constraints.plan;
  const bool trains = !settings.listed.empty() || schedule_by_name(settings.schedule).trains;
  if (!trains || (settings.recompute && settings.recompute_every > 0)) return std::nullopt;
  std::optional<std::string> out;
  std::optional<Seconds> shortest;
  for (const int every : recomputation_steps(to_int(question.graph.layers.size()))) {
    if (every == 0 && settings.recompute) continue;
    Question tried = question;
    tried.constraints.plan.recompute = true;
    tried.constraints.plan.recompute_every = every;
    if (!fits(tried, limit)) continue;
    const std::optional<RankedPlan> best = best_of(tried);
    if (!best || (shortest && best->prediction.iteration >= *shortest * (1 - kEqual))) continue;
    shortest = best->prediction.iteration;
    out = fmt::format("{}: step {}", every == 0 ? "--recompute" : fmt::format("--recompute-every {}", every),
                      format_seconds(*shortest));
  }
  return out;
}

/// "--shard optimizer", if a plan with it fits.
std::optional<std::string> sharding(const Question& question, Bytes limit) {
  const PlanSettings& settings = question.constraints.plan;
  if (!settings.listed.empty() || !may_shard(question.graph, settings)) return std::nullopt;
  Question tried = question;
  tried.constraints.plan.sharding = StateSharding::Optimizer;
  if (!fits(tried, limit)) return std::nullopt;
  const std::optional<RankedPlan> best = best_of(tried);
  if (!best) return std::nullopt;
  return "--shard optimizer: step " + format_seconds(best->prediction.iteration);
}

/// The first number of stages above the wanted one that fits.
std::optional<std::string> more_stages(const Question& question, Bytes limit) {
  if (!question.constraints.stages || !question.constraints.replicas.empty()) return std::nullopt;
  const int before = *question.constraints.stages;
  const int most = device_count(question.topology) * chunk_counts(question.constraints).front();
  for (int stages = before + 1; stages <= most; ++stages) {
    Question tried = question;
    tried.constraints.stages = stages;
    if (fits(tried, limit)) return fmt::format("--stages {} instead of {}", stages, before);
  }
  return std::nullopt;
}

/// The first number of groups of the outermost level that fits.
std::optional<std::string> more_devices(const Question& question, Bytes limit) {
  const int before = question.topology.levels.back().count;
  const int group_devices = device_count(question.topology) / before;
  for (int groups = before + 1; groups <= before * kMostTimes && groups * group_devices <= kMostDevices;
       groups += std::max(1, groups / 16)) {
    const Topology larger = with_groups(question.topology, groups);
    if (fits({question.graph, larger, question.costs, question.constraints, question.options, question.goal}, limit))
      return fmt::format("{} devices instead of {}", groups * group_devices, before * group_devices);
  }
  return std::nullopt;
}

std::vector<std::string> part_cells(const StepParts& parts, const std::string& mark) {
  std::vector<std::string> out;
  for (const Seconds time :
       {parts.compute + parts.host, parts.update, parts.reduce, parts.exposed_transfer, parts.bubble})
    out.push_back(mark + format_seconds(time));
  return out;
}

/// "bubble -3.00 s, transfer +1.00 s": how the parts of the best plan differ, the largest difference first.
std::string differences(const StepParts& best, const StepParts& other, const std::string& mark) {
  std::vector<std::pair<double, const char*>> parts{
      {best.compute.value + best.host.value - other.compute.value - other.host.value, "compute"},
      {best.update.value - other.update.value, "update"},
      {best.reduce.value - other.reduce.value, "reduce"},
      {best.exposed_transfer.value - other.exposed_transfer.value, "transfer"},
      {best.bubble.value - other.bubble.value, "bubble"}};
  std::ranges::stable_sort(parts, std::greater(), [](const auto& part) { return std::abs(part.first); });
  std::string out;
  const double least = total(other).value * 1e-6;
  for (const auto& [difference, name] : parts) {
    if (std::abs(difference) <= least) continue;
    out += fmt::format("{}{} {}{}{}", out.empty() ? "" : ", ", name, mark, difference < 0 ? "-" : "+",
                       format_seconds(Seconds(std::abs(difference))));
  }
  return out.empty() ? "no part differs" : out;
}

}  // namespace

std::optional<StepParts> step_parts(const Graph& graph, const Topology& topology, const Plan& plan) {
  ExplainOptions options;
  options.moves = false;
  const auto explained = explain(graph, topology, BoundPlan(plan), options);
  if (std::holds_alternative<Infeasible>(explained)) return std::nullopt;
  return std::get<Explanation>(explained).parts;
}

std::vector<format::Relaxation> relaxations(const Question& question, const RankedPlan& best) {
  std::vector<format::Relaxation> out;
  const double best_rank = rank_key(merits(best), question.goal.objective).front();
  const auto ask = [&](const std::string& name, const Question& without) {
    const ToldPart part(question.costs.progress, name);
    format::Relaxation relaxation{name, {}, false};
    if (const std::optional<RankedPlan> other = best_of(without)) {
      relaxation.step = other->prediction.iteration;
      relaxation.better = rank_key(merits(*other), question.goal.objective).front() < best_rank * (1 - kEqual);
    }
    out.push_back(std::move(relaxation));
  };
  const Constraints& constraints = question.constraints;
  if (const auto limit = memory_limit(question.topology, constraints)) {
    Topology unlimited = question.topology;
    unlimited.device.memory.reset();
    Constraints wanted = constraints;
    wanted.memory_limit.reset();
    ask("without the limit of " + format_bytes(*limit) + " per device",
        {question.graph, unlimited, question.costs, wanted, question.options, question.goal});
  }
  const auto without = [&](const std::string& name, const auto& change) {
    Question changed = question;
    change(changed);
    ask(name, changed);
  };
  if (constraints.stages)
    without(fmt::format("without --stages {}", *constraints.stages), [](Question& q) { q.constraints.stages.reset(); });
  if (!constraints.replicas.empty())
    without("without --replicas " + numbers(constraints.replicas), [](Question& q) { q.constraints.replicas.clear(); });
  if (constraints.chunks)
    without(fmt::format("without --chunks {}", *constraints.chunks), [](Question& q) { q.constraints.chunks.reset(); });
  if (question.goal.min_samples_per_s)
    without(fmt::format("without --min-throughput {:g}", *question.goal.min_samples_per_s),
            [](Question& q) { q.goal.min_samples_per_s.reset(); });
  const int groups = question.topology.levels.back().count;
  if (device_count(question.topology) <= kMostDevices / 2) {
    const Topology larger = with_groups(question.topology, groups * 2);
    ask(fmt::format("with {} devices instead of {}", device_count(larger), device_count(question.topology)),
        {question.graph, larger, question.costs, constraints, question.options, question.goal});
  }
  return out;
}

std::vector<std::string> smallest_changes(const Question& question) {
  std::vector<std::string> out;
  const Bytes limit = *memory_limit(question.topology, question.constraints);
  if (const auto need = need_of(question))
    out.push_back(fmt::format("{} of memory per device instead of {}", format_bytes(*need), format_bytes(limit)));
  for (const auto& change : {sharding(question, limit), recomputation(question, limit), more_stages(question, limit),
                             more_devices(question, limit)}) {
    if (change) out.push_back(*change);
  }
  return out;
}

std::string reasons_text(const format::PlanList& list, const std::string& mark, const Screen& screen) {
  std::vector<std::vector<std::string>> rows;
  std::string sentences;
  const format::ListedPlan& best = list.plans.front();
  for (std::size_t i = 0; i < std::min<std::size_t>(list.plans.size(), kShown); ++i) {
    const format::ListedPlan& plan = list.plans[i];
    if (!plan.parts) continue;
    std::vector<std::string> row{std::to_string(i + 1), std::to_string(plan.device_count),
                                 mark + format_seconds(plan.step)};
    for (std::string& cell : part_cells(*plan.parts, mark)) row.push_back(std::move(cell));
    rows.push_back(std::move(row));
    if (i == 0 || !best.parts) continue;
    const double ratio = plan.step / best.step;
    if (std::abs(ratio - 1) < kSameStep && best.device_count == plan.device_count) {
      sentences += fmt::format("plan 1 vs plan {}: the steps differ by less than {:g} %\n", i + 1, kSameStep * 100);
      continue;
    }
    sentences += fmt::format("plan 1 vs plan {}: {}", i + 1, differences(*best.parts, *plan.parts, mark));
    if (best.device_count != plan.device_count)
      sentences += fmt::format(", on {} devices instead of {}", best.device_count, plan.device_count);
    sentences += fmt::format("; plan {}'s step is {:.1f} % {}\n", i + 1, std::abs(ratio - 1) * 100,
                             ratio < 1 ? "shorter" : "longer");
  }
  std::string out = "where the step goes, mean over the devices of the plan\n";
  out += table_text({{.title = "#"},
                     {.title = "devices"},
                     {.title = "step"},
                     {.title = "compute"},
                     {.title = "update"},
                     {.title = "reduce"},
                     {.title = "transfer"},
                     {.title = "bubble"}},
                    rows, screen) +
         sentences;
  for (const format::Relaxation& relaxation : list.relaxations) {
    out += relaxation.change;
    if (!relaxation.step) {
      out += " no plan is possible\n";
    } else if (relaxation.better) {
      out += fmt::format(" the best plan's step is {}{} ({}): the constraint binds\n", mark,
                         format_seconds(*relaxation.step), percent(*relaxation.step / best.step));
    } else {
      out += " no plan is better\n";
    }
  }
  return out;
}

}  // namespace stagecraft::partitioner

#include "partitioner/strategies/auto.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>

#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"
#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/remedies.h"
#include "partitioner/search/search_tuning.h"
#include "partitioner/strategies/equal_drafts.h"
#include "partitioner/strategies/list_strategies.h"
#include "partitioner/strategies/pipedream.h"

namespace stagecraft::partitioner {
namespace {

constexpr const char* kAuto = "auto";

/// One question to another strategy.
struct Ask {
  std::string origin;
  std::string strategy;
  std::function<std::variant<Candidate, Infeasible>()> answer;
};

int layers_in_stages(const Graph& graph) {
  return to_int(
      std::count_if(graph.layers.begin(), graph.layers.end(), [](const Layer& layer) { return !is_input(layer); }));
}

/// Replica counts of `stages` stages that fit on `devices` devices.
std::vector<int> replica_counts(int devices, int stages, std::optional<int> microbatches) {
  const int most = std::min(devices / stages, microbatches.value_or(devices));
  std::set<int> out;
  for (int count = 1; count <= most; count *= 2) out.insert(count);
  if (most >= 1) out.insert(most);
  return {out.begin(), out.end()};
}

/// 1, 2, 3, ... up to `most`, the larger ones by doubling.
std::vector<int> counts_up_to(int most) {
  std::vector<int> out;
  for (int count = 1; count <= most; count += count < SearchTuning::kEveryAutoCount ? 1 : count) out.push_back(count);
  return out;
}

/// Questions to other strategies.
class Asks {
 public:
  Asks(const Graph& graph, const Topology& topology, const Constraints& constraints)
      : graph_(graph), topology_(topology), constraints_(constraints) {
    const std::vector<int> chunks = chunk_counts(constraints);
    if (chunks.front() == 1 && layers_in_stages(graph) <= SearchTuning::kMostPipedreamLayers) {
      pipedream(false);
      pipedream(true);
    }
    if (!constraints.replicas.empty()) {
      profile("profile, given replicas", constraints);
      return;
    }
    for (const int count : chunks) count == 1 ? one_stage_per_device() : several_stages_per_device(count);
  }

  [[nodiscard]] const std::vector<Ask>& all() const { return all_; }

 private:
  void pipedream(bool straight) {
    PipedreamOptions options;
    options.straight_pipeline = straight;
    options.activation_compression_ratio = 1;
    options.most_pairs = SearchTuning::kMostPairs;
    all_.push_back(
        {std::string(kPipedreamStrategy) + (straight ? " without replicas" : ""), kPipedreamStrategy,
         [&graph = graph_, &topology = topology_, options] { return pipedream_candidate(graph, topology, options); }});
  }
  void profile(std::string origin, Constraints wanted) {
    all_.push_back(
        {std::move(origin), kProfileStrategy, [&graph = graph_, &topology = topology_, wanted = std::move(wanted)] {
           return profile_candidate(graph, topology, wanted);
         }});
  }
  void one_stage_per_device() {
    const int devices = device_count(topology_);
    const std::optional<int> microbatches = microbatches_of_a_step(constraints_.plan);
    std::vector<int> counts = counts_up_to(std::min(devices, layers_in_stages(graph_)));
    if (constraints_.stages) counts = {*constraints_.stages};
    for (const int stages : counts) {
      const std::string origin = "profile, " + count_text(stages, "stage");
      Constraints wanted = constraints_;
      wanted.stages = stages;
      if (stages < 1 || stages > devices) {  // the strategy gives the reason
        profile(origin, wanted);
        continue;
      }
      for (const int count : replica_counts(devices, stages, microbatches)) {
        if (count > 1) wanted.replicas.assign(to_index(stages), count);
        profile(count > 1 ? origin + " of " + count_text(count, "replica") : origin, wanted);
      }
      const bool uneven = devices / stages >= 1 && devices % stages != 0;
      if (!uneven || devices / stages + 1 > microbatches.value_or(devices)) continue;
      wanted.replicas.clear();
      for (int s = 0; s < stages; ++s) wanted.replicas.push_back(devices / stages + (s < devices % stages ? 1 : 0));
      profile(origin + " on all devices", wanted);
    }
  }
  void several_stages_per_device(int chunks) {
    Constraints wanted = constraints_;
    wanted.chunks = chunks;
    const int devices = device_count(topology_);
    const std::optional<int> microbatches = microbatches_of_a_step(constraints_.plan);
    const auto ask = [&](int stages) {
      wanted.stages = stages;
      wanted.replicas.clear();
      const std::string origin =
          "profile, " + count_text(stages, "stage") + ", " + std::to_string(chunks) + " per device";
      profile(origin, wanted);
      const int positions = stages / chunks;
      if (positions < 1 || !microbatches) return;
      for (const int count : replica_counts(devices, positions, microbatches)) {
        if (count == 1 || *microbatches % (positions * count) != 0) continue;
        wanted.replicas.assign(to_index(stages), count);
        profile(origin + " of " + count_text(count, "replica"), wanted);
      }
    };
    if (constraints_.stages) {
      // If the request gives the chunks, the strategy says why they are not possible.
      if (constraints_.chunks || *constraints_.stages % chunks == 0) ask(*constraints_.stages);
      return;
    }
    const int most = std::min(devices, layers_in_stages(graph_) / chunks);
    if (most == 0 && constraints_.chunks) ask(chunks);
    for (const int positions : counts_up_to(most)) {
      // On a single device, nothing can overlap.
      if (positions > 1 || constraints_.chunks) ask(positions * chunks);
    }
  }

  const Graph& graph_;
  const Topology& topology_;
  const Constraints& constraints_;
  std::vector<Ask> all_;
};

/// Reasons that differ only in numbers have the same key.
std::string without_numbers(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit) out += c;
    if (digit && !out.ends_with('#')) out += '#';
  }
  return out;
}

class Skips {
 public:
  void add(const std::string& reason) {
    const auto [it, fresh] = place_.emplace(without_numbers(reason), all_.size());
    if (fresh) all_.push_back({reason, 0});
    ++all_[it->second].count;
  }
  [[nodiscard]] std::vector<Skipped> all() const { return all_; }

 private:
  std::map<std::string, std::size_t> place_;
  std::vector<Skipped> all_;
};

/// Throws std::invalid_argument if the candidate does not have the requested stages and replicas.
void check_constraints(const Candidate& candidate, const Constraints& wanted) {
  const std::vector<int>& replicas = candidate.partition.replicas;
  if (!wanted.replicas.empty() && replicas != wanted.replicas) {
    throw std::invalid_argument("its replicas are " + replicas_text(replicas) + ", expected " +
                                replicas_text(wanted.replicas));
  }
  if (wanted.stages && to_int(replicas.size()) != *wanted.stages) {
    throw std::invalid_argument("it has " + count_text(to_int(replicas.size()), "stage") + ", expected " +
                                std::to_string(*wanted.stages));
  }
}

/// The candidate without replicas beyond the number of microbatches; absent if it has no such replicas.
std::optional<Candidate> without_idle_replicas(Candidate candidate, std::optional<int> microbatches) {
  bool any = false;
  for (std::size_t s = 0; microbatches && s < candidate.partition.replicas.size(); ++s) {
    int& replicas = candidate.partition.replicas[s];
    if (replicas <= *microbatches) continue;
    any = true;
    replicas = *microbatches;
    if (!candidate.devices.empty()) candidate.devices[s].resize(to_index(*microbatches));
  }
  if (!any) return std::nullopt;
  return candidate;
}

}  // namespace

namespace {

/// Adds a candidate, unless its plan is known. Throws as plan_of_candidate does.
void add_draft(Drafts& drafts, const Graph& graph, const Topology& topology, const Constraints& constraints,
               const std::string& origin, const Candidate& candidate) {
  Plan plan = plan_of_candidate(graph, topology, candidate, constraints.plan);
  const bool known = std::any_of(drafts.plans.begin(), drafts.plans.end(),
                                 [&](const Drafted& other) { return other.plan.stages == plan.stages; });
  if (!known) drafts.plans.push_back({origin, candidate, std::move(plan)});
}

}  // namespace

Drafts uneven_drafts(const Graph& graph, const Topology& topology, const Constraints& constraints) {
  check_loss(graph, constraints.plan);
  Drafts out;
  Skips skips;
  const std::optional<int> microbatches = microbatches_of_a_step(constraints.plan);
  const Asks asks(graph, topology, constraints);
  for (const Ask& ask : asks.all()) {
    const auto skip = [&](const std::string& reason) { skips.add(ask.strategy + ": " + reason); };
    try {
      const auto answer = ask.answer();
      if (const auto* infeasible = std::get_if<Infeasible>(&answer)) {
        skip(infeasible->reason);
        continue;
      }
      const auto& candidate = std::get<Candidate>(answer);
      check_constraints(candidate, constraints);
      add_draft(out, graph, topology, constraints, ask.origin, candidate);
      const auto at_work = without_idle_replicas(candidate, microbatches);
      if (at_work && constraints.replicas.empty())
        add_draft(out, graph, topology, constraints, ask.origin + ", no idle replicas", *at_work);
    } catch (const std::invalid_argument& e) { skip(e.what()); }
  }
  out.skipped = skips.all();
  return out;
}

Drafts drafts(const Graph& graph, const Topology& topology, const CostModel& costs, const Constraints& constraints,
              const std::function<bool()>& stop) {
  Drafts out = uneven_drafts(graph, topology, constraints);
  Skips skips;
  for (const EqualDraft& draft : equal_drafts(graph, topology, costs, constraints, stop)) {
    try {
      add_draft(out, graph, topology, constraints, draft.origin, draft.candidate);
    } catch (const std::invalid_argument& e) { skips.add(std::string(kEqualShares) + ": " + e.what()); }
  }
  for (const Skipped& reason : skips.all()) out.skipped.push_back(reason);
  return out;
}

namespace {

void sort_by_merit(std::vector<RankedPlan>& plans) {
  std::optional<Seconds> best;
  for (const RankedPlan& ranked : plans) {
    if (ranked.fits) best = std::min(best.value_or(ranked.prediction.iteration), ranked.prediction.iteration);
  }
  const auto ties = [&](const RankedPlan& ranked) {
    return ranked.fits && ranked.prediction.iteration <= *best * (1 + kTie);
  };
  std::stable_sort(plans.begin(), plans.end(), [&](const RankedPlan& a, const RankedPlan& b) {
    if (a.fits != b.fits) return a.fits;
    if (!a.fits) return peak_memory(a.prediction) < peak_memory(b.prediction);
    if (ties(a) != ties(b)) return ties(a);
    if (ties(a)) {
      const auto simple = [](const RankedPlan& r) { return std::pair(devices_of(r.plan), r.plan.stages.size()); };
      if (simple(a) != simple(b)) return simple(a) < simple(b);
    }
    return a.prediction.iteration < b.prediction.iteration;
  });
}

}  // namespace

std::string skipped_text(const std::vector<Skipped>& skipped) {
  int all = 0;
  std::string reasons;
  for (const Skipped& reason : skipped) {
    all += reason.count;
    reasons += (reasons.empty() ? "" : "; ") + reason.reason + " (" + std::to_string(reason.count) + ")";
  }
  return all == 0 ? "" : "skipped " + count_text(all, "candidate") + ": " + reasons;
}

std::optional<Bytes> least_need(const Graph& graph, const Topology& topology, const CostModel& costs,
                                const Constraints& constraints) {
  std::optional<Bytes> out;
  for (const Drafted& draft : drafts(graph, topology, costs, constraints).plans) {
    const Bytes need = costs.memory(graph, topology, BoundPlan(draft.plan)).peak;
    out = std::min(out.value_or(need), need);
  }
  return out;
}

StrategyResult rank_plans(const Graph& graph, const Topology& topology, const CostModel& costs,
                          const Constraints& constraints) {
  const ToldSearch told(costs.progress, kAuto);
  Drafts found = drafts(graph, topology, costs, constraints);
  if (found.plans.empty()) return Infeasible{"no candidate is possible; " + skipped_text(found.skipped)};

  std::vector<BoundPlan> plans;
  std::vector<std::pair<Seconds, std::size_t>> order;
  for (Drafted& draft : found.plans) {
    plans.emplace_back(std::move(draft.plan));
    order.emplace_back(costs.least_step ? costs.least_step(graph, plans.back()) : Seconds(0), order.size());
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });

  Ranking out;
  Skips skips;
  std::optional<Seconds> best;
  std::size_t tried = 0;
  for (const auto& [least, i] : order) {
    told.tried(tried++, order.size());
    // A small allowance for the rounding of sums.
    if (best && least > *best * (1 + kTie + 1e-9)) {
      ++out.slower;
      continue;
    }
    try {
      const Drafted& draft = found.plans[i];
      RankedPlan ranked =
          predicted_plan(draft.origin, graph, topology, plans[i], draft.candidate.endless, costs, constraints);
      if (ranked.fits) {
        best = std::min(best.value_or(ranked.prediction.iteration), ranked.prediction.iteration);
        if (costs.progress != nullptr) costs.progress->found(*best);
      }
      out.plans.push_back(std::move(ranked));
    } catch (const std::invalid_argument& e) {
      skips.add(e.what());
    } catch (const std::runtime_error& e) {  // its lists deadlock
      skips.add(e.what());
    }
  }
  out.skipped = std::move(found.skipped);
  for (const Skipped& reason : skips.all()) out.skipped.push_back(reason);
  if (out.plans.empty()) return Infeasible{"no candidate is possible; " + skipped_text(out.skipped)};
  sort_by_merit(out.plans);
  const RankedPlan& first = out.plans.front();
  if (first.fits) return out;
  const bool is_proven = is_a_layer_too_large(graph, topology, constraints);
  return no_plan_fits(is_proven ? kNoPlanFits : "no candidate of auto fits in memory, optimal tries more plans", first,
                      graph, topology, costs, constraints, least_need);
}

bool is_a_layer_too_large(const Graph& graph, const Topology& topology, const Constraints& constraints) {
  const auto limit = memory_limit(topology, constraints);
  if (!limit) return false;
  const PipelineCosts costs(graph, topology, constraints.plan);
  const Bytes most = costs.countable(*limit);
  for (int v = 0; v < costs.dag().nodes; ++v) {
    if (costs.least_peak(costs.node(v).bytes, 1, 1) > most) return true;
  }
  return false;
}

Infeasible no_plan_fits(const std::string& finding, const RankedPlan& smallest, const Graph& graph,
                        const Topology& topology, const CostModel& costs, const Constraints& constraints,
                        const LeastNeed& least_need) {
  const NeedOf need = [&](const Graph& g, const Topology& t, const PlanSettings& other) {
    Constraints changed = constraints;
    changed.plan = other;
    return least_need(g, t, costs, changed);
  };
  return {finding + "; in the smallest (" + smallest.origin + ") " + memory_excess(smallest, topology, constraints) +
              remedies_text(graph, topology, constraints.plan, *memory_limit(topology, constraints), need),
          ErrorKind::DoesNotFit};
}

Strategy auto_strategy() {
  Strategy out;
  out.name = kAuto;
  out.help =
      "pipedream and profile, also on fewer devices; the shortest predicted step wins; within 1 %, the fewest devices, "
      "then stages";
  out.plan = rank_plans;
  out.least_need = least_need;
  out.objective = [](const Graph& graph, const Topology& topology, const CostModel& costs, const Constraints&,
                     const Plan& plan) -> std::optional<double> {
    const auto predicted = costs.predict(graph, topology, BoundPlan(plan));
    if (std::holds_alternative<Infeasible>(predicted)) return std::nullopt;
    return std::get<Prediction>(predicted).iteration.value;
  };
  out.compares = true;
  out.takes_hand = true;
  out.in_auto = true;
  return out;
}

}  // namespace stagecraft::partitioner

#include "partitioner/ranking.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>

#include "costmodel/memory.h"
#include "costmodel/units_text.h"
#include "partitioner/remedies.h"

namespace stagecraft {
namespace {

/// Stage counts beyond this are tried by doubling only.
constexpr int kEveryCount = 16;

struct Ask {
  std::string origin;
  std::string strategy;
  StrategyOptions options;
};

/// A candidate that became a plan.
struct Drafted {
  std::string origin;
  Candidate candidate;
  Plan plan;
};

struct Drafts {
  std::vector<Drafted> plans;
  std::vector<Skipped> skipped;
};

std::string count_text(int count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

int layers_in_stages(const Graph& graph) {
  return static_cast<int>(
      std::count_if(graph.layers.begin(), graph.layers.end(), [](const Layer& layer) { return !is_input(layer); }));
}

/// Replicas for each of `stages` stages that `devices` devices are enough for.
std::vector<int> replica_counts(int devices, int stages, std::optional<int> microbatches) {
  const int most = std::min(devices / stages, microbatches.value_or(devices));
  std::set<int> out;
  for (int count = 1; count <= most; count *= 2) out.insert(count);
  if (most >= 1) out.insert(most);
  return {out.begin(), out.end()};
}

std::vector<Ask> asks(const Graph& graph, const Topology& topology, const StrategyOptions& options) {
  std::vector<Ask> out;
  for (const bool straight : {false, true}) {
    Ask ask{straight ? "pipedream without replicas" : "pipedream", "pipedream", options};
    ask.options.pipedream.straight_pipeline = straight;
    if (!ask.options.pipedream.activation_compression_ratio) ask.options.pipedream.activation_compression_ratio = 1;
    ask.options.constraints = {};
    out.push_back(std::move(ask));
  }
  const Constraints& wanted = options.constraints;
  if (!wanted.replicas.empty()) {
    out.push_back({"profile, replicas as told", "profile", options});
    return out;
  }
  const int devices = device_count(topology);
  std::vector<int> counts;
  for (int stages = 1; stages <= std::min(devices, layers_in_stages(graph));
       stages += stages < kEveryCount ? 1 : stages)
    counts.push_back(stages);
  if (wanted.stages) counts = {*wanted.stages};
  for (const int stages : counts) {
    Ask ask{"profile, " + count_text(stages, "stage"), "profile", options};
    ask.options.constraints.stages = stages;
    if (stages < 1 || stages > devices) {  // the strategy says why not
      out.push_back(std::move(ask));
      continue;
    }
    for (const int count : replica_counts(devices, stages, options.microbatches)) {
      Ask alike = ask;
      if (count > 1) {
        alike.origin += " of " + count_text(count, "replica");
        alike.options.constraints.replicas.assign(static_cast<std::size_t>(stages), count);
      }
      out.push_back(std::move(alike));
    }
    const bool uneven = devices / stages >= 1 && devices % stages != 0;
    if (!uneven || devices / stages + 1 > options.microbatches.value_or(devices)) continue;
    ask.origin += " on all devices";
    for (int s = 0; s < stages; ++s)
      ask.options.constraints.replicas.push_back(devices / stages + (s < devices % stages ? 1 : 0));
    out.push_back(std::move(ask));
  }
  return out;
}

/// Reasons that differ in numbers alone have one key.
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

std::string replicas_text(const std::vector<int>& replicas) { return fmt::format("{}", fmt::join(replicas, "-")); }

/// Throws std::invalid_argument if the candidate is not of the stages and replicas wanted.
void check_constraints(const Candidate& candidate, const Constraints& wanted) {
  const std::vector<int>& replicas = candidate.partition.replicas;
  if (!wanted.replicas.empty() && replicas != wanted.replicas) {
    throw std::invalid_argument("its replicas are " + replicas_text(replicas) + ", wanted " +
                                replicas_text(wanted.replicas));
  }
  if (wanted.stages && static_cast<int>(replicas.size()) != *wanted.stages) {
    throw std::invalid_argument("it has " + count_text(static_cast<int>(replicas.size()), "stage") + ", wanted " +
                                std::to_string(*wanted.stages));
  }
}

/// The candidate without replicas beyond the number of microbatches; absent if it has none.
std::optional<Candidate> without_idle_replicas(Candidate candidate, std::optional<int> microbatches) {
  bool any = false;
  for (std::size_t s = 0; microbatches && s < candidate.partition.replicas.size(); ++s) {
    int& replicas = candidate.partition.replicas[s];
    if (replicas <= *microbatches) continue;
    any = true;
    replicas = *microbatches;
    if (!candidate.devices.empty()) candidate.devices[s].resize(static_cast<std::size_t>(*microbatches));
  }
  if (!any) return std::nullopt;
  return candidate;
}

Drafts drafts(const Graph& graph, const Topology& topology, const PlanSettings& settings,
              const StrategyOptions& options) {
  Drafts out;
  Skips skips;
  for (const Ask& ask : asks(graph, topology, options)) {
    const auto skip = [&](const std::string& reason) { skips.add(ask.strategy + ": " + reason); };
    try {
      const StrategyResult result = partition(ask.strategy, graph, topology, ask.options);
      if (const auto* infeasible = std::get_if<Infeasible>(&result)) {
        skip(infeasible->reason);
        continue;
      }
      for (const Candidate& candidate : std::get<std::vector<Candidate>>(result)) {
        check_constraints(candidate, options.constraints);
        const auto add = [&](const std::string& origin, const Candidate& each) {
          Plan plan = plan_of_candidate(graph, topology, each, settings);
          const bool known = std::any_of(out.plans.begin(), out.plans.end(),
                                         [&](const Drafted& other) { return other.plan.stages == plan.stages; });
          if (!known) out.plans.push_back({origin, each, std::move(plan)});
        };
        add(ask.origin, candidate);
        const auto at_work = without_idle_replicas(candidate, options.microbatches);
        if (at_work && options.constraints.replicas.empty()) add(ask.origin + ", no idle replicas", *at_work);
      }
    } catch (const std::invalid_argument& e) { skip(e.what()); }
  }
  out.skipped = skips.all();
  return out;
}

/// No step of the plan is shorter: what the busiest rank computes.
Seconds least_iteration(const std::map<std::string, Seconds>& time_of, const Plan& plan,
                        std::optional<int> microbatches) {
  Seconds out;
  for (const Stage& stage : plan.stages) {
    Seconds time;
    for (const std::string& layer : stage.layers) time += time_of.at(layer);
    const int replicas = static_cast<int>(stage.devices.size());
    const double most = microbatches ? (plan.microbatches + replicas - 1) / replicas
                                     : static_cast<double>(plan.microbatches) / replicas;
    out = std::max(out, time * most);
  }
  return out;
}

int devices_of(const Plan& plan) {
  std::set<int> devices;
  for (const Stage& stage : plan.stages) devices.insert(stage.devices.begin(), stage.devices.end());
  return static_cast<int>(devices.size());
}

/// Bytes of the neediest rank.
Bytes peak(const RankedPlan& ranked) {
  Bytes most;
  for (const RankMemory& memory : ranked.prediction.timeline.memory) most = std::max(most, memory.total);
  return most;
}

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
    if (!a.fits) return peak(a) < peak(b);
    if (ties(a) != ties(b)) return ties(a);
    if (ties(a)) {
      const auto simple = [](const RankedPlan& r) { return std::pair(devices_of(r.plan), r.plan.stages.size()); };
      if (simple(a) != simple(b)) return simple(a) < simple(b);
    }
    return a.prediction.iteration < b.prediction.iteration;
  });
}

}  // namespace

Plan plan_of_candidate(const Graph& graph, const Topology& topology, const Candidate& candidate,
                       const PlanSettings& settings) {
  Plan out = make_plan(graph, topology, candidate.partition, settings);
  for (std::size_t s = 0; s < candidate.devices.size(); ++s) out.stages[s].devices = candidate.devices[s];
  if (!candidate.warmups.empty()) out.warmups = candidate.warmups;
  if (!candidate.devices.empty() || !candidate.warmups.empty()) validate(out, graph, topology);
  out.steady_state = candidate.steady_state;
  return out;
}

RankedPlan predicted_plan(const Graph& graph, const Topology& topology, const Candidate& candidate,
                          const PlanSettings& settings, const StrategyOptions& options) {
  RankedPlan out;
  out.plan = plan_of_candidate(graph, topology, candidate, settings);
  auto predicted = predict(graph, topology, out.plan, {.progress = options.progress});
  if (const auto* infeasible = std::get_if<Infeasible>(&predicted)) throw std::runtime_error(infeasible->reason);
  out.prediction = std::move(std::get<Prediction>(predicted));
  out.plan.iteration = out.prediction.iteration;
  out.fits = memory_excess(out, topology, options).empty();
  return out;
}

std::optional<Bytes> memory_limit(const Topology& topology, const StrategyOptions& options) {
  const std::optional<Bytes>& asked = options.constraints.memory_limit;
  if (!asked) return topology.device.memory;
  return topology.device.memory ? std::min(*asked, *topology.device.memory) : *asked;
}

std::string memory_excess(const RankedPlan& ranked, const Topology& topology, const StrategyOptions& options) {
  const std::optional<Bytes> limit = memory_limit(topology, options);
  if (!limit) return "";
  const auto& stages = ranked.prediction.stages;
  const auto most = std::max_element(stages.begin(), stages.end(),
                                     [](const auto& a, const auto& b) { return a.memory.total < b.memory.total; });
  if (most->memory.total <= *limit) return "";
  return "stage " + std::to_string(most->stage) + " needs " + format_bytes(most->memory.total) +
         " on each device, the limit is " + format_bytes(*limit);
}

std::string skipped_text(const std::vector<Skipped>& skipped) {
  int all = 0;
  std::string reasons;
  for (const Skipped& each : skipped) {
    all += each.count;
    reasons += (reasons.empty() ? "" : "; ") + each.reason + " (" + std::to_string(each.count) + ")";
  }
  return all == 0 ? "" : "skipped " + count_text(all, "candidate") + ": " + reasons;
}

Bytes need_of(const Graph& graph, const Plan& plan) {
  const auto lists = action_lists(plan, PredictOptions{}.prefetch, tied_stages(graph, plan), step_window(plan).steps);
  Bytes out;
  for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s) {
    const int held = in_flight(lists[static_cast<std::size_t>(rank_of(plan, s, 0))], s);
    out = std::max(out, stage_memory(graph, plan, s, held).total);
  }
  return out;
}

std::optional<Bytes> least_need(const Graph& graph, const Topology& topology, const PlanSettings& settings,
                                const StrategyOptions& options) {
  std::optional<Bytes> out;
  for (const Drafted& draft : drafts(graph, topology, settings, options).plans) {
    const Bytes need = need_of(graph, draft.plan);
    out = std::min(out.value_or(need), need);
  }
  return out;
}

std::variant<Ranking, Infeasible> rank_plans(const Graph& graph, const Topology& topology, const PlanSettings& settings,
                                             const StrategyOptions& options) {
  Drafts found = drafts(graph, topology, settings, options);
  if (found.plans.empty()) return Infeasible{"no candidate suits; " + skipped_text(found.skipped)};

  const bool trains = settings.listed.empty() && schedule_by_name(settings.schedule).trains;
  const double closure = closure_factor(graph);
  std::map<std::string, Seconds> time_of;
  for (const Layer& layer : graph.layers) {
    time_of[layer.id] = (layer.forward.median + (trains ? layer.backward.median : Seconds(0))) * closure;
  }
  std::vector<std::pair<Seconds, std::size_t>> order;
  for (std::size_t i = 0; i < found.plans.size(); ++i)
    order.emplace_back(least_iteration(time_of, found.plans[i].plan, options.microbatches), i);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });

  Ranking out;
  Skips skips;
  std::optional<Seconds> best;
  for (const auto& [least, i] : order) {
    // A hair of room for the rounding of sums.
    if (best && least > *best * (1 + kTie + 1e-9)) {
      ++out.slower;
      continue;
    }
    try {
      RankedPlan ranked = predicted_plan(graph, topology, found.plans[i].candidate, settings, options);
      ranked.origin = found.plans[i].origin;
      if (ranked.fits) best = std::min(best.value_or(ranked.prediction.iteration), ranked.prediction.iteration);
      out.plans.push_back(std::move(ranked));
    } catch (const std::invalid_argument& e) {
      skips.add(e.what());
    } catch (const std::runtime_error& e) {  // its lists never end
      skips.add(e.what());
    }
  }
  out.skipped = std::move(found.skipped);
  for (const Skipped& each : skips.all()) out.skipped.push_back(each);
  if (out.plans.empty()) return Infeasible{"no candidate suits; " + skipped_text(out.skipped)};
  sort_by_merit(out.plans);
  const RankedPlan& first = out.plans.front();
  if (first.fits) return out;
  return Infeasible{"no plan fits; of the least needy (" + first.origin + ") " +
                    memory_excess(first, topology, options) +
                    remedies_text(graph, topology, settings, *memory_limit(topology, options),
                                  [&](const Graph& g, const Topology& t, const PlanSettings& s) {
                                    return least_need(g, t, s, options);
                                  })};
}

}  // namespace stagecraft

#include "partitioner/choices/gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"
#include "partitioner/candidate.h"
#include "partitioner/choices/choice.h"
#include "partitioner/search/search_tuning.h"
#include "partitioner/strategies/auto.h"
#include "partitioner/strategies/strategies.h"

namespace stagecraft::partitioner {
namespace {

bool takes(const Strategy& strategy, const std::string& name) {
  return std::ranges::any_of(strategy.options, [&](const Option& o) { return o.names.front() == name; });
}

/// Whether the candidates of `auto` include those of the strategy, or the strategy needs an argument.
bool is_left_out(const Strategy& strategy) { return strategy.in_auto || strategy.name.find(':') != std::string::npos; }

bool trains(const PlanSettings& settings) {
  return !settings.listed.empty() || schedule_by_name(settings.schedule).trains;
}

class Gathering {
 public:
  Gathering(const Graph& graph, const Topology& topology, const CostModel& costs, const Constraints& constraints,
            const GatherOptions& options)
      : graph_(graph), topology_(topology), costs_(costs), constraints_(constraints), options_(options) {}

  Gathered run() {
    std::vector<Topology> parts;
    if (options_.fewer_devices) parts = parts_of(topology_);
    const std::vector<PlanSettings> variants = settings();
    const Seconds time = time_limit(constraints_.options);
    const Seconds share =
        std::max(SearchTuning::kLeastPartTime, time / static_cast<double>((parts.size() + 1) * variants.size()));
    const std::size_t all = variants.size() * (parts.size() + 1);
    std::size_t number = 0;
    const auto told = [&](const Topology& topology) {
      const int devices = device_count(topology);
      return ToldPart(costs_.progress, all == 1 ? "all strategies"
                                                : fmt::format("{} device{} ({} of {})", devices,
                                                              devices == 1 ? "" : "s", ++number, all));
    };
    for (const PlanSettings& variant : variants) {
      Constraints wanted = constraints_;
      wanted.plan = variant;
      if (parts.size() + variants.size() > 1) wanted.options.insert_or_assign(kTimeLimit, share.value);
      {
        const ToldPart part = told(topology_);
        if (options_.strategy.empty()) {
          ask_all(topology_, wanted);
          predict_drafts(wanted, time);
        } else {
          ask(options_.strategy, topology_, wanted, true);
        }
      }
      for (const Topology& part : parts) {
        const ToldPart told_part = told(part);
        const std::string name = options_.strategy.empty() ? kDefaultStrategy : options_.strategy;
        ask(name, part, wanted, false);
      }
    }
    if (out_.plans.empty() && out_.reason.reason.empty())
      out_.reason.reason = "no plan is possible; " + skipped_text(out_.skipped);
    if (!out_.plans.empty()) out_.reason = {};
    if (variants.size() > 1) out_.others_lower_bound.reset();
    if (options_.strategy.empty() || !parts.empty() || variants.size() > 1) sort_by_goal(out_.plans, {});
    return std::move(out_);
  }

 private:
  /// The request's settings, and those with recomputation.
  [[nodiscard]] std::vector<PlanSettings> settings() const {
    std::vector<PlanSettings> out{constraints_.plan};
    if (!options_.recomputation || constraints_.plan.recompute || !trains(constraints_.plan)) return out;
    for (const int every : {0, 1}) {
      out.push_back(constraints_.plan);
      out.back().recompute = true;
      out.back().recompute_every = every;
    }
    return out;
  }

  void ask_all(const Topology& topology, const Constraints& wanted) {
    ask(kDefaultStrategy, topology, wanted, false);  // first: its reason says the most
    for (const Strategy& strategy : strategies()) {
      if (!is_left_out(strategy) && strategy.name != kDefaultStrategy) ask(strategy.name, topology, wanted, false);
    }
  }

  /// Takes a strategy's plans. `must`: a request that the strategy refuses is the user's error.
  void ask(const std::string& name, const Topology& topology, Constraints wanted, bool must) {
    const Strategy& strategy = strategy_by_name(name);
    std::erase_if(wanted.options, [&](const auto& value) { return !takes(strategy, value.first); });
    try {
      StrategyResult result = plan_with(name, graph_, topology, costs_, wanted);
      if (const auto* infeasible = std::get_if<Infeasible>(&result)) {
        if (out_.reason.reason.empty()) out_.reason = *infeasible;
        return;
      }
      auto& ranking = std::get<Ranking>(result);
      if (topology.levels == topology_.levels) {
        for (const Skipped& reason : ranking.skipped) skip(reason);
        if (!out_.lower_bound) {
          out_.lower_bound = ranking.lower_bound;
          out_.others_lower_bound = ranking.others_lower_bound;
        }
      }
      for (RankedPlan& ranked : ranking.plans) {
        if (topology.levels == topology_.levels) {
          add(std::move(ranked));
        } else {
          add_again(std::move(ranked), wanted);
        }
      }
    } catch (const std::invalid_argument& e) {
      if (must) throw;
      skip({name + ": " + e.what(), 1});
    }
  }

  /// Adds a plan of a part of the topology, predicted on the whole topology.
  void add_again(RankedPlan ranked, const Constraints& wanted) {
    auto predicted = costs_.predict(graph_, topology_, BoundPlan(ranked.plan));
    if (std::holds_alternative<Infeasible>(predicted)) return;
    ranked.prediction = std::move(std::get<Prediction>(predicted));
    set_times(ranked.plan, ranked.prediction);
    ranked.plan.lower_bound.reset();  // of plans on these devices only
    ranked.fits = memory_excess(ranked, topology_, wanted).empty();
    add(std::move(ranked));
  }

  void predict_drafts(const Constraints& wanted, Seconds time) {
    const auto start = std::chrono::steady_clock::now();
    const ToldSearch told(costs_.progress, "candidates");
    told.ends_after(time);
    Drafts found = drafts(graph_, topology_, costs_, wanted);
    for (std::size_t i = 0; i < found.plans.size(); ++i) {
      const Drafted& draft = found.plans[i];
      told.tried(i, found.plans.size());
      if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > time.value) {
        ++out_.not_simulated;
        continue;
      }
      if (std::ranges::any_of(out_.plans, [&](const RankedPlan& r) { return r.plan.stages == draft.plan.stages; }))
        continue;
      try {
        add(predicted_plan(draft.origin, graph_, topology_, draft.candidate, costs_, wanted));
      } catch (const std::invalid_argument& e) {
        skip({draft.origin + ": " + e.what(), 1});
      } catch (const std::runtime_error& e) {  // its lists deadlock
        skip({draft.origin + ": " + e.what(), 1});
      }
    }
  }

  void skip(const Skipped& reason) {
    for (Skipped& known : out_.skipped) {
      if (known.reason == reason.reason) {
        known.count = std::max(known.count, reason.count);
        return;
      }
    }
    out_.skipped.push_back(reason);
  }

  void add(RankedPlan ranked) {
    if (!ranked.fits) return;
    ranked.prediction.timeline.spans.clear();
    for (const RankedPlan& other : out_.plans) {
      const double ratio = ranked.prediction.iteration / other.prediction.iteration;
      if (is_same_choice(ranked.plan, other.plan, ratio < 1 - 1e-9 || ratio > 1 + 1e-9)) return;
    }
    out_.plans.push_back(std::move(ranked));
  }

  const Graph& graph_;
  const Topology& topology_;
  const CostModel& costs_;
  const Constraints& constraints_;
  const GatherOptions& options_;
  Gathered out_;
};

}  // namespace

Gathered gather(const Graph& graph, const Topology& topology, const CostModel& costs, const Constraints& constraints,
                const GatherOptions& options) {
  return Gathering(graph, topology, costs, constraints, options).run();
}

}  // namespace stagecraft::partitioner

#include "partitioner/ranking.h"

#include <algorithm>
#include <stdexcept>

#include "costmodel/units_text.h"

namespace stagecraft {
namespace {

/// Stage counts beyond this are tried by doubling only.
constexpr int kEveryCount = 16;

std::optional<Bytes> limit_of(const Topology& topology, const StrategyOptions& options) {
  const std::optional<Bytes>& asked = options.constraints.memory_limit;
  if (!asked) return topology.device.memory;
  return topology.device.memory ? std::min(*asked, *topology.device.memory) : *asked;
}

/// Bytes of the neediest stage.
Bytes peak(const RankedPlan& ranked) {
  Bytes most;
  for (const RankMemory& memory : ranked.prediction.timeline.memory) most = std::max(most, memory.total);
  return most;
}

struct Ask {
  std::string origin;
  std::string strategy;
  StrategyOptions options;
};

std::vector<Ask> asks(const Topology& topology, const StrategyOptions& options) {
  std::vector<Ask> out;
  for (const bool straight : {false, true}) {
    Ask ask{straight ? "pipedream without replicas" : "pipedream", "pipedream", options};
    ask.options.pipedream.straight_pipeline = straight;
    if (!ask.options.pipedream.activation_compression_ratio) ask.options.pipedream.activation_compression_ratio = 1;
    ask.options.constraints.memory_limit.reset();
    out.push_back(std::move(ask));
  }
  const int devices = device_count(topology);
  for (int stages = 1; stages <= devices; stages += stages < kEveryCount ? 1 : stages) {
    for (const bool replicated : {false, true}) {
      if (replicated && devices / stages < 2) continue;
      Ask ask{"profile, " + std::to_string(stages) + (stages == 1 ? " stage" : " stages"), "profile", options};
      ask.options.constraints.stages = stages;
      if (replicated) {
        for (int s = 0; s < stages; ++s) {
          ask.options.constraints.replicas.push_back(devices / stages + (s < devices % stages ? 1 : 0));
        }
        ask.origin += " on all devices";
      }
      out.push_back(std::move(ask));
    }
  }
  return out;
}

}  // namespace

RankedPlan predicted_plan(const Graph& graph, const Topology& topology, const Candidate& candidate,
                          const PlanSettings& settings, const StrategyOptions& options) {
  RankedPlan out;
  out.plan = make_plan(graph, topology, candidate.partition, settings);
  for (std::size_t s = 0; s < candidate.devices.size(); ++s) out.plan.stages[s].devices = candidate.devices[s];
  if (!candidate.warmups.empty()) out.plan.warmups = candidate.warmups;
  if (!candidate.devices.empty() || !candidate.warmups.empty()) validate(out.plan, graph, topology);
  out.plan.steady_state = candidate.steady_state;
  auto predicted = predict(graph, topology, out.plan);
  if (const auto* infeasible = std::get_if<Infeasible>(&predicted)) throw std::runtime_error(infeasible->reason);
  out.prediction = std::move(std::get<Prediction>(predicted));
  out.plan.iteration = out.prediction.iteration;
  out.fits = memory_excess(out, topology, options).empty();
  return out;
}

std::string memory_excess(const RankedPlan& ranked, const Topology& topology, const StrategyOptions& options) {
  const std::optional<Bytes> limit = limit_of(topology, options);
  if (!limit) return "";
  for (const StagePrediction& stage : ranked.prediction.stages) {
    if (stage.memory.total <= *limit) continue;
    return "stage " + std::to_string(stage.stage) + " needs " + format_bytes(stage.memory.total) +
           " on each device, the limit is " + format_bytes(*limit);
  }
  return "";
}

std::variant<std::vector<RankedPlan>, Infeasible> rank_plans(const Graph& graph, const Topology& topology,
                                                             const PlanSettings& settings,
                                                             const StrategyOptions& options) {
  std::vector<RankedPlan> out;
  std::string refusal;
  for (const Ask& ask : asks(topology, options)) {
    const StrategyResult result = partition(ask.strategy, graph, topology, ask.options);
    if (const auto* infeasible = std::get_if<Infeasible>(&result)) {
      refusal = infeasible->reason;
      continue;
    }
    for (const Candidate& candidate : std::get<std::vector<Candidate>>(result)) {
      RankedPlan ranked = predicted_plan(graph, topology, candidate, settings, options);
      ranked.origin = ask.origin;
      const bool known = std::any_of(out.begin(), out.end(),
                                     [&](const RankedPlan& other) { return other.plan.stages == ranked.plan.stages; });
      if (!known) out.push_back(std::move(ranked));
    }
  }
  if (out.empty()) return Infeasible{refusal};
  std::stable_sort(out.begin(), out.end(), [](const RankedPlan& a, const RankedPlan& b) {
    if (a.fits != b.fits) return a.fits;
    return a.fits ? a.prediction.iteration < b.prediction.iteration : peak(a) < peak(b);
  });
  if (!out.front().fits)
    return Infeasible{"no plan fits; of the least needy (" + out.front().origin + ") " +
                      memory_excess(out.front(), topology, options)};
  return out;
}

}  // namespace stagecraft

#include "partitioner/command/advice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "costmodel/text/units_text.h"
#include "partitioner/search/alternatives.h"

namespace stagecraft::partitioner {
namespace {

/// A plan is worth a word if it is that much faster; and idle devices, if there are as many.
constexpr double kFaster = 0.9;
constexpr double kIdle = 0.1;
constexpr std::size_t kMostNamed = 3;

bool has_many_idle(std::size_t unused, int devices) { return static_cast<double>(unused) > kIdle * devices; }

/// The fastest of the ranking's plans that leave few devices idle.
const RankedPlan* busiest_plan(const Ranking& ranking) {
  const auto found = std::ranges::find_if(ranking.plans, [](const RankedPlan& ranked) {
    return ranked.fits && !has_many_idle(ranked.prediction.unused_devices.size(), ranked.prediction.devices);
  });
  return found == ranking.plans.end() ? nullptr : &*found;
}

std::string alternative_text(const Alternative& found, const Graph& graph, int microbatches, const std::string& mark) {
  std::string out = fmt::format("{}: {}{}", found.change, mark, format_seconds(found.step));
  const double samples = found.samples * found.microbatches;
  if (samples == microbatches) return found.samples == 1 ? out : out + " if a sample takes as long as in this profile";
  if (!graph.microbatch_samples) return out + fmt::format(" for {} microbatches", found.microbatches);
  const double all = samples * static_cast<double>(*graph.microbatch_samples);
  return out + fmt::format(" for {:.0f} samples, {}{:.1f} samples per second", all, mark, all / found.step.value);
}

std::string texts(const std::vector<Alternative>& found, const Graph& graph, int microbatches,
                  const std::string& mark) {
  std::vector<std::string> out;
  for (const Alternative& one : found) {
    if (out.size() < kMostNamed) out.push_back(alternative_text(one, graph, microbatches, mark));
  }
  return fmt::format("{}", fmt::join(out, "; "));
}

}  // namespace

std::vector<std::string> advice(const Graph& graph, const Topology& topology, const CostModel& costs,
                                const Constraints& constraints, const Ranking& ranking, Seconds time,
                                const std::string& mark) {
  const RankedPlan& first = ranking.plans.front();
  if (!first.fits) return {};
  const Prediction& prediction = first.prediction;
  const int microbatches = constraints.plan.microbatches;
  const bool is_idle = has_many_idle(prediction.unused_devices.size(), prediction.devices);
  const std::vector<Alternative> found =
      alternatives(graph, topology, costs, constraints, {prediction.iteration * kFaster, is_idle, time});
  std::vector<Alternative> faster;
  std::vector<Alternative> busier;
  for (const Alternative& one : found) {
    const bool is_same_batch = one.samples * one.microbatches == microbatches;
    if (is_same_batch) faster.push_back(one);
    if (is_idle && !has_many_idle(one.unused_devices, prediction.devices)) busier.push_back(one);
  }
  std::vector<std::string> out;
  if (is_idle) {
    const RankedPlan* busiest = busiest_plan(ranking);
    out.push_back(busiest != nullptr
                      ? fmt::format("the best plan found that uses at least nine tenths of the devices is slower: {}{}",
                                    mark, format_seconds(busiest->prediction.iteration))
                      : "no plan was found that uses nine tenths of the devices with these settings");
    if (!busier.empty()) out.push_back("plans that use them: " + texts(busier, graph, microbatches, mark));
  }
  if (!faster.empty()) out.push_back("faster with other settings: " + texts(faster, graph, microbatches, mark));
  return out;
}

}  // namespace stagecraft::partitioner

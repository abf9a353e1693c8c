#include "costmodel/prediction/unmeasured.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "costmodel/index.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/transfer_costs.h"

namespace stagecraft {
namespace {

// Assumed, as more than the error without the slowdown of three ranks on two processors: 52 plans were then 13 and 17 %
// off (medians of two series), and 3.6 % with it.
constexpr double kRanksAtOnce = 0.25;
// This half-width is assumed; it does not come from measured runs.
constexpr double kSeveralInFlight = 0.1;

bool holds_several_microbatches(const BoundPlan& plan) {
  if (!plan.schedule().trains || plan.plan().microbatches < 2) return false;
  for (int position = 0; position < plan.positions(); ++position) {
    if (plan.schedule().in_flight_bound(plan.shape(), position) > 1) return true;
  }
  return false;
}

/// A smaller share of waits is not reported: the share is 0 where kernels are much longer than their launches.
constexpr double kFewWaits = 0.005;

double wait_share(const Graph& graph) {
  if (!graph.quality || graph.quality->watched_ns <= 0) return 0;
  return static_cast<double>(graph.quality->host_wait_ns) / static_cast<double>(graph.quality->watched_ns);
}

}  // namespace

std::vector<Unmeasured> unmeasured(const Graph& graph, const Topology& topology, const BoundPlan& plan) {
  std::vector<Unmeasured> out;
  if (!graph.quality || graph.quality->clock != "host" || graph.estimate) return out;
  if (!device_differences(graph, topology).empty()) return out;
  std::map<int, int> ranks;
  int most = 1;
  for (const int host : hosts_of(plan, topology)) most = std::max(most, ++ranks[host]);
  const auto lacks = [](const std::string& what, const std::string& option, double half_width) {
    return Unmeasured{
        fmt::format("the profile lacks the slowdown of {}, so the interval is wider: profile with {}", what, option),
        half_width};
  };
  if (most > std::max(1, to_int(graph.slowdown.size()))) {
    out.push_back(lacks(fmt::format("{} ranks on a host", most),
                        fmt::format("--concurrent {} and a --max-seconds that does not cut it short", most),
                        kRanksAtOnce));
  }
  if (!graph.in_flight_slowdown && holds_several_microbatches(plan))
    out.push_back(lacks("several microbatches in flight", "a larger --max-seconds", kSeveralInFlight));
  return out;
}

bool waits_for_launches(const Graph& graph) { return wait_share(graph) > kFewWaits; }

std::string launches_text(const Graph& graph) {
  if (!waits_for_launches(graph)) return "";
  return fmt::format(
      "the GPU waits for kernel launches in {:.1f} % of a step, so the step depends on the host, whose speed differs "
      "from run to run by up to 50 %; a larger microbatch gives each launch more work",
      wait_share(graph) * 100);
}

}  // namespace stagecraft

#include "costmodel/prediction/launches.h"

#include <fmt/format.h>

namespace stagecraft {
namespace {

/// Where kernels are much longer than their launches, it is 0.
constexpr double kFewWaits = 0.005;

double wait_share(const Graph& graph) {
  if (!graph.quality || graph.quality->watched_ns <= 0) return 0;
  return static_cast<double>(graph.quality->host_wait_ns) / static_cast<double>(graph.quality->watched_ns);
}

}  // namespace

bool waits_for_launches(const Graph& graph) { return wait_share(graph) > kFewWaits; }

std::string launches_text(const Graph& graph) {
  if (!waits_for_launches(graph)) return "";
  return fmt::format(
      "the GPU waits for kernel launches in {:.1f} % of a step, so the step depends on the host, whose speed differs "
      "from run to run by up to 50 %; a larger microbatch gives each launch more work",
      wait_share(graph) * 100);
}

}  // namespace stagecraft

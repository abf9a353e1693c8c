#include "partitioner/search/placed_plans.h"

#include <string>

#include "costmodel/index.h"
#include "partitioner/exact/placement.h"

namespace stagecraft::partitioner {
namespace {

constexpr const char* kPlacedOrigin = ", placed";
/// Plans whose placement is varied.
constexpr std::size_t kPlaced = 5;

}  // namespace

/// The plan's stages on devices in order.
Candidate PlacedPlans::candidate_of(const RankedPlan& ranked) const {
  Candidate out;
  out.partition = partition_of(graph_, ranked.plan);
  out.chunks = ranked.plan.chunks;
  out.steady_state = ranked.plan.steady_state;
  return out;
}

void PlacedPlans::try_placements(const std::function<bool()>& stop) {
  if (!is_useful()) return;
  const auto key_of = [](const Candidate& candidate) {
    return Key(candidate.partition.stage_of_layer, candidate.partition.replicas);
  };
  std::vector<std::pair<Candidate, std::string>> tries;
  for (const RankedPlan& ranked : plans_.sorted()) {
    if (!ranked.fits || tries.size() >= kPlaced) break;
    if (ranked.origin.ends_with(kPlacedOrigin)) continue;
    Candidate candidate = candidate_of(ranked);
    if (!placed_.contains(key_of(candidate))) tries.emplace_back(std::move(candidate), ranked.origin);
  }
  for (auto& [candidate, origin] : tries) {
    const Key key = key_of(candidate);
    if (!placed_.insert(key).second) continue;
    for (auto& devices : placements(topology_, candidate.partition.replicas, candidate.chunks)) {
      if (stop()) {
        placed_.erase(key);
        return;
      }
      candidate.devices = std::move(devices);
      plans_.predict(origin + kPlacedOrigin, candidate);
    }
  }
}

}  // namespace stagecraft::partitioner

#include "costmodel/links/collectives.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "costmodel/index.h"

namespace stagecraft {

Seconds ring_all_reduce_time(Bytes data, int ranks, const Link& link) {
  if (ranks < 1)
    throw std::invalid_argument("an all-reduce of " + std::to_string(ranks) + " ranks, must be at least 1");
  const double steps = 2.0 * (ranks - 1);
  return steps * (link.latency + data / link.bandwidth / ranks);
}

Seconds all_reduce_time(Bytes data, const std::vector<int>& devices, const Topology& topology) {
  if (devices.empty()) throw std::invalid_argument("an all-reduce of no devices");
  Seconds total;
  double share = 1;  // of `data` that is still to be reduced at this level
  for (int level = 0; level < to_int(topology.levels.size()); ++level) {
    std::map<int, std::set<int>> members;
    for (const int device : devices) {
      members[group_below(topology, level + 1, device)].insert(group_below(topology, level, device));
    }
    std::size_t largest = 1;
    for (const auto& [group, parts] : members) largest = std::max(largest, parts.size());
    if (largest == 1) continue;
    const Link& link = topology.levels[to_index(level)].link;
    const Bytes part(static_cast<std::int64_t>(static_cast<double>(data.value) * share));
    const auto curve = link.all_reduce.find(to_int(largest));
    total += curve != link.all_reduce.end() ? interpolate(curve->second, part)
                                            : ring_all_reduce_time(part, to_int(largest), link);
    share /= static_cast<double>(largest);
  }
  return total;
}

}  // namespace stagecraft

#include "partitioner/strategy.h"

#include <numeric>

#include "costmodel/index.h"

namespace stagecraft::partitioner {

Seconds time_limit(const OptionValues& options) {
  const std::optional<double> seconds = option<double>(options, kTimeLimit);
  return seconds ? Seconds(*seconds) : kDefaultTimeLimit;
}

bool may_shard(const Graph& graph, const PlanSettings& settings) {
  constexpr Bytes kValue{4};
  const ScheduleEntry& schedule = schedule_by_name(settings.schedule);
  return settings.sharding == StateSharding::None && optimizer_bytes(graph, kValue) > Bytes(0) && schedule.trains &&
         allows_sharding(schedule);
}

std::vector<int> chunk_counts(const Constraints& constraints) {
  if (constraints.chunks) return {*constraints.chunks};
  const PlanSettings& settings = constraints.plan;
  const ScheduleEntry& schedule = schedule_by_name(settings.schedule);
  std::vector<int> out = {least_chunks(schedule)};
  if (!settings.listed.empty() || !schedule.chunked || out.front() > 1) return out;
  for (int chunks = 2; chunks <= kMostChunks; chunks *= 2) out.push_back(chunks);
  return out;
}

std::optional<Infeasible> too_few_devices(const Topology& topology, int stages, int chunks,
                                          const std::vector<int>& replicas) {
  const int devices = device_count(topology);
  const int positions = stages / chunks;
  const std::string topology_has = " devices, the topology has " + std::to_string(devices);
  if (positions > devices) {
    const std::string needed = chunks > 1 ? std::to_string(positions) : "as many";
    return Infeasible{std::to_string(stages) + " stages need " + needed + topology_has};
  }
  if (replicas.empty()) return std::nullopt;
  const std::int64_t wanted = std::accumulate(replicas.begin(), replicas.begin() + positions, std::int64_t{0});
  if (wanted > devices) return Infeasible{"the replicas need " + std::to_string(wanted) + topology_has};
  return std::nullopt;
}

}  // namespace stagecraft::partitioner

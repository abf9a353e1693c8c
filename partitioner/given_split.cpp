#include "partitioner/given_split.h"

#include <algorithm>
#include <stdexcept>

#include "costmodel/index.h"
#include "costmodel/split.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::partitioner {

Candidate given_candidate(const Graph& graph, Partition partition, std::vector<std::vector<int>> devices,
                          std::vector<int> warmups, const std::vector<int>& replicas, std::optional<int> microbatches,
                          int chunks) {
  if (!replicas.empty()) {
    if (!devices.empty()) throw std::invalid_argument("--replicas: the plan that was read already has replicas");
    if (replicas.size() != partition.replicas.size()) {
      throw std::invalid_argument("replicas: found " + count_text(replicas.size(), "number") + " for " +
                                  count_text(partition.replicas.size(), "stage") + ", expected one per stage");
    }
    partition.replicas = replicas;
  }
  std::vector<Seconds> times(partition.replicas.size());
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    const int stage = partition.stage_of_layer[i];
    if (stage < 0) continue;
    times[to_index(stage)] += graph.layers[i].forward.median + graph.layers[i].backward.median;
  }
  check_chunks(to_int(times.size()), chunks);
  Candidate out;
  const int positions = to_int(times.size()) / chunks;
  std::vector<Seconds> of_device(to_index(positions));
  for (std::size_t s = 0; s < times.size(); ++s) {
    const int replicas_at_work = std::min(partition.replicas[s], microbatches.value_or(partition.replicas[s]));
    of_device[to_index(position_of(to_int(s), positions))] += times[s] / replicas_at_work;
  }
  out.partition = std::move(partition);
  out.devices = std::move(devices);
  out.warmups = std::move(warmups);
  out.chunks = chunks;
  out.steady_state = *std::ranges::max_element(of_device);
  return out;
}

Candidate split_candidate(const Graph& graph, const std::vector<std::string>& names, const std::vector<int>& replicas,
                          std::optional<int> microbatches, int chunks) {
  return given_candidate(graph, partition_of_bounds(graph, bounds_at(layer_ids(graph), names)), {}, {}, replicas,
                         microbatches, chunks);
}

}  // namespace stagecraft::partitioner

// PipelineCosts::lower_bound: the sums of a split's stages, the messages between them, and the longest path through
// both.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/gradient_sums.h"
#include "costmodel/index.h"
#include "costmodel/links/collectives.h"
#include "costmodel/prediction/memory.h"
#include "costmodel/prediction/stage_costs.h"
#include "partitioner/costs/action_replay.h"
#include "partitioner/costs/pipeline_costs.h"

namespace stagecraft::partitioner {

std::vector<StageSums> PipelineCosts::sums_of(const Split& split) const {
  std::vector<StageSums> out(split.replicas.size());
  std::vector<std::set<int>> loaded(split.replicas.size());
  for (int v = 0; v < dag_.nodes; ++v) {
    const int s = split.stage_of_node[to_index(v)];
    StageSums& stage = out[to_index(s)];
    const NodeCosts& node = nodes_[to_index(v)];
    stage.forward += node.forward;
    stage.backward += node.backward;
    stage.update += node.update;
    stage.least += node.least;
    stage.loading = std::max(stage.loading, node.loading);
    stage.untied += node.untied;
    stage.gradients += node.gradients;
    stage.bytes += node.bytes;
    stage.workspace = node.workspace;
    stage.nodes.push_back(v);
    for (const auto& [input, time] : loads_[to_index(v)]) {
      if (loaded[to_index(s)].insert(input).second) stage.forward += time;
    }
  }
  // The first node that holds a tied parameter has counted the parameter; every other stage with it counts it again.
  for (const auto& [name, holders] : tied_) {
    std::set<int> counted{split.stage_of_node[to_index(holders.nodes.front())]};
    for (const int v : holders.nodes) {
      const int s = split.stage_of_node[to_index(v)];
      if (!counted.insert(s).second) continue;
      StageSums& stage = out[to_index(s)];
      stage.gradients += gradients_of(holders.bytes);
      stage.bytes.state += holders.bytes;
      if (!schedule_.trains) continue;
      if (!divides()) stage.bytes.state += optimizer_bytes(graph_, holders.bytes);
      stage.bytes.gradients += gradients_of(holders.bytes);
      const Layer& layer = graph_.layers[to_index(layer_of_node_[to_index(v)])];
      if (layer.update && holders.bytes > Bytes(0))
        stage.update +=
            layer.update->median * (closure_ * share_updated(layer, holders.bytes) / (divides() ? devices_ : 1));
    }
  }
  return out;
}

/// Splits the backward of each stage as split_backward_times does: only layers that lead a gradient to a received value
/// have a first part.
void PipelineCosts::split_backward(const Split& split, std::vector<StageSums>& sums) const {
  for (StageSums& stage : sums) {
    const Seconds whole = stage.backward;
    stage.whole_backward = whole;
    if (settings_.recompute && settings_.recompute_every > 0) {  // each segment splits its own backward
      stage.backward = Seconds(0);
      continue;
    }
    Seconds inputs;
    Seconds weights;
    bool leads_any = false;
    bool separable = true;
    std::map<int, bool> led;
    for (const int v : stage.nodes) {
      const NodeCosts& node = nodes_[to_index(v)];
      const bool out = std::ranges::any_of(read_[to_index(v)], [&](int number) {
        const CrossingValue& value = values_[to_index(number)];
        if (!value.gradient) return false;
        const bool inside = split.stage_of_node[to_index(value.producer)] == split.stage_of_node[to_index(v)];
        return !inside || led[value.producer];
      });
      led[v] = out;
      leads_any = leads_any || out;
      separable = separable && node.separable;
      const Seconds again = settings_.recompute ? node.forward : Seconds(0);
      inputs += again + (out ? node.inputs : Seconds(0));
      weights += out ? node.weights : node.backward - again;
    }
    stage.backward = leads_any && separable ? inputs : whole;
    stage.weights = leads_any && separable ? weights : Seconds(0);
  }
}

std::vector<StageLink> PipelineCosts::links_of(const Split& split) const {
  std::map<std::pair<int, int>, StageLink> links;
  const std::size_t levels = topology_.levels.size();
  std::set<int> stages;
  for (const CrossingValue& value : values_) {
    int from = split.stage_of_node[to_index(value.producer)];
    stages.clear();
    for (const int reader : value.readers) stages.insert(split.stage_of_node[to_index(reader)]);
    for (const int to : stages) {
      if (to == from) continue;
      StageLink& link = links[{from, to}];
      link.from = from;
      link.to = to;
      link.gradient = link.gradient || value.gradient;
      link.forward.resize(levels);
      link.back.resize(levels);
      for (std::size_t level = 0; level < levels; ++level) {
        link.forward[level] += value.forward[level];
        link.back[level] += value.back[level];
      }
      link.port += value.port;
      link.port_back += value.port_back;
      from = to;
    }
  }
  std::vector<StageLink> out;
  for (auto& [stages_of, link] : links) out.push_back(std::move(link));
  return out;
}

Seconds PipelineCosts::busiest(const Split& split, const std::vector<StageSums>& sums) const {
  std::vector<Seconds> loads(to_index(positions_of(split)));
  for (int s = 0; s < to_int(sums.size()); ++s) loads[to_index(position_of(split, s))] += sums[to_index(s)].least;
  Seconds out;
  for (std::size_t p = 0; p < loads.size(); ++p) out = std::max(out, loads[p] * share(split.replicas[p]));
  return out;
}

/// A bound by the busiest device: its computation lies after the way of the first microbatch to the device, and before
/// the way of the last gradient back from it.
Seconds PipelineCosts::busiest_on_its_way(const Split& split, const std::vector<StageSums>& sums,
                                          const std::vector<StageLink>& links) const {
  const auto message = [&](const StageLink& link, const std::vector<Seconds>& by_level) {
    const bool inside = position_of(split, link.from) == position_of(split, link.to);
    return inside ? Seconds(0) : *std::ranges::min_element(by_level);
  };
  // Links are sorted by the stage that they leave, and each leads to a later stage.
  std::vector<Seconds> before(sums.size());
  std::vector<Seconds> after(sums.size());
  for (const StageLink& link : links) {
    const std::size_t from = to_index(link.from);
    const std::size_t to = to_index(link.to);
    before[to] = std::max(before[to], before[from] + sums[from].forward + message(link, link.forward));
    if (link.gradient && returns())
      after[to] = std::max(after[to], message(link, link.back) + sums[from].backward + after[from]);
  }
  Seconds out;
  for (int p = 0; p < positions_of(split); ++p) {
    Seconds load;
    Seconds loading;
    Seconds first = before[to_index(p)];
    Seconds last = after[to_index(p)];
    for (const int stage : stages_at(p, to_int(sums.size()), positions_of(split), schedule_.placement)) {
      const auto s = to_index(stage);
      load += sums[s].least;
      loading += sums[s].loading;
      first = std::min(first, before[s]);
      last = std::min(last, after[s]);
    }
    const int replicas = split.replicas[to_index(p)];
    out = std::max(out, first + std::max(load * share(replicas) + last, least_loading(loading, replicas)));
  }
  return out;
}

/// The time for the stage's replicas on `devices` to sum its gradients, once all replicas have them.
Seconds PipelineCosts::reduce_of(const Split& split, const StageSums& stage, int number,
                                 const std::vector<int>& devices) const {
  const int replicas = split.replicas[to_index(number)];
  if (replicas < 2) return Seconds(0);
  if (!settings_.gradient_bucket_bytes) return sum_time(stage.gradients - stage.tied, devices);
  // Buckets fill from the last layer to the first during the backward.
  const auto backward = [&](std::size_t i) {
    return graph_.layers[to_index(layer_of_node_[to_index(stage.nodes[i])])].backward.median * closure_;
  };
  Seconds left;
  std::vector<Bytes> bytes;
  std::vector<std::size_t> node_of;  // by gradient
  for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
    if (!schedule_.splits_backward) left += backward(i);
    for (const Bytes gradient : nodes_[to_index(stage.nodes[i])].untied_gradients) {
      bytes.push_back(gradient);
      node_of.push_back(i);
    }
  }
  Seconds end;
  Seconds at = Seconds(0) - left;  // relative to the end of the backward
  std::size_t node = stage.nodes.size();
  for (const FilledBucket& bucket : fill_buckets(bytes, settings_.gradient_bucket_bytes)) {
    while (node > node_of[bucket.first]) left -= backward(--node);
    at = std::max(at, Seconds(0) - std::max(left, Seconds(0))) + sum_time(bucket.bytes, devices);
    end = std::max(end, at);
  }
  return end;
}

/// The time to gather the parameters after an update that replicas divide, in the pieces of their sums.
Seconds PipelineCosts::gather_of(const StageSums& stage, const std::vector<int>& devices) const {
  if (!divides() || devices.size() < 2) return Seconds(0);
  if (!settings_.gradient_bucket_bytes) return gather_time(stage.gradients - stage.tied, devices);
  std::vector<Bytes> bytes;
  for (const int node : stage.nodes) {
    const std::vector<Bytes>& gradients = nodes_[to_index(node)].untied_gradients;
    bytes.insert(bytes.end(), gradients.begin(), gradients.end());
  }
  Seconds out;
  for (const FilledBucket& bucket : fill_buckets(bytes, settings_.gradient_bucket_bytes))
    out += gather_time(bucket.bytes, devices);
  return out;
}

std::optional<Seconds> PipelineCosts::lower_bound(const Split& split, const StageDevices& placed,
                                                  Seconds enough) const {
  if (!can_run(split)) return std::nullopt;
  std::vector<StageSums> sums = sums_of(split);
  if (!waits_) return busiest(split, sums);
  if (schedule_.splits_backward) split_backward(split, sums);
  const std::vector<StageLink> links = links_of(split);
  const Seconds at_once = busiest_on_its_way(split, sums, links);
  if (at_once >= enough) return at_once;
  const int positions = positions_of(split);
  const std::vector<int> first_rank = first_ranks(split.replicas, positions, schedule_.placement);
  std::vector<int> device_of_rank;
  for (std::size_t p = 0; p < to_index(positions); ++p) {
    for (int r = 0; r < split.replicas[p]; ++r)
      device_of_rank.push_back(placed.empty() ? to_int(device_of_rank.size()) : placed[p][to_index(r)]);
  }
  ActionReplay replay(topology_, settings_.microbatches, split.replicas, first_rank, device_of_rank, sums, links,
                      lists_of(split));
  if (!replay.run()) return std::nullopt;  // a deadlock

  Seconds out = at_once;
  if (split.chunks == 1 && topology_.levels.size() == 1) {
    std::vector<int> stage_of_rank;
    for (int s = 0; s < positions; ++s)
      stage_of_rank.insert(stage_of_rank.end(), to_index(split.replicas[to_index(s)]), s);
    out = std::max(out, busiest_port(schedule_, sums, links, stage_of_rank, replay.ports()));
  }
  std::vector<Seconds> ends(to_index(positions));
  for (std::size_t p = 0; p < ends.size(); ++p) {
    const auto first = replay.ends().begin() + first_rank[p];
    ends[p] = *std::max_element(first, first + split.replicas[p]);
  }
  if (schedule_.trains) add_reduces(split, sums, first_rank, device_of_rank, ends);
  return std::max(out, *std::ranges::max_element(ends));
}

/// Adds sums of gradients and updates to the times at which the positions' last computations end.
void PipelineCosts::add_reduces(const Split& split, std::vector<StageSums>& sums, const std::vector<int>& first_rank,
                                const std::vector<int>& device_of_rank, std::vector<Seconds>& ends) const {
  const int stages = to_int(sums.size());
  std::vector<int> group = separate_reduce_groups(stages);
  std::vector<Seconds> sharing(to_index(stages));  // the time of each stage's sums of shared parameters, one by one
  for (const auto& [name, holders] : tied_) {
    std::set<int> at;
    for (const int v : holders.nodes) at.insert(split.stage_of_node[to_index(v)]);
    std::set<int> ranks;
    for (const int s : at) {
      for (int r = 0; r < split.replicas[to_index(s)]; ++r)
        ranks.insert(device_of_rank[to_index(first_rank[to_index(s)] + r)]);
    }
    if (at.size() < 2 && ranks.size() < 2) continue;
    const std::vector<int> devices(ranks.begin(), ranks.end());
    const bool has_values = holders.bytes > Bytes(0);
    const Bytes gradients = gradients_of(holders.bytes);
    const Seconds time = has_values ? sum_time(gradients, devices) : Seconds(0);
    for (const int s : at) {
      if (has_values) sums[to_index(s)].update += gather_time(gradients, devices);
      sums[to_index(s)].tied += gradients;
      sharing[to_index(s)] += time;
    }
    join_reduce_groups(group, at);
  }
  const auto position = [&](int s) { return to_index(position_of(split, s)); };
  std::vector<Seconds> after = ends;
  for (int g = 0; g < stages; ++g) {
    if (group[to_index(g)] != g) continue;
    Seconds start;
    Seconds end;  // of the sums over replicas; buckets do not wait for the rest of the group
    for (int s = g; s < stages; ++s) {
      if (group[to_index(s)] == g) start = std::max(start, ends[position(s)]);
    }
    end = start;
    for (int s = g; s < stages; ++s) {
      if (group[to_index(s)] != g) continue;
      const auto first = device_of_rank.begin() + first_rank[to_index(s)];
      const std::vector<int> devices(first, first + split.replicas[to_index(s)]);
      const Seconds from = settings_.gradient_bucket_bytes ? ends[position(s)] : start;
      if (split.chunks == 1) end = std::max(end, from + reduce_of(split, sums[to_index(s)], s, devices));
    }
    Seconds tied;
    for (int s = g; s < stages; ++s) {
      if (group[to_index(s)] == g) tied = std::max(tied, sharing[to_index(s)]);
    }
    for (int s = g; s < stages; ++s) {
      if (group[to_index(s)] == g) after[position(s)] = std::max(after[position(s)], end + tied);
    }
  }
  ends = std::move(after);
  for (int s = 0; s < stages; ++s) {
    ends[position(s)] += sums[to_index(s)].update;
    // The sums of several stages of a device follow each other; buckets may be summed earlier, and so may gradients of
    // which a rank keeps a part.
    const bool follow =
        split.chunks > 1 && !settings_.gradient_bucket_bytes && settings_.sharding < StateSharding::Gradients;
    if (!follow && !divides()) continue;
    const auto first = device_of_rank.begin() + first_rank[to_index(s)];
    const std::vector<int> devices(first, first + split.replicas[to_index(s)]);
    ends[position(s)] += gather_of(sums[to_index(s)], devices);
    if (follow) ends[position(s)] += reduce_of(split, sums[to_index(s)], s, devices);
  }
}

}  // namespace stagecraft::partitioner

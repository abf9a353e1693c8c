#include "partitioner/costs/stage_sums.h"

#include <algorithm>
#include <optional>

#include "costmodel/index.h"

namespace stagecraft::partitioner {

StageBytes& StageBytes::operator+=(const StageBytes& layer) {
  state += layer.state;
  divided += layer.divided;
  gradients += layer.gradients;
  per_microbatch += layer.per_microbatch;
  once += layer.once;
  segment = std::max(segment, layer.segment);
  loaded += layer.loaded;
  unmeasured += layer.unmeasured;
  return *this;
}

// What a layer saves may come after those that are there. A layer that comes before one of them is followed by all of
// them at most.
void StageWorkspace::add(int node, Bytes workspace, Bytes node_saved) {
  most = std::max({most - node_saved, node > last ? workspace : workspace - saved, Bytes(0)});
  saved += node_saved;
  last = std::max(last, node);
}

Bytes peak_bytes(const StageBytes& stage, std::int64_t in_flight, bool with_gradients, Bytes workspace, double factor) {
  const auto scaled = [factor](Bytes bytes) {
    return Bytes(static_cast<std::int64_t>(static_cast<double>(bytes.value) * factor));
  };
  const Bytes once = stage.once + stage.segment;
  const Bytes all = stage.per_microbatch * in_flight + once + workspace;
  const Bytes loaded = stage.loaded * in_flight;
  if (with_gradients) return stage.state + stage.gradients + scaled(all) + loaded;
  // After the backward: what was loaded for the microbatch is free too.
  const Bytes after = stage.per_microbatch * (in_flight - 1) + (in_flight > 1 ? once : Bytes(0));
  const Bytes besides = stage.gradients + loaded - stage.loaded;
  const Bytes scaled_after = besides + scaled(after);
  const bool is_first = all + loaded >= besides + after;
  return stage.state + (is_first ? std::max(all + loaded, std::min(scaled(all) + loaded, scaled_after)) : scaled_after);
}

Seconds busiest_port(const ScheduleEntry& schedule, const std::vector<StageSums>& sums,
                     const std::vector<StageLink>& links, const std::vector<int>& stage_of_rank,
                     const std::vector<PortUses>& ports) {
  const std::size_t stages = sums.size();
  const auto backward = [&](std::size_t s) {
    return schedule.trains && !schedule.splits_backward ? sums[s].backward : Seconds(0);
  };
  std::vector<Seconds> trip(stages);   // from the forward to the end of the pipeline and back
  std::vector<Seconds> after(stages);  // the time that follows the backward
  for (std::size_t s = stages; s-- > 0;) {
    for (const StageLink& link : links) {
      if (to_index(link.from) != s || (!link.gradient && schedule.trains && !schedule.splits_backward)) continue;
      Seconds there = link.forward.front() + trip[to_index(link.to)];
      if (!schedule.splits_backward) there += link.back.front();
      trip[s] = std::max(trip[s], there);
    }
    trip[s] += sums[s].forward + backward(s);
  }
  for (std::size_t s = 0; s < stages; ++s) {
    for (const StageLink& link : links) {
      if (to_index(link.to) != s || !link.gradient || schedule.splits_backward) continue;
      const auto from = to_index(link.from);
      after[s] = std::max(after[s], link.back.front() + backward(from) + after[from]);
    }
  }
  // The least time that follows, over the stages at the other end.
  std::vector<std::optional<Seconds>> follows(2 * stages);
  for (const StageLink& link : links) {
    const auto least = [](std::optional<Seconds>& at, Seconds time) { at = std::min(at.value_or(time), time); };
    least(follows[2 * to_index(link.from)], trip[to_index(link.to)] + after[to_index(link.to)]);
    least(follows[2 * to_index(link.to) + 1], backward(to_index(link.from)) + after[to_index(link.from)]);
  }
  Seconds out;
  for (std::size_t rank = 0; rank < stage_of_rank.size(); ++rank) {
    const auto s = to_index(stage_of_rank[rank]);
    const auto bound = [&](const PortUse& use, Seconds way) {
      if (use.sum > Seconds(0)) out = std::max(out, use.first + use.sum + way);
    };
    bound(ports[rank].activations_out, follows[2 * s].value_or(Seconds(0)));
    bound(ports[rank].activations_in, trip[s] + after[s]);
    bound(ports[rank].gradients_out, follows[2 * s + 1].value_or(Seconds(0)));
    bound(ports[rank].gradients_in, backward(s) + after[s]);
  }
  return out;
}

}  // namespace stagecraft::partitioner

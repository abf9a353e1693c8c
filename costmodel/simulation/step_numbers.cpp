#include "costmodel/simulation/step_numbers.h"

namespace stagecraft::simulation {

StepNumbers::StepNumbers(const SimulationInput& input) : in_(input), plan_(input.plan), stages_(input.stages.size()) {
  take_costs();
  take_hops();
}

bool StepNumbers::sums() const {
  for (int s = 0; s < plan_.stages(); ++s) {
    if (plan_.reduces(s)) return true;
  }
  return false;
}

void StepNumbers::take_costs() {
  for (int s = 0; s < plan_.stages(); ++s) {
    const StageCost& cost = in_.stages[to_index(s)];
    StageNumbers& stage = stages_[to_index(s)];
    const bool split = plan_.schedule().splits_backward;
    stage.forward = cost.forward;
    if (plan_.schedule().trains) stage.backward = split ? cost.backward : cost.whole_backward.value_or(cost.backward);
    if (split) stage.weights = cost.weight_gradient;
    stage.replicas = plan_.replicas(s);
    stage.most = (microbatches() + stage.replicas - 1) / stage.replicas;
    stage.warmup = plan_.plan().warmups[to_index(s)];
  }
}

/// A message that shares its ports with at most k others takes at most k + 1 times its transmission, since its share of
/// a port is at least 1 / (k + 1).
void StepNumbers::take_hops() {
  struct UsedLane {
    std::size_t hop;
    bool gradient;
    Transfer cost;
  };
  std::vector<UsedLane> lanes;
  std::vector<int> at_port(to_index(in_.ports));
  for (int b = 0; b < to_int(plan_.plan().boundaries.size()); ++b) {
    const auto [source, destination, gradient] = plan_.ends(b);
    MessageHop hop;
    hop.source = source;
    hop.destination = destination;
    hop.gradient = gradient && plan_.schedule().trains;
    hop.cycle = std::lcm(plan_.replicas(source), plan_.replicas(destination));
    hops_.push_back(hop);
    for (int m = 0; m < std::min(hop.cycle, microbatches() * in_.steps); ++m) {
      const int from = plan_.runner(source, m);
      const int to = plan_.runner(destination, m);
      if (from == to) continue;
      lanes.push_back({hops_.size() - 1, false, in_.transfer(b, false, from, to)});
      if (hop.gradient) lanes.push_back({hops_.size() - 1, true, in_.transfer(b, true, to, from)});
    }
  }
  const auto visit_ports = [](const Transfer& cost, const auto& visit) {
    for (const int port : {cost.egress, cost.ingress}) {
      if (port >= 0) visit(to_index(port));
    }
  };
  for (const UsedLane& lane : lanes) {
    visit_ports(lane.cost, [&](std::size_t port) { ++at_port[port]; });
    for (const Handling& handling : {lane.cost.sender, lane.cost.receiver})
      takes_processors_ = takes_processors_ || handling.fixed + handling.streaming > Seconds(0);
  }
  for (const UsedLane& lane : lanes) {
    int shared = 1;
    if (rendezvous()) visit_ports(lane.cost, [&](std::size_t port) { shared = std::max(shared, at_port[port]); });
    const Seconds idle = lane.cost.latency + lane.cost.transmission;
    MessageHop& hop = hops_[lane.hop];
    MessageWay& way = lane.gradient ? hop.back : hop.activation;
    way.longest = std::max(way.longest, lane.cost.latency + lane.cost.transmission * shared);
    way.alone = std::max(way.alone, idle);
    way.least = way.lanes++ == 0 ? idle : std::min(way.least, idle);
  }
  take_stage_hops();
}

void StepNumbers::take_stage_hops() {
  for (const MessageHop& hop : hops_) {
    StageNumbers& source = stages_[to_index(hop.source)];
    StageNumbers& destination = stages_[to_index(hop.destination)];
    source.out = std::max(source.out, hop.activation.longest);
    destination.back = std::max(destination.back, hop.back.longest);
    source.returned = std::max(source.returned, hop.back.longest);
    if (hop.cycle > destination.replicas) destination.first_in = std::max(destination.first_in, hop.activation.longest);
    if (hop.cycle > source.replicas) source.first_returned = std::max(source.first_returned, hop.back.longest);
  }
}

bool StepNumbers::chained() const {
  for (int s = 0; s + 1 < plan_.stages(); ++s) {
    const bool joined = std::ranges::any_of(hops_, [&](const MessageHop& hop) {
      return hop.source == s && hop.destination == s + 1 && (hop.gradient || !plan_.schedule().trains);
    });
    if (!joined) return false;
  }
  return true;
}

bool StepNumbers::warms_up() const {
  for (int s = 0; s + 1 < plan_.stages(); ++s) {
    if (at(s).warmup <= at(s + 1).warmup) return false;
  }
  return true;
}

int StepNumbers::equal_replicas() const {
  const int first = stages_.front().replicas;
  const bool equal = std::ranges::all_of(stages_, [&](const StageNumbers& stage) { return stage.replicas == first; });
  return equal ? first : 0;
}

Seconds StepNumbers::reduce_of(int stage) const {
  const StageCost& costs = cost(stage);
  return plan_.reduces(stage) ? costs.reduce + costs.tied : Seconds(0);
}

Seconds StepNumbers::buckets_of(int stage) const {
  Seconds out;
  if (!plan_.reduces(stage)) return out;
  for (const ReduceBucket& bucket : cost(stage).buckets) out += bucket.time;
  return out;
}

}  // namespace stagecraft::simulation

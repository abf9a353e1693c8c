#include "costmodel/simulation/lanes.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "costmodel/simulation/host_sharing.h"

namespace stagecraft::simulation {

MessageCost message_cost(const Transfer& transfer, bool one_thread) {
  const Seconds latency = std::max(Seconds(0), transfer.latency - transfer.sender.fixed - transfer.receiver.fixed);
  const Seconds outside = transfer.sender.fixed + (one_thread ? transfer.sender.streaming : transfer.receiver.fixed);
  return {transfer, latency, std::max(Seconds(0), transfer.latency + transfer.transmission - latency - outside)};
}

void Lanes::set_cost(Lane& lane) const {
  MessageCost cost = message_cost(input_.transfer(lane.boundary, lane.gradient, lane.from, lane.to), one_thread_);
  if (!threads_.empty() && threads_[to_index(input_.host_of_rank[to_index(lane.to)])] > input_.host_processors)
    cost.transfer.receiver.fixed += input_.wake;
  lane.cost = cost;
}

Lanes::Lanes(const SimulationInput& input)
    : input_(input),
      one_thread_(has_one_thread(input)),
      threads_(input.wake > Seconds(0) ? threads_of_hosts(input) : std::vector<int>()) {
  const BoundPlan& plan = input.plan;
  const int microbatches = plan.plan().microbatches * input.steps;
  for (int b = 0; b < to_int(plan.plan().boundaries.size()); ++b) {
    const auto [source, destination, with_gradient] = plan.ends(b);
    const int length = std::min(std::lcm(plan.replicas(source), plan.replicas(destination)), microbatches);
    cycles_.push_back({count(), length});
    for (int i = 0; i < length; ++i) {
      for (const bool gradient : {false, true}) {
        Lane& lane = lanes_.emplace_back();
        lane.boundary = b;
        lane.gradient = gradient;
        lane.from = plan.runner(gradient ? destination : source, i);
        lane.to = plan.runner(gradient ? source : destination, i);
        if (gradient && !with_gradient) continue;
        const std::size_t messages = to_index((microbatches - i + length - 1) / length);
        lane.sent.reserve(messages);
        lane.posted.reserve(messages);
      }
    }
  }
}

int Lanes::of(const Action& message) const {
  const std::optional<int> boundary = input_.plan.boundary(message.stage, message.peer);
  if (!boundary)
    throw std::invalid_argument("there is no boundary between stage " + std::to_string(message.stage) + " and stage " +
                                std::to_string(message.peer));
  const Cycle& cycle = cycles_[to_index(*boundary)];
  return cycle.first + 2 * (message.microbatch % cycle.length) + (carries_gradient(message.kind) ? 1 : 0);
}

}  // namespace stagecraft::simulation

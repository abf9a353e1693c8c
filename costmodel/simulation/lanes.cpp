#include "costmodel/simulation/lanes.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace stagecraft::simulation {

void Lanes::set_cost(Lane& lane) const {
  lane.cost = costs_(input_.transfer(lane.boundary, lane.gradient, lane.from, lane.to), lane.to);
}

Lanes::Lanes(const SimulationInput& input) : input_(input), costs_(input.hosts, input.mode) {
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

void Lanes::refuse(const Action& message) {
  throw std::invalid_argument("there is no boundary between stage " + std::to_string(message.stage) + " and stage " +
                              std::to_string(message.peer));
}

}  // namespace stagecraft::simulation

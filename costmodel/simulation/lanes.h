#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/schedule.h"
#include "costmodel/simulation/host/hosts.h"
#include "costmodel/simulation/simulation_input.h"
#include "costmodel/units.h"

namespace stagecraft::simulation {

/// One directed edge between two replicas for one boundary and direction: messages are sent one at a time, in order.
struct Lane : MovingMessage {
  int boundary = 0;
  bool gradient = false;
  bool busy = false;
  Seconds started{};                     ///< of the moving message
  std::size_t moved = 0;                 ///< messages that have arrived
  std::vector<int> sent = {};            ///< microbatches in the order of sending
  std::vector<int> posted = {};          ///< and of receiving
  std::optional<MessageCost> cost = {};  ///< see Lanes::cost
};

/// The lanes of a plan, by number.
class Lanes {
 public:
  /// Allocates room for every message of all steps. Refers to `input`.
  explicit Lanes(const SimulationInput& input);

  [[nodiscard]] int count() const { return to_int(lanes_.size()); }
  [[nodiscard]] Lane& operator[](int id) { return lanes_[to_index(id)]; }
  [[nodiscard]] const Lane& operator[](int id) const { return lanes_[to_index(id)]; }
  [[nodiscard]] const std::vector<Lane>& all() const { return lanes_; }

  /// The lane of a Send or Receive. Throws std::invalid_argument if there is no boundary between its stages.
  [[nodiscard]] int of(const Action& message) const {
    const std::optional<int> boundary = input_.plan.boundary(message.stage, message.peer);
    if (!boundary) refuse(message);
    const Cycle& cycle = cycles_[to_index(*boundary)];
    return cycle.first + 2 * (message.microbatch % cycle.length) + (carries_gradient(message.kind) ? 1 : 0);
  }
  /// The cost of each message of the lane. SimulationInput::transfer is called once per lane.
  const MessageCost& cost(Lane& lane) const {
    if (!lane.cost) set_cost(lane);
    return *lane.cost;
  }

 private:
  [[noreturn]] static void refuse(const Action& message);
  void set_cost(Lane& lane) const;

  struct Cycle {
    int first;   // lane of microbatch 0; each microbatch has two, activation and gradient
    int length;  // microbatches after which the same replicas meet again
  };

  const SimulationInput& input_;
  const MessageCosts costs_;
  std::vector<Cycle> cycles_;  // by boundary
  std::vector<Lane> lanes_;
};

}  // namespace stagecraft::simulation

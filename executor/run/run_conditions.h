#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "costmodel/conditions.h"
#include "executor/channel/channel.h"
#include "executor/device/machine/processor_use.h"
#include "executor/device/machine/yardstick.h"

namespace stagecraft::run {

/// What the machines did besides the run, and how fast they were. All ranks call the same functions in the same order.
class RunConditions {
 public:
  /// The channel must outlive it. `threads`: of each rank.
  RunConditions(int rank, channel::Channel& channel, c10::Device device, int threads);

  /// Call before the first step.
  void begin();
  /// The conditions since `begin`. Of the whole run on rank 0, empty on the others.
  [[nodiscard]] Conditions finish();

 private:
  /// On rank 0, a reading of the yardstick while all ranks wait.
  void read_yardstick();

  channel::Channel& channel_;
  std::optional<device::YardstickMeter> yardstick_;  // on rank 0
  device::ProcessorMoment began_;
};

}  // namespace stagecraft::run

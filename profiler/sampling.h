#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "costmodel/graph.h"
#include "executor/device/machine/yardstick.h"
#include "profiler/fed_subject.h"
#include "profiler/sampled_steps.h"
#include "profiler/subject/statistics.h"
#include "profiler/subject/watch.h"

namespace stagecraft::profiler {

/// Steps in a row on a device: the first starts with nothing launched ahead and does not count.
inline constexpr int kStepsInARow = 10;

/// How to sample steps.
struct Sampling {
  WatchClock clock = WatchClock::Host;
  std::string clock_name;  ///< for messages: "host", "events", the tracer's name
  StoppingRule rule;       ///< when there are enough samples
};

/// Measures unwatched and watched steps in turn until the rule is satisfied: one of each under a host clock, else
/// kStepsInARow of each. Before each turn, while `watch` is paused, it reads `yardstick` if that is due, and loads the
/// next batch, which stays in `fed`. Under a host clock, every second turn ends with a watched step that creates the
/// gradients. `layers` are those of the model's graph, without its inputs: an update of all parameters is divided among
/// them. `progress` is called with the number of unwatched steps and the relative error of their median. Throws
/// DeviceError if the first watched steps were not recorded.
[[nodiscard]] SampledSteps sample_steps(FedSubject& fed, Watch& watch, std::span<const Layer> layers,
                                        const Sampling& sampling, device::YardstickMeter& yardstick,
                                        const std::function<void(std::size_t, double)>& progress);

}  // namespace stagecraft::profiler

#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "executor/data/data_source.h"
#include "executor/device/machine/yardstick.h"
#include "executor/model/model.h"
#include "profiler/profile_options.h"
#include "profiler/sampled_steps.h"
#include "profiler/subject/statistics.h"
#include "profiler/subject/subject.h"
#include "profiler/subject/watch.h"

namespace stagecraft::profiler {

/// Loads microbatches as a run does, and times the loads. `data` must outlive it.
class BatchLoader {
 public:
  /// `inputs` are the model's inputs that a batch holds, `samples` those of a microbatch.
  BatchLoader(const data::DataSource& data, std::vector<int> inputs, std::int64_t samples, c10::Device device);

  /// The batch of `step` in host memory, ready for a copy to the device.
  [[nodiscard]] std::vector<at::Tensor> load_on_host(std::int64_t step);
  /// The batch of `step` on the device. There, it is copied twice into the same memory, and the second copy is timed:
  /// the first work after CUPTI was switched off takes tens of milliseconds.
  [[nodiscard]] std::vector<at::Tensor> load(std::int64_t step);
  /// The times of all loads since the last call.
  [[nodiscard]] LoadTimes take();

 private:
  const data::DataSource& data_;
  std::vector<int> inputs_;
  std::int64_t samples_;
  c10::Device device_;
  LoadTimes times_;
};

/// A model under measurement, with what times it and what feeds it. `data` must outlive it.
struct FedSubject {
  FedSubject(const model::Model& model, const data::DataSource& data, const ProfileOptions& options,
             bool update_by_layer);

  c10::Device device;
  Subject subject;
  StepTimer timer;
  BatchLoader loader;
  std::vector<at::Tensor> batch;  ///< the last one that was loaded; first that of step 0
};

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

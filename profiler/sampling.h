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
#include "executor/device/machine/processor.h"
#include "executor/device/machine/yardstick.h"
#include "executor/model/model.h"
#include "profiler/kernels/attribution.h"
#include "profiler/profile_options.h"
#include "profiler/subject/statistics.h"
#include "profiler/subject/subject.h"
#include "profiler/subject/watch.h"

namespace stagecraft::profiler {

inline constexpr double kNanosecondsPerSecond = 1e9;
[[nodiscard]] inline double in_seconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / kNanosecondsPerSecond;
}

/// What tells when a layer's work in a watched step begins and ends.
enum class WatchClock { Host, Events, Tracer };

/// Seconds of each load of a batch.
struct LoadTimes {
  std::vector<double> loading;    ///< on the host
  std::vector<double> uploading;  ///< from the host to a GPU; none on a CPU
};

/// Unwatched and watched steps of a model, as they were measured.
struct SampledSteps {
  WatchClock clock = WatchClock::Host;
  std::vector<double> plain;      ///< seconds of each unwatched step
  std::vector<StepShares> steps;  ///< the watched ones, their updates divided among the layers
  /// By layer: seconds by which a backward that adds to gradients takes longer than one that creates them; under a host
  /// clock only.
  std::vector<std::vector<double>> accumulating;
  LoadTimes loads;
  TraceQuality seen;          ///< of all watched steps
  AttributedTrace trace;      ///< of the last watched steps
  std::int64_t unmapped = 0;  ///< backward nodes that could not be assigned to a layer
  Stop stop = Stop::No;       ///< what ended the measurement
  device::ProcessorReport use;
};

// In all of these, `layers` are the layers of a graph without its inputs: layers[i] is layer i of the model.

/// Each layer's share of each watched step, in seconds: forward[i][s] is layer i in step s.
struct LayerSamples {
  explicit LayerSamples(std::size_t layers) : forward(layers), backward(layers), accumulation(layers), update(layers) {}
  /// Appends a step; a layer without such a part gets 0.
  void add(const StepShares& step);
  /// Forward and backward of all layers, for should_stop.
  [[nodiscard]] std::vector<std::vector<double>> parts() const;

  std::vector<std::vector<double>> forward, backward;
  std::vector<std::vector<double>> accumulation;  ///< part of the backward, 0 unless a trace shows it
  std::vector<std::vector<double>> update;
  std::vector<double> sums;  ///< of all layers' shares in each step
};

/// Divides the optimizer's part of layer 0, one update for all parameters, among the layers in proportion to their
/// parameter counts. Each kind of time is rounded down by its running sum, so that the parts add up to the whole
/// exactly; each part counts all of the update's activities. Without such a part, nothing happens.
void divide_update(StepShares& step, std::span<const Layer> layers);

/// Adds one step to the layers' shares and to the sums of `quality`. Data and what belongs to no layer go to `quality`
/// alone. Waits for launches and for kernels are added if `quality` is debiased, which means that a device was watched:
/// a host does not wait for its own launches.
void add_shares(std::span<Layer> layers, ProfileQuality& quality, const StepShares& step);

/// Copies counts and times of `trace` into `quality`, and replaces its reasons by those of distrust(trace).
void copy_trace_quality(ProfileQuality& quality, const TraceQuality& trace);

/// Adds the reasons that do not come from a trace; the profile is `trusted` if it has no reason against it. `unmapped`
/// are backward nodes without a layer; `work_over_plain` is device work of a watched step / length of an unwatched
/// step - 1, where more than 0.01 means that watching slows the device down.
void judge(ProfileQuality& quality, std::int64_t unmapped, double work_over_plain);

/// Distrusts the profile if other programs kept the processors busy while `measured`, as in crowded_reasons, used them.
void judge_others(ProfileQuality& quality, const device::ProcessorReport& use, const std::string& measured);

/// The layers of `graph` without its inputs, which come first.
[[nodiscard]] std::span<Layer> without_inputs(Graph& graph);

/// Sums over the medians of all layers.
struct StepSums {
  Seconds sum;      ///< of forward, backward and update
  Seconds watched;  ///< median over the watched steps of the sum of all layers' shares
};

/// Sets the times and shares of each layer of `graph`, its iteration, and what the steps say about its quality. The
/// iteration is that of `untraced` steps, in seconds, if there are any. Steps that a device's clock watched are scaled
/// to the iteration, see debias. All inputs together are loaded by one call; the first input has its time.
StepSums summarize_steps(Graph& graph, const SampledSteps& sampled, const std::vector<double>& untraced);

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

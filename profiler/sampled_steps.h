#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "costmodel/graph.h"
#include "profiler/kernels/attribution.h"
#include "profiler/kernels/shares.h"

namespace stagecraft::profiler {

inline constexpr double kNanosecondsPerSecond = 1e9;
[[nodiscard]] inline double in_seconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / kNanosecondsPerSecond;
}

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

/// Adds the reasons that no trace shows, then sets `trusted` if there are no reasons at all. `unmapped` are backward
/// nodes without a layer; `work_over_plain` is device work of a watched step / length of an unwatched step - 1, where
/// more than 0.01 means that watching slows the device down.
void judge(ProfileQuality& quality, std::int64_t unmapped, double work_over_plain);

}  // namespace stagecraft::profiler

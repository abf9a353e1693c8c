#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "executor/data/data_source.h"
#include "executor/model/model.h"
#include "profiler/kernels/attribution.h"
#include "profiler/kernels/trace.h"
#include "profiler/profile_options.h"
#include "profiler/subject/statistics.h"

namespace stagecraft::profiler {

/// How far a profile has come, for a progress line.
struct ProfileProgress {
  std::string phase;  ///< "warm-up", "measuring", "memory", "several microbatches in flight", "2 at once", "backward in
                      ///< two parts: fc1", "alone: fc1"
  std::size_t iteration = 0;
  double relative_error = 0;  ///< of the iteration's median so far
};

/// A measured graph and what it says about its own quality.
struct Profile {
  Graph graph;
  Seconds sum;                    ///< of all layers' medians: forward, backward, update
  Seconds watched;                ///< median over the watched iterations of the sum of all layers' times
  Stop stop = Stop::No;           ///< what ended the measurement
  std::int64_t unmapped = 0;      ///< backward nodes that could not be assigned to a layer
  std::vector<StepShares> steps;  ///< the watched iterations, as recorded
  AttributedTrace trace;          ///< of the last watched iterations
  double seconds = 0;             ///< duration of the whole profile
  /// What was cut short or skipped: "warm-up of 3 iterations (1)", "slowdown of 2 ranks".
  std::vector<std::string> cut;
  /// sum / unwatched iteration - 1. Watching raises it, interruption() lowers it.
  [[nodiscard]] double closure() const { return sum / graph.iteration->median - 1; }
  /// Watched iteration / unwatched iteration - 1.
  [[nodiscard]] double overhead() const { return graph.quality->watched.median / graph.iteration->median - 1; }
  /// 1 - sum / watched: the part of a watched iteration that is not in the layers' medians. Each iteration is
  /// interrupted in a different layer, so this grows with other work on the machine and is near 0 on a quiet one.
  [[nodiscard]] double interruption() const { return 1 - sum / watched; }
};

/// Seconds of unwatched steps, of which the host takes more than half to enqueue each one; empty if it takes less, and
/// on a CPU. From a process's first tracer on, launches stay slow, also after the tracer is gone. Throws as
/// profile_model.
[[nodiscard]] std::vector<double> times_without_tracer(const model::Model& model, const data::DataSource& data,
                                                       const ProfileOptions& options);

/// Measures each layer of `model` in forward, backward and update. Watched iterations alternate with unwatched ones
/// until the rule is satisfied. A CPU is watched by a host clock; a GPU by `tracer`, or without one by events between
/// the layers. On a GPU a layer's time is its share of the step, with idle gaps scaled so that a watched step is as
/// long as an unwatched one, and the update, which is one for all parameters, is divided among the layers in proportion
/// to their parameter counts. The two parts of a backward are measured on each layer alone and scaled to its backward
/// in the step, see backward_parts. Layer::accumulation is the time of the kernels that add to gradients, which a
/// tracer sees; on a CPU, some watched iterations create their gradients instead. There, microbatches also run in two
/// orders (Graph::in_flight_slowdown). Graph::quality lists the reasons not to trust the measurement, and
/// Graph::conditions says what the machine was like. Throws std::invalid_argument if an option is out of range and as
/// check_samples; throws DeviceError if the device fails, or if the tracer recorded no step.
[[nodiscard]] Profile profile_model(const model::Model& model, const data::DataSource& data,
                                    const ProfileOptions& options,
                                    const std::function<void(const ProfileProgress&)>& progress = {},
                                    KernelTracer* tracer = nullptr);

}  // namespace stagecraft::profiler

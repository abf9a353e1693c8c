#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "executor/data/data_source.h"
#include "executor/model/model.h"
#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"
#include "profiler/kernels/attribution.h"
#include "profiler/kernels/shares.h"
#include "profiler/kernels/tracer.h"
#include "profiler/statistics.h"

namespace stagecraft {

/// How to profile.
struct ProfileOptions {
  std::int64_t microbatch_samples = 1;
  int threads = 1;             ///< intra-op threads, as a rank of a run will have
  OptimizerOptions optimizer;  ///< whose step is timed
  std::uint64_t seed = 1;
  Placement placement;  ///< device and type of the computation
  int warmup = 3;       ///< iterations that do not count
  StoppingRule rule;    ///< of the samples
  /// Of everything. Once they are over, what is left is done as briefly as gives a number, or not at all: see
  /// Profile::cut.
  double most_seconds = std::numeric_limits<double>::infinity();
  int concurrent = 1;     ///< largest number of ranks on this host for which the slowdown is measured; CPUs only
  bool isolated = false;  ///< whether each layer is run alone as well
  double isolated_seconds = 0.2;  ///< at most, for each layer
};

/// How far a profile is, for a progress line.
struct ProfileProgress {
  std::string phase;  ///< "warm-up", "measuring", "memory", "2 at once", "alone: fc1"
  std::size_t iteration = 0;
  double relative_error = 0;  ///< of the iteration so far
};

/// A measured graph and what it says about its own quality.
struct Profile {
  Graph graph;
  Seconds sum;                    ///< of all layers' medians: forward, backward, update
  Seconds watched;                ///< the median over the watched iterations of their layers' times together
  Stop stop = Stop::No;           ///< what ended the measurement
  std::int64_t unmapped = 0;      ///< backward nodes that no layer could be given
  std::vector<StepShares> steps;  ///< the watched iterations, as they were seen
  AttributedTrace trace;          ///< of the last watched iterations
  double seconds = 0;             ///< that it all took
  std::vector<std::string> cut;   ///< what time was too short for: "warm-up of 3 iterations (1)", "slowdown of 2 ranks"
  /// sum / un-profiled iteration - 1: what being watched costs, and interruption() on the other side.
  [[nodiscard]] double closure() const { return sum / graph.iteration->median - 1; }
  /// Watched iteration / un-profiled one - 1.
  [[nodiscard]] double overhead() const { return graph.quality->watched.median / graph.iteration->median - 1; }
  /// 1 - sum / watched: the part of a watched iteration that the layers' medians leave out. Each iteration is
  /// interrupted in another layer, so it grows with what else the machine does, and is near 0 on a quiet one.
  [[nodiscard]] double interruption() const { return 1 - sum / watched; }
};

/// Runs `model` forward, backward and update, layer by layer and in place, in turn with whole iterations that nothing
/// watches, until the rule is satisfied. On a CPU a host clock watches; on a GPU `tracer` does, and without one events
/// between the layers. There a layer's times are its shares of the step, with idle gaps scaled so that a watched step
/// lasts as long as an unwatched one, and the update, which is one for all parameters, is told in proportion to the
/// layers' values. What speaks against the measurement stands in Graph::quality.
/// Throws std::invalid_argument for options out of range and as check_samples, DeviceError as the device.
[[nodiscard]] Profile profile_model(const Model& model, const DataSource& data, const ProfileOptions& options,
                                    const std::function<void(const ProfileProgress&)>& progress = {},
                                    KernelTracer* tracer = nullptr);

}  // namespace stagecraft

#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "costmodel/graph.h"
#include "executor/data_source.h"
#include "executor/layer_source.h"
#include "executor/optimizer.h"
#include "profiler/statistics.h"

namespace stagecraft {

/// How to profile.
struct ProfileOptions {
  std::int64_t microbatch_samples = 1;
  int threads = 1;             ///< intra-op threads, as a rank of a run will have
  OptimizerOptions optimizer;  ///< whose step is timed
  std::uint64_t seed = 1;
  int warmup = 3;  ///< iterations that do not count
  StoppingRule rule;
  int concurrent = 1;  ///< largest number of ranks on this host for which the slowdown is measured
};

/// How far a profile is, for a progress line.
struct ProfileProgress {
  std::string phase;  ///< "warm-up", "measuring", "memory", "2 at once"
  std::size_t iteration = 0;
  double relative_error = 0;  ///< of the iteration so far
};

/// A measured graph and what it says about its own quality.
struct Profile {
  Graph graph;
  Seconds sum;                ///< of all layers' medians: forward, backward, update
  Seconds watched;            ///< the median over the watched iterations of their layers' times together
  Stop stop = Stop::No;       ///< what ended the measurement
  std::int64_t unmapped = 0;  ///< backward nodes that no layer could be given
  /// sum / un-profiled iteration - 1: what being watched costs, and interruption() on the other side.
  [[nodiscard]] double closure() const { return sum / graph.iteration->median - 1; }
  /// 1 - sum / watched: the part of a watched iteration that the layers' medians leave out. Each iteration is
  /// interrupted in another layer, so it grows with what else the machine does, and is near 0 on a quiet one.
  [[nodiscard]] double interruption() const { return 1 - sum / watched; }
};

/// Runs `model` forward, backward and update, layer by layer and in place, in turn with whole iterations that nothing
/// watches, until the rule is satisfied. Gradients accumulate into existing buffers, as they do for all but the first
/// microbatch of a step. The learning rate is 0, so that the numbers stay tame; the work is the same.
/// Throws std::invalid_argument for options out of range.
[[nodiscard]] Profile profile_model(const Model& model, const DataSource& data, const ProfileOptions& options,
                                    const std::function<void(const ProfileProgress&)>& progress = {});

}  // namespace stagecraft

#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"
#include "profiler/subject/statistics.h"

namespace stagecraft::profiler {

/// How to profile.
struct ProfileOptions {
  std::int64_t microbatch_samples = 1;
  int threads = 1;                    ///< intra-op threads, as a rank of a run will have
  stage::OptimizerOptions optimizer;  ///< whose step is timed
  std::uint64_t seed = 1;
  stage::ComputePlace placement;  ///< device and type of the computation
  int warmup = 3;                 ///< iterations that do not count
  StoppingRule rule;              ///< when there are enough samples
  /// Limit for the whole profile. Once it is reached, each remaining phase takes one sample or is skipped: see
  /// Profile::cut.
  double most_seconds = std::numeric_limits<double>::infinity();
  /// A model whose iterations are long gets more than most_seconds, up to this: enough iterations for every phase.
  double most_seconds_if_slow = 0;
  int concurrent = 1;  ///< largest number of ranks on this host for which the slowdown is measured; CPUs only
  /// Starts a process that is one of several concurrent ranks, see ranks_as_processes; empty: they are threads.
  std::vector<std::string> rank_command = {};
  double split_seconds = 0.1;     ///< at most, for the two parts of each layer's backward
  bool isolated = false;          ///< whether each layer is run alone as well
  double isolated_seconds = 0.2;  ///< at most, for each layer alone
  /// Of times_without_tracer, if they were measured before; they cannot be once the process has had a tracer.
  std::optional<std::vector<double>> without_tracer = {};
};

/// The time limit of a profile whose iterations take `iteration` seconds: most_seconds, or as long as 50 iterations
/// take and, on a CPU, 25 more for each of several concurrent ranks, but at most most_seconds_if_slow.
[[nodiscard]] double seconds_allowed(const ProfileOptions& options, double iteration);

}  // namespace stagecraft::profiler

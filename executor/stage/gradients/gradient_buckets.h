#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "costmodel/gradient_sums.h"
#include "executor/channel/channel.h"

namespace stagecraft::stage {

/// Adjacent parameters whose gradients are summed over the replicas together.
struct GradientBucket {
  int first = 0;  ///< parameters [first, last)
  int last = 0;
  std::int64_t begin = 0;  ///< their values [begin, end) among those of all parameters in order
  std::int64_t end = 0;
  /// Values of the message that sums them: after the gradients, for each parameter, how many replicas have its
  /// gradient.
  [[nodiscard]] std::int64_t message() const { return end - begin + last - first; }
  friend bool operator==(const GradientBucket&, const GradientBucket&) = default;
};

/// The buckets of parameters with these numbers of `values`, in the order in which they are reduced: that of `sums`,
/// the sums of the stage's gradients, of which those over its replicas count. They take the last parameters first.
[[nodiscard]] std::vector<GradientBucket> gradient_buckets(const std::vector<std::int64_t>& values,
                                                           const std::vector<GradientSum>& sums);

/// The gradients of a stage's replica, in one buffer, summed over all replicas bucket by bucket. A bucket is started as
/// soon as its gradients of the step's last microbatch are complete and the previous bucket has been started: all
/// replicas start them in the same order, however their backwards differ.
class GradientReduction {
 public:
  /// `parameters`: leaves, whose gradients are views of the buffer from the end of a backward that makes them on.
  /// `sums`: as for gradient_buckets. `channel` must outlive it. Throws std::invalid_argument for more buckets than
  /// there are tags.
  GradientReduction(channel::Channel& channel, std::vector<at::Tensor> parameters,
                    const std::vector<GradientSum>& sums);
  ~GradientReduction();
  GradientReduction(const GradientReduction&) = delete;
  GradientReduction& operator=(const GradientReduction&) = delete;

  /// Forgets all gradients.
  void begin_step();
  /// The next backward is this replica's last of the step.
  void last_backward();
  /// Returns when all gradients hold their sums, like CollectiveInProgress::wait; starts buckets that have not been
  /// started. A gradient that a backward made on some replica is defined on all, one that no backward made on none: an
  /// optimizer must not decay its parameter. Only a replica that lacks a gradient waits for a GPU to find out.
  void finish();
  /// Number of started buckets. For tests.
  [[nodiscard]] std::size_t started() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the hooks
};

}  // namespace stagecraft::stage

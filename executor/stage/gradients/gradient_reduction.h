#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/gradient_sums.h"
#include "executor/channel/channel.h"
#include "executor/stage/stage_program.h"

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

/// Sums the gradients of tied parameters: over the layers of one stage as autograd does with one tensor that is used
/// several times, then over stages and ranks.
class TiedGradients {
 public:
  /// `tied`: those that this rank holds, in the order in which all ranks sum them. `programs` are the stages that it
  /// holds, in order; they and the channel must outlive this.
  TiedGradients(channel::Channel& channel, const std::vector<TiedHolders>& tied, std::vector<StageProgram*> programs);

  /// Whether the parameter is tied.
  [[nodiscard]] bool is_tied(const std::string& name) const;

  /// Call after each part of a microbatch's backward of `program`, `last` after its last part. If several layers of a
  /// stage hold a parameter, their gradients are summed before they are added to those of earlier microbatches.
  void add_copies(std::size_t program, int microbatch, bool last);

  /// Sums over all holders, in one order on all ranks. A parameter without a gradient from any holder has none
  /// afterwards. The message of a sum has one more value, the number of ranks with a gradient. Call once per step,
  /// after the last backward.
  void reduce();

 private:
  /// The leaves of the layers of one stage that hold the parameter.
  struct Copies {
    std::size_t program = 0;
    std::vector<std::size_t> leaves;               // positions in the program's leaves
    at::Tensor sum;                                // of several copies' gradients, over the finished microbatches
    std::map<int, std::vector<at::Tensor>> begun;  // by microbatch with a half-finished backward: one gradient per copy
  };
  struct Tie {
    std::string name;
    std::vector<Copies> stages;
    std::vector<int> ranks;
    int tag = 0;
  };
  [[nodiscard]] at::Tensor& value(const Copies& copies, std::size_t i) const;
  /// `sum`, which may be undefined, summed over the ranks of `tie`; undefined if it is on all.
  [[nodiscard]] at::Tensor over_ranks(const Tie& tie, const at::Tensor& sum) const;

  channel::Channel& channel_;
  std::vector<StageProgram*> programs_;
  std::vector<Tie> ties_;
};

/// Squared Euclidean norm of each parameter's gradient, in double, by name; 0 without one. Layers that share a name
/// have the same gradient by then: it counts once.
[[nodiscard]] std::map<std::string, double> squared_norms(const std::vector<Parameter>& parameters);

/// The whole model's squared norms, gathered from the `norms` of each rank: `names` are those of all parameters,
/// ascending. All ranks call it.
[[nodiscard]] std::map<std::string, double> gather_squared_norms(channel::Channel& channel,
                                                                 const std::map<std::string, double>& norms,
                                                                 const std::vector<std::string>& names);

/// Euclidean norm of the mean gradient: that of the sum, whose squared norms are `squared`, divided by `divisor`. The
/// squares are added in the order of their names, so that every rank of every plan gets the same bits.
[[nodiscard]] double gradient_norm(const std::map<std::string, double>& squared, double divisor);

/// What to divide summed gradients by, beyond `divisor`, so that the norm of their mean is at most `limit`: 1, or
/// norm / limit if that is more.
[[nodiscard]] double clip_divisor(const std::map<std::string, double>& squared, double divisor, double limit);

/// Names of all trainable parameters of `model`, ascending, each once.
[[nodiscard]] std::vector<std::string> trainable_names(const model::Model& model);

}  // namespace stagecraft::stage

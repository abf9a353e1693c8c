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
#include "executor/channel/control_tags.h"
#include "executor/stage/gradients/part_gather.h"
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

/// What a replica keeps of a stage's state, where the sums of the stage's gradients have parts.
struct DividedState {
  std::vector<at::Tensor> updated = {};  ///< for each parameter what this rank updates of its in_memory_order, of no
                                         ///< values if nothing; with StateSharding::Parameters, in memory of its own
  StateSharding sharding = StateSharding::Optimizer;
};

/// The gradients of a stage's replica, in one buffer, summed over all replicas bucket by bucket. If the sums have
/// parts, this replica gets those of its parts, and updates these values of the parameters. A bucket is started as soon
/// as its gradients of the step's last microbatch are complete and the previous bucket has been started: all replicas
/// start them in the same order, however their backwards differ.
class GradientReduction {
 public:
  /// `parameters`: leaves, whose gradients are views of the buffer from the end of a backward that makes them on.
  /// `sums`: as for gradient_buckets. `divided`: if they have parts. `channel` must outlive it. Throws
  /// std::invalid_argument for more buckets than there are tags.
  GradientReduction(channel::Channel& channel, std::vector<at::Tensor> parameters, const std::vector<GradientSum>& sums,
                    DividedState divided = {}, channel::StageTags tags = {});
  ~GradientReduction();
  GradientReduction(const GradientReduction&) = delete;
  GradientReduction& operator=(const GradientReduction&) = delete;

  /// Forgets all gradients.
  void begin_step();
  /// Before each backward: from StateSharding::Gradients on, the first of a step makes room for the gradients.
  void begin_backward();
  /// The next backward is this replica's last of the step.
  void last_backward();
  /// Returns when all gradients hold their sums, like CollectiveInProgress::wait; starts buckets that have not been
  /// started. A gradient that a backward made on some replica is defined on all, one that no backward made on none: an
  /// optimizer must not decay its parameter. Only a replica that lacks a gradient waits for a GPU to find out.
  /// With parts, a parameter's gradient holds sums only where this rank updates it, which is the gradient of its
  /// `updated`; from StateSharding::Gradients on, no other memory of gradients is left.
  void finish();
  /// These are for all replicas to call together, and have no effect without parts.
  /// After finish: all gradients hold their sums everywhere.
  void gather_gradients();
  /// After the update, unless they are gathered before they are used: the parameters are everywhere what their owners
  /// have made them. The gradients' memory is in use.
  void gather_parameters();
  /// These have no effect but with StateSharding::Parameters: the parameters get memory, and what the other replicas
  /// own begins to arrive, which finish_gather waits for; the memory is released.
  void begin_gather();
  void finish_gather();
  void free_parameters();
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
  /// holds, in order; they and the channel must outlive this. `sums`: of all stages; if they have parts, `updated` is
  /// as for GradientReduction, by program.
  TiedGradients(channel::Channel& channel, const std::vector<TiedHolders>& tied, std::vector<StageProgram*> programs,
                const GradientSums& sums = {}, std::vector<std::vector<at::Tensor>> updated = {});

  /// Whether the parameter is tied.
  [[nodiscard]] bool is_tied(const std::string& name) const;

  /// Call after each part of a microbatch's backward of `program`, `last` after its last part. If several layers of a
  /// stage hold a parameter, their gradients are summed before they are added to those of earlier microbatches.
  void add_copies(std::size_t program, int microbatch, bool last);

  /// Sums over all holders, in one order on all ranks. A parameter without a gradient from any holder has none
  /// afterwards. The message of a sum has one more value, the number of ranks with a gradient. Call once per step,
  /// after the last backward. With parts, only what this rank updates has a gradient afterwards, which each stage may
  /// change.
  void reduce();
  /// As those of GradientReduction, for all holders to call together.
  void gather_gradients();
  void gather_parameters();

 private:
  /// The leaves of the layers of one stage that hold the parameter.
  struct Copies {
    std::size_t program = 0;
    std::vector<std::size_t> leaves;               // positions in the program's leaves
    std::size_t parameter = 0;                     // position in its parameters
    at::Tensor sum;                                // of several copies' gradients, over the finished microbatches
    std::map<int, std::vector<at::Tensor>> begun;  // by microbatch with a half-finished backward: one gradient per copy
  };
  struct Tie {
    std::string name;
    std::vector<Copies> stages;
    std::vector<int> ranks;
    int tag = 0;
    std::vector<std::int64_t> parts;  // values that each of the ranks updates, or none
    bool has_gradient = false;        // with parts: any rank
  };
  [[nodiscard]] at::Tensor& value(const Copies& copies, std::size_t i) const;
  /// With parts, what this rank updates.
  [[nodiscard]] at::Tensor& part(const Copies& copies) { return updated_[copies.program][copies.parameter]; }
  /// `sum`, which may be undefined, summed over the ranks of `tie`; undefined if it is on all.
  [[nodiscard]] at::Tensor over_ranks(const Tie& tie, const at::Tensor& sum) const;
  /// The same with parts: this rank's becomes the gradient of what it updates.
  void reduce_part(Tie& tie, const at::Tensor& sum);
  /// Of `tensor`, which is like the parameter.
  [[nodiscard]] PartGather gather_of(const Tie& tie, const at::Tensor& tensor) const;

  channel::Channel& channel_;
  std::vector<StageProgram*> programs_;
  std::vector<std::vector<at::Tensor>> updated_;
  std::vector<Tie> ties_;
};

}  // namespace stagecraft::stage

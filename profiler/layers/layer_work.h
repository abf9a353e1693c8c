#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/units.h"
#include "executor/stage/stage_program.h"
#include "profiler/subject/backward_watcher.h"
#include "profiler/subject/subject.h"

namespace stagecraft::profiler {

/// A tensor as an operator reads or writes it. `bytes` counts memory, so that an expanded tensor counts once.
struct CountedTensor {
  std::vector<std::int64_t> shape;
  Bytes bytes;
  bool floating = true;
  [[nodiscard]] std::int64_t values() const;
};

/// An argument: the tensors of a tensor or a list of them, undefined ones left out, or one or more integers.
struct CountedArgument {
  std::vector<CountedTensor> tensors;
  std::vector<std::int64_t> integers;
};

/// One call of an operator. `results` has an empty entry for each undefined result.
struct OperatorCall {
  std::string name;  ///< without overload: "aten::addmm"
  std::vector<CountedArgument> arguments;
  std::vector<CountedArgument> results;
};

/// Whether the work of an operator follows from its own shapes, so that the operators it calls are not looked at.
[[nodiscard]] bool has_formula(const std::string& name);

/// Whether an operator only allocates, or gives another view of a tensor although its schema does not say so.
[[nodiscard]] bool moves_nothing(const std::string& name);

/// The work of one call. Matrix products, convolutions and attention are counted as torch.utils.flop_counter does:
/// m*n*k multiply-adds, a bias not; causal attention in full; the backward of fused attention computes the scores
/// again. Batch, layer and group norm take 7 operations per value forward (mean 1, variance 3, scaling 1, weight and
/// bias 2) and 13 backward (normalised value 2, its gradient 1, two sums 3, result 4, gradients of weight and bias 3);
/// softmax 5 (maximum, difference, exponential, sum, quotient) and 4; reductions 1 per value read; pooling 1 per value
/// of a window; recurrent layers the products of their weights. An operator without a formula takes 1 per value of its
/// floating-point results, whichever function it computes. Copies, fills, look-ups and comparisons take none. Bytes:
/// inputs and results once each, which assumes that a cache keeps what one operator reads twice and nothing between
/// operators; a look-up reads the rows that it returns.
[[nodiscard]] Work work_of(const OperatorCall& call);

/// Counts the work of each layer of one iteration from the operators that LibTorch runs and their shapes, built-in or
/// imported alike. An operator without a kernel counts as those that it calls, unless work_of has a formula for it. In
/// the backward an operator belongs to the layer of the autograd node that runs; adding up gradients between two nodes
/// belongs to the first. Observes the forward and backward of this thread, and autograd's own threads. At most one
/// counter may exist per thread, and no other BackwardWatcher.
class LayerWorkCounter : public stage::LayerObserver {
 public:
  LayerWorkCounter(std::size_t layers, const std::vector<stage::Parameter>& parameters);
  ~LayerWorkCounter() override;
  LayerWorkCounter(const LayerWorkCounter&) = delete;
  LayerWorkCounter& operator=(const LayerWorkCounter&) = delete;
  void begin(int layer) override;
  void end(int layer) override;
  /// Must be called right before and right after the backward.
  void begin_backward();
  void end_backward();

  /// By layer.
  [[nodiscard]] const std::vector<Work>& forward() const;
  [[nodiscard]] const std::vector<Work>& backward() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::unique_ptr<BackwardWatcher> watcher_;
};

/// The work of each layer for one microbatch.
struct WorkByLayer {
  std::vector<Work> forward;
  std::vector<Work> backward;
};

/// Runs forward and backward of a model with `layers` layers over `batch`, and counts. Gradients are added to existing
/// ones, as for every microbatch of a step except the first: the first time, an iteration before it makes them.
[[nodiscard]] WorkByLayer count_work(Subject& subject, std::size_t layers, const std::vector<at::Tensor>& batch);

}  // namespace stagecraft::profiler

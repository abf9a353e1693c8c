#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <memory_resource>
#include <utility>
#include <vector>

namespace stagecraft::stage {

/// Gives memory to the gradient of `parameter` if it is a zero tensor, which has a shape but no memory (sgn's backward
/// makes these): autograd uses it unchanged as the first gradient and then cannot add to it.
inline void materialize_gradient(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined() && gradient._is_zerotensor()) gradient = gradient.clone();
}

/// Makes the values at which a stage's graph begins. Unlike a leaf's, their gradient has the strides that the backward
/// gave it: autograd would copy it into those of the value, and kernels choose the order of their sums by the layout.
class GraphInputs {
 public:
  /// A tensor over the memory of `value` that requires grad. In the steady state, its node takes memory that an earlier
  /// one returned.
  [[nodiscard]] at::Tensor make(const at::Tensor& value) const;
  /// Takes the gradient that a backward brought to `input`, which is from `make` or a leaf; undefined if none did.
  [[nodiscard]] static at::Tensor take_gradient(const at::Tensor& input);

 private:
  // Nodes live as long as their graph.
  std::shared_ptr<std::pmr::memory_resource> memory_ = std::make_shared<std::pmr::synchronized_pool_resource>();
};

/// A backward in two parts, so that the gradients for which others wait come first: those of the inputs, then those of
/// the weights. Together they do the work of one backward, with the same bits. The backward of a weight that the graph
/// uses more than once (tied or recurrent) cannot be split; all of it then runs in the first part.
class SplitBackward {
 public:
  /// The gradients of `inputs` (leaves), undefined where the graph does not use one, and the remaining work for the
  /// weights. `roots` and `gradients` as for torch::autograd::backward: an undefined gradient means 1.
  [[nodiscard]] static std::pair<std::vector<at::Tensor>, SplitBackward> of_inputs(
      const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& gradients,
      const std::vector<at::Tensor>& inputs);

  SplitBackward();
  ~SplitBackward();
  SplitBackward(SplitBackward&&) noexcept;
  SplitBackward& operator=(SplitBackward&&) noexcept;

  /// Whether of_inputs separated the parts; false after of_weights.
  [[nodiscard]] bool is_split() const { return rest_ != nullptr; }
  /// Takes over the rest of a later backward, of the layers before it.
  void before(SplitBackward earlier);
  /// Adds to the weights' gradients and releases the graph. No effect the second time.
  void of_weights();

 private:
  struct Rest;
  std::unique_ptr<Rest> rest_;
};

}  // namespace stagecraft::stage

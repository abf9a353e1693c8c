#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <memory_resource>

namespace stagecraft::stage {

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

}  // namespace stagecraft::stage

#pragma once

#include <ATen/core/Tensor.h>

namespace stagecraft {

/// Gives memory to the gradient of `parameter` if it is a zero tensor, which has a shape and none (sgn's backward makes
/// such): autograd takes it for a first gradient as it is and then cannot add to it.
inline void materialize_gradient(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined() && gradient._is_zerotensor()) gradient = gradient.clone();
}

}  // namespace stagecraft

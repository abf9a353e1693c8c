#pragma once

#include <ATen/core/Tensor.h>

namespace stagecraft::stage {

/// Gives memory to the gradient of `parameter` if it is a zero tensor, which has a shape but no memory (sgn's backward
/// makes these): autograd uses it unchanged as the first gradient and then cannot add to it.
inline void materialize_gradient(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined() && gradient._is_zerotensor()) gradient = gradient.clone();
}

}  // namespace stagecraft::stage

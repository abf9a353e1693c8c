#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

// A message carries a tensor's values in the order in which they lie in memory, and its strides: kernels choose the
// order of their sums by the layout.

namespace stagecraft::channel {

/// `tensor` with its strides and, behind its first value, memory for exactly its values: itself if it has no overlaps
/// and gaps, else a copy. A dimension that is repeated (stride 0) stays so. Gaps are closed, which keeps the order of
/// the dimensions.
[[nodiscard]] at::Tensor packed(const at::Tensor& tensor);

/// Whether packed would return `tensor` itself or has returned it.
[[nodiscard]] bool is_packed(const at::Tensor& tensor);

/// The values of a packed tensor with its shape, contiguous, in the order of the memory of a tensor with `strides`;
/// shares memory with `tensor` if it has these strides.
[[nodiscard]] at::Tensor memory_of(const at::Tensor& tensor, at::IntArrayRef strides);

/// The tensor with `strides` from which memory_of made `memory`, which it shares. A dimension is only repeated if the
/// values are: a tensor with other strides may have been sent.
[[nodiscard]] at::Tensor from_memory(const at::Tensor& memory, at::IntArrayRef strides);

/// Whether packed can give a tensor of `sizes` these strides.
[[nodiscard]] bool are_packed_strides(at::IntArrayRef sizes, at::IntArrayRef strides);

}  // namespace stagecraft::channel

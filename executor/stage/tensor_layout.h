#pragma once

#include <ATen/core/Tensor.h>

namespace stagecraft::stage {

/// `tensor` with the strides of `like`, which has its shape: `tensor` itself if it already has them or if `like`
/// overlaps or has gaps, else a copy. Needed because optimizers walk raw memory, and because kernels choose the order
/// of their sums by the layout.
[[nodiscard]] at::Tensor laid_out_like(const at::Tensor& tensor, const at::Tensor& like);

/// The part of the one-dimensional `flat` from value `offset` on as a tensor with the shape of `like`, and its strides
/// unless `like` overlaps or has gaps: then contiguous.
[[nodiscard]] at::Tensor view_laid_out_like(const at::Tensor& flat, std::int64_t offset, const at::Tensor& like);

/// `parameter` without overlaps and gaps in its memory, in its own layout if it has none.
[[nodiscard]] at::Tensor dense(const at::Tensor& parameter);

}  // namespace stagecraft::stage

#include "executor/stage/tensor_layout.h"

#include <ATen/ops/empty_strided.h>

namespace stagecraft::stage {

at::Tensor laid_out_like(const at::Tensor& tensor, const at::Tensor& like) {
  if (tensor.strides() == like.strides() || !like.is_non_overlapping_and_dense()) return tensor;
  return at::empty_strided(like.sizes(), like.strides(), tensor.options().requires_grad(false)).copy_(tensor);
}

at::Tensor view_laid_out_like(const at::Tensor& flat, std::int64_t offset, const at::Tensor& like) {
  if (like.is_non_overlapping_and_dense())
    return flat.as_strided(like.sizes(), like.strides(), flat.storage_offset() + offset);
  return flat.narrow(0, offset, like.numel()).view(like.sizes());
}

at::Tensor dense(const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense() ? parameter : parameter.contiguous();
}

}  // namespace stagecraft::stage

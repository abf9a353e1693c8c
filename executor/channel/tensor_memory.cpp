#include "executor/channel/tensor_memory.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace stagecraft::channel {
namespace {

/// Repeated dimensions come first in memory, so that what they repeat is at the beginning.
bool is_repeated(std::int64_t size, std::int64_t stride) { return size > 1 && stride == 0; }

/// Strides without overlaps and gaps that have the order of `strides`; in `repeated`, the number of copies.
at::DimVector dense_strides(at::IntArrayRef sizes, at::IntArrayRef strides, std::int64_t* repeated = nullptr) {
  at::DimVector order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](std::int64_t d) {
    const auto i = static_cast<std::size_t>(d);
    return std::pair(is_repeated(sizes[i], strides[i]), strides[i]);
  };
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return key(a) > key(b); });
  at::DimVector out(sizes.begin(), sizes.end());
  std::int64_t next = 1;
  if (repeated) *repeated = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    const auto i = static_cast<std::size_t>(*d);
    out[i] = sizes[i] == 1 ? strides[i] : next;
    next *= sizes[i];
    if (repeated && is_repeated(sizes[i], strides[i])) *repeated *= sizes[i];
  }
  return out;
}

at::DimVector packed_strides(at::IntArrayRef sizes, at::IntArrayRef strides) {
  at::DimVector out = dense_strides(sizes, strides);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (is_repeated(sizes[i], strides[i])) out[i] = 0;
  }
  return out;
}

bool repeats(at::IntArrayRef sizes, at::IntArrayRef strides) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (is_repeated(sizes[i], strides[i])) return true;
  }
  return false;
}

at::Tensor laid_out(const at::Tensor& tensor, at::IntArrayRef strides) {
  return at::empty_strided(tensor.sizes(), strides, tensor.options().requires_grad(false)).copy_(tensor.detach());
}

}  // namespace

bool are_packed_strides(at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (c10::multiply_integers(sizes) == 0) return true;
  return packed_strides(sizes, strides) == at::DimVector(strides.begin(), strides.end());
}

bool is_packed(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return true;
  if (!repeats(tensor.sizes(), tensor.strides()) || !are_packed_strides(tensor.sizes(), tensor.strides())) return false;
  const auto values = static_cast<std::size_t>(tensor.storage_offset() + tensor.numel());
  return tensor.storage().nbytes() >= values * static_cast<std::size_t>(tensor.element_size());
}

at::Tensor packed(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor;
  if (tensor.numel() == 0) return tensor.contiguous();
  const at::Tensor copy = laid_out(tensor, dense_strides(tensor.sizes(), tensor.strides()));
  if (!repeats(tensor.sizes(), tensor.strides())) return copy;
  return copy.as_strided(tensor.sizes(), packed_strides(tensor.sizes(), tensor.strides()));
}

at::Tensor memory_of(const at::Tensor& tensor, at::IntArrayRef strides) {
  if (tensor.is_contiguous() && tensor.strides() == strides) return tensor;
  const at::DimVector dense = dense_strides(tensor.sizes(), strides);
  const at::Tensor source = tensor.strides() == strides ? tensor : laid_out(tensor, dense);
  return source.as_strided({tensor.numel()}, {1}).view(tensor.sizes());
}

at::Tensor from_memory(const at::Tensor& memory, at::IntArrayRef strides) {
  if (memory.strides() == strides || memory.numel() == 0) return memory;
  std::int64_t copies = 1;
  const at::DimVector dense = dense_strides(memory.sizes(), strides, &copies);
  const std::size_t bytes = memory.nbytes() / static_cast<std::size_t>(copies);
  const auto* const values = static_cast<const std::byte*>(memory.const_data_ptr());
  const bool same = std::memcmp(values, values + bytes, memory.nbytes() - bytes) == 0;
  return memory.as_strided(memory.sizes(), same ? strides : at::IntArrayRef(dense));
}

}  // namespace stagecraft::channel

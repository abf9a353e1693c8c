#include "executor/channel/tensor_message.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "executor/channel/channel.h"

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

void check_dimensions(const TensorSpec& spec) {
  if (spec.shape.size() <= kMostDimensions) return;
  throw std::invalid_argument(
      fmt::format("a tensor has at most {} dimensions, got {}", kMostDimensions, describe(spec)));
}

at::Tensor empty_header() { return at::zeros({static_cast<std::int64_t>(2 * kMostDimensions + 2)}, at::kLong); }

at::Tensor make_header(const AnnouncedTensor& tensor) {
  at::Tensor header = empty_header();
  auto* out = header.mutable_data_ptr<std::int64_t>();
  *out++ = static_cast<std::int64_t>(tensor.spec.dtype);
  *out++ = static_cast<std::int64_t>(tensor.spec.shape.size());
  out = std::ranges::copy(tensor.spec.shape, out).out;
  std::ranges::copy(tensor.strides, out);
  return header;
}

AnnouncedTensor read_header(const at::Tensor& header, const std::string& sender) {
  const auto* in = header.const_data_ptr<std::int64_t>();
  const auto refuse = [&](const std::string& what, std::int64_t least, std::int64_t most) {
    return meeting::PeerError(
        fmt::format("{} announces a tensor with {}, must be {} to {}", sender, what, least, most));
  };
  constexpr auto kDtypes = static_cast<std::int64_t>(at::ScalarType::Undefined);
  constexpr auto kDimensions = static_cast<std::int64_t>(kMostDimensions);
  constexpr std::int64_t kMostSize = std::int64_t{1} << 48;
  if (in[0] < 0 || in[0] >= kDtypes) throw refuse(fmt::format("dtype {}", in[0]), 0, kDtypes - 1);
  if (in[1] < 0 || in[1] > kDimensions) throw refuse(fmt::format("{} dimensions", in[1]), 0, kDimensions);
  const std::int64_t* const sizes = in + 2;
  const std::int64_t* const strides = sizes + in[1];
  const AnnouncedTensor out{{{sizes, strides}, static_cast<at::ScalarType>(in[0])}, {strides, strides + in[1]}};
  for (const std::int64_t size : out.spec.shape) {
    if (size < 0 || size > kMostSize) throw refuse(fmt::format("a size of {}", size), 0, kMostSize);
  }
  for (const std::int64_t stride : out.strides) {
    if (stride < 0 || stride > kMostSize) throw refuse(fmt::format("a stride of {}", stride), 0, kMostSize);
  }
  return out;
}

std::vector<std::int64_t> check_header(const at::Tensor& header, int rank, const TensorSpec& expected, int from,
                                       int tag) {
  AnnouncedTensor got = read_header(header, fmt::format("rank {} under tag {}", from, tag));
  if (got.spec.dtype != expected.dtype || got.spec.shape != expected.shape)
    throw wrong_spec(rank, expected, from, tag, got.spec);
  if (!are_packed_strides(got.spec.shape, got.strides)) {
    throw meeting::PeerError(
        fmt::format("rank {} under tag {} announces {} with strides [{}], which leave gaps or "
                    "overlap",
                    from, tag, describe(got.spec), fmt::join(got.strides, ", ")));
  }
  return std::move(got.strides);
}

}  // namespace stagecraft::channel

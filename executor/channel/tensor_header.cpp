#include "executor/channel/tensor_header.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "executor/channel/channel_checks.h"
#include "executor/channel/tensor_memory.h"

namespace stagecraft::channel {

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

#include "executor/channel/tensor_header.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "executor/channel/channel_checks.h"

namespace stagecraft::channel {

void check_dimensions(const TensorSpec& spec) {
  if (spec.shape.size() <= kMostDimensions) return;
  throw std::invalid_argument(
      fmt::format("a tensor has at most {} dimensions, got {}", kMostDimensions, describe(spec)));
}

at::Tensor make_header(const TensorSpec& spec) {
  at::Tensor header = at::empty({static_cast<std::int64_t>(kMostDimensions + 2)}, at::kLong);
  auto* out = header.mutable_data_ptr<std::int64_t>();
  std::fill_n(out, header.numel(), 0);
  out[0] = static_cast<std::int64_t>(spec.dtype);
  out[1] = static_cast<std::int64_t>(spec.shape.size());
  std::copy(spec.shape.begin(), spec.shape.end(), out + 2);
  return header;
}

TensorSpec read_header(const at::Tensor& header, const std::string& sender) {
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
  TensorSpec spec{{in + 2, in + 2 + in[1]}, static_cast<at::ScalarType>(in[0])};
  for (const std::int64_t size : spec.shape) {
    if (size < 0 || size > kMostSize) throw refuse(fmt::format("a size of {}", size), 0, kMostSize);
  }
  return spec;
}

void check_header(const at::Tensor& header, int rank, const TensorSpec& expected, int from, int tag) {
  const TensorSpec got = read_header(header, fmt::format("rank {} under tag {}", from, tag));
  if (got.dtype != expected.dtype || got.shape != expected.shape) throw wrong_spec(rank, expected, from, tag, got);
}

}  // namespace stagecraft::channel

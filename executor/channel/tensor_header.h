#pragma once

#include <ATen/core/Tensor.h>

#include "executor/channel/channel.h"

// The header that a channel which only moves bytes sends before a message.

namespace stagecraft::channel {

inline constexpr std::size_t kMostDimensions = 14;

/// Throws std::invalid_argument if `spec` has more than kMostDimensions.
void check_dimensions(const TensorSpec& spec);

/// A tensor as its sender announces it.
struct AnnouncedTensor {
  TensorSpec spec;
  std::vector<std::int64_t> strides;  ///< those of a packed tensor
};

/// An int64 tensor of one length for all tensors of at most kMostDimensions: dtype, number of dimensions, sizes and
/// strides.
[[nodiscard]] at::Tensor make_header(const AnnouncedTensor& tensor);
/// Memory for a header.
[[nodiscard]] at::Tensor empty_header();

/// Reads a header, which is not trusted. Throws PeerError naming an impossible entry, prefixed with `sender` ("rank 1
/// under tag 7").
[[nodiscard]] AnnouncedTensor read_header(const at::Tensor& header, const std::string& sender);

/// The strides in the header that `rank` received from `from` under `tag`. Throws PeerError as read_header does and
/// unless the strides are those of a packed tensor, or wrong_spec unless it announces `expected`.
std::vector<std::int64_t> check_header(const at::Tensor& header, int rank, const TensorSpec& expected, int from,
                                       int tag);

}  // namespace stagecraft::channel

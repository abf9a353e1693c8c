#pragma once

#include <ATen/core/Tensor.h>

#include "executor/channel/channel.h"

// The header that a channel which only moves bytes sends before a message.

namespace stagecraft::channel {

inline constexpr std::size_t kMostDimensions = 14;

/// Throws std::invalid_argument if `spec` has more than kMostDimensions.
void check_dimensions(const TensorSpec& spec);

/// An int64 tensor of one length for every spec of at most kMostDimensions: dtype, number of dimensions, sizes.
[[nodiscard]] at::Tensor make_header(const TensorSpec& spec);

/// Reads such a header, which is not trusted. Throws PeerError naming an impossible entry, prefixed with `sender`
/// ("rank 1 under tag 7").
[[nodiscard]] TensorSpec read_header(const at::Tensor& header, const std::string& sender);

/// Reads the header that `rank` received from `from` under `tag`. Throws PeerError as read_header does, or wrong_spec
/// unless it announces `expected`.
void check_header(const at::Tensor& header, int rank, const TensorSpec& expected, int from, int tag);

}  // namespace stagecraft::channel

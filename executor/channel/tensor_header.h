#pragma once

#include <ATen/core/Tensor.h>

#include "executor/channel/channel.h"

// What a channel that moves bytes alone says of a message before it.

namespace stagecraft {

inline constexpr std::size_t kMostDimensions = 14;

/// An int64 tensor of one length for every spec of at most kMostDimensions: dtype, number of dimensions, sizes.
[[nodiscard]] at::Tensor make_header(const TensorSpec& spec);

/// What such a header says. It may be anybody's: throws PeerError naming what is impossible in it, with
/// `sender` ("rank 1 under tag 7") in front.
[[nodiscard]] TensorSpec read_header(const at::Tensor& header, const std::string& sender);

}  // namespace stagecraft

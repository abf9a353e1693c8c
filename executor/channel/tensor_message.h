#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <vector>

#include "executor/channel/channel.h"

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

// The header that a channel which only moves bytes sends before a message.

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

/// One direction of an edge under one tag, on a transport that moves bytes and knows no shapes: the last announced
/// spec, its strides and the number of announcements.
///
/// A header in a separate message announces the first message of each edge and tag, and each that differs from the
/// previous one. Both ends count the announcements, and the payload's address contains the count. If both ends agree,
/// later messages cost nothing extra; if they do not, no message meets a receive of another shape. A later tensor with
/// other strides travels in the layout that was announced.
struct Announced {
  TensorSpec spec;
  std::vector<std::int64_t> strides;
  int count = 0;

  /// Whether `next` must be announced; it is then the announced one.
  bool changes_to(const TensorSpec& next) {
    if (count > 0 && spec.dtype == next.dtype && spec.shape == next.shape) return false;
    spec = next;
    ++count;
    return true;
  }
};

/// One edge and tag at its receiving end, on a channel whose expected messages are `Incoming`.
template <class Incoming>
struct Inlet {
  Announced announced;
  std::deque<std::shared_ptr<Incoming>> unposted;  ///< whose payload waits for its header or an earlier one
};

}  // namespace stagecraft::channel

#pragma once

#include <deque>
#include <memory>

#include "executor/channel/channel.h"

namespace stagecraft::channel {

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

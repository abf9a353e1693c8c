#pragma once

#include <string>
#include <vector>

#include "costmodel/units.h"

namespace stagecraft {

/// What the cost model and project files know of a channel between ranks; the executor has the channel itself.
struct ChannelTraits {
  std::string name;
  bool connects_threads;  ///< of one process; else each rank is a process
  /// Bytes of the tensors with which `ranks` ranks, 2 or more, sum `values` bytes, kept from the first sum on; null:
  /// its buffers are not tensors.
  Bytes (*reduce_buffers)(Bytes values, int ranks);
};

/// All channels. Tests compare this table with the executor's and with the schema of project files.
[[nodiscard]] const std::vector<ChannelTraits>& channel_traits();

/// The entry called `name`; null for a channel of another program, such as one that a topology names.
[[nodiscard]] const ChannelTraits* find_channel_traits(const std::string& name);

}  // namespace stagecraft

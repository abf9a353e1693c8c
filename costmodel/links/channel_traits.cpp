#include "costmodel/links/channel_traits.h"

#include <algorithm>
#include <cstdint>

namespace stagecraft {
namespace {

/// A window of 4 segments from each other rank, each 1/16 of a rank's share and at least 256 KiB.
Bytes ucx_reduce_buffers(Bytes values, int ranks) {
  constexpr std::int64_t kLeastSegment = std::int64_t{1} << 18;
  constexpr int kSegments = 16;
  constexpr int kWindow = 4;
  return Bytes(std::max(kLeastSegment, values.value / ranks / kSegments)) * (std::int64_t{ranks - 1} * kWindow);
}

}  // namespace

const std::vector<ChannelTraits>& channel_traits() {
  static const std::vector<ChannelTraits> table{
      {.name = "local", .connects_threads = true, .reduce_buffers = nullptr},
      {.name = "ucx", .connects_threads = false, .reduce_buffers = ucx_reduce_buffers},
      {.name = "gloo", .connects_threads = false, .reduce_buffers = nullptr},
      {.name = "nccl", .connects_threads = false, .reduce_buffers = nullptr},
  };
  return table;
}

const ChannelTraits* find_channel_traits(const std::string& name) {
  const auto entry = std::ranges::find(channel_traits(), name, &ChannelTraits::name);
  return entry == channel_traits().end() ? nullptr : &*entry;
}

}  // namespace stagecraft

#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "executor/channel/channel.h"

namespace stagecraft::channel {

/// "float32 [4, 8]".
[[nodiscard]] std::string describe(const TensorSpec& spec);
[[nodiscard]] TensorSpec spec_of(const at::Tensor& tensor);
[[nodiscard]] bool same_spec(const TensorSpec& spec, const at::Tensor& tensor);

/// One number that combines a peer and a tag.
[[nodiscard]] constexpr std::uint64_t edge_key(int peer, int tag) {
  return static_cast<std::uint64_t>(peer) << 32 | static_cast<std::uint64_t>(tag);
}

/// These throw std::invalid_argument for what Channel's contract forbids.
void check_edge(const Channel& channel, int peer, int tag);
void check_sendable(const at::Tensor& tensor);
void check_contiguous(const at::Tensor& tensor);
/// `channel` is the channel's name.
void check_on_cpu(const std::string& channel, const at::Tensor& tensor);

/// "rank 2 expected float32 [4, 8] from rank 1 under tag 7, got float32 [4, 9]".
[[nodiscard]] meeting::PeerError wrong_spec(int rank, const TensorSpec& expected, int from, int tag,
                                            const TensorSpec& got);
/// "rank 1 waited 5.0 s for a tensor from rank 0 under tag 3".
[[nodiscard]] meeting::PeerError late_tensor(int rank, std::chrono::milliseconds deadline, int from, int tag);

}  // namespace stagecraft::channel

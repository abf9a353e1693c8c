#pragma once

#include <ATen/ops/empty.h>

#include <memory>
#include <vector>

#include "executor/channel/channel.h"
#include "executor/channel/channel_checks.h"
#include "executor/channel/control_tags.h"

namespace stagecraft::channel {

/// Returns when all ranks of `channel` have called it: each sends one byte to every other one. Throws PeerError as the
/// channel does.
inline void one_round_barrier(Channel& channel) {
  const at::Tensor token = at::empty({1}, at::kByte);
  std::vector<std::unique_ptr<Receiving>> receives;
  std::vector<std::unique_ptr<Sending>> sends;
  for (int peer = 0; peer < channel.ranks(); ++peer) {
    if (peer == channel.rank()) continue;
    receives.push_back(channel.receive(spec_of(token), peer, kBarrierTag));
    sends.push_back(channel.send(token, peer, kBarrierTag));
  }
  for (const auto& receive : receives) (void)receive->wait();
  for (const auto& send : sends) send->wait();
}

}  // namespace stagecraft::channel

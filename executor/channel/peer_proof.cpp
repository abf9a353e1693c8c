#include "executor/channel/peer_proof.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cstring>
#include <map>

#include "executor/channel/control_tags.h"
#include "executor/meeting/secret.h"

namespace stagecraft::channel {
namespace {

/// Sends every peer the text that `text_for` returns for it, all of the same length, and returns theirs by rank.
template <typename TextFor>
std::map<int, std::string> swap_texts(Channel& channel, std::size_t length, const TextFor& text_for) {
  const TensorSpec spec{{static_cast<std::int64_t>(length)}, at::kByte};
  std::map<int, std::unique_ptr<Receiving>> receives;
  std::vector<std::unique_ptr<Sending>> sends;
  for (int peer = 0; peer < channel.ranks(); ++peer) {
    if (peer == channel.rank()) continue;
    receives[peer] = channel.receive(spec, peer, kProofTag);
    const at::Tensor bytes = at::empty(spec.shape, spec.dtype);
    std::memcpy(bytes.mutable_data_ptr(), text_for(peer).data(), length);
    sends.push_back(channel.send(bytes, peer, kProofTag));
  }
  std::map<int, std::string> texts;
  for (auto& [peer, receiving] : receives) {
    const at::Tensor bytes = receiving->wait();
    texts[peer].assign(static_cast<const char*>(bytes.const_data_ptr()), length);
  }
  for (auto& sending : sends) sending->wait();
  return texts;
}

/// The proof of rank `from` to rank `to`, which sent `nonce`. It contains the direction, so that it cannot be replayed
/// in the other one.
std::string proof(const std::string& key, int from, int to, const std::string& nonce) {
  return meeting::authenticator(key, fmt::format("edge {} {} {}", from, to, nonce));
}

}  // namespace

void prove_to_each_other(Channel& channel, const std::string& key) {
  const int rank = channel.rank();
  const std::string nonce = meeting::random_secret();
  const auto nonces = swap_texts(channel, nonce.size(), [&](int) -> const std::string& { return nonce; });
  const auto proofs =
      swap_texts(channel, nonce.size(), [&](int peer) { return proof(key, rank, peer, nonces.at(peer)); });
  for (const auto& [peer, shown] : proofs) {
    if (meeting::same_authenticator(shown, proof(key, peer, rank, nonce))) continue;
    throw meeting::PeerError(
        fmt::format("rank {}: the peer that connected as rank {} does not know the run's secret", rank, peer));
  }
}

}  // namespace stagecraft::channel

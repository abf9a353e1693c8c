#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "executor/channel/activity.h"
#include "executor/meeting/peer_error.h"

namespace stagecraft::channel {

/// Shape and dtype of a message, known at both ends before it is sent.
struct TensorSpec {
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kFloat;
};

/// A send in progress. Wait for it before the channel is destroyed.
class Sending {
 public:
  virtual ~Sending() = default;
  /// True once the tensor may be released. Never blocks; throws PeerError if the transfer failed.
  [[nodiscard]] virtual bool done() = 0;
  /// Returns when done; throws PeerError when it failed or the channel's deadline has passed.
  virtual void wait() = 0;
};

/// A receive that was posted.
class Receiving {
 public:
  virtual ~Receiving() = default;
  /// The tensor, when it has arrived. Call once. The receiver must not write to it: on the local channel it is the
  /// sender's tensor. Throws PeerError as Sending::wait does, and if the sender's shape or dtype is not the expected
  /// one.
  [[nodiscard]] virtual at::Tensor wait() = 0;
};

/// An all-reduce in progress. Wait for it before the channel is destroyed.
class Reducing {
 public:
  virtual ~Reducing() = default;
  /// Returns when the values hold their sum; on a GPU as Receiving::wait does. Throws as Sending::wait does.
  virtual void wait() = 0;
};

/// Moves tensors between the ranks of one run. One object per rank; not thread-safe, except abort. Messages from one
/// rank to another under one tag arrive in order; tags are independent of each other.
/// Every wait has the channel's deadline.
/// On a GPU, operations follow this thread's current stream: send covers the work enqueued there so far. A wait returns
/// immediately; work enqueued after it sees the received tensor, or may overwrite the sent one. The next call reports a
/// transfer that failed or is late.
class Channel {
 public:
  virtual ~Channel() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int ranks() const = 0;
  /// Whether received tensors have the strides of the first tensor that was sent under their tag; otherwise only
  /// contiguous tensors can be sent.
  [[nodiscard]] virtual bool keeps_strides() const { return true; }
  /// Starts sending a packed tensor (tensor_memory.h), which must not be written afterwards: on the local channel the
  /// receiver gets this storage itself. `to` is another rank, `tag` in [0, kMostTags). Throws std::invalid_argument
  /// otherwise, and for a device that the channel does not support.
  [[nodiscard]] virtual std::unique_ptr<Sending> send(const at::Tensor& tensor, int to, int tag) = 0;
  /// Posts a receive of exactly `spec`.
  [[nodiscard]] virtual std::unique_ptr<Receiving> receive(const TensorSpec& spec, int from, int tag) = 0;
  /// Starts sending the tensors of one message, each under its tag, and appends the sends to `out`. As send for each in
  /// turn, but over NCCL they travel together, in one kernel: receive them with one receive_message.
  virtual void send_message(std::span<const at::Tensor> tensors, int to, std::span<const int> tags,
                            std::vector<std::unique_ptr<Sending>>& out);
  /// Posts the receives of one message's tensors and appends them to `out`.
  virtual void receive_message(std::span<const TensorSpec> specs, int from, std::span<const int> tags,
                               std::vector<std::unique_ptr<Receiving>>& out);
  /// Starts to replace `values` (contiguous, float) by the element-wise sum over `members`, which are ascending and
  /// include this rank; all of them call it with the same members and tag. The sum is taken in the order of the
  /// members: ((m0 + m1) + m2) + ..., the same bits on every rank and every channel (but see make_nccl_channel). Until
  /// the wait returns, the values must not be touched and the members must not start another all-reduce under this tag.
  /// Under different tags any number may be in progress, waited for in the same order on all members.
  [[nodiscard]] virtual std::unique_ptr<Reducing> start_all_reduce(const at::Tensor& values,
                                                                   const std::vector<int>& members, int tag) = 0;
  /// The same, including the wait.
  void all_reduce(at::Tensor& values, const std::vector<int>& members, int tag) {
    start_all_reduce(values, members, tag)->wait();
  }
  /// Returns when all ranks have called it.
  virtual void barrier() = 0;
  /// Ends every wait, current or later, of every reachable rank with PeerError(reason). Any thread may call it.
  virtual void abort(const std::string& reason) = 0;

  /// What this rank is doing. The channel records its waits, the caller everything else.
  [[nodiscard]] virtual Activity& activity() = 0;

  static constexpr int kMostTags = 1 << 24;
  /// Tags from this one up are for the runtime's exchanges, not for plan edges.
  static constexpr int kControlTag = kMostTags - (1 << 16);
};

/// Index of the first of `count` values in the chunk of the `member`-th of `members`: count * member / members, rounded
/// down. `member` = `members` gives the end of the last chunk.
[[nodiscard]] constexpr std::int64_t chunk_begin(std::int64_t count, std::int64_t member, std::int64_t members) {
  return count * member / members;
}

/// Replaces this member's chunk of `values` (contiguous, float; chunks as chunk_begin) by the element-wise sum over
/// `members` in their order, as Channel::all_reduce does with all values; the other chunks stay as they are. Each rank
/// sends (n-1)/n of the bytes. As with Channel::send, those other chunks must not be written before all members have
/// returned: on the local channel they are read in place. Throws as Channel::all_reduce.
void ordered_reduce_scatter(Channel& channel, at::Tensor& values, const std::vector<int>& members, int tag);

/// Replaces every member's chunk of `values` (contiguous, any dtype; chunks as chunk_begin) by that member's values.
/// Each rank sends (n-1)/n of the bytes. Throws as Channel::all_reduce does, except for the dtype.
void all_gather(Channel& channel, at::Tensor& values, const std::vector<int>& members, int tag);

/// start_all_reduce for any channel, built from send and receive: a reduce-scatter whose messages are all in flight
/// together, then an all-gather. Each rank sends 2(n-1)/n of the bytes, as in a ring. Few values take one round
/// instead, with the same sums. `channel` must outlive it.
[[nodiscard]] std::unique_ptr<Reducing> start_ordered_all_reduce(Channel& channel, const at::Tensor& values,
                                                                 const std::vector<int>& members, int tag);

}  // namespace stagecraft::channel

#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "executor/channel/activity.h"
#include "executor/meeting/peer_error.h"

namespace stagecraft {

/// What arrives: known on both ends before anything is sent.
struct TensorSpec {
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kFloat;
};

/// A send under way. Must be waited for before the channel goes.
class Sending {
 public:
  virtual ~Sending() = default;
  /// True once the tensor may be let go. Never blocks; throws PeerError if the transfer failed.
  [[nodiscard]] virtual bool done() = 0;
  /// Returns when done; throws PeerError when it failed or the channel's deadline has passed.
  virtual void wait() = 0;
};

/// A receive that was posted.
class Receiving {
 public:
  virtual ~Receiving() = default;
  /// The tensor, once it is there. Call once. The receiver must not write into it: on the local channel it is
  /// the sender's own. Throws PeerError as Sending::wait, and if the sender's shape or dtype is not the expected
  /// one.
  [[nodiscard]] virtual at::Tensor wait() = 0;
};

/// An all-reduce under way. Must be waited for before the channel goes.
class Reducing {
 public:
  virtual ~Reducing() = default;
  /// Returns when the values hold their sum; on a GPU as Receiving::wait does. Throws as Sending::wait.
  virtual void wait() = 0;
};

/// Moves tensors between the ranks of one run. One rank, one object; not shared between threads, but for abort.
/// Messages from one rank to another under one tag arrive in order; tags are independent of each other.
/// Every wait has the deadline that the channel was made with.
/// Tensors on a GPU are the work of this thread's current stream: send takes what is enqueued there so far, and a wait
/// returns at once, what is enqueued there from then on finds the tensor, or may write what was sent. A transfer that
/// fails or is late is told by the next call.
class Channel {
 public:
  virtual ~Channel() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int ranks() const = 0;
  /// Starts sending a contiguous tensor, which must not be written from now on: on the local channel the receiver
  /// gets this very storage. `to` is another rank, `tag` in [0, kMostTags). Throws std::invalid_argument otherwise, and
  /// for a device that the channel does not carry.
  [[nodiscard]] virtual std::unique_ptr<Sending> send(const at::Tensor& tensor, int to, int tag) = 0;
  /// Posts a receive of exactly `spec`.
  [[nodiscard]] virtual std::unique_ptr<Receiving> receive(const TensorSpec& spec, int from, int tag) = 0;
  /// Starts to replace `values` (contiguous, float) by the element-wise sum over `members`, which are ascending and
  /// hold this rank; all of them call it with the same members and tag. The sum is taken in the order of the members:
  /// ((m0 + m1) + m2) + ..., the same bits on every rank and every channel (but see make_nccl_channel). Until it was
  /// waited for the values must not be touched, and the members start no other one under this tag; under different tags
  /// any number may be under way, waited for in the same order on all members.
  [[nodiscard]] virtual std::unique_ptr<Reducing> start_all_reduce(const at::Tensor& values,
                                                                   const std::vector<int>& members, int tag) = 0;
  /// The same, waited for.
  void all_reduce(at::Tensor& values, const std::vector<int>& members, int tag) {
    start_all_reduce(values, members, tag)->wait();
  }
  /// Returns when all ranks have called it.
  virtual void barrier() = 0;
  /// Ends every wait of every rank that can be reached, now and later, with PeerError(reason). Any thread may call
  /// it.
  virtual void abort(const std::string& reason) = 0;

  /// What this rank does: its waits for others are noted there by the channel, everything else by those who use it.
  [[nodiscard]] virtual Activity& activity() = 0;

  static constexpr int kMostTags = 1 << 24;
  /// Tags from here on are for the runtime's own exchanges, not for plan edges.
  static constexpr int kControlTag = kMostTags - (1 << 16);
};

/// Index of the first of `count` values in the chunk of the `member`-th of `members`: count * member / members, rounded
/// down. `member` = `members` gives the end of the last chunk.
[[nodiscard]] constexpr std::int64_t chunk_begin(std::int64_t count, std::int64_t member, std::int64_t members) {
  return count * member / members;
}

/// Replaces this member's chunk of `values` (contiguous, float; chunks as chunk_begin) by the element-wise sum over
/// `members` in their order, as Channel::all_reduce does with all values; the other chunks stay as they are. (n-1)/n of
/// the bytes go out of each rank. As with Channel::send, those other chunks must not be written before all members have
/// returned: on the local channel they are read in place. Throws as Channel::all_reduce.
void ordered_reduce_scatter(Channel& channel, at::Tensor& values, const std::vector<int>& members, int tag);

/// Replaces every member's chunk of `values` (contiguous, any dtype; chunks as chunk_begin) by that member's own
/// values. (n-1)/n of the bytes go out of each rank. Throws as Channel::all_reduce, but for the dtype.
void all_gather(Channel& channel, at::Tensor& values, const std::vector<int>& members, int tag);

/// The start_all_reduce of any channel from its send and receive: a reduce-scatter, whose messages are under way at
/// once, then an all-gather; 2(n-1)/n of the bytes go out of each rank, as in a ring. Few values go in one round
/// instead, with the same sums. `channel` must outlive it.
[[nodiscard]] std::unique_ptr<Reducing> start_ordered_all_reduce(Channel& channel, const at::Tensor& values,
                                                                 const std::vector<int>& members, int tag);

}  // namespace stagecraft

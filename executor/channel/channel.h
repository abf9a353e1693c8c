#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/topology.h"
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

/// One rank's part in a collective. `values` has a part for each member, in their order, and so has `received`.
struct CollectiveCall {
  Collective kind = Collective::AllReduce;
  at::Tensor values = {};         ///< contiguous, of any shape
  std::vector<int> members = {};  ///< ranks, ascending and including this one
  int tag = 0;
  /// Values in each part, zero or more; together all of `values`. Empty: part i begins at chunk_begin(.., i, ..). An
  /// all-reduce has none.
  std::vector<std::int64_t> counts = {};
  /// Of an all-to-all: where what the members send to this rank arrives, and `counts` of it. Contiguous, with the dtype
  /// and device of `values`, in other memory. The other kinds have none.
  at::Tensor received = {};
  std::vector<std::int64_t> received_counts = {};
};

/// A collective in progress. Wait for it before the channel is destroyed.
class CollectiveInProgress {
 public:
  virtual ~CollectiveInProgress() = default;
  /// Returns when this rank has its result and the tensors may be written; on a GPU as Receiving::wait does. Throws as
  /// Sending::wait does, and if a member sent another dtype or number of values than this rank expects. Call once.
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
  /// Starts sending a packed tensor (tensor_message.h), which must not be written afterwards: on the local channel the
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
  /// Starts a collective; all members call this alike, with their own values:
  ///  - all-reduce: `values` become the element-wise sum over the members;
  ///  - reduce-scatter: this member's part of `values` becomes its sum; the other parts stay as they are;
  ///  - all-gather: each part of `values` becomes that of its member; only the own part is read;
  ///  - all-to-all: part i of `values` goes to member i, and part i of `received` comes from it.
  /// Every dtype is carried; float32, float64, float16, bfloat16, complex64 and complex128 can be summed. A sum is
  /// taken in the order of the members, ((m0 + m1) + m2) + ..., and each addition is rounded to the dtype (float16 and
  /// bfloat16 too, to the nearest, ties to even): its bits are the same on every rank and channel, and in an all-reduce
  /// and a reduce-scatter, whoever owns the element (but see make_nccl_channel).
  /// Until the wait returns, the tensors must not be touched and the members must not use the tag for anything else.
  /// Under different tags any number may be in progress, waited for in the same order on all members. With one member,
  /// an all-to-all copies and the other kinds do nothing.
  /// Throws std::invalid_argument, before anything is sent, for a call that does not fit CollectiveCall, the dtype or
  /// the device.
  [[nodiscard]] std::unique_ptr<CollectiveInProgress> start(const CollectiveCall& call);
  /// Returns when all ranks have called it.
  virtual void barrier() = 0;
  /// Ends every wait, current or later, of every reachable rank with PeerError(reason). Any thread may call it.
  virtual void abort(const std::string& reason) = 0;

  /// What this rank is doing. The channel records its waits, the caller everything else.
  [[nodiscard]] virtual Activity& activity() = 0;

  static constexpr int kMostTags = 1 << 24;
  /// Tags from this one up are for the runtime's exchanges, not for plan edges.
  static constexpr int kControlTag = kMostTags - (1 << 16);

 protected:
  /// As start, for a checked call of two or more members: the tensors are one-dimensional and without autograd state,
  /// and the counts are given, except those of an all-reduce. Here: start_pairwise (collective.h).
  [[nodiscard]] virtual std::unique_ptr<CollectiveInProgress> begin(const CollectiveCall& call);
  /// Throws std::invalid_argument for a tensor on a device that the channel does not carry.
  virtual void check_device(const at::Tensor&) const {}
};

/// Index of the first of `count` values in the chunk of the `member`-th of `members`: count * member / members, rounded
/// down. `member` = `members` gives the end of the last chunk.
[[nodiscard]] constexpr std::int64_t chunk_begin(std::int64_t count, std::int64_t member, std::int64_t members) {
  return count * member / members;
}

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

/// Some ranks of a channel as a separate channel: its rank i is the i-th of them. Its ranks use it like any channel,
/// but no other operation of the whole channel may be in progress between them under the same tags. Errors name the
/// ranks of the whole channel.
class RankSubset : public Channel {
 public:
  /// `members` ascend and include this rank; all of them make one. `whole` must outlive it. Throws
  /// std::invalid_argument otherwise.
  RankSubset(Channel& whole, std::vector<int> members);

  int rank() const override { return rank_; }
  int ranks() const override { return to_int(members_.size()); }
  bool keeps_strides() const override { return whole_.keeps_strides(); }
  std::unique_ptr<Sending> send(const at::Tensor& tensor, int to, int tag) override;
  std::unique_ptr<Receiving> receive(const TensorSpec& spec, int from, int tag) override;
  void barrier() override;
  void abort(const std::string& reason) override { whole_.abort(reason); }
  Activity& activity() override { return whole_.activity(); }

 protected:
  std::unique_ptr<CollectiveInProgress> begin(const CollectiveCall& call) override;

 private:
  Channel& whole_;
  std::vector<int> members_;
  int rank_ = 0;
};

}  // namespace stagecraft::channel

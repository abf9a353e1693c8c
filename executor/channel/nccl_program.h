#pragma once

#include <string>
#include <vector>

#include "executor/channel/channel.h"

namespace stagecraft::channel {

// The NCCL calls of a run as data, so that order and matching can be proved without a GPU.

/// One NCCL communicator of a run. Each has a separate stream, and each of its ranks makes its calls in one order.
struct CommunicatorPlan {
  std::string name;        ///< "boundary 0, activations from rank 0 to rank 2" or "gradients of ranks 1, 2"
  std::vector<int> ranks;  ///< sender and receiver of an edge; members of a reduction, ascending
  std::vector<int> tags;   ///< of the channel, ascending: an edge's messages, or a reduction's values
  bool reduces = false;
  int round = 0;  ///< in which it is created; no rank is in two of the same round
};

/// One call on a communicator.
struct NcclCall {
  enum class Kind { Send, Receive, AllReduce, ReduceScatter, AllGather } kind = Kind::Send;
  int communicator = 0;
  int tag = 0;
  TensorSpec spec;
  bool joins = false;  ///< in one NCCL group with the call before it: tensors of one message travel together
  std::vector<std::int64_t> counts = {};  ///< CollectiveCall::counts
  friend bool operator==(const NcclCall& a, const NcclCall& b) {
    return a.kind == b.kind && a.communicator == b.communicator && a.tag == b.tag && a.joins == b.joins &&
           a.counts == b.counts && a.spec.dtype == b.spec.dtype && a.spec.shape == b.spec.shape;
  }
};

[[nodiscard]] inline bool is_collective(NcclCall::Kind kind) {
  return kind != NcclCall::Kind::Send && kind != NcclCall::Kind::Receive;
}
/// What a collective `call` does with `values` over `members`.
[[nodiscard]] CollectiveCall collective_of(const NcclCall& call, at::Tensor values, std::vector<int> members);

/// "send of float32 [4, 8] under tag 2".
[[nodiscard]] std::string to_string(const NcclCall& call);

/// All communicators of a run in the order of their creation, and each rank's calls.
struct NcclProgram {
  std::vector<CommunicatorPlan> communicators;
  int rounds = 0;
  /// By rank, in the order in which the rank makes them: of one step, or of all steps of an asynchronous schedule.
  /// Only the tensors of one message share a group: a larger one would make an edge wait for its neighbours.
  std::vector<std::vector<NcclCall>> calls;

  /// The communicator that reduces over `members` under `tag`; -1 if there is none.
  [[nodiscard]] int reduction(const std::vector<int>& members, int tag) const;
};

/// Assigns rounds to `communicators` and sorts them by round: greedily, the first round in which none of a
/// communicator's ranks has another one. With edges only, there are at most 2d - 1 rounds for at most d edges per rank.
/// Returns the number of rounds.
int assign_rounds(std::vector<CommunicatorPlan>& communicators);

/// Bytes of the call's tensor.
[[nodiscard]] std::int64_t bytes_of(const NcclCall& call);

/// The messages of `rank` on the communicator, each as its calls, without those whose kinds and bytes repeat an earlier
/// one. Every rank of the communicator gets the same sequence, each from its end.
[[nodiscard]] std::vector<std::vector<NcclCall>> distinct_messages(const NcclProgram& program, int communicator,
                                                                   int rank);

/// Proves by NCCL's rules that every call has its counterpart: the calls on a communicator are matched in order; a send
/// matches a receive of as many bytes at the other end, grouped alike, a collective one of its kind with as many values
/// in each part at every member; a rank never sends on a communicator on which it receives. Empty if proved, else
/// communicator, position and both calls.
[[nodiscard]] std::string find_mismatch(const NcclProgram& program);

}  // namespace stagecraft::channel

#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "executor/channel/channel.h"
#include "executor/channel/tensor_message.h"
#include "executor/channel/ucx/ucx_line.h"

namespace stagecraft::channel {

/// Values that a UcxAllReduce of `values` values over `members` ranks receives ahead: a window of segments from each of
/// the other members.
[[nodiscard]] std::int64_t ucx_scratch_values(std::int64_t values, std::int64_t members);

/// What all-reduces of one channel share: memory for values that arrive.
class UcxScratch {
 public:
  /// A tensor of `values` floats.
  [[nodiscard]] at::Tensor take(std::int64_t values);
  void give_back(at::Tensor tensor) { free_.push_back(std::move(tensor)); }

 private:
  std::vector<at::Tensor> free_;
};

/// An all-reduce in segments: every member receives the other members' values for its chunk, sums each segment in
/// member order as soon as all have arrived, and sends the sum on while later segments arrive. Nothing is copied but by
/// the transport: values leave from and arrive in the tensor itself. Continues in every call of the channel.
class UcxAllReduce : public CollectiveInProgress, private UcxOngoing {
 public:
  /// One peer of the all-reduce. `header_out` is set if the number of values must be announced to it, `header_in` if
  /// its announcement is expected; both under the count of their announcements.
  struct ReducePeer {
    int rank = 0;
    int count_out = 0;
    int count_in = 0;
    bool announces_out = false;
    bool announces_in = false;
  };

  /// `call` is as Channel::begin gets it, of float32. `edges`: the other members, ascending.
  UcxAllReduce(std::shared_ptr<UcxLine> line, std::shared_ptr<UcxScratch> scratch, const CollectiveCall& call,
               std::vector<ReducePeer> edges);
  ~UcxAllReduce() override;
  void wait() override;

 private:
  /// One other member.
  struct PeerProgress {
    ReducePeer edge;
    std::int64_t member = 0;
    at::Tensor header;
    UcxTransfer header_in;
    std::vector<UcxTransfer> shares;  ///< of it for our chunk, by segment modulo kWindow
    std::vector<UcxTransfer> sums;    ///< of its chunk, by segment
    std::size_t summed = 0;           ///< sums that have arrived
  };

  void advance() override;
  void try_to_advance();
  bool headers_are_right();
  void post_receives();
  void post_share(std::int64_t segment);
  void sum_segment(std::int64_t segment);
  bool sends_are_over();
  [[nodiscard]] at::Tensor part(std::int64_t member, std::int64_t segment) const;
  [[nodiscard]] std::int64_t segments_of(std::int64_t member) const;
  [[nodiscard]] at::Tensor scratch_of(std::size_t peer, std::int64_t segment) const;

  std::shared_ptr<UcxLine> line_;
  std::shared_ptr<UcxScratch> pool_;
  at::Tensor values_;
  std::int64_t members_;
  std::int64_t segment_;  ///< values per message
  std::int64_t mine_;     ///< index of this rank among the members
  int tag_;
  std::vector<PeerProgress> peers_;
  std::vector<int> peer_ranks_;
  at::Tensor scratch_;
  std::vector<std::pair<int, UcxTransfer>> sends_;  ///< with their peer
  bool receives_posted_ = false;
  std::int64_t summed_ = 0;  ///< segments of our chunk
  bool complete_ = false;
  std::exception_ptr error_;
};

}  // namespace stagecraft::channel

#pragma once

#include <vector>

#include "costmodel/index.h"
#include "executor/channel/channel.h"

namespace stagecraft::channel {

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

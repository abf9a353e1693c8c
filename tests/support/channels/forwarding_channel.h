#pragma once

#include "executor/channel/channel.h"

namespace stagecraft::testing {

/// Forwards to another channel; tests override what should differ.
class ForwardingChannel : public channel::Channel {
 public:
  explicit ForwardingChannel(channel::Channel& channel) : channel_(channel) {}
  int rank() const override { return channel_.rank(); }
  int ranks() const override { return channel_.ranks(); }
  bool keeps_strides() const override { return channel_.keeps_strides(); }
  std::unique_ptr<channel::Sending> send(const at::Tensor& tensor, int to, int tag) override {
    return channel_.send(tensor, to, tag);
  }
  std::unique_ptr<channel::Receiving> receive(const channel::TensorSpec& spec, int from, int tag) override {
    return channel_.receive(spec, from, tag);
  }
  void barrier() override { channel_.barrier(); }
  void abort(const std::string& reason) override { channel_.abort(reason); }
  channel::Activity& activity() override { return channel_.activity(); }

 protected:
  std::unique_ptr<channel::CollectiveInProgress> begin(const channel::CollectiveCall& call) override {
    return channel_.start(call);
  }

 private:
  channel::Channel& channel_;
};

}  // namespace stagecraft::testing

#pragma once

#include <string>
#include <vector>

#include "executor/channel/collective.h"
#include "tests/support/channels/forwarding_channel.h"

namespace stagecraft::testing {

/// Records the calls to another channel, in order: "receive from 0 under 2", "send 12 to 1 under 0" (a tensor of one
/// value) or "all-reduce under 7".
class RecordingChannel : public ForwardingChannel {
 public:
  explicit RecordingChannel(channel::Channel& channel) : ForwardingChannel(channel) {}
  std::unique_ptr<channel::Sending> send(const at::Tensor& tensor, int to, int tag) override {
    notes.push_back("send " + std::to_string(tensor.item<int>()) + " to " + std::to_string(to) + " under " +
                    std::to_string(tag));
    return ForwardingChannel::send(tensor, to, tag);
  }
  std::unique_ptr<channel::Receiving> receive(const channel::TensorSpec& spec, int from, int tag) override {
    notes.push_back("receive from " + std::to_string(from) + " under " + std::to_string(tag));
    return ForwardingChannel::receive(spec, from, tag);
  }

  std::vector<std::string> notes;

 protected:
  std::unique_ptr<channel::CollectiveInProgress> begin(const channel::CollectiveCall& call) override {
    notes.push_back(std::string(channel::collective_text(call.kind)) + " under " + std::to_string(call.tag));
    return ForwardingChannel::begin(call);
  }
};

}  // namespace stagecraft::testing

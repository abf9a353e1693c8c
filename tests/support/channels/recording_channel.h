#pragma once

#include <string>
#include <vector>

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
  std::unique_ptr<channel::Reducing> start_all_reduce(const at::Tensor& values, const std::vector<int>& members,
                                                      int tag) override {
    notes.push_back("all-reduce under " + std::to_string(tag));
    return ForwardingChannel::start_all_reduce(values, members, tag);
  }

  std::vector<std::string> notes;
};

}  // namespace stagecraft::testing

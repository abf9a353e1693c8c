#include "executor/channel/channel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <stdexcept>

#include "costmodel/index.h"
#include "executor/channel/collective.h"
#include "executor/channel/tensor_message.h"
#include "executor/device/dtype.h"

namespace stagecraft::channel {

std::string describe(const TensorSpec& spec) {
  return fmt::format("{} [{}]", device::dtype_text(spec.dtype), fmt::join(spec.shape, ", "));
}

TensorSpec spec_of(const at::Tensor& tensor) { return {tensor.sizes().vec(), tensor.scalar_type()}; }

bool same_spec(const TensorSpec& spec, const at::Tensor& tensor) {
  return spec.dtype == tensor.scalar_type() && tensor.sizes() == at::IntArrayRef(spec.shape);
}

void check_edge(const Channel& channel, int peer, int tag) {
  if (peer < 0 || peer >= channel.ranks()) {
    throw std::invalid_argument(fmt::format("rank {}: peer {} does not exist, there are ranks 0 to {}", channel.rank(),
                                            peer, channel.ranks() - 1));
  }
  if (peer == channel.rank()) throw std::invalid_argument(fmt::format("rank {} cannot be its own peer", peer));
  if (tag < 0 || tag >= Channel::kMostTags) {
    throw std::invalid_argument(fmt::format("tag {} is not in 0 to {}", tag, Channel::kMostTags - 1));
  }
}

void check_sendable(const at::Tensor& tensor) {
  if (!tensor.defined()) throw std::invalid_argument("cannot send an undefined tensor");
  if (!is_packed(tensor))
    throw std::invalid_argument(
        fmt::format("cannot send a tensor with gaps or overlaps in its memory: {}", describe(spec_of(tensor))));
}

void check_contiguous(const at::Tensor& tensor) {
  if (!tensor.defined()) throw std::invalid_argument("cannot send an undefined tensor");
  if (!tensor.is_contiguous())
    throw std::invalid_argument(
        fmt::format("cannot send a tensor that is not contiguous: {}", describe(spec_of(tensor))));
}

void check_on_cpu(const std::string& channel, const at::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  throw std::invalid_argument(fmt::format("channel {} carries tensors on the CPU, got {} on {}", channel,
                                          describe(spec_of(tensor)), tensor.device().str()));
}

meeting::PeerError wrong_spec(int rank, const TensorSpec& expected, int from, int tag, const TensorSpec& got) {
  return meeting::PeerError(fmt::format("rank {} expected {} from rank {} under tag {}, got {}", rank,
                                        describe(expected), from, tag, describe(got)));
}

meeting::PeerError late_tensor(int rank, std::chrono::milliseconds deadline, int from, int tag) {
  return meeting::PeerError(fmt::format("rank {} waited {} for a tensor from rank {} under tag {}", rank,
                                        meeting::seconds_text(deadline), from, tag),
                            meeting::PeerError::Cause::Deadline);
}

void Channel::send_message(std::span<const at::Tensor> tensors, int to, std::span<const int> tags,
                           std::vector<std::unique_ptr<Sending>>& out) {
  for (std::size_t i = 0; i < tensors.size(); ++i) out.push_back(send(tensors[i], to, tags[i]));
}

void Channel::receive_message(std::span<const TensorSpec> specs, int from, std::span<const int> tags,
                              std::vector<std::unique_ptr<Receiving>>& out) {
  for (std::size_t i = 0; i < specs.size(); ++i) out.push_back(receive(specs[i], from, tags[i]));
}

std::unique_ptr<CollectiveInProgress> Channel::start(const CollectiveCall& call) {
  const std::optional<CollectiveCall> changed = checked_collective(*this, call);
  const CollectiveCall& checked = changed ? *changed : call;
  check_device(checked.values);
  return checked.members.size() == 1 ? start_alone(checked) : begin(checked);
}

std::unique_ptr<CollectiveInProgress> Channel::begin(const CollectiveCall& call) { return start_pairwise(*this, call); }

RankSubset::RankSubset(Channel& whole, std::vector<int> members) : whole_(whole), members_(std::move(members)) {
  const auto place = std::ranges::find(members_, whole.rank());
  const bool ascend = std::ranges::adjacent_find(members_, std::greater_equal<>()) == members_.end();
  if (place == members_.end() || !ascend || members_.front() < 0 || members_.back() >= whole.ranks()) {
    throw std::invalid_argument(fmt::format("a subset of {} ranks must ascend and include rank {}, got [{}]",
                                            whole.ranks(), whole.rank(), fmt::join(members_, ", ")));
  }
  rank_ = to_int(place - members_.begin());
}

std::unique_ptr<Sending> RankSubset::send(const at::Tensor& tensor, int to, int tag) {
  check_edge(*this, to, tag);
  return whole_.send(tensor, members_[to_index(to)], tag);
}

std::unique_ptr<Receiving> RankSubset::receive(const TensorSpec& spec, int from, int tag) {
  check_edge(*this, from, tag);
  return whole_.receive(spec, members_[to_index(from)], tag);
}

std::unique_ptr<CollectiveInProgress> RankSubset::begin(const CollectiveCall& call) {
  CollectiveCall of_whole = call;
  for (int& member : of_whole.members) member = members_[to_index(member)];
  return whole_.start(of_whole);
}

void RankSubset::barrier() { one_round_barrier(*this); }

}  // namespace stagecraft::channel

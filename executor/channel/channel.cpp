#include "executor/channel/channel.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "costmodel/index.h"
#include "executor/channel/channel_checks.h"
#include "executor/channel/tensor_memory.h"
#include "executor/device/dtype.h"

namespace stagecraft::channel {
namespace {

/// The members' chunks of a tensor, in its storage and without its autograd state.
struct Chunks {
  Chunks(const Channel& channel, const at::Tensor& values, const std::vector<int>& ranks)
      : flat(values.detach().view({-1})),
        members(static_cast<std::int64_t>(ranks.size())),
        mine(std::find(ranks.begin(), ranks.end(), channel.rank()) - ranks.begin()) {}
  [[nodiscard]] at::Tensor operator[](std::int64_t member) const {
    const std::int64_t begin = chunk_begin(flat.numel(), member, members);
    return flat.narrow(0, begin, chunk_begin(flat.numel(), member + 1, members) - begin);
  }
  at::Tensor flat;
  std::int64_t members;
  std::int64_t mine;  ///< index of this rank among the members
};

/// Adds `more` to `sum`.
void add(at::Tensor& sum, const at::Tensor& more) {
  if (!sum.is_cpu()) {
    sum.add_(more);
    return;
  }
  float* out = sum.data_ptr<float>();
  const float* in = more.const_data_ptr<float>();
  for (std::int64_t i = 0, n = sum.numel(); i < n; ++i) out[i] += in[i];
}

/// A message from every member to every other one, summed in member order.
class Round {
 public:
  /// Sends `out(i)` to member i and posts receives like `in`.
  template <typename Out>
  Round(Channel& channel, const std::vector<int>& members, int tag, const at::Tensor& in, const Out& out) : own_(in) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      parts_.emplace_back();
      if (members[i] == channel.rank()) continue;
      parts_.back() = channel.receive(spec_of(in), members[i], tag);
      sends_.push_back(channel.send(out(static_cast<std::int64_t>(i)), members[i], tag));
    }
  }
  [[nodiscard]] at::Tensor sum() {
    at::Tensor sum;
    for (const auto& part : parts_) {
      const at::Tensor one = part ? part->wait() : own_;
      if (sum.defined())
        add(sum, one);
      else
        sum = one.clone();
    }
    return sum;
  }
  void finish_sends() {
    for (const auto& sending : sends_) sending->wait();
  }

 private:
  at::Tensor own_;
  std::vector<std::unique_ptr<Receiving>> parts_;  // by member, none for this rank
  std::vector<std::unique_ptr<Sending>> sends_;
};

class NothingToReduce : public Reducing {
 public:
  void wait() override {}
};

class OrderedReducing : public Reducing {
 public:
  OrderedReducing(Channel& channel, at::Tensor values, const std::vector<int>& members, int tag)
      : channel_(channel), values_(std::move(values)), members_(members), tag_(tag) {
    // The size at which both ways take equally long for 2 and 3 ranks on one machine (bench/results/gloo.json).
    constexpr std::int64_t kFewValues = 3 << 18;
    few_ = values_.numel() * static_cast<std::int64_t>(members.size()) <= kFewValues;
    if (few_) {
      // Every rank sends everything and computes the sum itself: one round instead of two.
      const at::Tensor copy = values_.clone();
      round_.emplace(channel, members, tag, copy, [&](std::int64_t) -> const at::Tensor& { return copy; });
    } else {
      const Chunks chunks(channel, values_, members);
      round_.emplace(channel, members, tag, chunks[chunks.mine], [&](std::int64_t i) { return chunks[i]; });
    }
  }
  void wait() override {
    const at::Tensor sum = round_->sum();
    if (few_) {
      round_->finish_sends();
      values_.copy_(sum);
      return;
    }
    const Chunks chunks(channel_, values_, members_);
    chunks[chunks.mine].copy_(sum);
    round_->finish_sends();
    // A member's chunk arrives after that member has read ours: ours may then be written, even on the local channel.
    all_gather(channel_, values_, members_, tag_);
  }

 private:
  Channel& channel_;
  at::Tensor values_;
  std::vector<int> members_;
  int tag_;
  bool few_ = false;
  std::optional<Round> round_;
};

}  // namespace

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

void check_members(const Channel& channel, const at::Tensor& values, const std::vector<int>& members, int tag,
                   const std::string& operation) {
  check_contiguous(values);
  const bool ascending = std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) == members.end();
  if (!ascending || std::find(members.begin(), members.end(), channel.rank()) == members.end()) {
    throw std::invalid_argument(fmt::format("{} members must ascend and include rank {}, got [{}]", operation,
                                            channel.rank(), fmt::join(members, ", ")));
  }
  for (const int member : members) {
    if (member != channel.rank()) check_edge(channel, member, tag);
  }
}

void check_reducible(const Channel& channel, const at::Tensor& values, const std::vector<int>& members, int tag,
                     const std::string& operation) {
  check_contiguous(values);
  if (values.scalar_type() != at::kFloat) {
    throw std::invalid_argument(fmt::format("{} takes float32, got {}", operation, describe(spec_of(values))));
  }
  check_members(channel, values, members, tag, operation);
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

void ordered_reduce_scatter(Channel& channel, at::Tensor& values, const std::vector<int>& members, int tag) {
  check_reducible(channel, values, members, tag, "reduce-scatter");
  const Chunks chunks(channel, values, members);
  if (chunks.members == 1) return;
  Round round(channel, members, tag, chunks[chunks.mine], [&](std::int64_t i) { return chunks[i]; });
  chunks[chunks.mine].copy_(round.sum());
  round.finish_sends();
}

void all_gather(Channel& channel, at::Tensor& values, const std::vector<int>& members, int tag) {
  check_members(channel, values, members, tag, "all-gather");
  const Chunks chunks(channel, values, members);
  if (chunks.members == 1) return;
  // A separate tensor: on the local channel, others may still read it after this call returns.
  const at::Tensor chunk = chunks[chunks.mine].clone();
  std::vector<std::unique_ptr<Sending>> sends;
  std::vector<std::unique_ptr<Receiving>> receives;
  for (std::int64_t i = 0; i < chunks.members; ++i) {
    if (i == chunks.mine) continue;
    receives.push_back(channel.receive(spec_of(chunks[i]), members[to_index(i)], tag));
    sends.push_back(channel.send(chunk, members[to_index(i)], tag));
  }
  for (std::int64_t i = 0, next = 0; i < chunks.members; ++i) {
    if (i != chunks.mine) chunks[i].copy_(receives[to_index(next++)]->wait());
  }
  for (auto& sending : sends) sending->wait();
}

std::unique_ptr<Reducing> start_ordered_all_reduce(Channel& channel, const at::Tensor& values,
                                                   const std::vector<int>& members, int tag) {
  check_reducible(channel, values, members, tag);
  if (members.size() == 1) return std::make_unique<NothingToReduce>();
  return std::make_unique<OrderedReducing>(channel, values.detach(), members, tag);
}

}  // namespace stagecraft::channel

#include "executor/channel/collective.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/channel/channel.h"
#include "executor/channel/control_tags.h"
#include "executor/device/dtype.h"

namespace stagecraft::channel {
namespace {

constexpr std::array kSummable = {at::kFloat,    at::kDouble,       at::kHalf,
                                  at::kBFloat16, at::kComplexFloat, at::kComplexDouble};

/// The checks of a call. Texts are only made for a call that is refused.
class CollectiveCheck {
 public:
  CollectiveCheck(const Channel& channel, const CollectiveCall& call) : channel_(channel), call_(call) {}

  template <typename Why>
  void require(bool right, const Why& why) const {
    if (right) return;
    throw std::invalid_argument(
        fmt::format("rank {}, {} under tag {}: {}", channel_.rank(), collective_text(call_.kind), call_.tag, why()));
  }

  void check_members() const {
    const std::vector<int>& members = call_.members;
    const auto got = [&](const std::string& rule) {
      return fmt::format("{}, got [{}]", rule, fmt::join(members, ", "));
    };
    require(std::ranges::adjacent_find(members, std::greater_equal<>()) == members.end() &&
                std::ranges::find(members, channel_.rank()) != members.end(),
            [&] { return got(fmt::format("members must ascend and include rank {}", channel_.rank())); });
    require(members.front() >= 0 && members.back() < channel_.ranks(),
            [&] { return got(fmt::format("members must be among ranks 0 to {}", channel_.ranks() - 1)); });
    require(call_.tag >= 0 && call_.tag < Channel::kMostTags,
            [] { return fmt::format("the tag must be in 0 to {}", Channel::kMostTags - 1); });
  }

  void check_tensor(const at::Tensor& tensor, const char* name) const {
    require(tensor.defined(), [&] { return fmt::format("{} must be a tensor, got an undefined one", name); });
    require(tensor.is_contiguous(), [&] {
      return fmt::format("{} must be contiguous, got {} with strides [{}]", name, describe(spec_of(tensor)),
                         fmt::join(tensor.strides(), ", "));
    });
  }

  void check_dtype() const {
    if (call_.kind == Collective::AllGather || call_.kind == Collective::AllToAll) return;
    require(std::ranges::find(kSummable, call_.values.scalar_type()) != kSummable.end(), [&] {
      std::vector<std::string> names;
      for (const at::ScalarType dtype : kSummable) names.push_back(device::dtype_name(dtype));
      return fmt::format("values must be {} to be summed, got {}", joined_words(names, "or"),
                         describe(spec_of(call_.values)));
    });
  }

  void check_received() const {
    const at::Tensor& from = call_.values;
    const at::Tensor& to = call_.received;
    check_tensor(to, "received");
    require(to.scalar_type() == from.scalar_type() && to.device() == from.device(), [&] {
      return fmt::format("received must be {} on {}, as values are, got {} on {}",
                         device::dtype_text(from.scalar_type()), from.device().str(),
                         device::dtype_text(to.scalar_type()), to.device().str());
    });
    const auto begin = [](const at::Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); };
    const std::less<> before;
    require(!before(begin(to), begin(from) + from.nbytes()) || !before(begin(from), begin(to) + to.nbytes()),
            [] { return "received must be in other memory than values"; });
  }

  /// `counts` that are given must fit the tensor.
  void check_counts(const std::vector<std::int64_t>& counts, const at::Tensor& tensor, const char* name) const {
    require(counts.size() == call_.members.size(), [&] {
      return fmt::format("{} must have one entry for each of {} members, got [{}]", name, call_.members.size(),
                         fmt::join(counts, ", "));
    });
    const std::int64_t numel = tensor.numel();
    require(std::ranges::min(counts) >= 0 && std::ranges::max(counts) <= numel &&
                std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == numel,
            [&] {
              return fmt::format("{} must not be negative and must add up to the {} values of {}, got [{}]", name,
                                 numel, describe(spec_of(tensor)), fmt::join(counts, ", "));
            });
  }

  /// `counts`, or those of equal parts if there are none.
  [[nodiscard]] std::vector<std::int64_t> counts_of(const std::vector<std::int64_t>& counts, const at::Tensor& tensor,
                                                    const char* name) const {
    if (counts.empty()) return equal_counts(tensor.numel(), call_.members.size());
    check_counts(counts, tensor, name);
    return counts;
  }

 private:
  const Channel& channel_;
  const CollectiveCall& call_;
};

at::Tensor flat(const at::Tensor& tensor) { return tensor.dim() == 1 ? tensor.detach() : tensor.detach().view({-1}); }

template <typename T>
void add_values(std::span<const void* const> terms, std::span<void* const> sums, std::size_t count) {
  constexpr std::size_t kBlock = 8192 / sizeof(T);  // stays in the first-level cache
  T sum[kBlock];
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t size = std::min(kBlock, count - at);
    const T* const first = static_cast<const T*>(terms[0]) + at;
    const T* const second = static_cast<const T*>(terms[1]) + at;
    for (std::size_t k = 0; k < size; ++k) sum[k] = first[k] + second[k];
    for (std::size_t i = 2; i < terms.size(); ++i) {
      const T* const next = static_cast<const T*>(terms[i]) + at;
      for (std::size_t k = 0; k < size; ++k) sum[k] += next[k];
    }
    for (void* const out : sums) std::copy_n(sum, size, static_cast<T*>(out) + at);
  }
}

/// A message from every member to every other one.
class Round {
 public:
  /// Sends `sent`, by member, and expects messages like `expected`.
  Round(Channel& channel, const CollectiveCall& call, std::span<const at::Tensor> sent,
        std::span<const at::Tensor> expected)
      : receives_(call.members.size()) {
    for (std::size_t i = 0; i < call.members.size(); ++i) {
      if (call.members[i] == channel.rank()) continue;
      receives_[i] = channel.receive(spec_of(expected[i]), call.members[i], call.tag);
      sends_.push_back(channel.send(sent[i], call.members[i], call.tag));
    }
  }
  /// What the members sent, in their order, with `own` among them.
  [[nodiscard]] std::vector<at::Tensor> take(const at::Tensor& own) {
    std::vector<at::Tensor> out;
    for (const auto& receiving : receives_) out.push_back(receiving ? receiving->wait() : own);
    return out;
  }
  /// Copies it to `places`; this rank's is left alone.
  void deliver(std::span<const at::Tensor> places) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (receives_[i]) places[i].copy_(receives_[i]->wait());
    }
    finish_sends();
  }
  void finish_sends() {
    for (const auto& sending : sends_) sending->wait();
  }

 private:
  std::vector<std::unique_ptr<Receiving>> receives_;  // by member, none for this rank
  std::vector<std::unique_ptr<Sending>> sends_;
};

class PairwiseCollective : public CollectiveInProgress {
 public:
  PairwiseCollective(Channel& channel, CollectiveCall call, bool hands_over)
      : channel_(channel),
        call_(std::move(call)),
        hands_over_(hands_over),
        mine_(place_of(channel.rank(), call_)),
        few_(has_few_values(call_)),
        parts_(few_ ? std::vector<at::Tensor>() : parts_of(call_)),
        round_(first_round()) {}

  void wait() override {
    switch (call_.kind) {
      case Collective::AllToAll:
        places_[mine_].copy_(parts_[mine_]);
        return round_.deliver(places_);
      case Collective::AllGather:
        return round_.deliver(parts_);
      case Collective::AllReduce:
      case Collective::ReduceScatter:
        break;
    }
    const at::Tensor& own = few_ ? call_.values : parts_[mine_];
    const std::vector<at::Tensor> terms = round_.take(own);
    round_.finish_sends();  // the sum may replace what was sent
    sum_in_order(terms, own);
    // A member's chunk arrives after that member has read ours: ours may then be written, even if it was handed over.
    if (call_.kind == Collective::AllReduce && !few_) gather().deliver(parts_);
  }

 private:
  static bool has_few_values(const CollectiveCall& call) {
    // The size at which both ways take equally long for 2 and 3 ranks on one machine (bench/results/gloo.json).
    constexpr std::size_t kFewBytes = 3 << 20;
    return call.kind == Collective::AllReduce && call.values.nbytes() * call.members.size() <= kFewBytes;
  }
  static std::vector<at::Tensor> parts_of(const CollectiveCall& call) {
    return call.values.split_with_sizes(
        call.kind == Collective::AllReduce ? equal_counts(call.values.numel(), call.members.size()) : call.counts);
  }

  Round first_round() {
    const std::size_t members = call_.members.size();
    if (call_.kind == Collective::AllGather) return gather();
    if (few_) {
      const std::vector<at::Tensor> whole(members, hands_over_ ? call_.values.clone() : call_.values);
      return {channel_, call_, whole, whole};
    }
    if (call_.kind == Collective::AllToAll) places_ = call_.received.split_with_sizes(call_.received_counts);
    const bool copies = hands_over_ && call_.kind != Collective::AllReduce;
    const std::vector<at::Tensor> sent = copies ? call_.values.clone().split_with_sizes(call_.counts) : parts_;
    const std::vector<at::Tensor> own(members, parts_[mine_]);
    return {channel_, call_, sent, call_.kind == Collective::AllToAll ? places_ : own};
  }
  Round gather() {
    const std::vector<at::Tensor> own(parts_.size(), hands_over_ ? parts_[mine_].clone() : parts_[mine_]);
    return {channel_, call_, own, parts_};
  }

  Channel& channel_;
  CollectiveCall call_;
  bool hands_over_;
  std::size_t mine_;  ///< index of this rank among the members
  bool few_;
  std::vector<at::Tensor> parts_;   ///< of the values, unless they are few
  std::vector<at::Tensor> places_;  ///< of what an all-to-all receives
  Round round_;
};

class NothingInProgress : public CollectiveInProgress {
 public:
  void wait() override {}
};

}  // namespace

const char* collective_text(Collective kind) {
  switch (kind) {
    case Collective::AllReduce:
      return "all-reduce";
    case Collective::AllGather:
      return "all-gather";
    case Collective::ReduceScatter:
      return "reduce-scatter";
    case Collective::AllToAll:
      break;
  }
  return "all-to-all";
}

std::optional<CollectiveCall> checked_collective(const Channel& channel, const CollectiveCall& call) {
  const CollectiveCheck check(channel, call);
  const bool all_to_all = call.kind == Collective::AllToAll;
  check.check_members();
  check.check_tensor(call.values, "values");
  check.check_dtype();
  check.require(call.kind != Collective::AllReduce || call.counts.empty(),
                [&] { return fmt::format("there must be no counts, got [{}]", fmt::join(call.counts, ", ")); });
  check.require(all_to_all || (!call.received.defined() && call.received_counts.empty()),
                [] { return "received and received_counts must be empty, they are of an all-to-all"; });
  const bool is_flat = call.values.dim() == 1 && !call.values.requires_grad();
  if (is_flat && call.kind == Collective::AllReduce) return std::nullopt;
  if (is_flat && !all_to_all && !call.counts.empty()) {
    check.check_counts(call.counts, call.values, "counts");
    return std::nullopt;
  }
  CollectiveCall out{.kind = call.kind, .values = flat(call.values), .members = call.members, .tag = call.tag};
  if (call.kind != Collective::AllReduce) out.counts = check.counts_of(call.counts, call.values, "counts");
  if (!all_to_all) return out;
  check.check_received();
  out.received = flat(call.received);
  out.received_counts = check.counts_of(call.received_counts, call.received, "received_counts");
  const std::size_t mine = place_of(channel.rank(), out);
  check.require(out.counts[mine] == out.received_counts[mine], [&] {
    return fmt::format("rank {} must receive as many values from itself as it sends, got {} and {}", channel.rank(),
                       out.received_counts[mine], out.counts[mine]);
  });
  return out;
}

std::vector<std::int64_t> equal_counts(std::int64_t values, std::size_t members) {
  const auto parts = static_cast<std::int64_t>(members);
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < parts; ++i)
    out.push_back(chunk_begin(values, i + 1, parts) - chunk_begin(values, i, parts));
  return out;
}

std::unique_ptr<CollectiveInProgress> start_alone(const CollectiveCall& call) {
  if (call.kind == Collective::AllToAll) call.received.copy_(call.values);
  return std::make_unique<NothingInProgress>();
}

std::unique_ptr<CollectiveInProgress> start_pairwise(Channel& channel, const CollectiveCall& call, bool hands_over) {
  return std::make_unique<PairwiseCollective>(channel, call, hands_over);
}

std::size_t place_of(int rank, const CollectiveCall& call) {
  return to_index(std::ranges::find(call.members, rank) - call.members.begin());
}

void sum_in_order(std::span<const at::Tensor> terms, const at::Tensor& sum) {
  if (terms.size() == 1) {
    sum.copy_(terms[0]);
  } else if (sum.is_cpu()) {
    std::vector<const void*> in;
    for (const at::Tensor& term : terms) in.push_back(term.const_data_ptr());
    void* const out = sum.data_ptr();
    sum_in_order(sum.scalar_type(), in, {&out, 1}, to_index(sum.numel()));
  } else {
    at::Tensor total = terms[0].add(terms[1]);
    for (const at::Tensor& term : terms.subspan(2)) total.add_(term);
    sum.copy_(total);
  }
}

void sum_in_order(at::ScalarType dtype, std::span<const void* const> terms, std::span<void* const> sums,
                  std::size_t count) {
  switch (dtype) {
    case at::kFloat:
      return add_values<float>(terms, sums, count);
    case at::kDouble:
      return add_values<double>(terms, sums, count);
    case at::kHalf:
      return add_values<at::Half>(terms, sums, count);
    case at::kBFloat16:
      return add_values<at::BFloat16>(terms, sums, count);
    case at::kComplexFloat:
      return add_values<c10::complex<float>>(terms, sums, count);
    case at::kComplexDouble:
      return add_values<c10::complex<double>>(terms, sums, count);
    default:
      throw std::logic_error("a sum of " + device::dtype_text(dtype) + " was not refused");
  }
}

void one_round_barrier(Channel& channel) {
  const at::Tensor token = at::empty({1}, at::kByte);
  std::vector<std::unique_ptr<Receiving>> receives;
  std::vector<std::unique_ptr<Sending>> sends;
  for (int peer = 0; peer < channel.ranks(); ++peer) {
    if (peer == channel.rank()) continue;
    receives.push_back(channel.receive(spec_of(token), peer, kBarrierTag));
    sends.push_back(channel.send(token, peer, kBarrierTag));
  }
  for (const auto& receive : receives) (void)receive->wait();
  for (const auto& send : sends) send->wait();
}

}  // namespace stagecraft::channel

#include "executor/channel/rank_subset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "costmodel/index.h"
#include "executor/channel/channel_checks.h"
#include "executor/channel/one_round_barrier.h"

namespace stagecraft::channel {

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

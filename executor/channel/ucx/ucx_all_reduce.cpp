#include "executor/channel/ucx/ucx_all_reduce.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "costmodel/index.h"
#include "executor/channel/channel.h"
#include "executor/channel/collective.h"
#include "executor/channel/tensor_message.h"

namespace stagecraft::channel {
namespace {

/// Values per message: few enough that a segment stays in the second-level cache between its arrival and its sum, but
/// of a large tensor so many that a chunk has kMostSegments, because a queue of UCX's shared memory holds 256 messages.
constexpr std::int64_t kLeastSegment = std::int64_t{1} << 16;
constexpr std::int64_t kMostSegments = 16;
/// Segments of a chunk for which values are received ahead.
constexpr std::int64_t kWindow = 4;

constexpr const char* kDoing = "while summing with it";

/// Values per message.
std::int64_t segment_values(std::int64_t values, std::int64_t members) {
  return std::max(kLeastSegment, values / members / kMostSegments + 1);
}

}  // namespace

std::int64_t ucx_scratch_values(std::int64_t values, std::int64_t members) {
  return (members - 1) * kWindow * segment_values(values, members);
}

at::Tensor UcxScratch::take(std::int64_t values) {
  const auto fits = std::ranges::find_if(free_, [&](const at::Tensor& buffer) { return buffer.numel() >= values; });
  if (fits == free_.end()) return at::empty({values}, at::kFloat);
  at::Tensor out = std::move(*fits);
  free_.erase(fits);
  return out;
}

UcxAllReduce::UcxAllReduce(std::shared_ptr<UcxLine> line, std::shared_ptr<UcxScratch> scratch,
                           const CollectiveCall& call, std::vector<ReducePeer> edges)
    : line_(std::move(line)),
      pool_(std::move(scratch)),
      values_(call.values),
      members_(static_cast<std::int64_t>(call.members.size())),
      segment_(segment_values(values_.numel(), members_)),
      mine_(static_cast<std::int64_t>(place_of(line_->rank(), call))),
      tag_(call.tag),
      peers_(edges.size()) {
  for (std::size_t i = 0; i < edges.size(); ++i) {
    PeerProgress& peer = peers_[i];
    peer.edge = edges[i];
    peer.member = static_cast<std::int64_t>(place_of(edges[i].rank, call));
    peer_ranks_.push_back(edges[i].rank);
    if (!edges[i].announces_in) continue;
    peer.header = empty_header();
    peer.header_in = line_->receive(peer.header, edges[i].rank, tag_, UcxKind::Header, 0);
  }
  for (const PeerProgress& peer : peers_) {
    if (!peer.edge.announces_out) continue;
    sends_.emplace_back(peer.edge.rank,
                        line_->send(make_header({spec_of(values_), {1}}), peer.edge.rank, tag_, UcxKind::Header, 0));
  }
  // Segment by segment, so that all members can sum their first early.
  std::int64_t most = 0;
  for (const PeerProgress& peer : peers_) most = std::max(most, segments_of(peer.member));
  for (std::int64_t segment = 0; segment < most; ++segment) {
    for (const PeerProgress& peer : peers_) {
      if (segment >= segments_of(peer.member)) continue;
      const auto count = static_cast<std::uint64_t>(peer.edge.count_out);
      sends_.emplace_back(peer.edge.rank,
                          line_->send(part(peer.member, segment), peer.edge.rank, tag_, UcxKind::Share, count));
    }
  }
  line_->add(*this);
  advance();
}

UcxAllReduce::~UcxAllReduce() { line_->remove(*this); }

std::int64_t UcxAllReduce::segments_of(std::int64_t member) const {
  const std::int64_t size =
      chunk_begin(values_.numel(), member + 1, members_) - chunk_begin(values_.numel(), member, members_);
  return (size + segment_ - 1) / segment_;
}

at::Tensor UcxAllReduce::part(std::int64_t member, std::int64_t segment) const {
  const std::int64_t end = chunk_begin(values_.numel(), member + 1, members_);
  const std::int64_t begin = chunk_begin(values_.numel(), member, members_) + segment * segment_;
  return values_.narrow(0, begin, std::min(segment_, end - begin));
}

at::Tensor UcxAllReduce::scratch_of(std::size_t peer, std::int64_t segment) const {
  const std::int64_t slot = static_cast<std::int64_t>(peer) * kWindow + segment % kWindow;
  return scratch_.narrow(0, slot * segment_, part(mine_, segment).numel());
}

bool UcxAllReduce::headers_are_right() {
  for (PeerProgress& peer : peers_) {
    if (!peer.header.defined()) continue;
    if (!peer.header_in.over()) return false;
    line_->check(peer.header_in, peer.edge.rank, tag_, kDoing);
    (void)check_header(peer.header, line_->rank(), spec_of(values_), peer.edge.rank, tag_);
    peer.header.reset();
  }
  return true;
}

void UcxAllReduce::post_share(std::int64_t segment) {
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    PeerProgress& peer = peers_[i];
    peer.shares[to_index(segment % kWindow)] = line_->receive(
        scratch_of(i, segment), peer.edge.rank, tag_, UcxKind::Share, static_cast<std::uint64_t>(peer.edge.count_in));
  }
}

void UcxAllReduce::post_receives() {
  receives_posted_ = true;
  scratch_ = pool_->take(ucx_scratch_values(values_.numel(), members_));
  for (PeerProgress& peer : peers_) {
    peer.shares.resize(to_index(kWindow));
    // A sum arrives after its member has received our values of that segment, so it may arrive in their place.
    for (std::int64_t segment = 0; segment < segments_of(peer.member); ++segment) {
      peer.sums.push_back(line_->receive(part(peer.member, segment), peer.edge.rank, tag_, UcxKind::Sum,
                                         static_cast<std::uint64_t>(peer.edge.count_in)));
    }
  }
  for (std::int64_t segment = 0; segment < std::min(kWindow, segments_of(mine_)); ++segment) post_share(segment);
}

void UcxAllReduce::sum_segment(std::int64_t segment) {
  const at::Tensor piece = part(mine_, segment);
  std::vector<at::Tensor> terms;  // by member
  for (std::size_t i = 0; i < peers_.size(); ++i) terms.push_back(scratch_of(i, segment));
  terms.insert(terms.begin() + mine_, piece);
  sum_in_order(terms, piece);
  for (const PeerProgress& peer : peers_) {
    sends_.emplace_back(peer.edge.rank, line_->send(piece, peer.edge.rank, tag_, UcxKind::Sum,
                                                    static_cast<std::uint64_t>(peer.edge.count_out)));
  }
}

bool UcxAllReduce::sends_are_over() {
  std::erase_if(sends_, [&](std::pair<int, UcxTransfer>& send) {
    if (!send.second.over()) return false;
    line_->check(send.second, send.first, tag_, kDoing);
    return true;
  });
  return sends_.empty();
}

void UcxAllReduce::try_to_advance() {
  if (!receives_posted_) {
    if (!headers_are_right()) return;
    post_receives();
  }
  const std::int64_t segments = segments_of(mine_);
  while (summed_ < segments) {
    const std::size_t slot = to_index(summed_ % kWindow);
    for (PeerProgress& peer : peers_) {
      if (!peer.shares[slot].over()) return;
      line_->check(peer.shares[slot], peer.edge.rank, tag_, kDoing);
    }
    sum_segment(summed_);
    if (summed_ + kWindow < segments) post_share(summed_ + kWindow);
    ++summed_;
  }
  for (PeerProgress& peer : peers_) {
    for (; peer.summed < peer.sums.size(); ++peer.summed) {
      if (!peer.sums[peer.summed].over()) return;
      line_->check(peer.sums[peer.summed], peer.edge.rank, tag_, kDoing);
    }
  }
  complete_ = sends_are_over();
}

void UcxAllReduce::advance() {
  if (complete_ || error_) return;
  try {
    try_to_advance();
  } catch (...) { error_ = std::current_exception(); }  // another operation's wait may have called
}

void UcxAllReduce::wait() {
  const auto late = [&] {
    const auto waited_for = std::ranges::find_if(peers_, [&](PeerProgress& peer) {
      return !receives_posted_ ? !peer.header_in.over()
                               : peer.summed < peer.sums.size() ||
                                     std::ranges::any_of(peer.shares, [](UcxTransfer& share) { return !share.over(); });
    });
    const int from = waited_for == peers_.end() ? peer_ranks_.front() : waited_for->edge.rank;
    return late_tensor(line_->rank(), line_->deadline(), from, tag_);
  };
  line_->wait_until([&] { return complete_ || error_; }, peer_ranks_, tag_, kDoing, late);
  if (error_) std::rethrow_exception(error_);
  pool_->give_back(std::move(scratch_));
}

}  // namespace stagecraft::channel

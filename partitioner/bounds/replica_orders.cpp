#include "partitioner/bounds/replica_orders.h"

#include <algorithm>
#include <utility>

#include "costmodel/index.h"
#include "partitioner/bounds/bound_limits.h"

namespace stagecraft::partitioner {
ReplicaOrders::ReplicaOrders(const PipelineCosts& costs, const PathCuts& cuts, const PathStages& stages)
    : cuts_(cuts), stages_(stages), bound_(costs, cuts) {}

std::optional<bool> ReplicaOrders::refutes(const After& after, const std::function<bool()>& stop) {
  after_ = &after;
  stop_ = &stop;
  stopped_ = false;
  tried_ = 0;
  order_.clear();
  fronts_.assign(1, std::vector<Prefix>(cuts_.coarse().size(), Prefix::none()));
  fronts_.front().front() = Prefix{};
  const Found found = go_on(0);
  if (found == Found::Stopped) return std::nullopt;
  return found == Found::None;
}

/// Whether some sequence that begins with order_ keeps within the step.
ReplicaOrders::Found ReplicaOrders::go_on(int used) {
  if (fronts_.back().back().exists()) {
    const Found found = keeps();
    if (found != Found::None) return found;
  }
  const std::vector<PathCut>& cuts = cuts_.coarse();
  const std::vector<PathStages::Replicas>& all = stages_.replicas();
  for (std::size_t k = all.size(); k-- > 0;) {
    const int left = stages_.devices() - used - all[k].first;
    if (left < 0) continue;
    std::vector<const Suffix*> later(cuts.size());
    for (std::size_t j = 0; j < cuts.size(); ++j) later[j] = (*after_)(j, left);
    for (const bool on_path : {true, false}) {
      if (++tried_ > BoundLimits::kMostSequences) return Found::Some;
      const Element element{&all[k], on_path};
      std::vector<Prefix> next = extended(cuts, fronts_.back(), element, later);
      if (stopped_) return Found::Stopped;
      if (std::ranges::none_of(next, &Prefix::exists)) continue;
      fronts_.push_back(std::move(next));
      order_.push_back(element);
      const Found found = go_on(used + all[k].first);
      fronts_.pop_back();
      order_.pop_back();
      if (found != Found::None) return found;
    }
  }
  return Found::None;
}

/// Visits the cuts where a stage that begins at the cut `begin` may end, with or without a node of the path in between.
template <class Visit>
void ReplicaOrders::each_end(const std::vector<PathCut>& cuts, std::size_t begin, const Element& element,
                             Visit&& visit) {
  constexpr std::uint64_t kOften = 1 << 6;
  const PathCut& a = cuts[begin];
  for (std::size_t j = begin; j < cuts.size(); ++j) {
    const PathCut& b = cuts[j];
    if (!element.on_path && b.first > a.last) return;
    if (element.on_path ? b.last <= a.first : j == begin && !a.several) continue;
    if (++asked_ % kOften == 0 && (*stop_)()) stopped_ = true;
    if (stopped_ || !visit(j)) return;
  }
}

/// The Prefix of each cut after one more stage, `element`.
std::vector<ReplicaOrders::Prefix> ReplicaOrders::extended(const std::vector<PathCut>& cuts,
                                                           const std::vector<Prefix>& front, const Element& element,
                                                           const std::vector<const Suffix*>& later) {
  const PathStages::Replicas& replicas = *element.replicas;
  std::vector<Prefix> out(cuts.size(), Prefix::none());
  for (std::size_t i = 0; i + 1 < cuts.size() && !stopped_; ++i) {
    if (!front[i].exists()) continue;
    each_end(cuts, i, element, [&](std::size_t j) {
      if (later[j] == nullptr) return true;
      const PathStages::StageBound next = stages_.stage(cuts[i], cuts[j]);
      const Seconds before = next.on_path ? front[i].before : Seconds(0);
      // A longer stage does not fit either.
      if (!stages_.fits(next) || before + next.sums.least * static_cast<double>(replicas.share) > stages_.time())
        return false;
      if (stages_.keeps(next, replicas, front[i], *later[j]))
        out[j].merge(stages_.after(next, replicas, front[i]), stages_.waves());
      return true;
    });
  }
  return out;
}

/// Finds `backs`, the Suffix of each cut that the stages of order_ reach by `fronts`. False if no split keeps within
/// the step.
bool ReplicaOrders::go_back(const std::vector<PathCut>& cuts, const std::vector<std::vector<Prefix>>& fronts,
                            std::vector<std::vector<Suffix>>& backs) {
  backs.assign(order_.size() + 1, std::vector<Suffix>(cuts.size(), Suffix::none()));
  backs.back().back() = Suffix{};
  for (std::size_t s = order_.size(); s-- > 0;) {
    const PathStages::Replicas& replicas = *order_[s].replicas;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const Prefix& earlier = fronts[s][i];
      if (!earlier.exists()) continue;
      each_end(cuts, i, order_[s], [&](std::size_t j) {
        const Suffix& later = backs[s + 1][j];
        if (!later.exists()) return true;
        const PathStages::StageBound next = stages_.stage(cuts[i], cuts[j]);
        if (stages_.keeps(next, replicas, earlier, later))
          backs[s][i].merge(stages_.before(next, replicas, later), stages_.waves());
        return true;
      });
    }
    if (stopped_ || std::ranges::none_of(backs[s], &Suffix::exists)) return false;
  }
  return backs.front().front().exists();
}

/// Whether order_ keeps within the step, as far as the finest cuts and OrderBound can tell.
ReplicaOrders::Found ReplicaOrders::keeps() {
  std::vector<std::vector<Suffix>> backs;
  if (!go_back(cuts_.coarse(), fronts_, backs)) return stopped_ ? Found::Stopped : Found::None;
  for (std::size_t level = 1; level < cuts_.levels().size(); ++level) {
    const std::vector<PathCut>& coarse = cuts_.levels()[level - 1];
    const std::vector<PathCut>& cuts = cuts_.levels()[level];
    std::vector<std::vector<Prefix>> fronts;
    fronts.emplace_back(cuts.size(), Prefix::none()).front() = Prefix{};
    for (std::size_t s = 0; s < order_.size(); ++s) {
      // The stages after a fine cut take at least as long as those after the coarse cut that contains the fine one.
      std::vector<const Suffix*> later(cuts.size(), nullptr);
      for (std::size_t c = 0; c < coarse.size(); ++c) {
        if (!backs[s + 1][c].exists()) continue;
        for (std::size_t part = coarse[c].parts; part < coarse[c].parts_end; ++part) later[part] = &backs[s + 1][c];
      }
      fronts.push_back(extended(cuts, fronts.back(), order_[s], later));
    }
    std::vector<std::vector<Suffix>> finer;
    if (!go_back(cuts, fronts, finer)) return stopped_ ? Found::Stopped : Found::None;
    backs = std::move(finer);
  }
  StageOrder stages;
  for (const Element& stage : order_) {
    stages.replicas.push_back(stage.replicas->first);
    stages.on_path.push_back(stage.on_path);
  }
  const std::optional<bool> refuted = bound_.refutes(stages_.time(), stages, *stop_);
  return !refuted ? Found::Stopped : *refuted ? Found::None : Found::Some;
}

}  // namespace stagecraft::partitioner

#include "partitioner/search/split_polish.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "partitioner/search/local_search.h"
#include "partitioner/search/search_tuning.h"

namespace stagecraft::partitioner {
namespace {

/// 1, 2, 4, ... times less than all devices, ascending.
std::vector<int> device_counts(int all) {
  std::vector<int> out;
  for (int devices = all; devices >= 1 && out.size() < SearchTuning::kDeviceCounts; devices /= 2)
    out.insert(out.begin(), devices);
  return out;
}

/// The drafts with the smallest bounds; the best draft of each number of stages comes before all others.
std::vector<Split> best_drafts(std::vector<BoundedSplit> drafts) {
  std::ranges::stable_sort(drafts, {}, [](const auto& entry) { return entry.first; });
  std::set<std::size_t> stages;
  std::vector<Split> out;
  std::vector<Split> others;
  for (auto& [bound, split] : drafts) {
    const bool is_first = stages.insert(split.replicas.size()).second;
    (is_first ? out : others).push_back(std::move(split));
  }
  out.insert(out.end(), others.begin(), others.end());
  if (out.size() > SearchTuning::kImproved) out.resize(SearchTuning::kImproved);
  return out;
}

}  // namespace

void SplitPolish::run(Seconds low, const std::vector<Split>& suggested, std::vector<BoundedSplit> drafts) {
  if (rearranges()) {
    rearrange(drafts, shares_.begin + SearchTuning::kRearrangeShare * (shares_.shake - shares_.begin));
    shares_.begin = context_.time.allowed();
  }
  const std::vector<int> counts = device_counts(context_.costs.devices());
  const double count_share = (shares_.shake - shares_.begin) / static_cast<double>(counts.size());
  SearchTime& time = context_.time;
  time.allow_some(shares_.begin);
  for (const int devices : counts) {
    if (devices == context_.costs.devices()) {
      time.allow_some(shares_.shake - count_share / 2);
      std::vector<Split> starts = suggested;
      const std::vector<Split> more = best_drafts(std::move(drafts));
      starts.insert(starts.end(), more.begin(), more.end());
      improve(starts, devices, count_share / 4);
      break;
    }
    time.allow_some(time.allowed() + count_share / 2);
    if (trips_ == nullptr) continue;
    const Seconds least = trips_->least(low, devices, SearchTuning::kCoarse);
    improve(trips_->suggested(least, devices), devices, count_share / 4);
    time.allow_some(time.allowed() + count_share / 2);
    if (context_.constraints.replicas.empty()) trips_->enumerate_all(least, devices);
  }
  shake();
}

void SplitPolish::improve_best(double share) {
  const auto& best = context_.plans.best_splits();
  if (best.empty()) return;
  context_.time.allow_some(share / 2);
  improve({best.front().second}, context_.costs.devices(), share / 2);
}

/// Improves the splits by their bounds up to the allowed share of the time, then by predictions for `more`.
void SplitPolish::improve(const std::vector<Split>& starts, int devices, double more) {
  std::vector<std::pair<Seconds, Split>> found;
  const auto add = [&](const Split& split) {
    if (!context_.costs.lower_bound(split)) return;
    if (const std::optional<Seconds> step = context_.plans.step_of(split)) found.emplace_back(*step, split);
  };
  const auto stop = context_.time.stop();
  for (const Split& split : starts) {
    if (stop()) break;
    add(split);
    add(improved(context_.costs, split, context_.movable(devices), bound_of_split(context_.costs), stop));
  }
  std::ranges::stable_sort(found, {}, [](const auto& entry) { return entry.first; });
  const auto known = std::ranges::unique(found);
  found.erase(known.begin(), known.end());
  if (found.size() > SearchTuning::kMostSplits) found.resize(SearchTuning::kMostSplits);
  if (devices == context_.costs.devices()) {  // the best splits on fewer devices, too
    const auto& best = context_.plans.best_splits();
    found.insert(found.end(), best.begin(), best.end());
  }
  for (const auto& [step, split] : found) polish(split, devices, context_.time.allowed() + more);
}

/// Improves a split by predictions, up to this share of the time.
void SplitPolish::polish(const Split& split, int devices, double share) {
  const SplitValue step = [this](const Split& other, Seconds upper_bound) -> std::optional<Seconds> {
    const auto least = context_.costs.lower_bound(other, {}, upper_bound);
    if (!least || *least >= upper_bound) return std::nullopt;
    return context_.plans.step_of(other);
  };
  const auto stop = [&] { return context_.time.is_past(share); };
  context_.plans.step_of(improved(context_.costs, split, context_.movable(devices), step, stop));
}

bool SplitPolish::rearranges() const {
  return trips_ == nullptr && context_.costs.dag().nodes >= SearchTuning::kManyNodes &&
         context_.costs.devices() <= SearchTuning::kFewDevices;
}

/// A beam search over the best split of each number of stages. Each turn changes one of these splits and keeps the
/// result if it is better than the kept split with as many stages. A turn can move many nodes at once, whereas each
/// move of `improved` must help by itself. The search polishes the best split at the end.
void SplitPolish::rearrange(const std::vector<BoundedSplit>& drafts, double share) {
  context_.time.allow_some(share);
  std::mt19937 random(SearchTuning::kFirstSeed + static_cast<unsigned>(context_.time.round()));
  const int devices = context_.costs.devices();
  const Movable movable = context_.movable(devices);
  const auto is_past = [&] { return context_.time.is_past(share); };
  std::map<std::size_t, BoundedSplit> kept;  // by number of stages, with their steps
  std::vector<std::size_t> order;            // numbers of stages, the best first
  const auto keep = [&](Split split) {
    const std::size_t stages = split.replicas.size();
    const auto known = kept.find(stages);
    const Seconds worst = known == kept.end() ? kForever : known->second.first;
    if (movable.limit && context_.costs.least_memory(split) > *movable.limit) return;
    const std::optional<Seconds> least = context_.costs.lower_bound(split);
    if (!least || *least >= worst) return;
    const std::optional<Seconds> step = context_.plans.step_of(split);
    if (!step || *step >= worst) return;
    if (known == kept.end()) order.push_back(stages);
    kept.insert_or_assign(stages, BoundedSplit{*step, std::move(split)});
    std::ranges::stable_sort(order, {}, [&](std::size_t number) { return kept.at(number).first; });
  };
  for (const auto& [bound, split] : drafts) {
    if (!is_past()) keep(split);
  }
  for (int i = 0; i < SearchTuning::kRandomStarts && movable.stages && !is_past(); ++i)
    keep(random_split(context_.costs, movable, random));
  if (order.empty()) return;
  for (int idle = 0; idle < SearchTuning::kIdleRearrangements && !is_past(); ++idle) {
    const std::size_t among = random() % 2 == 0 ? std::min(order.size(), SearchTuning::kFavoured) : order.size();
    const Seconds best = kept.at(order.front()).first;
    keep(rearranged(context_.costs, kept.at(order[random() % among]).second, movable, random));
    if (kept.at(order.front()).first < best) idle = 0;
  }
  polish(kept.at(order.front()).second, devices, share);
}

/// Polishes the best splits again after some random moves.
void SplitPolish::shake() {
  std::mt19937 random(SearchTuning::kFirstSeed + static_cast<unsigned>(context_.time.round()));
  const int devices = context_.costs.devices();
  const auto& best = context_.plans.best_splits();
  for (int round = 0; round < SearchTuning::kShakes && !best.empty() && !context_.time.is_past(shares_.end); ++round) {
    const Split& from = best[random() % std::min<std::size_t>(best.size(), 2)].second;
    polish(shaken(context_.costs, from, context_.movable(devices), random), devices, shares_.end);
  }
}

}  // namespace stagecraft::partitioner

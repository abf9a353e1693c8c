#include "partitioner/search/split_polish.h"

#include <algorithm>
#include <random>
#include <set>

#include "partitioner/exact/local_search.h"

namespace stagecraft::partitioner {
namespace {

constexpr std::size_t kImproved = 12;  ///< drafts that it begins with
constexpr std::size_t kCounts = 8;     ///< numbers of devices
constexpr int kShakes = 100;           ///< random moves
constexpr double kCoarse = 0.02;       ///< precision of bounds over some of the devices

/// 1, 2, 4, ... times less than all devices, ascending.
std::vector<int> device_counts(int all) {
  std::vector<int> out;
  for (int devices = all; devices >= 1 && out.size() < kCounts; devices /= 2) out.insert(out.begin(), devices);
  return out;
}

/// Those with the smallest bounds, the best of each number of stages before the others.
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
  if (out.size() > kImproved) out.resize(kImproved);
  return out;
}

}  // namespace

void SplitPolish::run(Seconds low, const std::vector<Split>& suggested, std::vector<BoundedSplit> drafts) {
  const std::vector<int> counts = device_counts(context_.costs.devices());
  const double each = (shares_.shake - shares_.begin) / static_cast<double>(counts.size());
  SearchTime& time = context_.time;
  time.allow_some(shares_.begin);
  for (const int devices : counts) {
    if (devices == context_.costs.devices()) {
      time.allow_some(shares_.shake - each / 2);
      std::vector<Split> starts = suggested;
      const std::vector<Split> more = best_drafts(std::move(drafts));
      starts.insert(starts.end(), more.begin(), more.end());
      improve(starts, devices, each / 4);
      break;
    }
    time.allow_some(time.allowed() + each / 2);
    if (trips_ == nullptr) continue;
    const Seconds least = trips_->least(low, devices, kCoarse);
    improve(trips_->suggested(least, devices), devices, each / 4);
    time.allow_some(time.allowed() + each / 2);
    if (context_.constraints.replicas.empty()) trips_->enumerate_all(least, devices);
  }
  shake();
}

/// Until the allowed share of the time, then for `more`.
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
  if (found.size() > PredictedPlans::kMostSplits) found.resize(PredictedPlans::kMostSplits);
  if (devices == context_.costs.devices()) {  // what was best on fewer, too
    const auto& best = context_.plans.best_splits();
    found.insert(found.end(), best.begin(), best.end());
  }
  for (const auto& [step, split] : found) polish(split, devices, context_.time.allowed() + more);
}

/// Improves a split by predictions, until that share of the time.
void SplitPolish::polish(const Split& split, int devices, double share) {
  const SplitValue step = [this](const Split& other, Seconds than) -> std::optional<Seconds> {
    const auto least = context_.costs.lower_bound(other);
    if (!least || *least >= than) return std::nullopt;
    return context_.plans.step_of(other);
  };
  const auto stop = [&] { return context_.time.is_past(share); };
  context_.plans.step_of(improved(context_.costs, split, context_.movable(devices), step, stop));
}

/// Polishes the best splits again after some random moves.
void SplitPolish::shake() {
  std::mt19937 random(1);
  const int devices = context_.costs.devices();
  const auto& best = context_.plans.best_splits();
  for (int round = 0; round < kShakes && !best.empty() && !context_.time.is_past(shares_.end); ++round) {
    const Split& from = best[random() % std::min<std::size_t>(best.size(), 2)].second;
    polish(shaken(context_.costs, from, context_.movable(devices), random), devices, shares_.end);
  }
}

}  // namespace stagecraft::partitioner

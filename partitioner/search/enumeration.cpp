#include "partitioner/search/enumeration.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "partitioner/search/least_time.h"

namespace stagecraft::partitioner {
namespace {

/// After an enumeration this far beyond the bound, relatively, comes one without a bound.
constexpr double kMostBeyond = 16;
/// Splits that wait to be predicted.
constexpr std::size_t kMostWaiting = 20'000;

}  // namespace

bool predict_up_to(const SearchContext& context, Seconds time, const EachSplit& visit_splits) {
  std::vector<std::pair<Seconds, Split>> waiting;
  const auto empty = [&] {
    std::ranges::stable_sort(waiting, {}, [](const auto& entry) { return entry.first; });
    for (const auto& [bound, split] : waiting) {
      if (context.time.is_up()) return false;
      if (!context.plans.is_excluded(bound)) context.plans.step_of(split);
    }
    waiting.clear();
    return true;
  };
  const auto now = [&] { return std::min(context.plans.last_wanted().value_or(time), time); };
  const bool finished = visit_splits([&](const Split& split) {
    if (!context.is_wanted(split) && context.constraints.replicas.empty()) return now();
    const auto bound = context.costs.lower_bound(split);
    if (!bound || *bound > time * (1 + kEqual) || context.plans.is_excluded(*bound)) return now();
    if (context.limit && context.costs.least_memory(split) > *context.limit) return now();
    waiting.emplace_back(*bound, split);
    if (waiting.size() >= kMostWaiting) empty();
    return now();
  });
  return empty() && finished;
}

Seconds enumerate(const SearchContext& context, Seconds low, Seconds done, bool is_complete,
                  const std::function<bool(Seconds time)>& all_up_to) {
  const auto last = [&] { return context.plans.last_wanted().value_or(kForever); };
  double beyond = kBoundPrecision;
  while (true) {
    const bool is_last = beyond > kMostBeyond || low <= Seconds(0);
    const Seconds time = std::min(last(), is_last ? kForever : low * (1 + beyond));
    if (!all_up_to(time)) return done;
    if (is_complete) done = std::max(done, std::min(last(), time));
    if (time >= last()) return done;
    beyond *= 2;
  }
}

}  // namespace stagecraft::partitioner

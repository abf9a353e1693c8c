#include "partitioner/search/trip_search.h"

#include <algorithm>
#include <utility>

#include "partitioner/search/enumeration.h"
#include "partitioner/search/least_time.h"

namespace stagecraft::partitioner {
namespace {

/// More down-sets than this are not followed along a path.
constexpr std::size_t kMostTripSets = 20'000;

}  // namespace

std::unique_ptr<TripSearch> TripSearch::of(const SearchContext& context) {
  if (context.constraints.chunks.value_or(1) != 1) return nullptr;
  std::unique_ptr<TripBound> bound = TripBound::of(context.costs, context.countable(), kMostTripSets);
  if (!bound) return nullptr;
  return std::unique_ptr<TripSearch>(new TripSearch(context, std::move(bound)));
}

TripSearch::TripSearch(const SearchContext& context, std::unique_ptr<TripBound> bound)
    : context_(context), bound_(std::move(bound)) {}

Seconds TripSearch::least(Seconds low, int devices, double precision) {
  const auto stop = context_.time.stop();
  return least_time(low, kForever, precision, 0.5, [&](Seconds time) { return bound_->refutes(time, devices, stop); });
}

std::vector<Split> TripSearch::suggested(Seconds least, int devices) {
  const auto stop = context_.time.stop();
  std::vector<Split> out;
  for (const double beyond : {kBoundPrecision, 0.02, 0.05, 0.1, 0.2, 0.4}) {
    const std::optional<bool> refuted = bound_->refutes(least * (1 + beyond), devices, stop);
    if (!refuted) break;
    if (*refuted) continue;
    for (Split& split : bound_->splits()) {
      if (context_.is_wanted(split) && std::ranges::find(out, split) == out.end()) out.push_back(std::move(split));
    }
  }
  return out;
}

Seconds TripSearch::enumerate_all(Seconds low, int devices) {
  const auto stop = context_.time.stop();
  return enumerate(context_, low, low, is_whole(), [&](Seconds time) {
    const std::optional<bool> refuted = bound_->refutes(time, devices, stop);
    if (!refuted || *refuted) return refuted.has_value();
    return predict_up_to(context_, time, [&](const auto& visit) { return bound_->visit_splits(time, visit, stop); });
  });
}

}  // namespace stagecraft::partitioner

#pragma once

#include <memory>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/exact/trip_bound.h"
#include "partitioner/search/search_context.h"

namespace stagecraft::partitioner {

/// Searches with TripBound: a bound of all plans, splits that it suggests, and all splits up to a bound. Each goes on
/// for the time that the context allows.
class TripSearch {
 public:
  /// Null where there is no TripBound: for too many down-sets, if nothing waits, and for several stages per device. The
  /// context must outlive it.
  [[nodiscard]] static std::unique_ptr<TripSearch> of(const SearchContext& context);

  /// The largest time found from `low` on that no split over so many devices can keep within.
  [[nodiscard]] Seconds least(Seconds low, int devices, double precision);

  /// Splits that the constraints allow and that keep, by the bound, within a little more time than `least`.
  [[nodiscard]] std::vector<Split> suggested(Seconds least, int devices);

  /// Predicts all splits over at most so many devices, by bounds that rise from `low`. Returns the bound up to which
  /// nothing was left out, as the function enumerate does.
  Seconds enumerate_all(Seconds low, int devices);

  /// TripBound::is_whole.
  [[nodiscard]] bool is_whole() const { return bound_->is_whole(); }

 private:
  TripSearch(const SearchContext& context, std::unique_ptr<TripBound> bound);

  const SearchContext& context_;
  std::unique_ptr<TripBound> bound_;
};

}  // namespace stagecraft::partitioner

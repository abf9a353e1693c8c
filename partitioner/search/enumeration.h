#pragma once

#include <functional>

#include "costmodel/units.h"
#include "partitioner/search/search_context.h"

namespace stagecraft::partitioner {

/// How closely a bound without splits is found, and how far beyond it the first enumeration goes, relatively.
inline constexpr double kBoundPrecision = 2e-3;

/// Calls `visit` with every split within a time; `visit` returns the time from then on. False if it was stopped.
using EachSplit = std::function<bool(const std::function<Seconds(const Split&)>& visit)>;

/// Predicts the splits that `visit_splits` finds whose own bounds are within `time` and below the last wanted step, the
/// smallest bounds first. False if time is up.
bool predict_up_to(const SearchContext& context, Seconds time, const EachSplit& visit_splits);

/// Calls `all_up_to`, which predicts all splits up to a bound, with times that rise from `low` until they reach the
/// last wanted step; it says false if time was up. Returns the bound up to which nothing was left out: `done` is known
/// beforehand, and becomes more if `is_complete`, that is, if `all_up_to` leaves nothing out.
Seconds enumerate(const SearchContext& context, Seconds low, Seconds done, bool is_complete,
                  const std::function<bool(Seconds time)>& all_up_to);

}  // namespace stagecraft::partitioner

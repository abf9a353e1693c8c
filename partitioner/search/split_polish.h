#pragma once

#include <utility>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/search/enumeration.h"
#include "partitioner/search/search_context.h"

namespace stagecraft::partitioner {

/// A split and its lower bound.
using BoundedSplit = std::pair<Seconds, Split>;

/// Improves splits with small moves: by their bounds, then the best of them by their predictions, which see more of
/// what makes a plan slow. First over some of the devices, then ever more of them, then over all; at last the best ones
/// again after random moves. In a large graph, cuts of many nodes have to move: if it has too many sets for TripBound,
/// and there are few devices, it first rearranges the drafts and random splits at random. All splits that it tries are
/// in SearchContext::plans.
class SplitPolish {
 public:
  /// When it begins, when the random moves do, and when it ends, as shares of the time.
  struct Shares {
    double begin = 0, shake = 0, end = 0;
  };

  /// `trips` suggests where to begin; may be null. Arguments must outlive it.
  SplitPolish(const SearchContext& context, TripSearch* trips, const Shares& shares)
      : context_(context), trips_(trips), shares_(shares) {}

  /// Improves the best split so far, up to this share of the time.
  void improve_best(double share);

  /// `low`: a bound of all plans. `suggested` and some of the `drafts` are where it begins with all devices.
  void run(Seconds low, const std::vector<Split>& suggested, std::vector<BoundedSplit> drafts);

 private:
  void improve(const std::vector<Split>& starts, int devices, double more);
  void polish(const Split& split, int devices, double share);
  void shake();
  [[nodiscard]] bool rearranges() const;
  void rearrange(const std::vector<BoundedSplit>& drafts, double share);

  const SearchContext& context_;
  TripSearch* trips_;
  Shares shares_;
};

}  // namespace stagecraft::partitioner

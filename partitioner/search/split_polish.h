#pragma once

#include <utility>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/search/enumeration.h"
#include "partitioner/search/search_context.h"

namespace stagecraft::partitioner {

/// A split and its lower bound.
using BoundedSplit = std::pair<Seconds, Split>;

/// Improves splits by small moves. A move is judged first by the split's bound; the best splits then move by their
/// predictions, which see more of what makes a plan slow. The search covers some of the devices, then more, then all;
/// at last, the best splits move again after random moves. In a large graph, cuts of many nodes have to move: if the
/// graph has too many sets for TripBound and there are few devices, a beam search first rearranges the drafts and
/// random splits. SearchContext::plans receives all splits that are tried.
class SplitPolish {
 public:
  /// When the search begins, when the random moves begin, and when the search ends, as shares of the time.
  struct Shares {
    double begin = 0, shake = 0, end = 0;
  };

  /// `trips` suggests splits to begin with; may be null. The arguments must outlive the object.
  SplitPolish(const SearchContext& context, TripSearch* trips, const Shares& shares)
      : context_(context), trips_(trips), shares_(shares) {}

  /// Improves the best split so far, up to this share of the time.
  void improve_best(double share);

  /// `low` is a bound of all plans. With all devices, the search begins with `suggested` and some of the `drafts`.
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

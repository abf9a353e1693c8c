#pragma once

#include <cstddef>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/timeline.h"

namespace stagecraft::simulation {

/// Collects the spans of a run rank by rank, so that no sort of all spans is needed: the spans of one rank come almost
/// in the order of their starts. The constructor allocates room for one span per entry of the lists; each further span
/// may allocate.
class RankSpans {
 public:
  explicit RankSpans(const std::vector<std::vector<Action>>& lists);

  void add(const Span& span) {
    Region& region = regions_[to_index(span.rank)];
    if (region.end < region.most) {
      spans_[region.end++] = span;
    } else {
      more_.push_back(span);
    }
  }
  /// All spans, by rank, then by start; equal ones in the order in which they came. Afterwards, this object is empty.
  [[nodiscard]] std::vector<Span> take();

 private:
  struct Region {
    std::size_t begin, end, most;  // in spans_; from `end` to `most` it is empty
  };

  std::vector<Span> spans_;
  std::vector<Region> regions_;  // by rank
  std::vector<Span> more_;       // of ranks whose region is full
};

}  // namespace stagecraft::simulation

#pragma once

#include <string>

#include "costmodel/text/progress.h"
#include "partitioner/cost_model.h"
#include "partitioner/search_progress.h"

namespace stagecraft::partitioner {

/// How far a search is, in a line: "optimal: 1.2 of 3 s, best step 12.3 ms, gap at most 4.1 %, 812 plans predicted".
/// With the number of things to try but no limit, the time left is that of the rest in proportion. Empty before a
/// search.
[[nodiscard]] std::string progress_text(const SearchState& state);

/// Shows on a terminal how far the searches are that use its costs, until it ends.
class ShownSearch {
 public:
  ShownSearch() : line_([this](Seconds) { return progress_text(progress_.state()); }) {}

  [[nodiscard]] const CostModel& costs() const { return costs_; }
  /// LiveProgress::end.
  void end() { line_.end(); }

 private:
  SearchProgress progress_;
  CostModel costs_ = simulated_costs(progress_);
  LiveProgress line_;  ///< the last: it reads the others until it is gone
};

}  // namespace stagecraft::partitioner

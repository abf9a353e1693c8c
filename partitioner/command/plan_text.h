#pragma once

#include <string>

#include "costmodel/graph.h"
#include "costmodel/text/progress.h"
#include "costmodel/text/table.h"
#include "partitioner/cost_model.h"
#include "partitioner/search_progress.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// Where devices are in no stage because there are too few microbatches for more replicas: "; with 4 microbatches, at
/// most 4 replicas of a stage have work: try more --microbatches", or that the loss allows no more. Else nothing.
[[nodiscard]] std::string idle_reason_text(const Graph& graph, const RankedPlan& ranked);

/// The stages of a plan as a table no wider than the screen, then its microbatches, its times and, of a plan with a
/// lower bound, how far it can be from the best. Ends with a line end. `other_device`: how the profiled device differs
/// from the topology's; then every figure is marked with ~, and a line says so. Precondition: the plan is valid for the
/// graph.
[[nodiscard]] std::string stages_text(const Graph& graph, const RankedPlan& ranked, const std::string& other_device,
                                      const Screen& screen);

/// How far a search is, in a line: "optimal: 1.2 of 3 s, best step 12.3 ms, gap at most 4.1 %, 812 plans predicted".
/// Without a time limit, the line estimates the time that is left, in proportion, if it is known how much there is to
/// try. Empty before a search.
[[nodiscard]] std::string progress_text(const SearchState& state);

/// Shows on a terminal how far the searches with costs() are, until end().
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

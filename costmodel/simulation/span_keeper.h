#pragma once

#include <vector>

#include "costmodel/timeline.h"

namespace stagecraft {

/// Spans of a bounded number of a run's steps, however long it runs: of the first kEdge steps, the last kEdge, and
/// every n-th, with n growing by powers of 2 so that at most kMiddle of these are kept.
class SpanKeeper {
 public:
  static constexpr int kEdge = 16;
  static constexpr int kMiddle = 32;
  /// Most steps whose spans are kept.
  static constexpr int kMost = 2 * kEdge + kMiddle;

  /// `first_step`: number of the run's first step.
  explicit SpanKeeper(int first_step = 0) : first_step_(first_step) {}

  /// Spans may come in any order, but not kEdge or more steps after the newest: theirs may already be dropped.
  void add(const Span& span);

  /// The kept spans, in order of arrival.
  [[nodiscard]] const std::vector<Span>& spans() const { return spans_; }
  /// Which steps those are.
  [[nodiscard]] KeptSpans kept() const { return {kEdge, kEdge, every_}; }

 private:
  [[nodiscard]] bool keeps(int place) const;
  void begin(int place);

  int first_step_;
  int newest_ = -1;  ///< position in the run, from 0
  int every_ = 1;
  std::vector<Span> spans_;
};

}  // namespace stagecraft

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/timeline.h"

namespace stagecraft {

/// The spans that a rank measures for its list, in order: its entries except receives, which only post; before a
/// forward a wait (a receive) for each boundary into its stage in the plan's order, before a backward one for each
/// boundary from which gradients come back, in the reverse order. Boundaries between stages of one rank count too.
[[nodiscard]] std::vector<Action> measured_actions(const BoundPlan& plan, const std::vector<Action>& list);
/// Checks that a rank follows its list, span by span: exactly the measured_actions of its list in order, with a
/// synchronous schedule again in each step. Looks at the order of the spans, not at their times.
class OrderCheck {
 public:
  /// `list` is that of `rank` in `plan`; `first_step` the number of the first step.
  OrderCheck(const BoundPlan& plan, const std::vector<Action>& list, int rank, int first_step = 0);
  /// The error in the rank's next span: step and entry (counted from 1), the measured action and that of the list.
  /// Absent if it is right.
  [[nodiscard]] std::optional<std::string> next(const Span& span);
  /// The error if spans are missing at the end. Absent if the rank has replayed its list `replays` times.
  [[nodiscard]] std::optional<std::string> end(int replays) const;

 private:
  [[nodiscard]] std::string place() const;

  std::vector<Action> expected_;
  int rank_;
  int first_step_;
  bool synchronous_;
  int replay_ = 0;
  std::size_t entry_ = 0;
};

}  // namespace stagecraft

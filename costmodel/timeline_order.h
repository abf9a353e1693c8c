#pragma once

#include <optional>
#include <string>
#include <vector>

#include "costmodel/plan.h"
#include "costmodel/timeline.h"

namespace stagecraft {

/// The spans that a rank measures of its list, in their order: its entries but for receives, which only post; before a
/// forward a wait (a receive) for each boundary into its stage in the plan's order, before a backward one for each
/// boundary from which gradients come back, in the reverse order. Boundaries between stages of one rank count too.
[[nodiscard]] std::vector<Action> measured_actions(const Plan& plan, const std::vector<Action>& list);

/// Where a measured timeline is not what the plan's lists say: the first rank, step and entry (counted from 1), what
/// was measured there and what the list says. Absent if every rank did exactly the measured_actions of its list in
/// their order, `replays` times, of a synchronous schedule as steps `first_step`, `first_step` + 1, ... Looks at the
/// order of a rank's spans, not at their times, so ranks need no common clock.
[[nodiscard]] std::optional<std::string> disorder(const Timeline& timeline, const Plan& plan,
                                                  const std::vector<std::vector<Action>>& lists, int replays,
                                                  int first_step = 0);

}  // namespace stagecraft

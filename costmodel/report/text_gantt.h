#pragma once

#include <string>
#include <vector>

#include "costmodel/report/pictures.h"

namespace stagecraft::report {

/// One step as text, a line per rank of at most `width` characters (at least 40 are used), with a time scale and a
/// legend. A column shows the action that takes most of its time: "F3--" is the forward of microbatch 3, "B3==" the
/// backward, "W3++" the weight gradient, "R" the all-reduce, "U" the update, "~" waiting for a message, "." idle. With
/// `colour`, with the escape sequences of terminals. At most 32 ranks; if there are more, the first of each stage. The
/// time axis ends with the step, or after `axis` if that is later.
[[nodiscard]] std::string text_gantt(const ShownStep& step, int width, bool colour, Seconds axis = Seconds(0));

/// The same for several steps, one below the other under their titles, on one time axis that starts with each step.
[[nodiscard]] std::string text_gantts(const std::vector<ShownStep>& steps, int width, bool colour);

}  // namespace stagecraft::report

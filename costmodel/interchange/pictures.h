#pragma once

#include <string>

#include "costmodel/accuracy/validate.h"
#include "costmodel/graph.h"
#include "costmodel/plan.h"

namespace stagecraft::interchange {

/// The layer graph as a picture, in Graphviz's language DOT; the same text for the same arguments. A box is a layer:
/// id, kind, forward + backward time and parameter bytes of one microbatch on one device, its full name as a tooltip;
/// an arrow is an edge, with its bytes if it crosses stages or is among the large ones. Long lists continue in the next
/// column. With a `plan` (else null) columns belong to stages, in a frame of the stage's colour that shows replicas,
/// devices and time; without one, colours show the layers' shares of the time. Colours are distinguishable under the
/// common kinds of colour blindness, and all text is black on light ones.
/// Throws std::invalid_argument naming a layer that is in only one of graph and plan.
[[nodiscard]] std::string graph_dot(const Graph& graph, const Plan* plan = nullptr);

/// An SVG picture of predicted (x) against measured (y) step times on the same logarithmic scale, with a line where
/// they are equal, a band of 10 % on both sides, and bars for intervals. Up to eight models each have their own colour
/// and shape. Throws std::invalid_argument if there are no runs or a time is not above 0.
[[nodiscard]] std::string scatter_picture(const Validation& validation);

}  // namespace stagecraft::interchange

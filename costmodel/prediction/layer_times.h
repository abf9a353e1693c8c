#pragma once

#include "costmodel/graph.h"

namespace stagecraft {

/// Multiplies the median and the spread by `factor`.
void scale(Timing& timing, double factor);

/// Multiplies every time of the layer's computation by `factor`: forward, backward and its parts, accumulation and
/// update. The host's time to load an input stays.
void scale(Layer& layer, double factor);

}  // namespace stagecraft

#include "costmodel/prediction/layer_times.h"

namespace stagecraft {

void scale(Timing& timing, double factor) {
  timing.median = timing.median * factor;
  if (timing.spread) timing.spread = *timing.spread * factor;
}

void scale(Layer& layer, double factor) {
  scale(layer.forward, factor);
  scale(layer.backward, factor);
  if (layer.accumulation) scale(*layer.accumulation, factor);
  if (layer.update) scale(*layer.update, factor);
  if (layer.backward_parts) {
    scale(layer.backward_parts->inputs, factor);
    scale(layer.backward_parts->weights, factor);
  }
}

}  // namespace stagecraft

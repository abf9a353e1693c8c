#include "partitioner/exact/stage_bytes.h"

#include <algorithm>

namespace stagecraft::partitioner {

StageBytes& StageBytes::operator+=(const StageBytes& layer) {
  state += layer.state;
  gradients += layer.gradients;
  per_microbatch += layer.per_microbatch;
  once += layer.once;
  segment = std::max(segment, layer.segment);
  return *this;
}

Bytes peak_bytes(const StageBytes& stage, std::int64_t in_flight, bool with_gradients, Bytes workspace, double factor) {
  const auto scaled = [factor](Bytes bytes) {
    return Bytes(static_cast<std::int64_t>(static_cast<double>(bytes.value) * factor));
  };
  const Bytes once = stage.once + stage.segment;
  const Bytes all = stage.per_microbatch * in_flight + once + workspace;
  if (with_gradients) return stage.state + stage.gradients + scaled(all);
  const Bytes after = stage.per_microbatch * (in_flight - 1) + (in_flight > 1 ? once : Bytes(0));
  const Bytes scaled_after = stage.gradients + scaled(after);
  return stage.state +
         (all >= stage.gradients + after ? std::max(all, std::min(scaled(all), scaled_after)) : scaled_after);
}

}  // namespace stagecraft::partitioner

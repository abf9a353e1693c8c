#pragma once

#include <cstddef>
#include <vector>

#include "costmodel/plan.h"

namespace stagecraft {

/// The channel tags of what crosses a plan's boundaries: one for each tensor and direction.
class EdgeTags {
 public:
  /// Throws std::invalid_argument if there are more than a channel has.
  explicit EdgeTags(const Plan& plan);
  [[nodiscard]] int tag(int boundary, std::size_t tensor, bool gradient) const;

 private:
  std::vector<int> first_;  // by boundary
};

}  // namespace stagecraft

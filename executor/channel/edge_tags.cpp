#include "executor/channel/edge_tags.h"

#include <stdexcept>
#include <string>

#include "executor/channel/channel.h"

namespace stagecraft {

EdgeTags::EdgeTags(const Plan& plan) {
  int tags = 0;
  for (const Boundary& boundary : plan.boundaries) {
    first_.push_back(tags);
    tags += 2 * static_cast<int>(boundary.tensors.size());
  }
  if (tags > Channel::kControlTag)
    throw std::invalid_argument("the plan has " + std::to_string(tags) + " tensor edges, more than a channel has tags");
}

int EdgeTags::tag(int boundary, std::size_t tensor, bool gradient) const {
  return first_[static_cast<std::size_t>(boundary)] + 2 * static_cast<int>(tensor) + (gradient ? 1 : 0);
}

}  // namespace stagecraft

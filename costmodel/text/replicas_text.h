#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace stagecraft {

/// In tables of plans on a terminal.
inline constexpr std::size_t kReplicasWidth = 18;

/// "2-1-4": the replicas of each stage; or "24 stages", where that is longer than `width`.
[[nodiscard]] std::string replicas_text(const std::vector<int>& replicas,
                                        std::size_t width = std::numeric_limits<std::size_t>::max());

}  // namespace stagecraft

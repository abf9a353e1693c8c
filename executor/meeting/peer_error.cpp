#include "executor/meeting/peer_error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stagecraft::meeting {

std::string name_ranks(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::string seconds_text(std::chrono::duration<double> time) { return fmt::format("{:.1f} s", time.count()); }

}  // namespace stagecraft::meeting

#include "costmodel/text/replicas_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stagecraft {

std::string replicas_text(const std::vector<int>& replicas, std::size_t width) {
  const std::string out = fmt::format("{}", fmt::join(replicas, "-"));
  return out.size() > width ? fmt::format("{} stages", replicas.size()) : out;
}

}  // namespace stagecraft

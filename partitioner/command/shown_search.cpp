#include "partitioner/command/shown_search.h"

#include <fmt/format.h>

#include "costmodel/text/units_text.h"
#include "partitioner/search/optimal.h"

namespace stagecraft::partitioner {
std::string progress_text(const SearchState& state) {
  if (state.search.empty()) return "";
  std::string out = state.part + (state.part.empty() ? "" : ": ") + state.search + ": ";
  out += time_text(state.passed, state.limit);
  if (state.all > 0) {
    out += fmt::format(", {} of {}", state.done, state.all);
    if (!state.limit && state.done > 0) {
      const double rest = static_cast<double>(state.all - state.done) / static_cast<double>(state.done);
      out += fmt::format(", {} left", duration_text(state.passed * rest));
    }
  }
  if (state.best) {
    out += ", best step " + format_seconds(*state.best);
    if (state.lower_bound && *state.lower_bound > Seconds(0))
      out += fmt::format(", gap at most {} %", gap_percent(*state.best, *state.lower_bound));
  }
  if (state.simulated > 0) out += fmt::format(", simulating a plan: {:.0f} %", state.simulated * 100);
  if (state.predicted > 0) out += fmt::format(", {} plans predicted", state.predicted);
  return out;
}

}  // namespace stagecraft::partitioner

#include "partitioner/settings/sized_graphs.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"
#include "costmodel/prediction/microbatch_size.h"
#include "costmodel/schedule.h"

namespace stagecraft::partitioner {
namespace {

std::string sizes_text(std::int64_t smallest, std::int64_t largest) {
  return smallest == largest ? fmt::format("{} samples", smallest) : fmt::format("{} to {} samples", smallest, largest);
}

/// Why only sizes of the profiles' range are tried.
std::string range_note(std::int64_t smallest, std::int64_t largest) {
  return fmt::format("only microbatches of {} are tried: for {}others, add profiles with other sizes by --more-graphs",
                     sizes_text(smallest, largest), smallest == largest ? "" : "smaller or larger ");
}

}  // namespace

SizedGraphs sized_graphs(const std::vector<Graph>& profiles, std::int64_t global_batch) {
  std::vector<std::int64_t> sizes;
  for (const Graph& profile : profiles) sizes.push_back(profile.microbatch_samples.value_or(0));
  std::ranges::sort(sizes);
  // Checks that the profiles belong together; that size needs no interpolation.
  (void)graph_of_samples(profiles, sizes.empty() ? 0 : sizes.front());
  SizedGraphs out;
  for (std::int64_t samples = sizes.front(); samples <= std::min(sizes.back(), global_batch); ++samples) {
    if (global_batch % samples != 0) continue;
    if (global_batch / samples > kMostMicrobatches) {
      out.notes.push_back(
          fmt::format("microbatches of {} samples are left out: a step would have {}, at most {} are "
                      "possible",
                      samples, global_batch / samples, kMostMicrobatches));
      continue;
    }
    try {
      ResizedGraph resized = graph_of_samples(profiles, samples);
      out.graphs.push_back({std::move(resized.graph), to_int(global_batch / samples), std::move(resized.origin),
                            std::ranges::binary_search(sizes, samples)});
    } catch (const std::invalid_argument& e) {
      out.notes.push_back(fmt::format("microbatches of {} samples are left out: {}", samples, e.what()));
    }
  }
  if (out.graphs.empty()) {
    std::string reasons;
    for (const std::string& note : out.notes) reasons += "; " + note;
    throw std::invalid_argument(
        fmt::format("no microbatch of {} divides --global-batch {}{}; choose a global batch "
                    "that is a multiple of {}, or add profiles with other sizes by --more-graphs",
                    sizes_text(sizes.front(), sizes.back()), global_batch, reasons, sizes.front()));
  }
  if (sizes.front() > 1 || sizes.back() < global_batch) out.notes.push_back(range_note(sizes.front(), sizes.back()));
  return out;
}

}  // namespace stagecraft::partitioner

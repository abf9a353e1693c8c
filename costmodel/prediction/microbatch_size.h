#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/graph.h"

namespace stagecraft {

/// A graph at a microbatch size that was not measured.
struct ResizedGraph {
  Graph graph;
  std::string origin;  ///< "interpolated between profiles with microbatches of 4 and 16 samples"
  bool extrapolated = false;
};

/// The costs of microbatches of `samples` samples, from profiles of the same model, device and settings with two or
/// more other sizes. Between two sizes, times, bytes, work and shapes are linear in the samples; outside them they are
/// extrapolated from the nearest two, with times and bytes never below 0. Updates, numbers of operators and the
/// slowdown of shared hosts are those of the nearest size (the smaller of two equally near ones). What describes one
/// measurement, its quality and conditions, is left out. Interpolated times keep the spread of both, extrapolated ones
/// have none and count as not measured. A profile of exactly that size is returned unchanged. `origin` is also the
/// graph's provenance note "microbatch". Throws std::invalid_argument for profiles of unknown or of equal size, for a
/// single one of another size, and for profiles that do not match, naming the first difference, and if an output would
/// have a fraction of an element.
[[nodiscard]] ResizedGraph graph_of_samples(std::vector<Graph> profiles, std::int64_t samples);

}  // namespace stagecraft

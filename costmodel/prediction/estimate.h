#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/prediction/cards.h"
#include "costmodel/units.h"

namespace stagecraft {

/// A device as a roofline describes it, for one kind of arithmetic.
struct Machine {
  MeasuredDevice device;
  std::string math;  ///< "float32", "tf32", "bfloat16", ...
  FlopsPerSecond peak;
  bool tensor_cores = false;  ///< whether tensor cores have that peak
  BytesPerSecond bandwidth;
  Seconds time_per_operator;  ///< to start an operator
  friend bool operator==(const Machine&, const Machine&) = default;
};

/// Declared time to start an operator: 5 us on a GPU, 2 us on a processor.
[[nodiscard]] Seconds default_time_per_operator(DeviceKind kind);

/// `card` for a model of `dtype` (empty: float32). `allow_tf32` matters for float32 only. Throws std::invalid_argument
/// as peak_rate.
[[nodiscard]] Machine machine_of(const Card& card, const std::string& dtype, bool allow_tf32);

/// Time that `work` takes on `machine` at assumed efficiencies: 0.85 of the peak rate of ordinary cores, 0.45 of that
/// of tensor cores, 0.8 of the memory's bandwidth. One operator computes while it moves data: the longer of the two.
/// Several operators run one after the other, each bound by one of the two: the sum of both. The time to start each
/// operator is added.
/// Sources: Williams, Waterman & Patterson, CACM 52(4), 2009 (roofline); Narayanan et al., SC 2021, table 1 (44 to 52 %
/// of the tensor cores' peak in whole training steps). The other two are assumed.
[[nodiscard]] Seconds roofline_time(const Work& work, const Machine& machine);

/// Measured times from which the efficiency of layers is learned.
struct RooflineReference {
  Graph graph;
  Machine machine;
};

/// `graph` with its times replaced by estimates for `target`. Each time is roofline_time on the target times a factor:
/// - with its own times in the reference (same layer id and kind): its measured time over its roofline_time on the
///   reference's machine;
/// - else the median of these factors over the reference's layers of this kind and direction, else over all layers;
/// - 1 without a reference.
/// The reference's measured times are scaled to its whole iteration, as in a prediction. Layers without counted work
/// are scaled by the geometric mean of the ratios of effective peaks and bandwidths. A time that was measured as 0
/// stays 0. An update moves update_bytes of the parameters; without a measured update there is none.
///
/// Timing::log_spread, assumed: 0.15 with its own factor from a machine with the same kind of cores, 0.3 from one with
/// other cores or of another kind (processor, GPU), 0.5 without a reference; in quadrature 0.3 more for a factor of the
/// kind, and log 2 * w * (1 - w) * |r_c - r_m| / (w r_c + (1 - w) r_m), as if the ratio of compute to memory time might
/// be wrong by a factor of two (w: share of compute in the reference's roofline; r: target over reference). A layer
/// without counted work: half of |log(r_c / r_m)| instead.
///
/// The graph says so in Graph::estimate and its provenance. Bytes and shapes are kept. Everything that belongs to the
/// measurement is dropped: whole iteration, slowdown, loading times, quality, conditions, shares. Throws
/// std::invalid_argument naming the layer if it has neither counted work nor a time in the reference.
[[nodiscard]] Graph estimated(Graph graph, const Machine& target, const std::optional<RooflineReference>& reference);

/// Layers of `reference` whose rate exceeds its peak, one clause for the fastest: "layer "fc" reached 118 TFLOP/s in
/// the forward, more than the 67 TFLOP/s of NVIDIA GH200 480GB with float32". Empty if there are none.
[[nodiscard]] std::string impossible_rate(const RooflineReference& reference);

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

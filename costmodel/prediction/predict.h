#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/simulation/simulate.h"
#include "costmodel/timeline.h"

namespace stagecraft {

/// Where a figure comes from, the most trusted first.
enum class FigureSource {
  Measured,
  Fitted,        ///< a line through measurements
  Analytic,      ///< a formula with numbers that were given
  Extrapolated,  ///< from measurements, outside their range
  Assumed,       ///< given, of unknown origin
  Calibrated,    ///< with factors from measured runs
};

/// "measured", "fitted", ...; the name in files.
[[nodiscard]] const char* to_string(FigureSource source);
/// The inverse. Throws std::invalid_argument listing the names.
[[nodiscard]] FigureSource figure_source(const std::string& word);

/// The 90 % interval of a figure.
template <class T>
struct Range {
  T low{};
  T high{};
  FigureSource source = FigureSource::Measured;
  friend bool operator==(const Range&, const Range&) = default;
};

/// The intervals of a stage's figures of the same names.
struct StageRanges {
  Range<Seconds> forward, backward, compute, update, reduce, exposed_transfer, bubble;
  Range<Bytes> memory;  ///< of the total
  friend bool operator==(const StageRanges&, const StageRanges&) = default;
};

/// One stage's share of a step, the mean over its replicas and, with an asynchronous schedule, over steps. compute +
/// update + reduce + exposed_transfer + bubble add up to the iteration, and (forward + backward) * microbatches /
/// replicas is compute.
struct StagePrediction {
  int stage = 0;
  int replicas = 1;
  Seconds forward;           ///< mean of one microbatch, including the slowdown by other ranks of its host
  Seconds backward;          ///< mean of one microbatch, including the slowdown by other ranks of its host
  Seconds compute;           ///< forwards and backwards of a step
  Seconds update;            ///< optimizer
  Seconds reduce;            ///< gradient all-reduce, from the arrival of its last member
  Seconds exposed_transfer;  ///< idle while the message it needed was on the link
  Seconds bubble;            ///< idle otherwise, including before a reduce and without a microbatch
  int in_flight = 0;         ///< largest number of microbatches held at once
  RankMemory memory;         ///< of the replica that needs the most: its share in the peak of its rank
  Bytes memory_bound;        ///< likewise of what no run exceeds, see replay_memory
  bool fits = true;  ///< by the bound, with the rank's other stages in the device's memory, if the topology gives one
  std::optional<StageRanges> ranges = {};  ///< absent: predicted without intervals
};

/// What several copies of a plan do together, see analysis/scaling.h.
struct ScalePoint {
  int copies = 1;
  int devices = 1;       ///< of the topology
  int microbatches = 1;  ///< of a step, of all copies
  Seconds iteration;     ///< of one step
  Seconds low;           ///< of a 90 % interval of the step
  Seconds high;          ///< likewise
  std::optional<double> samples_per_s;
  double efficiency = 1;  ///< throughput per device over that of one copy
  double efficiency_low = 1;
  double efficiency_high = 1;
  bool fits = true;  ///< all stages in memory
  friend bool operator==(const ScalePoint&, const ScalePoint&) = default;
};

/// Bytes that a rank holds from a moment on.
struct MemoryMoment {
  Seconds from;
  Bytes bytes;
  friend bool operator==(const MemoryMoment&, const MemoryMoment&) = default;
};

/// The memory of one rank over the timeline.
struct MemoryCourse {
  int rank = 0;
  std::vector<MemoryMoment> moments;  ///< ascending in time
  friend bool operator==(const MemoryCourse&, const MemoryCourse&) = default;
};

/// The predicted behaviour of a plan. With an asynchronous schedule, the timeline has the steps of step_window and the
/// numbers are those of its steady state.
struct Prediction {
  Seconds iteration;                    ///< of one step
  std::optional<double> samples_per_s;  ///< absent if the graph does not give its microbatch
  double bubble = 0;                    ///< share of all ranks' time that is neither compute, update nor reduce
  int devices = 0;                      ///< of the topology
  std::vector<int> unused_devices;      ///< that are in no stage
  std::vector<int> idle_devices;        ///< that are in a stage with more replicas than microbatches and have none
  std::vector<StagePrediction> stages;
  Timeline timeline;
  /// Why the graph's times are for a device other than the topology's, from accepted_differences; empty if no
  /// difference is known.
  std::string other_device = {};
  /// What is assumed about the two parts of the backward, from backward_parts_assumption; empty if nothing is.
  std::string backward_parts = {};
  std::string channel = {};  ///< over which the links were measured, "gloo"; empty: unknown, or there is one rank
  /// What is assumed about the processor time of messages, from message_processing_assumption; empty if nothing is.
  std::string message_processing = {};
  std::optional<Yardstick> yardstick = {};  ///< of the graph's measurement
  std::optional<Seconds> low = {};          ///< of a 90 % interval of the step; absent: none was made
  std::optional<Seconds> high = {};         ///< likewise
  /// What the interval comes from. Sources are independent, so each has a share of the variance (the square of its own
  /// half-width over the sum of all squares, on the scale of the logarithm; together 100 %): "shares of its variance:
  /// layers 2.0 % (half-width 2.1 %), link node 7.2 % (4.0 %), model 90.8 % (15.0 %, declared)". With a calibration:
  /// "half-width 8.0 %, residuals of the calibration". Empty: none was made.
  std::string interval = {};
  std::string calibration = {};  ///< the factors in the figures, from calibration_text; empty: none
  /// Microbatches in the middle of the step that were extrapolated, not replayed: the timeline has a gap for them, of
  /// the right length. 0: all were replayed.
  int reckoned_microbatches = 0;
  /// Of the first replica of each pipeline position. Empty if microbatches were reckoned.
  std::vector<MemoryCourse> memory_over_time = {};
  std::vector<ScalePoint> scaling = {};  ///< empty: not asked for
};

struct PredictOptions {
  TransferMode mode = TransferMode::Rendezvous;
  bool free_transfers = false;   ///< transfers are free, as closed forms with hop 0 assume
  int prefetch = 2;              ///< receives posted ahead, see action_lists
  Seconds host_per_action = {};  ///< added to each forward, backward, weight gradient and update
  /// A step with up to this many (microbatch, stage) pairs is replayed in full. A longer one is replayed only at its
  /// beginning and end, if it repeats itself between them, see predict.
  std::int64_t most_whole = 1 << 14;
  /// Maximum of pairs for a run that does not repeat itself; with its timeline as a file, 17 s and 2 GB.
  std::int64_t most_replayed = 1 << 20;
  std::function<void(double done)> progress = {};  ///< called now and then with the fraction done
};

/// "8 of 16 devices are idle: 8-15 have no microbatch, ..."; empty if all work.
[[nodiscard]] std::string idle_text(const Prediction& prediction);

/// The factor by which layer times are scaled so that forward, backward and update of all layers add up to the graph's
/// whole iteration; 1 if it has none.
[[nodiscard]] double closure_factor(const Graph& graph);

/// If ranks of the plan share the processors of a host and the topology lacks the processor time of messages there, a
/// sentence that says so; else empty.
[[nodiscard]] std::string message_processing_assumption(const Graph& graph, const Topology& topology,
                                                        const BoundPlan& plan);

/// The numbers behind a prediction. If the graph has its whole iteration, layer times are scaled by one factor so that
/// forward, backward and update of all layers add up to it. Where the schedule splits the backward, its parts are those
/// of split_backward_times, scaled alike. Throws std::invalid_argument if the plan does not fit graph and topology.
[[nodiscard]] SimulationInput simulation_input(const Graph& graph, const Topology& topology, BoundPlan plan,
                                               const PredictOptions& options = {});
/// Replays the plan's action lists against the graph's times and the topology's links. Infeasible if the lists
/// deadlock. For a step longer than PredictOptions::most_whole, replays a shorter one, with as many microbatches as it
/// takes until all ranks, messages and lists are in the state of some microbatches ago (simulate_and_watch); the rest
/// of the step repeats that period and is added. The result is that of a whole replay within 1e-9. Throws
/// std::invalid_argument as simulation_input, and for a step longer than most_replayed that does not repeat itself: all
/// forwards before all backwards (gpipe), updates inside the lists (pipedream), lists by hand.
[[nodiscard]] std::variant<Prediction, Infeasible> predict(const Graph& graph, const Topology& topology,
                                                           const BoundPlan& plan, const PredictOptions& options = {});
}  // namespace stagecraft

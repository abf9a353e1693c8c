#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/step_replay.h"
#include "costmodel/timeline.h"
#include "costmodel/topology.h"
#include "costmodel/units.h"

namespace stagecraft {

/// The work of a sample of `graph`. Tokens: the longest sequence of integers that a layer other than the last reads, an
/// input of one row per sample. Peaks: known_peak of the devices on which the graph's times were measured, or
/// for which they were estimated, else of the topology's. Precondition: the plan is valid for both.
[[nodiscard]] SampleWork sample_work(const Graph& graph, const Topology& topology, const Plan& plan);

/// Throughput in units other than samples; what is absent is unknown.
struct WorkRates {
  std::optional<double> tokens_per_s = {};
  std::optional<FlopsPerSecond> flops_per_s = {};  ///< of all devices together
  std::optional<double> peak_share = {};           ///< flops_per_s over the devices' peak, also called MFU
  std::string peak_of = {};                        ///< as SampleWork::peak_of; empty without `peak_share`
  friend bool operator==(const WorkRates&, const WorkRates&) = default;
};

/// The throughput of a run that handles `samples_per_s`. Source of the share of the peak (model FLOPs utilization):
/// Chowdhery et al., PaLM, JMLR 24(240), 2023, appendix B.
[[nodiscard]] WorkRates work_rates(const SampleWork& work, double samples_per_s);

/// The rates at `factor` times the speed.
[[nodiscard]] WorkRates scaled(WorkRates rates, double factor);

/// "35100 tokens per second, 85.2 TFLOP/s per device, 8.6 % of the peak of NVIDIA H100 80GB HBM3 (bfloat16)", with what
/// is known; "per device" only of several. `mark` precedes each figure. Empty if nothing is known.
[[nodiscard]] std::string work_rates_text(const WorkRates& rates, int devices, const std::string& mark = "");

/// One clause that says why the share of the peak is low, if it is below 25 %: the devices are idle for most of the
/// step, a share `idle` of it, or the layers themselves are slow. Else empty. Source of what is usual: Narayanan et
/// al., SC 2021, table 1 (44 to 52 %).
[[nodiscard]] std::string low_share_text(const WorkRates& rates, double idle);

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

/// The intervals of the fields of StagePrediction that have the same names.
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
  Bytes memory_bound;        ///< likewise for the bound that no run exceeds, see replay_memory
  bool fits = true;  ///< by the bound, with the rank's other stages in the device's memory, if the topology gives one
  std::optional<StageRanges> ranges = {};  ///< absent: predicted without intervals
};

/// The prediction for several copies of a plan, see analysis/whatif.h.
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
struct MemoryOverTime {
  int rank = 0;
  std::vector<MemoryMoment> moments;  ///< ascending in time
  friend bool operator==(const MemoryOverTime&, const MemoryOverTime&) = default;
};

/// The predicted behaviour of a plan. With an asynchronous schedule, the timeline has the steps of step_window and the
/// numbers are those of its steady state.
struct Prediction {
  Seconds iteration;                    ///< of one step
  std::optional<double> samples_per_s;  ///< absent if the graph does not give its microbatch
  WorkRates rates = {};                 ///< the same throughput in other units
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
  std::vector<std::string> changes = {};  ///< to the graph, topology and plan before they were used, "compute=0.8x"
  /// What is assumed about the processor time of messages, from message_processing_assumption; empty if nothing is.
  std::string message_processing = {};
  std::optional<Yardstick> yardstick = {};  ///< of the graph's measurement
  std::optional<Seconds> low = {};          ///< of a 90 % interval of the step; absent: none was made
  std::optional<Seconds> high = {};         ///< likewise
  /// What the interval comes from. Sources are independent, so each has a share of the variance (the square of its own
  /// half-width over the sum of all squares, on the scale of the logarithm; together 100 %): "variance by source:
  /// layers 5.5 % (half-width 2.1 %), link node 19.5 % (4.0 %), model 75.0 % (8.0 %, assumed)". With a calibration:
  /// "half-width 8.0 %, residuals of the calibration". Empty: none was made.
  std::string interval = {};
  std::string calibration = {};  ///< the factors in the figures, from calibration_text; empty: none
  /// Microbatches in the middle of the step that were extrapolated, not replayed: the timeline has a gap for them, of
  /// the right length. 0: all were replayed.
  int reckoned_microbatches = 0;
  /// Of the first replica of each pipeline position. Empty if microbatches were extrapolated.
  std::vector<MemoryOverTime> memory_over_time = {};
  std::vector<ScalePoint> scaling = {};  ///< empty: not asked for
  Provenance provenance = {};            ///< of the document that holds it; a prediction itself has none
};

/// The stages of each pipeline position, ascending: {0, 2} and {1, 3} where two ranks have two stages each. Without a
/// timeline each stage has a position of its own.
[[nodiscard]] std::vector<std::vector<int>> stages_of_positions(const Prediction& prediction);

/// "8 of 16 devices are idle: 8-15 have no microbatch, ..."; empty if all work.
[[nodiscard]] std::string idle_text(const Prediction& prediction);
/// "idle 20.0 %", or "idle 20.0 % (60.0 % with the devices that are not in any stage)": the mean over the devices
/// of the share of the step in which they neither compute, update nor reduce. `mark` precedes each figure.
[[nodiscard]] std::string bubble_text(const Prediction& prediction, const std::string& mark);
/// "1.3 samples per second (0.7 per device)", where devices that the plan does not use do not count, without the
/// parenthesis if it uses one; `mark` precedes each figure. Empty if the samples of a microbatch are unknown.
[[nodiscard]] std::string throughput_text(const Prediction& prediction, const std::string& mark);
/// Prediction::rates as lines: work_rates_text, then low_share_text as a note. Empty if nothing is known.
[[nodiscard]] std::string rates_lines(const Prediction& prediction, const std::string& mark);

/// Replays the plan's action lists against the graph's times and the topology's links. Infeasible if the lists
/// deadlock. For a step longer than PredictOptions::most_whole, replays a shorter one, with as many microbatches as it
/// takes until all ranks, messages and lists are in the same state as some microbatches earlier (simulate_and_watch);
/// the rest of the step repeats that period and is added. The result is that of a whole replay within 1e-9. Throws
/// std::invalid_argument as simulation_input, and for a step longer than most_replayed that does not repeat itself: all
/// forwards before all backwards (gpipe), updates inside the lists (pipedream), lists by hand.
[[nodiscard]] std::variant<Prediction, Infeasible> predict(const Graph& graph, const Topology& topology,
                                                           const BoundPlan& plan, const PredictOptions& options = {});

/// Time per step in a run of many steps, at most, from the timeline of one step of a synchronous schedule in which all
/// ranks begin at time 0: a rank begins its next step when it has ended this one, while others may still work on it.
/// The longest time that a rank needs from the moment when the message that its first action waits for begins to move,
/// to its last action: if every rank repeats its actions after that time, none begins before those that it follows on
/// its rank, nor before its messages. An action that can begin earlier makes no other one later, unless they share
/// links or processors.
[[nodiscard]] Seconds steady_step(const Timeline& timeline);

/// The same of a prediction. With an asynchronous schedule, or without a timeline, its `iteration`.
[[nodiscard]] Seconds steady_step(const Prediction& prediction);

/// Sets Plan::iteration and, where a step of a run is shorter by more than 1e-9 of it, Plan::run_iteration.
void set_times(Plan& plan, const Prediction& prediction);
/// The predicted step of a run of the plan; absent without a prediction.
[[nodiscard]] std::optional<Seconds> step_in_run(const Plan& plan);

}  // namespace stagecraft

#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/accuracy/calibrate.h"
#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/links/collectives.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/topology.h"

namespace stagecraft {

/// A measurement that a profile does not have, and that the time of a plan depends on.
struct Unmeasured {
  std::string text;       ///< "the profile lacks the slowdown of 3 ranks on a host; ..."
  double half_width = 0;  ///< of a 90 % interval of the step, as a share; assumed
};

/// What the profile of a CPU lacks for `plan`: the slowdown of as many ranks as share a host (profile --concurrent),
/// and that of several microbatches in flight, which --max-seconds may have cut. None for other graphs, and where the
/// topology's devices are not those of the profile.
[[nodiscard]] std::vector<Unmeasured> unmeasured(const Graph& graph, const Topology& topology, const BoundPlan& plan);

/// Whether the GPU waited for the host in more than 0.5 % of the profiled time: its kernels are about as short as their
/// launches, so that the host's speed, too, decides how long a step takes. False for a profile of a CPU.
[[nodiscard]] bool waits_for_launches(const Graph& graph);

/// "the GPU waits for kernel launches in 4.7 % of a step, so ..."; empty unless waits_for_launches.
[[nodiscard]] std::string launches_text(const Graph& graph);

/// How far one mechanism of a prediction may be off: a standard deviation on the scale of the logarithm, common to all
/// its times, and where the times come from.
struct Doubt {
  double log_spread = 0;
  FigureSource source = FigureSource::Measured;
  friend bool operator==(const Doubt&, const Doubt&) = default;
};

/// The uncertainty of the layers' times. The standard error of a median of n samples is 1.2533 * 1.4826 * (median
/// absolute deviation) / sqrt(n); a time without spread counts as 10 % of itself, an estimated one with its log_spread.
/// The errors of layers add up linearly, as fully correlated ones do, because one machine in one state measured all of
/// them; with a measured iteration, to which layers are scaled, its relative error if that is larger. How much the
/// device's speed changed during the profile, see speed_spread, adds in quadrature. Sources: Kenney & Keeping,
/// Mathematics of Statistics, 1951 (standard error of a median); JCGM 100:2008 (GUM), 5.2.2 note 1 (correlated errors).
[[nodiscard]] Doubt compute_doubt(const Graph& graph, const BoundPlan& plan);

/// The uncertainty of the messages and all-reduces that the plan sends over links of `level`: 10 % inside the range of
/// a measured curve and for a measured latency and bandwidth, a factor of 1.65 outside the range and for a declared
/// link, as calibrate expects before any run; both are assumed. The curve's own log_spread, where it is known, and for
/// an all-reduce over several levels how far CollectiveTime::most lies from its time, add in quadrature. The largest of
/// all of them; 0 if there are none. Precondition: the plan is valid for the graph.
[[nodiscard]] Doubt link_doubt(const Graph& graph, const Topology& topology, const BoundPlan& plan, int level);

/// collective_time with a 90 % interval, of which each level's links and what is assumed about levels that work at the
/// same time are independent parts. Throws as collective_time.
[[nodiscard]] Range<Seconds> collective_range(Collective collective, Bytes data, const std::vector<int>& devices,
                                              const Topology& topology);

/// predict, or predict_calibrated, with intervals: Prediction::low, high and interval, and the ranges of the stages.
/// Each mechanism in turn is made slower by 1.645 standard deviations and predicted again, and so is the
/// loading of a GPU's data, by 40 %. The changes, the model's own error of 8 % and, if the graph waits_for_launches,
/// their error of 40 % (all three assumed), and what the profile lacks (see unmeasured), add in quadrature, on a
/// logarithmic scale and on both sides. With a
/// calibration, its residuals replace them, because they include all of these errors. Memory: from 7 % below the
/// estimate to StagePrediction::memory_bound. Throws as predict. Source: JCGM 100:2008 (GUM), 5.1.2 (propagation of
/// independent errors).
[[nodiscard]] std::variant<Prediction, Infeasible> predict_with_intervals(const Graph& graph, const Topology& topology,
                                                                          const BoundPlan& plan,
                                                                          const std::optional<Calibration>& calibration,
                                                                          const PredictOptions& options = {});

/// What a prediction is made from.
struct Scenario {
  Graph graph;
  Topology topology;
  Plan plan;
};

/// Ratio of one scenario's time per microbatch (step time / microbatches) to another's, with a 90 % interval.
struct StepRatio {
  double ratio = 1;
  double low = 1;
  double high = 1;
  double first_faster = 0.5;  ///< probability that the ratio is below 1
};

/// The times of two scenarios compared. Errors of a mechanism are common to both, since both have the layers and links
/// of one profile: they count only as far as they change the ratio. Of the model's own error, 7.5 % (half of a 90 %
/// interval) are each scenario's own and independent, the rest is a factor common to both and cancels; with a
/// calibration, which has removed that factor, all of its residuals are each one's own; so is the error of launches,
/// which differs between runs. Of two scenarios of one plan, only the part that changes, |1 - ratio| of the larger, has
/// errors of its own; and where no mechanism's error turns the ratio around, the interval ends at 1. The logarithm of
/// the ratio is taken as normal. Throws as predict. Source of the 7.5 %: nine in ten of 4245 pairs of plans of one
/// model on two CPUs had errors that differ by at most 10.7 %.
[[nodiscard]] std::variant<StepRatio, Infeasible> step_ratio(const Scenario& first, const Scenario& second,
                                                             const std::optional<Calibration>& calibration,
                                                             const PredictOptions& options = {});

}  // namespace stagecraft

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "costmodel/accuracy/compare.h"
#include "costmodel/accuracy/validate.h"
#include "costmodel/format/results/plan_list_json.h"
#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/report/drawing.h"
#include "costmodel/timeline.h"
#include "costmodel/topology.h"

namespace stagecraft::report {

/// One step to draw: the spans of `timeline` between `begin` and `end`.
struct ShownStep {
  std::string title;  ///< "predicted", "measured, step 5 of 8"
  const Timeline* timeline = nullptr;
  Seconds begin;
  Seconds end;
};

/// The last step of a prediction.
[[nodiscard]] ShownStep shown_step(const Prediction& prediction);
/// Of a run's steps from `skip` on (never beyond the last one) that have spans, the one whose time is nearest to their
/// median. Absent if no step has spans.
[[nodiscard]] std::optional<ShownStep> shown_step(const Measurement& measurement, std::size_t skip = 2);

/// Steps one below the other, rank by rank, on one time axis that starts with each step. At most 32 ranks; if there are
/// more, the first of each stage. Bars that would be too narrow to see are joined with their neighbours of the same
/// kind.
[[nodiscard]] Picture gantt_picture(const std::string& name, const std::vector<ShownStep>& steps);

/// A prediction and what to call it.
struct NamedPrediction {
  std::string title;
  const Prediction* prediction = nullptr;
};

/// How each stage spends a step, as one stacked bar per stage; one group per prediction.
[[nodiscard]] Picture breakdown_picture(const std::string& name, const std::vector<NamedPrediction>& predictions);
/// Peak memory of each stage by part, with a line at `limit`.
[[nodiscard]] Picture memory_picture(const std::string& name, const std::vector<NamedPrediction>& predictions,
                                     std::optional<Bytes> limit);

/// What each rank of Prediction::memory_over_time holds over time, with a line at `limit`.
[[nodiscard]] Picture memory_over_time_picture(const std::string& name, const Prediction& prediction,
                                               std::optional<Bytes> limit);
/// A run's losses and what to call them.
struct NamedLosses {
  std::string title;
  const Measurement* run = nullptr;
};

/// The loss of each step of runs with losses; of more steps than fit, means of as many steps. Losses that are not
/// finite leave a gap.
[[nodiscard]] Picture loss_picture(const std::string& name, const std::vector<NamedLosses>& runs);

/// Throughput of several copies over that of one, with its interval and perfect scaling for comparison.
[[nodiscard]] Picture scaling_picture(const std::string& name, const std::vector<ScalePoint>& points);

/// The layers in the order of the model, in a frame per stage (one frame without a plan). Arrows run in the gaps
/// between the frames and in the channel above them, and cross only stages that they touch. Throws
/// std::invalid_argument as staged_graph for a plan of another graph.
[[nodiscard]] Picture layout_picture(const std::string& name, const Graph& graph, const Plan* plan);
/// Forward, backward, activations and parameters of each layer, side by side. Of more than 250 layers, those with the
/// longest times.
[[nodiscard]] Picture layer_bars_picture(const std::string& name, const Graph& graph, const Plan* plan);

/// Forward + backward time (if the graph has times), parameters and activations added up over the layers, with the cuts
/// between the plan's stages and the share of each. Layers are in the model's order; stage by stage if stages alternate
/// there. Throws std::invalid_argument as staged_graph for a plan of another graph.
[[nodiscard]] Picture cumulative_picture(const std::string& name, const Graph& graph, const Plan* plan);

/// Throughput against peak memory of the plans of a list, numbered as in the list: samples/s if the list has them, else
/// steps/s. A shape and colour for each number of devices, with a line through the plans that no listed plan dominates
/// in throughput, memory and devices; the others are outlines. A line at `limit`. Precondition: the list has plans.
[[nodiscard]] Picture front_picture(const std::string& name, const format::PlanList& list, std::optional<Bytes> limit);
/// How the plans of a list spend their steps, one bar for each of the first 12 plans that say so. Precondition: one
/// does.
[[nodiscard]] Picture plan_parts_picture(const std::string& name, const format::PlanList& list);

/// Time by message bytes of each level's link, measured and as latency + bytes / bandwidth, on logarithmic axes.
[[nodiscard]] Picture link_picture(const std::string& name, const Topology& topology);
/// Predicted against measured step times on logarithmic axes. Throws std::invalid_argument if there are no runs or a
/// time is not above 0.
[[nodiscard]] Picture validation_picture(const std::string& name, const Validation& validation);
/// Predicted and measured times of each stage's actions, side by side.
[[nodiscard]] Picture actions_picture(const std::string& name, const Comparison& comparison);

/// The stages that a device runs: one, or several with chunks.
struct StageGroup {
  std::string label;    ///< "stage 1", "stages 1, 3"
  StagePrediction sum;  ///< of times per step and of memory; `stage` is the first of them
};

/// All stages, those of a device together, by their first stage.
[[nodiscard]] std::vector<StageGroup> stage_groups(const Prediction& prediction);

/// The stage of each layer; -1 for inputs, and for all layers without a plan. Throws std::invalid_argument as
/// staged_graph for a plan of another graph.
[[nodiscard]] std::vector<int> stage_of_layers(const Graph& graph, const Plan* plan);

/// One step as text, a line per rank of at most `width` characters (at least 40 are used), with a time scale and a
/// legend. A column shows the action that takes most of its time: "F3--" is the forward of microbatch 3, "B3==" the
/// backward, "W3++" the weight gradient, "R" the all-reduce, "U" the update, "~" waiting for a message, "." idle. With
/// `colour`, with the escape sequences of terminals. At most 32 ranks; if there are more, the first of each stage. The
/// time axis ends with the step, or after `axis` if that is later.
[[nodiscard]] std::string text_gantt(const ShownStep& step, int width, bool colour, Seconds axis = Seconds(0));

/// The same for several steps, one below the other under their titles, on one time axis that starts with each step.
[[nodiscard]] std::string text_gantts(const std::vector<ShownStep>& steps, int width, bool colour);

}  // namespace stagecraft::report

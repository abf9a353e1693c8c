#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/graph.h"
#include "costmodel/schedule.h"
#include "costmodel/units.h"

namespace stagecraft {

/// What memory of a rank is for, in the order of the names.
enum class MemoryPart {
  Activations,    ///< saved for the backward
  Communication,  ///< buffers of a channel's sums
  Frozen,         ///< frozen parameters and buffers
  Gradients,
  Inputs,         ///< loaded data
  KeptGradients,  ///< between the two parts of a split backward
  Libraries,      ///< what libraries allocate once
  OlderVersions,  ///< of parameters, under an asynchronous schedule
  Optimizer,      ///< its state
  Parameters,
  Receiving,  ///< messages that were posted and not used
  Reduction,  ///< a copy of gradients while replicas sum them
  Sending,    ///< messages that may not have left, and gradients on their way back
  Workspace,  ///< of the running layer
};

inline constexpr std::size_t kMemoryParts = 14;

/// "activations", "kept gradients", "older versions", ...; the name in files.
[[nodiscard]] const char* to_string(MemoryPart part);
/// The inverse. Throws std::invalid_argument listing the names.
[[nodiscard]] MemoryPart memory_part(const std::string& word);

/// One interval of work or waiting on one rank, predicted or measured. Times count from the start of the timeline.
struct Span {
  int rank = 0;
  int step = 0;
  Action action;
  Seconds start;
  Seconds end;
  friend bool operator==(const Span&, const Span&) = default;
};

/// Peak bytes of one rank by part; `total` is the peak as a whole and the parts add up to it in a prediction. A
/// measurement fills the parts that it can distinguish.
struct RankMemory {
  int rank = 0;
  Bytes total;
  std::map<MemoryPart, Bytes> parts;
  /// 0 if the part is not known.
  [[nodiscard]] Bytes part(MemoryPart one) const {
    const auto found = parts.find(one);
    return found == parts.end() ? Bytes(0) : found->second;
  }
  friend bool operator==(const RankMemory&, const RankMemory&) = default;
};

/// Time of a step, from the first action's start on any rank to the last one's end; if steps overlap, from the end of
/// the previous step.
struct StepTime {
  int step = 0;
  Seconds start;
  Seconds end;
  friend bool operator==(const StepTime&, const StepTime&) = default;
};

/// Used for both prediction and measurement.
struct Timeline {
  int ranks = 0;
  std::vector<int> stage_of_rank;
  std::vector<StepTime> steps;
  std::vector<Span> spans;
  std::vector<RankMemory> memory;
  friend bool operator==(const Timeline&, const Timeline&) = default;
};

/// The steps whose spans a measurement has: the first `first` of a run, the last `last`, and those whose position in
/// the run, counted from 0, is a multiple of `every`. All steps: `every` is 1.
struct KeptSpans {
  int first = 0;
  int last = 0;
  int every = 1;
  friend bool operator==(const KeptSpans&, const KeptSpans&) = default;
};

/// The measurement of a run: losses and times of all steps, spans of those in `kept`.
struct Measurement {
  std::string model;
  std::string schedule;
  int microbatches = 1;
  std::optional<std::int64_t> microbatch_samples;
  std::vector<double>
      losses;  ///< one per step, the mean over the step's samples; in files null, read as NaN, if not finite
  KeptSpans kept;
  bool ended = true;  ///< false if written before the end of the run, which is still running or has died
  Timeline timeline;
  std::string channel = {};  ///< between the ranks, "gloo"; empty: unknown
  Conditions conditions;     ///< from the first step to the last; empty until the run has ended
  Provenance provenance;
  friend bool operator==(const Measurement&, const Measurement&) = default;
};

/// Median of a non-empty list; for an even number, the mean of the middle two.
[[nodiscard]] double median(std::vector<double> values);

/// Median duration of the steps from number `first` on (counting in order). Throws std::invalid_argument if none is
/// left.
[[nodiscard]] Seconds step_time(const Timeline& timeline, std::size_t first = 0);

/// How many first steps the median of a run leaves out, unless told otherwise: two, but never all.
[[nodiscard]] std::size_t warm_up_steps(const Timeline& timeline);

/// Spans of a bounded number of a run's steps, however long it runs: of the first kEdge steps, the last kEdge, and
/// every n-th, with n growing by powers of 2 so that at most kMiddle of these are kept.
class SpanKeeper {
 public:
  static constexpr int kEdge = 16;
  static constexpr int kMiddle = 32;
  /// Most steps whose spans are kept.
  static constexpr int kMost = 2 * kEdge + kMiddle;

  /// `first_step`: number of the run's first step.
  explicit SpanKeeper(int first_step = 0) : first_step_(first_step) {}

  /// Spans may come in any order, but not kEdge or more steps after the newest: theirs may already be dropped.
  void add(const Span& span);

  /// The kept spans, in order of arrival.
  [[nodiscard]] const std::vector<Span>& spans() const { return spans_; }
  /// Which steps those are.
  [[nodiscard]] KeptSpans kept() const { return {kEdge, kEdge, every_}; }

 private:
  [[nodiscard]] bool keeps(int place) const;
  void begin(int place);

  int first_step_;
  int newest_ = -1;  ///< position in the run, from 0
  int every_ = 1;
  std::vector<Span> spans_;
};

/// The spans that a rank measures for its list, in order: its entries except receives and gathers, which only begin,
/// and Free; before the first computation of a stage that it gathers a wait for that (a Gather); before a forward a
/// wait (a receive) for each boundary into its stage in the plan's order, before a backward one for each boundary from
/// which gradients come back, in the reverse order. Boundaries between stages of one rank count too.
[[nodiscard]] std::vector<Action> measured_actions(const BoundPlan& plan, const std::vector<Action>& list);
/// Checks that a rank follows its list, span by span: exactly the measured_actions of its list in order, with a
/// synchronous schedule again in each step. Looks at the order of the spans, not at their times.
class OrderCheck {
 public:
  /// `list` is that of `rank` in `plan`; `first_step` the number of the first step.
  OrderCheck(const BoundPlan& plan, const std::vector<Action>& list, int rank, int first_step = 0);
  /// The error in the rank's next span: step and entry (counted from 1), the measured action and that of the list.
  /// Absent if it is right.
  [[nodiscard]] std::optional<std::string> next(const Span& span);
  /// The error if spans are missing at the end. Absent if the rank has replayed its list `replays` times.
  [[nodiscard]] std::optional<std::string> end(int replays) const;

 private:
  [[nodiscard]] std::string place() const;

  std::vector<Action> expected_;
  int rank_;
  int first_step_;
  bool synchronous_;
  int replay_ = 0;
  std::size_t entry_ = 0;
};

}  // namespace stagecraft

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/memory_part.h"
#include "costmodel/schedule.h"
#include "costmodel/units.h"

namespace stagecraft {

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

}  // namespace stagecraft

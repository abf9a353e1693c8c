#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/conditions.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/timeline.h"
#include "costmodel/units.h"

namespace stagecraft {

/// A predicted quantity and the measured one: Seconds, Bytes, or a plain number for a rate or a share.
template <class T>
struct Compared {
  T predicted{};
  T measured{};
  /// predicted / measured - 1; absent if nothing was measured.
  [[nodiscard]] std::optional<double> error() const {
    if (measured == T{}) return std::nullopt;
    return predicted / measured - 1;
  }
  friend bool operator==(const Compared&, const Compared&) = default;
};

/// The time of one kind of action on one stage: the mean over ranks and microbatches, then the median over the measured
/// steps.
struct ActionComparison {
  int stage = 0;
  ActionKind kind = ActionKind::Forward;
  Compared<Seconds> time;
  friend bool operator==(const ActionComparison&, const ActionComparison&) = default;
};

/// Peak memory of one rank.
struct MemoryComparison {
  int rank = 0;
  Compared<Bytes> peak;
  friend bool operator==(const MemoryComparison&, const MemoryComparison&) = default;
};

/// Share of a step of a run in which one rank is idle: predicted by idle_shares_in_run, measured the median of several
/// steps.
struct BubbleComparison {
  int rank = 0;
  Compared<double> share;
  friend bool operator==(const BubbleComparison&, const BubbleComparison&) = default;
};

/// A prediction and a measured run.
struct Comparison {
  Compared<Seconds> step;
  std::optional<Compared<double>> samples_per_s;
  Compared<WorkRates> rates = {};  ///< shares of the peak are those of the devices that the prediction is for
  Seconds spread;                  ///< median absolute deviation of the measured steps
  std::size_t steps = 0;           ///< measured steps that count
  std::size_t skipped = 0;         ///< steps skipped at the start
  std::vector<ActionComparison> actions;
  std::vector<BubbleComparison> bubbles;
  std::vector<MemoryComparison> memory;
  std::vector<std::string> distrust;  ///< reasons not to trust it: other programs, links of another channel
  std::optional<Drift> drift;         ///< from the graph's measurement to the run; absent: unknown
  std::string no_drift;               ///< why there is none although both have a yardstick; else empty
  std::optional<Seconds> low;         ///< of the prediction's 90 % interval of the step; absent: it has none
  std::optional<Seconds> high;        ///< likewise
  bool ended = true;                  ///< false: the measurement is what a run wrote before its end
  friend bool operator==(const Comparison&, const Comparison&) = default;
};

/// Mean time of one action of each kind on each stage, in each step from number `first` on; the median over the steps.
[[nodiscard]] std::map<std::pair<int, ActionKind>, Seconds> action_times(const Timeline& timeline,
                                                                         std::size_t first = 0);

/// Median absolute deviation of the steps from number `first` on. Throws as step_time.
[[nodiscard]] Seconds step_spread(const Timeline& timeline, std::size_t first = 0);

/// For each rank, the share of a step in which the rank neither computes nor reduces nor updates: it waits, sends, or
/// is idle. The median of the steps from number `first` on whose spans, and those of the adjacent steps, were kept; 0
/// if there are none.
[[nodiscard]] std::vector<double> idle_shares(const Timeline& timeline, std::size_t first = 0);

/// Likewise of a prediction. If microbatches were extrapolated, which leaves a gap in the timeline, the mean over the
/// ranks of the same stages.
[[nodiscard]] std::vector<double> idle_shares(const Prediction& prediction);

/// The same by pipeline position, in the order of stages_of_positions. From the figures of the stages, so that a gap in
/// the timeline does not count; 0 if the step takes no time.
[[nodiscard]] std::vector<double> idle_shares_of_positions(const Prediction& prediction);

/// The same of a prediction, by rank, as a run would measure them: shares of steady_step, and a rank that waits for the
/// other members of an all-reduce counts as reducing, because a run cannot tell the two apart.
[[nodiscard]] std::vector<double> idle_shares_in_run(const Prediction& prediction);

/// Their mean; 0 without ranks.
[[nodiscard]] double idle_in_run(const Prediction& prediction);

/// Compares; the first `skip` measured steps are skipped as warm-up, but never the last one.
/// Send spans are ignored: they mean different things on different channels, and the cost of a message shows in the
/// receiver's wait. Throws std::invalid_argument if the two have different ranks or stages, naming both.
[[nodiscard]] Comparison compare(const Prediction& prediction, const Measurement& measurement, std::size_t skip = 2);

/// Whether the measured step lies inside the prediction's interval; absent if it has none.
[[nodiscard]] std::optional<bool> is_inside(const Comparison& comparison);

/// A table to print. The document is format/comparison_json.h.
[[nodiscard]] std::string comparison_text(const Comparison& comparison);

}  // namespace stagecraft

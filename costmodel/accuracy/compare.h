#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
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

/// A table to print. The document is format/results/accuracy_json.h.
[[nodiscard]] std::string comparison_text(const Comparison& comparison);

/// A predicted time, its interval if it has one, and the measured time. `group`: runs in the same group are
/// alternatives to each other, so their order matters.
struct Scored {
  Seconds predicted;
  std::optional<Seconds> low;
  std::optional<Seconds> high;
  Seconds measured;
  int group = 0;
  friend bool operator==(const Scored&, const Scored&) = default;
};

/// Errors predicted / measured - 1 of n runs; absolute values, except for the bias.
struct ErrorScores {
  std::size_t n = 0;
  double median = 0;
  double mean = 0;
  double p90 = 0;  ///< interpolated linearly
  double largest = 0;
  double bias = 0;  ///< median with sign
  friend bool operator==(const ErrorScores&, const ErrorScores&) = default;
};

/// How well the predicted order matches the measured order, over the pairs within groups.
struct OrderScores {
  std::size_t pairs = 0;      ///< with different predicted times, and measured times that differ by more than the noise
  std::size_t right = 0;      ///< predicted in the measured order
  std::optional<double> tau;  ///< Kendall's: (right - wrong) / pairs; absent without pairs
  std::optional<double>
      mean_regret;  ///< of groups of two and more: measured time of the predicted best / of the best - 1
  std::optional<double> largest_regret;
  friend bool operator==(const OrderScores&, const OrderScores&) = default;
};

/// Runs whose prediction has an interval.
struct CoverageScores {
  std::size_t n = 0;
  double inside = 0;      ///< share of measurements with low <= measured <= high
  double half_width = 0;  ///< median of (high - low) / (high + low)
  friend bool operator==(const CoverageScores&, const CoverageScores&) = default;
};

/// The quantile `share` of the sorted values (0 is the smallest, 1 the largest), interpolated linearly. Throws
/// std::invalid_argument if there are no values or the share is outside 0 to 1.
[[nodiscard]] double quantile(std::vector<double> values, double share);

/// All 0 without runs. Precondition: measured times are above 0.
[[nodiscard]] ErrorScores error_scores(std::span<const Scored> runs);
/// `noise`: a pair counts only if its longer measured time is more than 1 + noise times the shorter. Regret ignores it.
/// Throws std::invalid_argument if `noise` is negative or not finite.
[[nodiscard]] OrderScores order_scores(std::span<const Scored> runs, double noise = 0);
/// All 0 without intervals.
[[nodiscard]] CoverageScores coverage_scores(std::span<const Scored> runs);

/// Half-width, on the scale of `residuals`, that covers a new residual with probability `share`: the ceil((n + 1)
/// share)-th smallest absolute value. If there are fewer, the largest times sqrt(rank / n), an extrapolation. Throws
/// std::invalid_argument if there are no residuals or the share is outside 0 to 1. Source: split conformal prediction,
/// Lei et al., JASA 113, 2018.
[[nodiscard]] double conformal_half_width(std::vector<double> residuals, double share);

}  // namespace stagecraft

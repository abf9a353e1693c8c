#pragma once

#include <optional>
#include <string>
#include <vector>

#include "costmodel/predict.h"
#include "costmodel/timeline.h"

namespace stagecraft {

/// One predicted number beside the measured one.
struct Comparison {
  double predicted = 0;
  double measured = 0;
  /// predicted / measured - 1; absent where nothing was measured.
  [[nodiscard]] std::optional<double> error() const {
    if (measured == 0) return std::nullopt;
    return predicted / measured - 1;
  }
};

/// One stage and action kind: seconds of one action (mean over ranks and microbatches; of the measured steps the
/// median).
struct ActionComparison {
  int stage = 0;
  ActionKind kind = ActionKind::Forward;
  Comparison time;
};

/// Peak bytes of one rank.
struct MemoryComparison {
  int rank = 0;
  Comparison bytes;
};

/// Share of a step in which one rank stands still; of several steps the median.
struct BubbleComparison {
  int rank = 0;
  Comparison share;
};

/// Predicted beside measured.
struct Report {
  Comparison step;                    ///< seconds of one step
  std::optional<Comparison> samples;  ///< samples per second
  double spread = 0;                  ///< median absolute deviation of the measured steps, seconds
  std::size_t steps = 0;              ///< measured steps that count
  std::size_t skipped = 0;            ///< steps left out at the start
  std::vector<ActionComparison> actions;
  std::vector<BubbleComparison> bubbles;
  std::vector<MemoryComparison> memory;
  bool ended = true;  ///< false: the measurement is what a run wrote before its end
};

/// By rank, the share of a step in which the rank neither computes nor reduces nor updates: it waits, sends, or has
/// nothing to do. Of the steps from number `first` on the median, as far as spans of them and of the steps beside them
/// were kept; 0 without any.
[[nodiscard]] std::vector<double> idle_shares(const Timeline& timeline, std::size_t first = 0);

/// Compares; the first `skip` measured steps are warm-up and left out, but never the last one.
/// Send spans are left out: what a sender sees of a message differs between channels, its cost shows in the receiver's
/// wait. Throws std::invalid_argument if the two have different ranks or stages, saying both.
[[nodiscard]] Report compare(const Prediction& prediction, const Measurement& measurement, std::size_t skip = 2);

/// The report as a table for people, and as JSON.
[[nodiscard]] std::string report_text(const Report& report);
[[nodiscard]] std::string report_json(const Report& report);

}  // namespace stagecraft

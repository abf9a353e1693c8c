#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace stagecraft::run {

/// The predictions of a cross entropy, or of several.
struct Predictions {
  std::int64_t count = 0;
  std::int64_t correct = 0;
  double sum = 0;     ///< of the cross entropies
  bool plain = true;  ///< whether each result is a mean, so that `sum` is known
};

/// Adds `other` to `sum`.
void add(Predictions& sum, const Predictions& other);

/// exp of the mean cross entropy, if it is known and `samples` samples have several predictions each.
[[nodiscard]] std::optional<double> perplexity(const Predictions& predictions, std::int64_t samples);

/// Watches this thread's forwards for calls of the operator cross_entropy_loss, whichever file or block they are from.
/// At most one exists in a thread.
class PredictionWatcher {
 public:
  PredictionWatcher();
  ~PredictionWatcher();
  PredictionWatcher(const PredictionWatcher&) = delete;
  PredictionWatcher& operator=(const PredictionWatcher&) = delete;

  /// The predictions of the last `forwards` forwards, in order: all that ran since the last call. Absent if they did
  /// not compute one cross entropy each, with class numbers as targets: with several, none of them is the model's.
  [[nodiscard]] std::optional<std::vector<Predictions>> take(std::size_t forwards);

 private:
  std::uint64_t callback_;  ///< at::CallbackHandle: <ATen/record_function.h> takes as long to parse as all tensors
  std::vector<std::optional<Predictions>> calls_;
};

}  // namespace stagecraft::run

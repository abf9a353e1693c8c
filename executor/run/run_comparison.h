#pragma once

#include <cstdint>
#include <optional>

#include "executor/data/data_source.h"
#include "executor/run/binding/bound_model.h"
#include "executor/run/binding/check.h"
#include "executor/run/reference.h"
#include "executor/run/run.h"
#include "executor/run/training_record.h"
#include "executor/run/worker/stage_worker.h"

namespace stagecraft::run {

/// Compares one rank's losses and gradients with a single process (RunOptions::check) or a file (RunOptions::expected).
class RunComparison {
 public:
  /// Arguments must outlive it. Throws std::invalid_argument if the schedule has no gradients to compare, or the file
  /// is from another training.
  RunComparison(const BoundModel& bound, const data::DataSource& data, const RunOptions& options);

  /// Whether there is anything to compare.
  [[nodiscard]] bool active() const { return reference_ || record_; }
  /// The single process, if it compares with one: it must start from the run's state.
  [[nodiscard]] Reference* reference() { return reference_ ? &*reference_ : nullptr; }

  /// Call in each step between the worker's backwards and its update.
  void compare_step(std::int64_t step, const StageWorker& worker, const stage::MicrobatchLosses& losses);
  /// Call after the last update.
  void compare_end(StageWorker& worker);
  [[nodiscard]] Check& check() { return check_; }

 private:
  void compare_gradients(std::int64_t step, const StageWorker& worker);

  std::optional<Reference> reference_;
  std::optional<TrainingRecord> record_;
  Check check_;
};

}  // namespace stagecraft::run

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/plan.h"
#include "executor/files/safetensors.h"
#include "executor/run/binding/check.h"
#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"
#include "executor/stage/step_losses.h"

namespace stagecraft::run {

/// A record of the same training elsewhere, usually in Python: a safetensors file that `stagecraft export-model
/// --record` writes. It holds `loss` [steps, microbatches], `gradient.STEP/NAME` (the sum over the step's microbatches;
/// absent where there is none), and `parameter/NAME` and `buffer/NAME` after the last step; also the inputs, so that it
/// is also a file for the data source tensors-in-order. Its metadata are format "stagecraft.record", version "2" (or
/// "1"), steps, microbatches, samples, learning_rate (of plain SGD) and seed, and what the last bits depend on:
/// "threads" and the keys of cpu_kernels().
class TrainingRecord {
 public:
  /// Throws FormatError naming file and what is missing or wrong in the metadata.
  explicit TrainingRecord(const std::string& path);

  /// Throws std::invalid_argument, with the requirements of the record, unless a run of `plan` does the same steps.
  void check_fits(const Plan& plan, std::int64_t steps, const stage::OptimizerOptions& optimizer,
                  std::uint64_t seed) const;

  /// Differences from the record that affect the last bits, for this process with `threads` threads: "it was made with
  /// processor "AMD EPYC"; here it is "Intel Xeon"". Empty if there are none.
  [[nodiscard]] std::string other_kernels(int threads) const;

  /// Compares gradients between a step's backwards and its update, parameters by name; adds to `check`.
  /// Throws FormatError naming a parameter that the record lacks.
  void compare_gradients(std::int64_t step, const std::vector<stage::Parameter>& parameters, Check& check) const;
  void compare_losses(std::int64_t step, const stage::MicrobatchLosses& losses, Check& check) const;
  /// Compares parameters and buffers after the last step.
  void compare_end(const std::vector<stage::Parameter>& parameters, const std::vector<stage::Parameter>& buffers,
                   Check& check) const;

 private:
  files::SafetensorsFile file_;
  std::int64_t steps_ = 0;
  std::int64_t microbatches_ = 0;
  std::int64_t samples_ = 0;
  double learning_rate_ = 0;
  std::uint64_t seed_ = 0;
};

}  // namespace stagecraft::run

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/plan.h"
#include "executor/data/data_source.h"
#include "executor/files/safetensors.h"
#include "executor/run/binding/bound_model.h"
#include "executor/run/binding/check.h"
#include "executor/run/run.h"
#include "executor/run/worker/stage_worker.h"
#include "executor/stage/gradients/finite.h"
#include "executor/stage/moving_statistics.h"
#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"
#include "executor/stage/step_losses.h"

namespace stagecraft::run {

/// The whole model in one process, without stages, over the same microbatches as a plan: the reference for a run.
/// Gradients of a replicated stage are summed in the same order: first each replica's microbatches, then the replicas
/// in order. Of what it checks, it uses only the layers' own functions, initial values, the optimizer and clipping, and
/// the replay of moving statistics, which neither losses nor gradients read: its forwards call one layer after the
/// other and read the buffers as they stand, its backwards are autograd's.
class Reference {
 public:
  /// Arguments must outlive it.
  Reference(const BoundModel& bound, const data::DataSource& data, const stage::OptimizerOptions& optimizer,
            std::uint64_t seed, c10::Device device = c10::Device(c10::kCPU));
  /// Forward and backward of all microbatches; fills gradients and losses.
  void compute(std::int64_t step);
  /// Updates the parameters with the gradients divided by the number of microbatches and the loss's scale, unless they
  /// overflow under a scale.
  void update();
  /// As for SynchronousWorker::scale_loss.
  void scale_loss(const stage::LossScaler& scaler) { scaler_ = scaler; }
  /// As for SynchronousWorker::scale_rate.
  void scale_rate(double factor) { rate_scale_ = factor; }
  /// Whether the step's gradients overflow under a scale.
  [[nodiscard]] bool overflow() const { return scaler_ && stage::overflows(program_->parameters()); }

  /// Holds parameters and buffers. Parameter i of the program is parameter i of the optimizer.
  [[nodiscard]] stage::StageProgram& program() { return *program_; }
  [[nodiscard]] stage::Optimizer& optimizer() { return *optimizer_; }
  /// Gradient of parameter `name` as layer `layer` of the model holds it, the sum over microbatches (and over all
  /// holders of a tied one); undefined if it has none.
  [[nodiscard]] at::Tensor gradient(int layer, const std::string& name) const;
  /// One per microbatch.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }

 private:
  /// The loss, with its graph.
  [[nodiscard]] at::Tensor forward(std::int64_t step, int microbatch);
  /// Records what a microbatch adds to moving statistics, and leaves all buffers as they are.
  void record_statistics(std::int64_t step, int microbatch);

  const model::Model& model_;
  const Plan& plan_;
  const BoundPlan& bound_;
  const data::DataSource& data_;
  stage::OptimizerOptions options_;
  std::uint64_t seed_;
  c10::Device device_;
  std::int64_t step_ = 0;
  double rate_scale_ = 1;
  std::unique_ptr<stage::StageProgram> program_;
  std::unique_ptr<stage::Optimizer> optimizer_;
  std::unique_ptr<stage::MovingStatistics> statistics_;  ///< of replicated stages
  std::vector<std::vector<at::Tensor>> buffers_;         ///< by layer, with constants; shared with the program
  std::vector<at::Tensor> replayed_;                     ///< those in `statistics_`
  std::vector<int> stage_of_layer_;
  std::map<std::pair<int, std::string>, at::Tensor> gradients_;
  std::vector<double> losses_;
  std::optional<stage::LossScaler> scaler_;
};

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

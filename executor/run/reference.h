#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/data/data_source.h"
#include "executor/run/binding/bound_model.h"
#include "executor/stage/gradients/finite.h"
#include "executor/stage/moving_statistics.h"
#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"

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

}  // namespace stagecraft::run

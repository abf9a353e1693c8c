#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/format/results/evaluation_json.h"
#include "executor/channel/channel.h"
#include "executor/data/data_source.h"
#include "executor/run/binding/bound_model.h"
#include "executor/run/evaluation/evaluate.h"
#include "executor/run/worker/synchronous_worker.h"

namespace stagecraft::run {

/// What a training run validates on, and how often.
struct ValidationOptions {
  const data::DataSource* data = nullptr;    ///< samples in order, each once per pass; absent: no validation
  const model::Model* model = nullptr;       ///< the trained model, which can compute in evaluation mode
  std::int64_t every = 0;                    ///< steps between validations; 0: only after the last step
  std::optional<std::int64_t> samples = {};  ///< from the beginning of the data; required for endless data
};

/// The plan that runs only the forwards of `plan`, each on the same rank and in the same order.
[[nodiscard]] Plan forward_plan(const BoundPlan& plan);

/// Evaluates a model during its training, in evaluation mode and with the training's own ranks. Shares the trained
/// parameters, works on copies of buffers, and draws none of the training's random numbers, so the training is
/// unaffected.
class TrainingValidation {
 public:
  /// For a training of `bound` on `rank`. Arguments except `options` must outlive it. Throws std::invalid_argument as
  /// bind_model and evaluation_pieces do, and std::logic_error for a model that can only train.
  TrainingValidation(const BoundModel& bound, const ValidationOptions& options, int rank, channel::Channel& channel,
                     std::uint64_t seed, c10::Device device, const std::function<double()>& now);

  /// Whether to validate when `done` of `steps` steps are done: every so many steps, and after the last one.
  [[nodiscard]] bool is_due(std::int64_t done, std::int64_t steps) const;
  /// Call before the first run and after each change of which tensors hold the parameters: takes over those of
  /// `training`. Throws std::invalid_argument naming a tensor that the training does not have.
  void follow(StageWorker& training);
  /// One pass over the data with the parameters and buffers of `training`. Call on all ranks after the same step, when
  /// the pipeline is empty. The result is on rank 0. Throws PeerError.
  [[nodiscard]] std::optional<format::ModelEvaluation> run(StageWorker& training);

 private:
  struct Part;
  void compute(Part& part);
  [[nodiscard]] std::vector<double> packed(const Part& part) const;
  [[nodiscard]] format::ModelEvaluation gather(const Part& part);
  /// The microbatches of the pass that `rank` computes the loss of, ascending.
  [[nodiscard]] std::vector<std::int64_t> microbatches_of(int rank) const;

  BoundPlan plan_;
  BoundModel bound_;
  std::int64_t every_;
  int rank_;
  channel::Channel& channel_;
  const std::function<double()>& now_;
  EvaluationPieces pieces_;
  std::int64_t steps_;  // of a pass
  std::int64_t done_ = 0;
  std::unique_ptr<data::DataSource> data_;
  std::unique_ptr<SynchronousWorker> worker_;
};

}  // namespace stagecraft::run

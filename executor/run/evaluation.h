#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/format/results/evaluation_json.h"
#include "executor/channel/channel.h"
#include "executor/data/data_source.h"
#include "executor/run/binding/bound_model.h"
#include "executor/run/worker/synchronous_worker.h"
#include "executor/stage/stage_program.h"

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

/// What part of the data to evaluate, and in which pieces.
struct EvaluationPieces {
  std::int64_t microbatch_samples = 1;
  std::int64_t microbatches = 1;
  std::int64_t samples_left = 0;  ///< of the data, too few for a microbatch
};

/// Pieces of `microbatch` samples that cover the data, or its first `samples`. Throws std::invalid_argument for endless
/// data if `samples` is absent, if the data has fewer, and if they do not fill one microbatch.
[[nodiscard]] EvaluationPieces evaluation_pieces(const data::DataSource& data, std::int64_t microbatch,
                                                 std::optional<std::int64_t> samples);

/// The largest divisor of `samples` from a quarter of `usual`, but at least `least`, to `usual`, so that none is left
/// over; all of them if they are fewer than `usual`; `usual` if there is none.
[[nodiscard]] std::int64_t even_microbatch(std::int64_t samples, std::int64_t usual, std::int64_t least);

/// Sets the fields of an evaluation that describe its predictions; `samples` must be set. No effect if there are none.
void set_predictions(format::ModelEvaluation& evaluation, const std::optional<Predictions>& found);

/// Runs `program`, which has all layers of `model`, in evaluation mode over `pieces` of `data`. Its loss is that of all
/// of them together, however large the pieces are (see model::LossKind), or the mean of their losses if it compares
/// samples. Changes no parameter and no buffer. `seconds_now` is a clock; `progress`, if set, is called after each
/// microbatch with the number done.
[[nodiscard]] format::ModelEvaluation evaluate(stage::StageProgram& program, const model::Model& model,
                                               const data::DataSource& data, const EvaluationPieces& pieces,
                                               const std::function<double()>& seconds_now,
                                               const std::function<void(std::int64_t)>& progress = {});

/// "loss 0.3421, accuracy 0.8731 (52358 of 59968), 59968 of 60000 samples, 32 left over, 812 samples/s".
[[nodiscard]] std::string evaluation_text(const format::ModelEvaluation& evaluation);

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
  /// `averages`: of the parameters of which the training's ranks keep parts.
  void follow(StageWorker& training, const std::map<std::string, at::Tensor>& averages);
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

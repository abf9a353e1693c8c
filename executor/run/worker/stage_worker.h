#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/timeline.h"
#include "executor/channel/channel.h"
#include "executor/data/data_source.h"
#include "executor/device/ranges.h"
#include "executor/run/binding/bound_model.h"
#include "executor/run/worker/nonfinite_guard.h"
#include "executor/run/worker/resident_stage.h"
#include "executor/run/worker/span_recorder.h"
#include "executor/run/worker/stage_transfers.h"
#include "executor/stage/gradients/finite.h"
#include "executor/stage/gradients/loss_scaler.h"
#include "executor/stage/optimizer.h"
#include "executor/stage/step_losses.h"

namespace stagecraft::run {

/// Options of a worker.
struct WorkerOptions {
  stage::OptimizerOptions optimizer = {};
  std::uint64_t seed = 1;
  std::function<double()> now = [] { return 0.0; };  ///< seconds since the run's start
  std::int64_t first_step = 0;                       ///< number of the first step
  int steps = 1;
  c10::Device device{c10::kCPU};
};

/// Runs one rank's action list on tensors: forwards, backwards and transfers. A rank may have several stages.
/// SynchronousWorker and AsynchronousWorker decide what happens to the gradients, and when. Each action is recorded in
/// the channel's activity before it begins. On a GPU everything is enqueued on the current stream of the calling
/// thread, which must stay the same one.
class StageWorker {
 public:
  virtual ~StageWorker() = default;
  StageWorker(const StageWorker&) = delete;
  StageWorker& operator=(const StageWorker&) = delete;

  /// Call before the first step: what to do if a loss or a gradient is not finite; by default, throws NonfiniteError.
  /// Otherwise `tell` is called. Gradients that overflow under a loss scale do not count. All ranks pass the same.
  /// Throws std::invalid_argument for Skip under an asynchronous schedule.
  virtual void on_nonfinite(stage::OnNonfinite what, std::function<void(const std::string&)> tell);
  /// Steps in which this rank found a loss or gradient that was not finite, or, with Skip, any rank did.
  [[nodiscard]] std::int64_t nonfinite_steps() const { return guard_.steps(); }

  [[nodiscard]] const std::optional<stage::LossScaler>& loss_scaler() const { return scaler_; }

  /// On a GPU, call before the first transfer: see run::warm_up.
  void warm_up(const data::DataSource& data);

  /// Takes the losses of this rank's microbatches in a finished step, see StepLosses::take.
  [[nodiscard]] stage::MicrobatchLosses take_losses(std::int64_t step);
  /// Parameters of all stages of this rank with their gradients.
  [[nodiscard]] std::vector<stage::Parameter> parameters() const;
  /// Calls `visit` with each stage of this rank. Parameter i of the program is parameter i of the optimizer.
  void visit_stages(const std::function<void(int stage, stage::StageProgram&, stage::Optimizer&)>& visit);
  /// The rank's list of actions.
  [[nodiscard]] const std::vector<Action>& actions() const { return actions_; }
  /// Spans since the last call, see SpanRecorder::take and take_all.
  [[nodiscard]] std::vector<Span> take_spans() { return spans_.take(); }
  [[nodiscard]] std::vector<Span> take_all_spans() { return spans_.take_all(); }

 protected:
  /// `list_steps`: the steps that the action list covers. Arguments except the options must outlive it.
  StageWorker(const BoundModel& bound, int rank, channel::Channel& channel, const data::DataSource& data,
              const WorkerOptions& options, int list_steps);

  /// Runs entry `index` of the list in step `step`; an error names rank and action.
  void perform(std::size_t index, std::int64_t step);
  [[nodiscard]] ResidentStage& resident(int stage);

  /// Hooks of derived workers around a microbatch's forward and backward.
  virtual void before_forward(ResidentStage&, const Action&) {}
  virtual void after_forward(ResidentStage&, const Action&) {}
  virtual void before_backward(ResidentStage&, const Action&) {}
  /// After each part of a backward, `last` after the last one.
  virtual void after_backward(ResidentStage&, const Action&, bool last) = 0;
  virtual void reduce(const Action& action) = 0;
  virtual void update(const Action& action) = 0;
  /// Initial gradient of the loss.
  [[nodiscard]] double loss_gradient() const { return scaler_ ? scaler_->scale() : 1; }

  /// On a GPU, together with the losses of microbatches: whether gradients are not finite.
  static constexpr int kGradientsFlag = -1;

  const BoundModel& bound_;
  const Plan& plan_;
  int rank_;
  channel::Channel& channel_;
  stage::OptimizerOptions optimizer_;
  stage::Placement placement_;
  std::int64_t first_step_;
  int list_steps_;
  std::vector<Action> actions_;
  std::vector<device::RangeName> ranges_;  // one per action
  std::vector<ResidentStage> stages_;
  StageTransfers transfers_;
  SpanRecorder spans_;
  stage::StepLosses losses_;
  NonfiniteGuard guard_;
  std::optional<stage::LossScaler> scaler_;  // of a synchronous schedule in float16

 private:
  void load_ahead(ResidentStage& own, const data::DataSource& data);
  void begin(const Action& action, std::int64_t step);
  void run(const Action& action, std::int64_t step);
  void forward(const Action& action, std::int64_t step);
  void backward(const Action& action, std::int64_t step);
  void weight_gradient(const Action& action);
  /// Adds the tensors on `boundary` for the consumer's microbatch to `out`.
  void await(const Action& consumer, int boundary, bool gradient, std::int64_t step, std::vector<at::Tensor>& out);
  [[nodiscard]] const std::vector<int>& slots(const Action& transfer);

  device::RangeName wait_range_;
  // Empty between actions; kept for their memory.
  std::vector<at::Tensor> arrived_;
  std::vector<at::Tensor> sent_gradients_;
};

}  // namespace stagecraft::run

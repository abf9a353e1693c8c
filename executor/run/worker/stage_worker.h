#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/timeline.h"
#include "executor/channel/channel.h"
#include "executor/data/data_source.h"
#include "executor/data/prefetch.h"
#include "executor/device/ranges.h"
#include "executor/run/binding/bound_model.h"
#include "executor/run/worker/span_recorder.h"
#include "executor/run/worker/stage_transfers.h"
#include "executor/stage/gradients/finite.h"
#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"
#include "executor/stage/step_losses.h"

namespace stagecraft::run {

/// One stage on a rank, and its microbatches in flight. Slots are indices into the values that the program receives or
/// sends.
struct ResidentStage {
  int stage = 0;
  std::unique_ptr<stage::StageProgram> program;
  std::unique_ptr<stage::Optimizer> optimizer;           ///< of the program's parameters, or of what the rank updates
                                                         ///< of them in the order of their memory
  std::vector<std::vector<int>> slots;                   ///< by boundary: the slot of each of its tensors
  std::vector<stage::Flight> flights;                    ///< by microbatch
  std::vector<std::vector<at::Tensor>> input_gradients;  ///< by microbatch, until sent
  std::set<int> split;                                   ///< microbatches whose backward has two parts
  std::vector<stage::SplitBackward> rests;               ///< by microbatch, until its weight gradients are due
  std::unique_ptr<data::Prefetch> data;                  ///< whether its layers read inputs of the model
  bool gathering = false;                                ///< its parameters are on their way
};

/// Stage `stage` on `rank` with its first parameters, for `microbatches` microbatches. The model must outlive it.
[[nodiscard]] ResidentStage make_resident_stage(const BoundModel& bound, int stage, int rank, int microbatches,
                                                const stage::OptimizerOptions& optimizer, std::uint64_t seed,
                                                stage::ComputePlace placement);

/// Runs the stage once on `data` and on zeros for what it receives, forward and, if the plan trains, backward, and
/// takes an optimizer step elsewhere. Parameters, gradients and buffers stay as they are. A GPU loads a kernel when it
/// is first used, and that may wait for a transfer in progress, whose peer may wait for this rank: call it before the
/// first transfer.
void warm_up(ResidentStage& resident, const BoundModel& bound, const stage::OptimizerOptions& optimizer,
             const stage::ComputePlace& placement, std::vector<at::Tensor> data);

/// Handles losses and gradients that are not finite on one rank.
class NonfiniteGuard {
 public:
  explicit NonfiniteGuard(int rank) : rank_(rank) {}
  /// `tell` is called with each finding, unless `what` is Stop.
  void set(stage::OnNonfinite what, std::function<void(const std::string&)> tell);
  [[nodiscard]] bool skips_steps() const { return what_ == stage::OnNonfinite::Skip; }

  /// `what` of `step` is not finite. Throws NonfiniteError if the run is to stop.
  void found(std::int64_t step, const std::string& what);
  /// Whether this rank found something in `step`.
  [[nodiscard]] bool found_in(std::int64_t step) const { return last_ == step; }
  /// Reports a step that was skipped because some rank found something.
  void count_skipped() { ++steps_; }
  /// Steps in which this rank found something, or any rank if steps are skipped.
  [[nodiscard]] std::int64_t steps() const { return steps_; }

 private:
  int rank_;
  stage::OnNonfinite what_ = stage::OnNonfinite::Stop;
  std::function<void(const std::string&)> tell_;
  std::int64_t steps_ = 0;
  std::int64_t last_ = -1;  // step
};

/// Options of a worker.
struct WorkerOptions {
  stage::OptimizerOptions optimizer = {};
  std::uint64_t seed = 1;
  std::function<double()> now = [] { return 0.0; };  ///< seconds since the run's start
  std::int64_t first_step = 0;                       ///< number of the first step
  int steps = 1;
  c10::Device device{c10::kCPU};
};

/// What a worker runs, and where: it stays as it is from the first step to the last.
struct WorkerSetup {
  const BoundModel& bound;
  int rank = 0;
  channel::Channel& channel;
  stage::OptimizerOptions optimizer;
  stage::ComputePlace placement;
  std::int64_t first_step = 0;
  int list_steps = 1;           ///< number of steps that the list covers
  std::vector<Action> actions;  ///< the rank's list

  [[nodiscard]] const Plan& plan() const { return bound.plan.plan(); }
  [[nodiscard]] bool trains() const { return bound.plan.schedule().trains; }
  [[nodiscard]] bool on_cpu() const { return placement.device.is_cpu(); }
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

  /// The scaler of the loss's gradient; null if it is not scaled.
  [[nodiscard]] virtual const stage::LossScaler* loss_scaler() const { return nullptr; }
  /// Takes the norm of the model's mean gradient in a step whose update was run, before clipping; absent without
  /// clipping and on ranks other than 0.
  [[nodiscard]] virtual std::optional<double> take_gradient_norm(std::int64_t) { return std::nullopt; }

  /// The moving averages of the parameters that this rank updates in part only, by name; none before the first step.
  /// All ranks call it.
  [[nodiscard]] virtual std::map<std::string, at::Tensor> gather_averages() { return {}; }

  /// Gathers the whole parameters of stages that have them only while they compute, and releases them again, for what
  /// needs them between steps. All ranks call both.
  virtual void gather_parameters() {}
  virtual void free_parameters() {}

  /// On a GPU, call before the first transfer: see run::warm_up.
  void warm_up(const data::DataSource& data);

  /// Takes the losses of this rank's microbatches in a finished step, see StepLosses::take.
  [[nodiscard]] stage::MicrobatchLosses take_losses(std::int64_t step);
  /// Parameters of all stages of this rank with their gradients, see SynchronousWorker::gather_gradients.
  [[nodiscard]] std::vector<stage::Parameter> parameters() const;
  /// Calls `visit` with each stage of this rank. The optimizer has parameter i of the program, or what this rank
  /// updates of it, as its parameter i.
  void visit_stages(const std::function<void(int stage, stage::StageProgram&, stage::Optimizer&)>& visit);
  /// The rank's list of actions.
  [[nodiscard]] const std::vector<Action>& actions() const { return setup_.actions; }
  /// Spans since the last call, see SpanRecorder::take and take_all.
  [[nodiscard]] std::vector<Span> take_spans() { return spans_.take(); }
  [[nodiscard]] std::vector<Span> take_all_spans() { return spans_.take_all(); }

 protected:
  /// `list_steps`: the steps that the action list covers. Arguments except the options must outlive it.
  StageWorker(const BoundModel& bound, int rank, channel::Channel& channel, const data::DataSource& data,
              const WorkerOptions& options, int list_steps);

  /// Runs entry `index` of the list in step `step`; an error names rank and action.
  void perform(std::size_t index, std::int64_t step);
  /// Records in the channel's activity that entry `index` of the list begins; its range lasts as long as the result.
  [[nodiscard]] device::ScopedRange begin(std::size_t index, const Action& action, std::int64_t step);
  void finish_sends() { transfers_.finish_sends(); }

  /// Hooks of derived workers around a microbatch's forward and backward.
  virtual void before_forward(ResidentStage&, const Action&) {}
  virtual void after_forward(ResidentStage&, const Action&) {}
  /// What the loss of a microbatch counts in that of its step, see loss_shares.
  [[nodiscard]] virtual double loss_share(int /*microbatch*/) const { return 1; }
  /// Returns the initial gradient of the loss.
  [[nodiscard]] virtual double before_backward(ResidentStage&, const Action&) { return 1; }
  /// After each part of a backward, `last` after the last one.
  virtual void after_backward(ResidentStage&, const Action&, bool last) = 0;
  /// Of a Gather, what it begins, and what the stage's next computation waits for; and of a Free.
  virtual void begin_gather(ResidentStage& stage);
  virtual void finish_gather(ResidentStage& stage);
  virtual void free(ResidentStage& stage);
  virtual void reduce(const Action& action) = 0;
  virtual void update(const Action& action) = 0;

  [[nodiscard]] const WorkerSetup& setup() const { return setup_; }
  [[nodiscard]] std::vector<ResidentStage>& stages() { return stages_; }
  [[nodiscard]] ResidentStage& resident(int stage);
  [[nodiscard]] SpanRecorder& spans() { return spans_; }
  [[nodiscard]] stage::StepLosses& losses() { return losses_; }
  [[nodiscard]] NonfiniteGuard& guard() { return guard_; }

  /// On a GPU, together with the losses of microbatches: whether gradients are not finite.
  static constexpr int kGradientsFlag = -1;

 private:
  void load_ahead(ResidentStage& stage, const data::DataSource& data);
  void run(const Action& action, std::int64_t step);
  void forward(const Action& action, std::int64_t step);
  void backward(const Action& action, std::int64_t step);
  void weight_gradient(const Action& action, std::int64_t step);
  /// Waits for the stage's parameters if they are on their way.
  void await_parameters(ResidentStage& stage, std::int64_t step);
  /// Adds the tensors on `boundary` for the consumer's microbatch to `out`.
  void await(const Action& consumer, const Passage& input, std::int64_t step, std::vector<at::Tensor>& out);
  [[nodiscard]] const std::vector<int>& slots(const Action& transfer);

  WorkerSetup setup_;
  std::vector<device::RangeName> ranges_;  // one per action
  device::RangeName wait_range_;
  std::vector<ResidentStage> stages_;
  StageTransfers transfers_;
  SpanRecorder spans_;
  stage::StepLosses losses_;
  NonfiniteGuard guard_;
  // Empty between actions; kept for their memory.
  std::vector<at::Tensor> arrived_;
  std::vector<at::Tensor> sent_gradients_;
};

}  // namespace stagecraft::run

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/plan.h"
#include "costmodel/timeline.h"
#include "executor/channel/channel.h"
#include "executor/channel/edge_tags.h"
#include "executor/data/data_source.h"
#include "executor/data/prefetch.h"
#include "executor/device/device_clock.h"
#include "executor/device/ranges.h"
#include "executor/model/layer_source.h"
#include "executor/run/planned_layers.h"
#include "executor/stage/finite.h"
#include "executor/stage/gradient_buckets.h"
#include "executor/stage/loss_scaler.h"
#include "executor/stage/moving_statistics.h"
#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"
#include "executor/stage/step_losses.h"
#include "executor/stage/weight_versions.h"

namespace stagecraft {

/// Runs one rank's action list, step by step, on tensors. A rank may hold several stages.
class StageWorker {
 public:
  /// `now` gives seconds since the run's start. The channel's activity is told each action before it begins.
  /// `first_step` is the number of the first step that compute will be called with; the others follow it.
  /// On a GPU everything is enqueued on the current stream of the calling thread, which must stay the same one.
  /// model, plan, channel and data must outlive it. Throws std::invalid_argument as layers_of_stages and
  /// check_fits do.
  StageWorker(const Model& model, const Plan& plan, int rank, Channel& channel, const DataSource& data,
              const OptimizerOptions& optimizer, std::uint64_t seed, std::function<double()> now,
              std::int64_t first_step = 0, int steps = 1, c10::Device device = c10::Device(c10::kCPU));

  /// Runs forwards, backwards and transfers of a step, up to and including Reduce. Throws PeerError that names rank
  /// and action.
  void compute(std::int64_t step);
  /// Runs the step's Updates: gradients are divided by the number of microbatches first, and by more where they are
  /// clipped; then all ranks must call it. Clears them. A schedule without backwards has none.
  void update(std::int64_t step);

  /// Runs all steps of an asynchronous schedule, updates included. `done` is told a step when this rank has done the
  /// last of its backwards of it; the microbatches of its losses are counted on over the steps.
  void replay(const std::function<void(std::int64_t step)>& done);
  [[nodiscard]] bool asynchronous() const { return asynchronous_; }

  /// To be called before the first step, where the loss's gradient begins with a scale: updates divide by it, and a
  /// step in which a gradient of any rank overflows changes no parameter of any rank. All ranks or none.
  void scale_loss(const LossScaler& scaler) { scaler_ = scaler; }
  [[nodiscard]] const std::optional<LossScaler>& loss_scaler() const { return scaler_; }

  /// To be called before the first step: what to do if a loss or a gradient is not finite, by default to throw
  /// NonfiniteError. `tell` hears of it otherwise. Gradients that overflow under a loss scale do not count. All ranks
  /// pass the same; an asynchronous schedule has no Skip.
  void on_nonfinite(OnNonfinite what, std::function<void(const std::string&)> tell);
  /// Steps in which this rank found a loss or gradient that was not finite, or, with Skip, any rank did.
  [[nodiscard]] std::int64_t nonfinite_steps() const { return nonfinite_steps_; }

  /// Takes the losses of this rank's microbatches in a step that it has run, as StepLosses::take.
  [[nodiscard]] MicrobatchLosses take_losses(std::int64_t step);
  /// Parameters of all held stages with their gradients, valid between compute and update: sums over all microbatches.
  [[nodiscard]] std::vector<Parameter> parameters() const;
  /// Calls `visit` with each held stage. Parameter i of the program is parameter i of the optimizer.
  void visit_stages(const std::function<void(int stage, StageProgram&, Optimizer&)>& visit);
  /// The rank's list of actions.
  [[nodiscard]] const std::vector<Action>& actions() const { return actions_; }
  /// Spans since the last call, in their order; on a GPU those that are known without waiting for it.
  [[nodiscard]] std::vector<Span> take_spans();
  /// The same of all that was done: waits for a GPU.
  [[nodiscard]] std::vector<Span> take_all_spans();

 private:
  /// One stage that this rank holds.
  struct Held {
    int stage = 0;
    std::unique_ptr<StageProgram> program;
    std::vector<int> incoming;  // boundaries into this stage
    std::vector<int> outgoing;
    std::vector<std::vector<int>> slots;  // by boundary, of its tensors among the program's received or sent values
    std::vector<Flight> flights;          // by microbatch
    std::vector<std::vector<at::Tensor>> input_gradients;  // by microbatch, until sent
    std::set<int> split;                                   // microbatches whose backward comes in two parts
    std::vector<SplitBackward> rests;                      // by microbatch, until its weight gradients are due
    std::vector<int> replica_group;
    std::set<int> tied;                            // positions in the program's parameters
    std::unique_ptr<GradientReduction> reduction;  // of a replicated stage's parameters that are not tied
    int last_backward = -1;                        // microbatch, of the step
    std::unique_ptr<Prefetch> data;
    std::unique_ptr<MovingStatistics> statistics;  // of a replicated stage of a synchronous schedule
    std::unique_ptr<WeightVersions> versions;      // of an asynchronous schedule
    std::map<int, std::pair<int, int>> covered;    // by update: microbatches whose gradients it applies, the last one
  };
  /// The layers of one held stage that hold a tied parameter, each with a leaf of its own.
  struct TiedCopies {
    int held = 0;             // position among the held stages
    std::vector<int> copies;  // positions in the program's parameters
    at::Tensor sum;           // of several copies' gradients, over the microbatches that are done
    std::map<int, std::vector<at::Tensor>> begun;  // by microbatch whose backward is half done: a gradient for each copy
  };
  struct Tie {
    std::vector<TiedCopies> stages;
    std::vector<int> ranks;  // ascending, each once
    int tag = 0;
  };
  [[nodiscard]] Held& held(int stage);
  void hold(int stage, const std::vector<std::vector<int>>& layers, std::uint64_t seed);
  void tie(const std::vector<TiedGradient>& tied);
  void load_ahead(Held& held, std::int64_t first_step);

  void begin(const Action& action, std::int64_t step);
  /// Runs entry `index` of the list; an error says which it was.
  void perform(std::size_t index, std::int64_t step);
  void finish_sends();
  void run(const Action& action, std::int64_t step);
  void post_receive(const Action& action);
  /// What crosses `boundary` as its tensor number `t`, checked against the plan.
  [[nodiscard]] at::Tensor planned(const Action& action, const Held& held, int boundary, std::size_t t,
                                   const std::vector<at::Tensor>& tensors) const;
  void send(const Action& action, const std::vector<at::Tensor>& tensors);
  /// To the stages of this rank itself, which no action stands for.
  void hand_over(const Action& action, const Held& held, bool gradient, const std::vector<at::Tensor>& tensors);
  /// Adds what crosses `boundary` for the consumer's microbatch to `out`.
  void await(const Action& consumer, int boundary, bool gradient, std::int64_t step, std::vector<at::Tensor>& out);
  void forward(const Action& action, std::int64_t step);
  void backward(const Action& action, std::int64_t step);
  void weight_gradient(const Action& action, std::int64_t step);
  /// A loss or gradient of `step` is not finite.
  void found_nonfinite(std::int64_t step, const std::string& what);
  /// Before an update, with all gradients there: whether it must be left out.
  [[nodiscard]] bool skips(std::int64_t step);
  void keep_buffers();
  void restore_buffers();
  void reduce(Held& held);
  void reduce_waiting(Held& held);
  void update_version(const Action& action);
  /// To be called after each part of a microbatch's backward, `last` after its last one: where several layers of a stage
  /// hold a parameter, their gradients are added up before they join those of earlier microbatches, as autograd does with
  /// one tensor that is used several times.
  void add_tied_copies(const Held& held, int microbatch, bool last);
  void reduce_ties();
  void prepare_gradients(Held& held);
  [[nodiscard]] int boundary_with(const Held& held, int peer) const;
  [[nodiscard]] int runner(int stage, int microbatch) const;
  void record(const Action& action, std::int64_t step, DeviceClock::Moment start);
  void settle_spans(bool all);

  const Model& model_;
  const Plan& plan_;
  int rank_;
  Channel& channel_;
  const DataSource& data_;
  OptimizerOptions optimizer_;
  std::vector<std::string> trainable_;
  Placement placement_;
  DeviceClock clock_;
  ScheduleEntry schedule_;
  std::optional<LossScaler> scaler_;
  OnNonfinite on_nonfinite_ = OnNonfinite::Stop;
  std::function<void(const std::string&)> tell_;
  std::int64_t nonfinite_steps_ = 0;
  std::int64_t last_nonfinite_ = -1;                         // step
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_buffers_;  // with Skip: buffers and their values before the step
  bool asynchronous_ = false;
  std::int64_t first_step_ = 0;
  int steps_ = 1;
  std::vector<Action> actions_;
  std::vector<RangeName> ranges_;  // one an action
  RangeName wait_range_;
  std::size_t reduces_ = 0;
  std::vector<Held> held_;
  std::vector<Tie> ties_;
  std::vector<std::unique_ptr<Optimizer>> optimizers_;  // one a held stage

  EdgeTags tags_;
  std::vector<std::vector<TensorSpec>> specs_;  // by boundary and its tensors
  // [gradient][boundary][microbatch]: what was posted, or, of a stage that this rank holds too, handed over.
  std::vector<std::vector<std::vector<std::unique_ptr<Receiving>>>> posted_[2];
  std::vector<std::vector<std::vector<at::Tensor>>> handed_[2];
  std::vector<std::unique_ptr<Sending>> sending_;
  StepLosses losses_;
  struct Unsettled {
    Span span;
    DeviceClock::Moment start;
    DeviceClock::Moment end;
  };
  std::deque<Unsettled> unsettled_;  // spans whose moments have not come
  // Empty between actions; kept for their memory.
  std::vector<at::Tensor> arrived_;
  std::vector<at::Tensor> sent_gradients_;
  std::vector<Span> spans_;
};

}  // namespace stagecraft

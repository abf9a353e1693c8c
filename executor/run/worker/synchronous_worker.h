#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executor/run/worker/stage_worker.h"
#include "executor/stage/gradients/finite.h"
#include "executor/stage/gradients/gradient_reduction.h"
#include "executor/stage/moving_statistics.h"

namespace stagecraft::run {

/// A rank of a schedule whose steps end before the next begin: each step is its list, then one update.
class SynchronousWorker : public StageWorker {
 public:
  /// Arguments except the options must outlive it.
  SynchronousWorker(const BoundModel& bound, int rank, channel::Channel& channel, const data::DataSource& data,
                    const WorkerOptions& options);

  /// Call before the first step to scale the loss's gradient: updates divide by the scale, and a step in which a
  /// gradient of any rank overflows does not change parameters on any rank. Call on all ranks or none.
  void scale_loss(const stage::LossScaler& scaler) { scaler_ = scaler; }
  [[nodiscard]] const stage::LossScaler* loss_scaler() const override { return scaler_ ? &*scaler_ : nullptr; }

  /// Runs forwards, backwards and transfers of a step, up to and including Reduce. The span of the last Reduce includes
  /// the sums of tied parameters. Throws PeerError naming rank and action.
  void compute(std::int64_t step);
  /// Runs the step's Updates: gradients are first divided by the number of microbatches, and by more if they are
  /// clipped; clipping needs a call on all ranks. Clears the gradients. No effect for a schedule without backwards.
  /// Between compute and update, parameters() has the gradients' sums over all microbatches, or where several ranks
  /// divide the optimizer's state, each its part of them: see gather_gradients. The span of the first
  /// Update begins where compute ended its list and includes all that the whole rank does for its update: sums of tied
  /// parameters within the stage, checks of the gradients, clipping, moving statistics; that of the last Update ends
  /// when parameters are the same on all ranks that hold them.
  void update_step(std::int64_t step);
  /// Call between compute and update_step, on all ranks, for the whole sums in parameters().
  void gather_gradients();
  [[nodiscard]] std::map<std::string, at::Tensor> gather_averages() override;
  void gather_parameters() override;
  void free_parameters() override;
  /// From now on, updates multiply the learning rate by `factor` too.
  void scale_rate(double factor) { rate_scale_ = factor; }
  [[nodiscard]] std::optional<double> take_gradient_norm(std::int64_t step) override;
  /// Call after work between compute and update_step that does not belong to the step: the Update begins now.
  void begin_update();

 private:
  /// Further state per stage, in the order of the worker's stages.
  struct StageState {
    std::vector<stage::Parameter> updated;                // what the optimizer updates, with names; if the plan trains
    std::unique_ptr<stage::GradientReduction> reduction;  // for a replicated stage's parameters that are not tied
    std::unique_ptr<stage::MovingStatistics> statistics;  // of a replicated stage
    int last_backward = -1;  // microbatch whose backward starts sums; -1: only the Reduce does
  };
  void after_backward(ResidentStage& stage, const Action& action, bool last) override;
  void before_forward(ResidentStage& stage, const Action& action) override;
  void after_forward(ResidentStage& stage, const Action& action) override;
  [[nodiscard]] double before_backward(ResidentStage& stage, const Action& action) override;
  [[nodiscard]] double loss_share(int microbatch) const override;
  void begin_gather(ResidentStage& stage) override;
  void finish_gather(ResidentStage& stage) override;
  void free(ResidentStage& stage) override;
  void reduce(const Action& action) override;
  void update(const Action& action) override;

  [[nodiscard]] std::size_t place_of(const ResidentStage& stage);
  [[nodiscard]] channel::StageTags tags_of(const ResidentStage& stage);
  [[nodiscard]] StageState& state_of(const ResidentStage& stage) { return states_[place_of(stage)]; }
  /// Initial gradient of the loss.
  [[nodiscard]] double loss_gradient() const { return scaler_ ? scaler_->scale() : 1; }
  /// The stage's reduction, made when it is first needed; null if it has none.
  stage::GradientReduction* reduction(ResidentStage& stage);
  void prepare_gradients(ResidentStage& stage);
  void keep_buffers();
  void restore_buffers();
  /// What this rank updates, of all stages.
  [[nodiscard]] std::vector<stage::Parameter> updated() const;
  /// Calls `visit` with the sums that have parts, in an order that all their ranks have: those of each stage over its
  /// replicas, then each tied parameter's. `tags` are those of their collectives.
  using VisitDivided = std::function<void(const ResidentStage& stage, const std::vector<const GradientSum*>& sums,
                                          const std::vector<int>& tags)>;
  void visit_divided(const VisitDivided& visit);
  /// Squared norms of the gradients of this rank's parameters.
  [[nodiscard]] std::map<std::string, double> squared_norms();
  /// Before an update, with all gradients complete: whether it must be skipped.
  [[nodiscard]] bool skips(std::int64_t step);
  void settle_statistics(bool skipped);

  const data::DataSource& data_;
  std::vector<double> shares_;  // of the step's losses, on ranks that compute them; empty: all are 1
  std::vector<std::string> trainable_;
  std::vector<StageState> states_;
  stage::TiedGradients ties_;
  std::size_t reduces_ = 0;  // in the list
  std::size_t reduced_ = 0;  // of them in this step
  bool prepared_ = false;
  double rate_scale_ = 1;
  DeviceClock::Moment update_start_;
  std::optional<stage::LossScaler> scaler_;                      // in float16
  std::map<std::int64_t, double> norms_;                         // on rank 0, if gradients are clipped: by step
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_buffers_;  // with Skip: buffers and their values before the step
};

}  // namespace stagecraft::run

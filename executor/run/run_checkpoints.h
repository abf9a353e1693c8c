#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "executor/channel/channel.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/run/bound_model.h"
#include "executor/run/stage_worker.h"
#include "executor/stage/optimizer.h"

namespace stagecraft {

/// Where a run begins and what it leaves behind.
struct CheckpointOptions {
  std::string folder;        ///< empty: no checkpoints; else one that all ranks share
  std::int64_t every = 100;  ///< steps; there is one after the last step in any case
  bool resume = false;       ///< begin with the newest whole and finite checkpoint, if there is one
  int keep = 2;              ///< so many of the newest finite ones stay
  std::string weights;  ///< a file of tensors (see tensor_files.h) with the first parameters, unless a checkpoint is
                        ///< loaded; or empty
  std::string data;     ///< name of the data source, for the manifest
  /// Asked on each rank after each step, if set (on all ranks or none): true on any rank ends the run there, with a
  /// checkpoint.
  std::function<bool()> stop;
  /// Hears, on rank 0, lines for people.
  std::function<void(const std::string&)> tell;
};

/// What ranks would refuse, before any is started: if `options` resume, throws FormatError for a newest checkpoint that
/// belongs to another run, as RunCheckpoints does, by its manifest alone.
void check_can_resume(const BoundModel& bound, const CheckpointOptions& options, const OptimizerOptions& optimizer,
                      std::uint64_t seed);

/// One rank's part in loading and writing checkpoints. All ranks call the same functions in the same order. A plan that
/// only evaluates loads parameters and buffers from a checkpoint of any training of the model, and writes none.
class RunCheckpoints {
 public:
  /// Finds where the run begins. Arguments must outlive it. Throws FormatError for a checkpoint that belongs to another
  /// model, seed, kind of optimizer, data source or number of samples a step, and std::invalid_argument for a folder
  /// that holds checkpoints though none is to be resumed, for one of an evaluation that is not to be resumed, and as
  /// check_can_save.
  RunCheckpoints(const BoundModel& bound, const CheckpointOptions& options, const OptimizerOptions& optimizer,
                 std::uint64_t seed, int rank, Channel& channel);

  /// The step to begin with: that of the checkpoint, or 0, as for an evaluation.
  [[nodiscard]] std::int64_t first_step() const { return first_step_; }
  /// The scale of the loss that the checkpoint says, if it says one.
  [[nodiscard]] const std::optional<LossScale>& loss_scale() const { return loss_scale_; }
  /// Sets what the program holds from the checkpoint or the file of weights, if there is one.
  void load(StageProgram& program, Optimizer& optimizer) const;
  /// To be called after each step, `done` of `steps` being done: writes a checkpoint where one is due. True if the run
  /// ends here because a rank was asked to stop.
  [[nodiscard]] bool after_step(StageWorker& worker, std::int64_t done, std::int64_t steps);
  /// Path of the newest checkpoint from which a run could go on, as far as this rank knows; empty if there is none.
  [[nodiscard]] std::string newest() const;

 private:
  [[nodiscard]] CheckpointManifest manifest(std::int64_t done) const;
  void find();
  void open(std::int64_t step);
  [[nodiscard]] bool agree_to_stop();
  void write(StageWorker& worker, std::int64_t done);
  void tell(const std::string& text) const;

  const BoundModel& bound_;
  const CheckpointOptions& options_;
  const OptimizerOptions& optimizer_;
  std::uint64_t seed_;
  int rank_;
  Channel& channel_;
  std::vector<int> writers_;             // replica 0 of each pipeline position
  std::map<std::string, int> stage_of_;  // the stage that writes a name
  std::int64_t first_step_ = 0;
  bool trains_;
  std::vector<std::int64_t> finite_;  // steps of the checkpoints that count as whole and finite, ascending
  std::optional<TensorFiles> files_;
  std::optional<LossScale> loss_scale_;
  bool weights_alone_ = false;
};

}  // namespace stagecraft

#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "executor/channel/channel.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/run/binding/bound_model.h"
#include "executor/run/worker/stage_worker.h"
#include "executor/stage/optimizer.h"

namespace stagecraft::run {

/// Checkpoint settings of a run.
struct CheckpointOptions {
  std::string folder;        ///< folder shared by all ranks; empty: no checkpoints
  std::int64_t every = 100;  ///< steps between checkpoints; the last step always has one
  bool resume = false;       ///< resume from the newest complete and finite checkpoint, if any
  int keep = 2;              ///< number of newest finite checkpoints to keep
  std::string weights;  ///< file with initial parameters (see tensor_files.h), unless a checkpoint is loaded; or empty
  std::string data;     ///< name of the data source, for the manifest
  /// Called on each rank after each step, if set (on all ranks or none): true on any rank ends the run there, with a
  /// checkpoint.
  std::function<bool()> stop;
  /// Called with messages for the user, on rank 0.
  std::function<void(const std::string&)> tell;
};

/// Checks before ranks are started: if `options` resume, throws FormatError if the newest checkpoint belongs to another
/// run, as RunCheckpoints does, by its manifest only.
void check_can_resume(const BoundModel& bound, const CheckpointOptions& options,
                      const stage::OptimizerOptions& optimizer, std::uint64_t seed);

/// One rank's part in loading and writing checkpoints. All ranks call the same functions in the same order. A plan that
/// only evaluates loads parameters and buffers from a checkpoint of any training of the model, and writes none.
/// A checkpoint is written while the run continues: after the step that is due, each rank copies what it writes to host
/// memory, and a thread of its own writes the copy. After the first step at which all ranks have written, rank 0
/// commits the checkpoint, also on a thread. One checkpoint is in progress at most.
class RunCheckpoints {
 public:
  /// What a rank has written for a checkpoint.
  struct Part {
    format::CheckpointFile file;  ///< of 0 bytes: none, of a rank that writes nothing
    bool finite = true;
  };

  /// Finds where the run begins. Arguments must outlive it. Throws FormatError for a checkpoint of another model, seed,
  /// optimizer, data source or number of samples per step, and on a rank that has another checkpoint of the step than
  /// rank 0. Throws std::invalid_argument if the folder has checkpoints and `resume` is false, if an evaluation has a
  /// folder and `resume` is false, and as check_can_save does.
  RunCheckpoints(const BoundModel& bound, const CheckpointOptions& options, const stage::OptimizerOptions& optimizer,
                 std::uint64_t seed, int rank, channel::Channel& channel);

  /// The first step: that of the checkpoint, or 0 (also for an evaluation).
  [[nodiscard]] std::int64_t first_step() const { return first_step_; }
  /// The loss scale of the checkpoint, if it has one.
  [[nodiscard]] const std::optional<stage::LossScale>& loss_scale() const { return loss_scale_; }
  /// The state of the plateau schedule in the checkpoint, if it has one.
  [[nodiscard]] const std::optional<stage::Plateau>& plateau() const { return plateau_; }
  /// From now on, checkpoints have the state of this plateau schedule, which must outlive it.
  void save(const stage::Plateau* plateau) { saved_plateau_ = plateau; }
  /// Loads the program's state from the checkpoint or the file of weights, if there is one.
  void load(stage::StageProgram& program, stage::Optimizer& optimizer) const;
  /// Call after each step, when `done` of `steps` are done: starts a checkpoint if one is due, once the previous one is
  /// complete, and commits one that all ranks have written. True if the run ends here because a rank was asked to stop.
  /// When the run ends, its last checkpoint is complete. Throws what this rank's threads threw since the last call.
  [[nodiscard]] bool after_step(StageWorker& worker, std::int64_t done, std::int64_t steps);
  /// Path of the newest checkpoint from which a run could continue, as far as this rank knows; empty if there is none.
  [[nodiscard]] std::string newest() const;

 private:
  /// A checkpoint that is not committed yet.
  struct Writing {
    format::CheckpointManifest manifest;  ///< without files
    std::future<Part> part;               ///< until it is in `written`
    std::optional<Part> written = {};
  };

  [[nodiscard]] format::CheckpointManifest manifest(std::int64_t done) const;
  void find();
  /// `digest`: of the manifest that rank 0 has.
  void open(std::int64_t step, std::int64_t digest);
  /// Copies the state after `done` steps and starts to write it.
  void begin(StageWorker& worker, std::int64_t done);
  /// Waits until all ranks have written the checkpoint in progress; rank 0 starts to commit it.
  void finish();
  void tell(const std::string& text) const;

  const BoundModel& bound_;
  const CheckpointOptions& options_;
  const stage::OptimizerOptions& optimizer_;
  std::uint64_t seed_;
  int rank_;
  channel::Channel& channel_;
  std::int64_t first_step_ = 0;
  bool trains_;
  std::vector<std::int64_t> finite_;  // steps of the complete and finite checkpoints, ascending
  std::optional<files::TensorFiles> files_;
  std::optional<stage::LossScale> loss_scale_;
  std::optional<stage::Plateau> plateau_;
  const stage::Plateau* saved_plateau_ = nullptr;
  bool weights_alone_ = false;
  std::optional<Writing> writing_;  // on all ranks or none
  std::future<void> committed_;     // on rank 0
};

}  // namespace stagecraft::run

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "executor/run/worker/stage_worker.h"
#include "executor/stage/weight_versions.h"

namespace stagecraft::run {

/// A rank of an asynchronous schedule, whose steps overlap: its list covers all steps, including updates.
class AsynchronousWorker : public StageWorker {
 public:
  /// Arguments except the options must outlive it. Throws std::invalid_argument for features that need a boundary
  /// between steps: clipping, and parameters that several layers share.
  AsynchronousWorker(const BoundModel& bound, int rank, channel::Channel& channel, const data::DataSource& data,
                     const WorkerOptions& options);

  void on_nonfinite(stage::OnNonfinite what, std::function<void(const std::string&)> tell) override;

  /// Runs all steps. `done` is called with a step when this rank has finished the step's last backward; microbatches of
  /// losses are numbered across steps.
  void replay(const std::function<void(std::int64_t step)>& done);

 private:
  /// Further state per stage, in the order of the worker's stages.
  struct StageState {
    std::unique_ptr<stage::WeightVersions> versions;
    std::map<int, std::pair<int, int>> covered;  // by update: the last microbatch whose gradients it applies
  };
  void before_forward(ResidentStage& stage, const Action& action) override;
  [[nodiscard]] double before_backward(ResidentStage& stage, const Action& action) override;
  void after_backward(ResidentStage& stage, const Action& action, bool last) override;
  void reduce(const Action& action) override;
  void update(const Action& action) override;
  [[nodiscard]] StageState& state_of(const ResidentStage& stage);

  std::vector<StageState> states_;
};

}  // namespace stagecraft::run

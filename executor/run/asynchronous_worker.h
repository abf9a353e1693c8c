#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "executor/run/stage_worker.h"
#include "executor/stage/weight_versions.h"

namespace stagecraft {

/// A rank of a schedule whose steps run into each other: its list covers all steps, updates included.
class AsynchronousWorker : public StageWorker {
 public:
  /// Arguments but the options must outlive it. Throws std::invalid_argument for what needs a moment between two steps:
  /// clipping, and parameters that several layers hold.
  AsynchronousWorker(const BoundModel& bound, int rank, Channel& channel, const DataSource& data,
                     const WorkerOptions& options);

  void on_nonfinite(OnNonfinite what, std::function<void(const std::string&)> tell) override;

  /// Runs all steps. `done` is told a step when this rank has done the last of its backwards of it; the microbatches of
  /// its losses are counted on over the steps.
  void replay(const std::function<void(std::int64_t step)>& done);

 private:
  /// What a stage has besides, in the order of the worker's stages.
  struct StageState {
    std::unique_ptr<WeightVersions> versions;
    std::map<int, std::pair<int, int>> covered;  // by update: microbatches whose gradients it applies, the last one
  };
  void before_forward(ResidentStage& own, const Action& action) override;
  void before_backward(ResidentStage& own, const Action& action) override;
  void after_backward(ResidentStage& own, const Action& action, bool last) override;
  void reduce(const Action& action) override;
  void update(const Action& action) override;
  [[nodiscard]] StageState& state_of(const ResidentStage& own);

  std::vector<StageState> states_;
};

}  // namespace stagecraft

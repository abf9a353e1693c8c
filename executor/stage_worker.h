#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "costmodel/plan.h"
#include "costmodel/timeline.h"
#include "executor/channel.h"
#include "executor/data_source.h"
#include "executor/layer_source.h"
#include "executor/optimizer.h"
#include "executor/ranges.h"
#include "executor/stage_program.h"

namespace stagecraft {

/// Index into Model::layers of each plan stage's layers. Throws std::invalid_argument if the plan does not fit the
/// model: a layer that the model lacks (listing what it has), one that no stage runs, or a boundary without shapes.
[[nodiscard]] std::vector<std::vector<int>> layers_of_stages(const Plan& plan, const Model& model);

/// Stages that share a parameter with another one, by parameter name: name -> stages ascending, at least two.
[[nodiscard]] std::map<std::string, std::vector<int>> tied_parameters(const Model& model,
                                                                      const std::vector<std::vector<int>>& layers);

/// Runs one rank's action list, step by step, on tensors. Schedules with one stage a rank.
class StageWorker {
 public:
  /// `now` gives seconds since the run's start. `doing`, if set, is told each action before it begins.
  /// model, plan, channel and data must outlive it. Throws std::invalid_argument as layers_of_stages does.
  StageWorker(const Model& model, const Plan& plan, int rank, Channel& channel, const DataSource& data,
              const OptimizerOptions& optimizer, std::uint64_t seed, std::function<double()> now,
              std::function<void(const Action&)> doing = {});

  /// Runs forwards, backwards and transfers of a step, up to and including Reduce. Throws ChannelError that names rank
  /// and action.
  void compute(std::int64_t step);
  /// Runs the step's Update: gradients are divided by the number of microbatches first. Clears them.
  void update(std::int64_t step);

  [[nodiscard]] int stage() const { return stage_; }
  [[nodiscard]] int replica() const { return replica_; }
  /// Losses of this rank's microbatches in the last step, in ascending order; empty if another stage has the loss.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }
  /// Parameters with their gradients, valid between compute and update: sums over all microbatches.
  [[nodiscard]] std::vector<Parameter>& parameters() { return program_->parameters(); }
  /// All spans since the last call.
  [[nodiscard]] std::vector<Span> take_spans();

 private:
  void run(const Action& action, std::int64_t step);
  void post_receive(const Action& action);
  void send(const Action& action, const std::vector<at::Tensor>& tensors);
  std::vector<at::Tensor> await(const Action& consumer, int boundary, bool gradient, std::int64_t step);
  void forward(const Action& action, std::int64_t step);
  void backward(const Action& action, std::int64_t step);
  void reduce();
  void prepare_gradients();
  [[nodiscard]] int boundary_with(int peer) const;
  [[nodiscard]] int tag(int boundary, std::size_t tensor, bool gradient) const;
  void record(const Action& action, std::int64_t step, double start);

  const Model& model_;
  const Plan& plan_;
  int rank_;
  int stage_ = 0;
  int replica_ = 0;
  Channel& channel_;
  const DataSource& data_;
  std::function<double()> now_;
  std::function<void(const Action&)> doing_;
  std::vector<Action> actions_;
  std::vector<RangeName> ranges_;  // of the actions
  RangeName wait_range_;
  std::unique_ptr<StageProgram> program_;
  std::unique_ptr<Optimizer> optimizer_;

  std::vector<int> incoming_;  // boundaries into this stage
  std::vector<int> outgoing_;
  std::vector<int> first_tag_;
  // Position of each boundary's tensors among the program's received or sent values.
  std::vector<std::vector<int>> slots_;
  std::vector<std::vector<std::vector<std::unique_ptr<Receiving>>>> posted_[2];  // [gradient][boundary][microbatch]
  std::vector<Flight> flights_;
  std::vector<std::vector<at::Tensor>> input_gradients_;  // by microbatch, until sent
  std::vector<std::unique_ptr<Sending>> sending_;
  std::vector<double> losses_;
  std::vector<Span> spans_;
  at::Tensor flat_;  // gradients of a replicated stage, one buffer
  std::vector<int> replica_group_;
  struct Tie {
    std::vector<int> parameters;  // of this stage, positions in the program's list
    std::vector<int> ranks;
    int tag = 0;
  };
  std::vector<Tie> ties_;
};

}  // namespace stagecraft

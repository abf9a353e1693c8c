#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/gradient_sums.h"
#include "executor/model/model.h"
#include "executor/stage/optimizer_options.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::run {

/// How the replicas of a stage tell each other what their microbatches add to its moving statistics: in an all-reduce
/// after each step.
struct StatisticsExchange {
  std::vector<int> ranks;   ///< ascending
  std::int64_t values = 0;  ///< of a microbatch, see stage::moving_values
};

/// A model bound to a plan, which was checked against it; both must outlive this. Workers, checkpoints and NCCL's list
/// of calls read here who holds what, and who sums it.
struct BoundModel {
  const BoundPlan& plan;
  const model::Model& model;
  std::vector<std::vector<int>> layers;                       ///< for each stage: indices into Model::layers, ascending
  HeldParameters parameters;                                  ///< of these layers; it refers to the model
  GradientSums sums;                                          ///< of their gradients
  std::map<std::string, ParameterHome> homes;                 ///< of parameters and buffers
  std::vector<std::optional<StatisticsExchange>> statistics;  ///< by stage; absent: it exchanges none
};

/// Checks a plan against its model. Throws std::invalid_argument as layers_of_stages and check_samples do, for more
/// tensors on the boundaries than a channel has tags, and naming
///   a parameter that the model's layers share and the plan does not list as tied, or vice versa;
///   for training, a parameter or buffer that the plan lists and the layer does not have like this, or vice versa;
///   a loss across samples, if an update adds several microbatches; under an asynchronous schedule every loss that is
///   not a mean over samples;
///   layer and buffer, if a stage has replicas and a forward writes the buffer in a way that replicas cannot replay.
[[nodiscard]] BoundModel bind_model(const BoundPlan& plan, const model::Model& model);

/// Where and in which types a plan computes. Throws std::invalid_argument unless it computes in the type of its
/// parameters, if these are not float32.
[[nodiscard]] stage::ComputePlace compute_place(const Plan& plan, c10::Device device);
/// `options` with the plan's types.
[[nodiscard]] stage::OptimizerOptions with_types(stage::OptimizerOptions options, const Plan& plan);

/// The stage that holds the model's last layer, which computes the loss.
[[nodiscard]] int loss_stage(const BoundModel& bound);

/// What `rank` updates of a parameter with parts: no values if nothing.
[[nodiscard]] ValueRange owned_range(const ParameterHome& home, int rank);

/// The tied parameters that `rank` holds, in the order in which all ranks sum them.
[[nodiscard]] std::vector<TiedHolders> tied_of_rank(const BoundPlan& plan, int rank);

}  // namespace stagecraft::run

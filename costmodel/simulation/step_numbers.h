#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "costmodel/simulation/simulation_input.h"
#include "costmodel/units.h"

namespace stagecraft::simulation {

/// Times of the messages over one boundary in one direction; 0 if the stages are on one rank.
struct MessageWay {
  Seconds longest;  ///< of the slowest pair of ranks, with all that may share its ports
  Seconds alone;    ///< on idle ports
  Seconds least;    ///< of the fastest pair, on idle ports
  int lanes = 0;
};

struct MessageHop {
  int source = 0;
  int destination = 0;
  bool gradient = false;
  int cycle = 1;  ///< microbatches after which the same pair of ranks meets again
  MessageWay activation;
  MessageWay back;  ///< of the gradient
  [[nodiscard]] Seconds longest() const { return std::max(activation.longest, back.longest); }
};

/// What the bounds need to know of one stage.
struct StageNumbers {
  Seconds forward;
  Seconds backward;  ///< the part before the gradient leaves
  Seconds weights;   ///< the other part; 0 if the schedule does not split the backward
  int replicas = 1;
  int most = 1;  ///< microbatches of a replica, at most
  int warmup = 0;
  Seconds out;             ///< the longest activation that it sends
  Seconds back;            ///< the longest gradient that it sends
  Seconds first_in;        ///< the longest activation from one of several senders; 0 if it has one
  Seconds returned;        ///< the longest gradient that it receives
  Seconds first_returned;  ///< of several senders; 0 if it has one
};

/// A plan in the numbers of which step_bracket makes sums and maxima.
class StepNumbers {
 public:
  /// Refers to `input`.
  explicit StepNumbers(const SimulationInput& input);

  /// Whether messages take processor time.
  [[nodiscard]] bool takes_processors() const { return takes_processors_; }
  /// Whether any stage sums gradients.
  [[nodiscard]] bool sums() const;

  [[nodiscard]] const SimulationInput& input() const { return in_; }
  [[nodiscard]] const BoundPlan& plan() const { return plan_; }
  [[nodiscard]] const std::string& schedule() const { return plan_.schedule().name; }
  [[nodiscard]] bool rendezvous() const { return in_.mode == TransferMode::Rendezvous; }
  [[nodiscard]] int microbatches() const { return plan_.plan().microbatches; }
  [[nodiscard]] const std::vector<StageNumbers>& stages() const { return stages_; }
  [[nodiscard]] const StageNumbers& at(int stage) const { return stages_[to_index(stage)]; }
  [[nodiscard]] const StageCost& cost(int stage) const { return in_.stages[to_index(stage)]; }
  [[nodiscard]] const std::vector<MessageHop>& hops() const { return hops_; }

  /// Sum and maximum of `value(stage)` over the stages.
  template <class Value>
  [[nodiscard]] Seconds sum(const Value& value) const {
    return std::accumulate(stages_.begin(), stages_.end(), Seconds(0),
                           [&](Seconds all, const StageNumbers& stage) { return all + value(stage); });
  }
  template <class Value>
  [[nodiscard]] Seconds most(const Value& value) const {
    return std::accumulate(stages_.begin(), stages_.end(), Seconds(0),
                           [&](Seconds all, const StageNumbers& stage) { return std::max(all, value(stage)); });
  }

  /// Whether every stage reads the one before it, and returns a gradient to it where anything is trained.
  [[nodiscard]] bool chained() const;
  /// Whether each stage has at least one more forward of warm-up than the next one, as warmup_counts gives it.
  [[nodiscard]] bool warms_up() const;
  /// The number of replicas of each stage; 0 if they differ.
  [[nodiscard]] int equal_replicas() const;
  /// Time of the stage's Reduce without its buckets, and of the buckets; 0 if the stage does not sum gradients.
  [[nodiscard]] Seconds reduce_of(int stage) const;
  [[nodiscard]] Seconds buckets_of(int stage) const;

 private:
  void take_costs();
  void take_hops();
  void take_stage_hops();

  const SimulationInput& in_;
  const BoundPlan& plan_;
  std::vector<StageNumbers> stages_;
  std::vector<MessageHop> hops_;
  bool takes_processors_ = false;
};

}  // namespace stagecraft::simulation

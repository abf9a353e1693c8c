#pragma once

#include <cstdint>
#include <functional>
#include <variant>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/simulation/simulation_input.h"
#include "costmodel/timeline.h"
#include "costmodel/topology.h"

namespace stagecraft {

struct PredictOptions {
  TransferMode mode = TransferMode::Rendezvous;
  bool free_transfers = false;   ///< transfers are free, as closed forms with hop 0 assume
  int prefetch = 2;              ///< receives posted ahead, see action_lists
  Seconds host_per_action = {};  ///< added to each forward, backward, weight gradient and update
  /// A step with up to this many (microbatch, stage) pairs is replayed in full. A longer one is replayed only at its
  /// beginning and end, if it repeats itself between them, see predict.
  std::int64_t most_whole = 1 << 14;
  /// Maximum of pairs for a run that does not repeat itself; with its timeline as a file, 17 s and 2 GB.
  std::int64_t most_replayed = 1 << 20;
  std::function<void(double done)> progress = {};  ///< called now and then with the fraction done
};

/// The numbers behind a prediction. If the graph has its whole iteration, layer times are scaled by one factor so that
/// forward, backward and update of all layers add up to it. Where the schedule splits the backward, its parts are those
/// of split_backward_times, scaled alike. Throws std::invalid_argument if the plan does not fit graph and topology.
[[nodiscard]] SimulationInput simulation_input(const Graph& graph, const Topology& topology, BoundPlan plan,
                                               const PredictOptions& options = {});

/// The time of a stage by activity, summed over its replicas.
struct StageShares {
  Seconds forward, backward, update;
  Seconds reduce;            ///< from the arrival of the last member
  Seconds exposed_transfer;  ///< waits for a message that was on its link
};

/// The result of a replay for a step, or for the steps of the window.
struct StepReplay {
  SimulationInput input;  ///< of the microbatches that were replayed
  Timeline timeline = {};
  std::vector<StageShares> shares = {};
  Seconds time = {};
  int steps = 1;  ///< covered by `shares` and `time`
  int reckoned_microbatches = 0;
};

/// Replays the plan for one step, or for the steps of BoundPlan::step_window; a step longer than
/// PredictOptions::most_whole from a shorter one, as predict says. Infeasible if the lists deadlock. Throws
/// std::invalid_argument for a step longer than most_replayed that does not repeat itself. Precondition: the plan is
/// valid for graph and topology.
[[nodiscard]] std::variant<StepReplay, Infeasible> replay_step(const Graph& graph, const Topology& topology,
                                                               const BoundPlan& plan, const PredictOptions& options);

/// Combined progress of several predictions, weighted by their expected time.
class ProgressParts {
 public:
  /// `options`: of all predictions, with the progress of the whole; must outlive this object. `all`: the sum of their
  /// weights.
  ProgressParts(const PredictOptions& options, double all) : options_(options), left_(all) {}

  /// The options of the next prediction. Calls the progress of the whole with what is done so far.
  [[nodiscard]] PredictOptions next(double weight = 1);
  /// Sets the sum of the weights that are left, if it was not known at first.
  void set_left(double left) { left_ = left; }

 private:
  const PredictOptions& options_;
  double left_;      ///< weights of the predictions to come
  double done_ = 0;  ///< share of the whole
};

}  // namespace stagecraft

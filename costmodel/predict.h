#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/simulate.h"
#include "costmodel/timeline.h"

namespace stagecraft {

/// One stage's share of a step, the mean over its replicas and, of an asynchronous schedule, over steps. compute +
/// update + reduce + exposed_transfer + bubble add up to the iteration, and (forward + backward) * microbatches /
/// replicas is compute.
struct StagePrediction {
  int stage = 0;
  int replicas = 1;
  Seconds forward;           ///< of one microbatch, the mean, slowed by other ranks of its host
  Seconds backward;          ///< of one microbatch, the mean, slowed by other ranks of its host
  Seconds compute;           ///< forwards and backwards of a step
  Seconds update;            ///< optimizer
  Seconds reduce;            ///< gradient all-reduce, from when its last member has come
  Seconds exposed_transfer;  ///< stood still while the message it needed was on the link
  Seconds bubble;            ///< stood still otherwise, before a reduce or without a microbatch too
  int in_flight = 0;         ///< microbatches held at most at once
  RankMemory memory;         ///< of one replica
  bool fits = true;          ///< within the device's memory, if the topology states one
};

/// What a plan would do. Of an asynchronous schedule the timeline holds the steps of step_window and the numbers are
/// those of its steady state.
struct Prediction {
  Seconds iteration;                    ///< of one step
  std::optional<double> samples_per_s;  ///< absent if the graph does not state its microbatch
  double bubble = 0;                    ///< share of all ranks' time that is neither compute, update nor reduce
  int devices = 0;                      ///< of the topology
  std::vector<int> unused_devices;      ///< that are in no stage
  std::vector<int> idle_devices;        ///< that are in a stage with more replicas than microbatches and have none
  std::vector<StagePrediction> stages;
  Timeline timeline;
  /// Why the graph's times are of another device than the topology's, as accepted_differences says; empty where nothing
  /// known differs.
  std::string other_device = {};
  /// Microbatches in the middle of the step that were reckoned, not replayed: the timeline has a gap for them, of the
  /// right length. 0: all were replayed.
  int reckoned_microbatches = 0;
};

struct PredictOptions {
  TransferMode mode = TransferMode::Rendezvous;
  bool free_transfers = false;  ///< transfers cost nothing, as closed forms with hop 0 assume
  int prefetch = 2;             ///< receives posted ahead, see action_lists
  /// Up to so many pairs of a microbatch and a stage a step is replayed as a whole. Beyond, its begin and end are, if
  /// the run repeats itself between them, see predict.
  std::int64_t most_whole = 1 << 14;
  /// The most pairs of a run that does not repeat itself; with its timeline as a file, 17 s and 2 GB.
  std::int64_t most_replayed = 1 << 20;
  std::function<void(double done)> progress = {};  ///< hears now and then which part of a long replay is done
};

/// "8 of 16 devices do nothing: 8-15 have no microbatch, ..." for people; empty where all work.
[[nodiscard]] std::string idle_text(const Prediction& prediction);

/// The factor by which layer times are scaled so that forward, backward and update of all layers add up to the graph's
/// whole iteration; 1 where it states none.
[[nodiscard]] double closure_factor(const Graph& graph);

/// The numbers behind a prediction. Where the graph states its whole iteration, layer times are scaled by one factor so
/// that forward, backward and update of all layers add up to it. Throws std::invalid_argument if the plan does not fit
/// graph and topology, or its schedule splits the backward and so needs weight-gradient times that a graph does not
/// hold.
[[nodiscard]] SimulationInput simulation_input(const Graph& graph, const Topology& topology, BoundPlan plan,
                                               const PredictOptions& options = {});
/// Of a plan that is not bound yet.
[[nodiscard]] SimulationInput simulation_input(const Graph& graph, const Topology& topology, const Plan& plan,
                                               const PredictOptions& options = {});

/// Replays the plan's action lists against the graph's times and the topology's links. Infeasible if the lists never
/// end. Of a step that is longer than PredictOptions::most_whole a shorter one is replayed, of as many microbatches as
/// it takes until all ranks, messages and lists are found as they were some microbatches ago (simulate_and_watch); what
/// the step holds more is that stretch again and again, and is added. The result is that of a whole replay within 1e-9.
/// Throws std::invalid_argument as simulation_input, and for a step longer than most_replayed that does not repeat
/// itself: all forwards before all backwards (gpipe), updates in the midst (pipedream), lists by hand.
[[nodiscard]] std::variant<Prediction, Infeasible> predict(const Graph& graph, const Topology& topology,
                                                           const BoundPlan& plan, const PredictOptions& options = {});
/// Of a plan that is not bound yet.
[[nodiscard]] std::variant<Prediction, Infeasible> predict(const Graph& graph, const Topology& topology,
                                                           const Plan& plan, const PredictOptions& options = {});

}  // namespace stagecraft

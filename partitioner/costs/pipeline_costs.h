#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/index.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/memory.h"
#include "costmodel/schedule.h"
#include "costmodel/topology.h"
#include "costmodel/units.h"
#include "partitioner/costs/lattice.h"
#include "partitioner/costs/least_reduce.h"
#include "partitioner/costs/stage_sums.h"

namespace stagecraft::partitioner {

/// Stages in the exact search: nodes, replicas and chunks. Layers that are inputs are left out.
struct Split {
  std::vector<int> stage_of_node;  ///< node: see PipelineCosts
  std::vector<int> replicas;       ///< one number per stage
  int chunks = 1;                  ///< Plan::chunks
  friend bool operator==(const Split&, const Split&) = default;
};

/// The devices of each stage, one for each replica.
using StageDevices = std::vector<std::vector<int>>;

/// Longer than any step.
inline constexpr Seconds kForever{1e100};
/// Steps that differ by less, relatively, are equal.
inline constexpr double kEqual = 1e-9;

/// Number of pipeline positions; see PipelineShape.
[[nodiscard]] inline int positions_of(const Split& split) { return to_int(split.replicas.size()) / split.chunks; }

/// Lower bounds of a layer's costs, whichever stage it is in.
struct NodeCosts {
  Seconds forward;
  Seconds backward;         ///< with recomputation; 0 where nothing is trained
  Seconds inputs, weights;  ///< parts of `backward` where the schedule splits it, without recomputation
  bool separable = true;    ///< see BackwardParts::separable
  Seconds least;            ///< all computation of a microbatch
  Seconds least_return;     ///< the part of the backward that every gradient must pass through
  Seconds update;
  Bytes gradients;
  Bytes untied;                              ///< those of parameters that no other layer shares
  std::vector<Bytes> untied_gradients = {};  ///< each of them, if gradients are summed in buckets
  StageBytes bytes;                          ///< what the layer adds to its stage
  Bytes received;   ///< per microbatch, of what the layer reads, if all of it comes from other stages
  Bytes incoming;   ///< messages of a microbatch, if all that the layer reads comes from other stages
  Bytes outgoing;   ///< the same if all that reads from the layer is in other stages
  Bytes waiting;    ///< per microbatch between the parts of the backward, with its margin; 0 if the backward is whole
  Bytes workspace;  ///< of its forward
  Seconds loading;  ///< the host's time to load what the layer reads of a microbatch, beside the device's computation
};

/// A value that crosses from a stage to others, and the time of its message on idle links.
struct CrossingValue {
  int producer = 0;
  std::vector<int> readers;  ///< each once
  bool gradient = true;
  Bytes bytes;                   ///< per microbatch, for a stage that receives it
  std::vector<Seconds> forward;  ///< by level of the topology
  std::vector<Seconds> back;     ///< by level; 0 without gradient
  Seconds least_forward;         ///< over all levels
  Seconds least_back;
  Seconds port, port_back;     ///< time for which the value alone occupies a device's port; 0 if other messages matter
  std::vector<Seconds> ports;  ///< by level: the same for the port of a group below that level
};

/// The arithmetic of the exact search: lower bounds of the predicted step. Nodes are the layers besides inputs, in
/// topological order.
class PipelineCosts {
 public:
  PipelineCosts(const Graph& graph, const Topology& topology, const PlanSettings& settings);

  [[nodiscard]] const Dag& dag() const { return dag_; }
  [[nodiscard]] int layer_of_node(int node) const { return layer_of_node_[to_index(node)]; }
  [[nodiscard]] const NodeCosts& node(int node) const { return nodes_[to_index(node)]; }
  [[nodiscard]] const std::vector<CrossingValue>& values() const { return values_; }
  /// Values that the node reads, except those of inputs.
  [[nodiscard]] const std::vector<int>& read_by(int node) const { return read_[to_index(node)]; }
  [[nodiscard]] const std::vector<int>& made_by(int node) const { return made_[to_index(node)]; }
  [[nodiscard]] const ScheduleEntry& schedule() const { return schedule_; }
  /// The pipeline position of a stage of the split.
  [[nodiscard]] int position_of(const Split& split, int stage) const {
    return stagecraft::position_of(stage, positions_of(split), schedule_.placement);
  }
  [[nodiscard]] int microbatches() const { return settings_.microbatches; }
  [[nodiscard]] int devices() const { return devices_; }

  /// Whether each step ends before the next one begins and the order of work is known, so that a stage waits for the
  /// stages before. Otherwise, bounds count computation alone.
  [[nodiscard]] bool waits() const { return waits_; }
  /// The most microbatches that one of `replicas` replicas computes in a step. If steps overlap: the mean, less 1 %, by
  /// which the period that a prediction measures may be too short.
  [[nodiscard]] double share(int replicas) const;
  /// The least time that one of `replicas` replicas of a stage computes, updates and waits for data in a step, if the
  /// host takes `loading` to load each microbatch. 0 if steps overlap.
  [[nodiscard]] Seconds least_loading(Seconds loading, int replicas) const;
  /// Whether a backward follows that the stages before wait for as a whole. If the schedule splits the backward, its
  /// second part can be done meanwhile.
  [[nodiscard]] bool returns() const { return schedule_.trains && !schedule_.splits_backward; }
  /// The least time that `replicas` devices, those from `first` on or, without `first`, any, spend after the end of the
  /// stage's last backward on summing its `bytes` of gradients, and on gathering their parameters if
  /// replicas divide their update. `backward` is the backward of a microbatch, during which buckets can be summed.
  [[nodiscard]] Seconds least_reduce(Bytes bytes, int replicas, Seconds backward, std::optional<int> first = {}) const;
  /// The same for a stage with at least `bytes` and a backward of at least `backward`. Let the real backward be d
  /// longer: then more buckets are summed during it, and what follows is shorter by at most d. So the sum of this time
  /// and of the real backward is at least the sum of this time and `backward`.
  [[nodiscard]] Seconds least_reduce_of_more(Bytes bytes, int replicas, Seconds backward) const;
  /// A line below least_reduce of up to `most` bytes. If buckets_are_hidden, the line is before the backward is
  /// deducted.
  [[nodiscard]] ReduceLine reduce_line(Bytes most, int replicas) const;
  [[nodiscard]] bool buckets_are_hidden() const { return settings_.gradient_bucket_bytes.has_value(); }
  /// Whether least_reduce never falls as replicas increase; by measured curves, it may.
  [[nodiscard]] bool reduce_grows() const { return least_reduce_.grows(); }

  /// A lower bound of the predicted step, on the devices of `placed` or, if `placed` is empty, in order: the longest
  /// path through the schedule's actions, each as long as it takes alone, where the messages of one boundary between
  /// two ranks follow each other; and, with one level, the messages of the busiest port of a device. The bound ignores
  /// shared processors and late receives. For an asynchronous schedule and for action lists, the bound is the
  /// computation of the busiest device. Absent if the schedule cannot run the split. A bound of at least `enough` need
  /// not be the tightest.
  [[nodiscard]] std::optional<Seconds> lower_bound(const Split& split, const StageDevices& placed = {},
                                                   Seconds enough = kForever) const;
  /// A lower bound of the memory that the split needs on a device, as memory_bound counts it.
  [[nodiscard]] Bytes least_memory(const Split& split) const;

  /// The most that all stages of a device may hold together, as peak_bytes counts, if its memory is to stay within
  /// `limit`.
  [[nodiscard]] Bytes countable(Bytes limit) const;
  /// What a device must have besides what is countable for messages of so many bytes, one over each boundary.
  [[nodiscard]] Bytes message_margin(Bytes messages) const;
  /// The least number of microbatches that one replica of a stage holds at once, if all its `replicas` replicas
  /// together may hold `flight`; see flight(). 1 if the order of work is not known.
  [[nodiscard]] std::int64_t least_in_flight(std::int64_t flight, int replicas) const;
  /// The time to sum `bytes` of gradients, and to gather the parameters if replicas divide their update, over the
  /// devices 0, `distance`, 2 `distance`, ..., `devices` of them.
  [[nodiscard]] Seconds reduce_of_devices(Bytes bytes, int devices, int distance) const;
  /// joining_level of two devices.
  [[nodiscard]] std::size_t level_of(int a, int b) const;
  [[nodiscard]] std::size_t levels() const { return topology_.levels.size(); }
  /// Devices in a group below a level: 1 at level 0.
  [[nodiscard]] int devices_below(std::size_t level) const {
    int out = devices_;
    for (std::size_t l = topology_.levels.size(); l-- > level;) out /= topology_.levels[l].count;
    return out;
  }
  /// The microbatches that a replica of each stage holds at once, by the split's replicas and chunks alone; an estimate
  /// if steps overlap. Precondition: the schedule can run the split.
  /// `splits`: whether stages split their backward if the schedule does; else the backward as a whole releases them.
  [[nodiscard]] std::vector<int> held(const Split& split, bool splits = true) const;
  /// The most of them from the moment on at which a replica of the stage has gradients; 0 where nothing is known.
  [[nodiscard]] std::vector<int> held_later(const Split& split, bool splits = true) const;
  /// The microbatches that each stage holds at the moment when its device holds the most of all its stages together, on
  /// one replica each.
  [[nodiscard]] std::vector<int> held_together(const Split& split) const;
  /// Whether the schedule can run stages of these replicas and chunks on the devices; `stage_of_node` may be empty.
  [[nodiscard]] bool can_run(const Split& split) const;
  /// A number of microbatches, at most that of a step, with which all stages hold as much as in a step.
  [[nodiscard]] int microbatches_that_fill(const Split& split) const;
  /// A lower bound of the peak_bytes of a stage that holds `in_flight` microbatches, with `workspace` beside them.
  /// `later`: and gradients too, see held_later(). The stage has at least `replicas` replicas, and at most `most`: by
  /// default, as many as there are devices.
  [[nodiscard]] Bytes least_peak(const StageBytes& stage, std::int64_t in_flight, int replicas, Bytes workspace = {},
                                 bool later = false, std::optional<int> most = {}) const;
  /// The least that any of a stage's `replicas` devices holds all the time.
  [[nodiscard]] Bytes least_state(const StageBytes& stage, int replicas) const;

  /// The computation of each rank in order, for one stage per device with these replicas; null if the schedule cannot
  /// run the stages. Valid until the next call of this function or of lower_bound.
  [[nodiscard]] const std::vector<std::vector<Action>>* lists(const std::vector<int>& replicas) const;

  [[nodiscard]] Partition partition(const Split& split) const;
  [[nodiscard]] Split split_of(const Partition& partition, int chunks) const;

 private:
  [[nodiscard]] Seconds reduce_time(Bytes bytes, int replicas, Seconds backward, bool is_least,
                                    std::optional<int> first) const;
  [[nodiscard]] PipelineShape shape_of(const Split& split) const;
  [[nodiscard]] std::vector<StageSums> sums_of(const Split& split) const;
  void split_backward(const Split& split, std::vector<StageSums>& sums) const;
  [[nodiscard]] std::vector<StageLink> links_of(const Split& split) const;
  [[nodiscard]] const std::vector<std::vector<Action>>& lists_of(const Split& split) const;
  [[nodiscard]] Seconds reduce_of(const Split& split, const StageSums& stage, int number,
                                  const std::vector<int>& devices) const;
  [[nodiscard]] Seconds gather_of(const StageSums& stage, const std::vector<int>& devices) const;
  [[nodiscard]] bool divides() const { return settings_.sharding != StateSharding::None; }
  [[nodiscard]] Bytes gradients_of(Bytes parameters) const { return gradient_bytes(graph_.types, parameters); }
  /// What is gathered of the parameters of so many bytes of gradients.
  [[nodiscard]] Bytes gathered(Bytes gradients) const { return parameter_bytes(graph_.types, gradients); }
  [[nodiscard]] Seconds sum_time(Bytes gradients, const std::vector<int>& devices) const;
  [[nodiscard]] Seconds gather_time(Bytes gradients, const std::vector<int>& devices) const;
  void add_reduces(const Split& split, std::vector<StageSums>& sums, const std::vector<int>& first_rank,
                   const std::vector<int>& device_of_rank, std::vector<Seconds>& ends) const;
  [[nodiscard]] Seconds busiest(const Split& split, const std::vector<StageSums>& sums) const;
  [[nodiscard]] Seconds busiest_on_its_way(const Split& split, const std::vector<StageSums>& sums,
                                           const std::vector<StageLink>& links) const;

  struct Holders {
    Bytes bytes;
    std::vector<int> nodes;
  };

  Graph graph_;
  Topology topology_;
  PlanSettings settings_;
  ScheduleEntry schedule_;
  LeastReduce least_reduce_;
  int devices_ = 0;
  bool waits_ = false;
  bool holds_all_ = false;  ///< a replica holds all its microbatches at once
  double closure_ = 1;
  MemoryMargins margins_;
  double unmeasured_factor_ = 1;  ///< of activations and workspace of a stage that was not measured, see peak_bytes
  Dag dag_;
  std::vector<int> layer_of_node_;
  std::vector<NodeCosts> nodes_;
  std::vector<int> single_;  ///< nodes whose stage has one replica, see Layer::replicable
  std::vector<CrossingValue> values_;
  std::vector<std::vector<int>> read_, made_;
  std::vector<std::vector<std::pair<int, Seconds>>> loads_;  ///< by node: inputs that it reads, with their time
  std::map<std::string, Holders> tied_;                      ///< by parameter
  mutable std::map<std::vector<int>, std::vector<std::vector<Action>>> lists_;  ///< by replicas and chunks
  mutable std::size_t actions_ = 0;                                             ///< in lists_
  struct Held {
    std::vector<int> most, later;  ///< by stage; see held() and held_later()
  };
  [[nodiscard]] const Held& held_of(const Split& split, bool splits) const;
  mutable std::map<std::vector<int>, std::array<Held, 2>> held_;  ///< by replicas and chunks; whole and split backwards
};

}  // namespace stagecraft::partitioner

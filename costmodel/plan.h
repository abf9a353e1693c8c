#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/schedule.h"
#include "costmodel/topology.h"

namespace stagecraft {

/// A parameter or buffer of a layer of a stage.
struct PlanTensor {
  std::string layer;
  StateTensor tensor;
  friend bool operator==(const PlanTensor&, const PlanTensor&) = default;
};

/// What of a stage's training state its replicas divide among them, instead of each keeping all of it.
enum class StateSharding {
  None,
  /// The optimizer's state, and its work: gradients are reduce-scattered, each replica updates its part of the
  /// parameters, and the parameters are all-gathered. Source: Rajbhandari et al., "ZeRO", SC 2020, stage 1.
  Optimizer,
  /// Its gradients too: each stage sums them after its last backward of the step, and a replica keeps its part.
  /// Stage 2.
  Gradients,
  /// Its parameters too: a rank gathers those of the stage that it computes and of the next one, see kWholeStages.
  /// Stage 3, or FSDP.
  Parameters,
};
/// With StateSharding::Parameters, the stages of a rank whose parameters are whole at once, at most.
inline constexpr int kWholeStages = 2;
/// "none", "optimizer", "gradients", "parameters".
[[nodiscard]] const char* to_string(StateSharding sharding);
/// The inverse. Throws std::invalid_argument listing the names.
[[nodiscard]] StateSharding state_sharding(const std::string& word);
/// Whether the schedule can run with a sharding: synchronous ones can.
[[nodiscard]] bool allows_sharding(const ScheduleEntry& schedule);
/// Throws std::invalid_argument if `schedule` cannot run with `sharding`.
void check_sharding(StateSharding sharding, const ScheduleEntry& schedule);

/// A stage: its layers and its devices. Replica j of the stage runs on devices[j].
struct Stage {
  std::vector<std::string> layers;  ///< layer ids in execution order
  std::vector<int> devices;         ///< topology device numbers, one per replica
  bool recompute = false;           ///< drop activations after forward and run it again before backward
  /// With `recompute`: number of layers that run again together; only tensors that cross from one such segment to
  /// others are kept between forward and backward. 0: the whole stage is one segment.
  int recompute_every = 0;
  /// What it trains, by its layers in order; a parameter that several of them share is listed for each. Empty in all
  /// stages if the graph does not name its parameters.
  std::vector<PlanTensor> parameters = {};
  /// Layer::exchanged_buffers of its layers in order.
  std::vector<PlanTensor> exchanged_buffers = {};
  friend bool operator==(const Stage&, const Stage&) = default;
};

/// A tensor that crosses stages, for one microbatch. `gradient`: its gradient is sent back.
struct BoundaryTensor {
  std::string layer;
  std::optional<int> output;  ///< absent: all outputs of the layer together (imported graphs)
  Bytes bytes;
  std::vector<std::int64_t> shape;
  std::string dtype;
  bool gradient = true;
  friend bool operator==(const BoundaryTensor&, const BoundaryTensor&) = default;
};

/// All tensors that stage `source` sends to stage `destination` for one microbatch, in the order of sending. A value
/// that several later stages read goes from each of them to the next, and its gradient comes back the same way: each
/// stage adds its part to that of the later ones, in the order of an unsplit backward.
struct Boundary {
  int source = 0;
  int destination = 0;
  std::vector<BoundaryTensor> tensors;
  friend bool operator==(const Boundary&, const Boundary&) = default;
};

/// A parameter that several layers have under one name. All replicas of its holders sum its gradients together.
struct TiedLayers {
  std::string parameter;
  std::vector<std::string> layers;  ///< ids of its holders, two or more, in the plan's order
  friend bool operator==(const TiedLayers&, const TiedLayers&) = default;
};

/// "tied parameter "weight" of layers "a", "b"", for messages.
[[nodiscard]] std::string tied_text(const TiedLayers& tied);

/// Whether any gradient comes back from `destination` to `source`.
[[nodiscard]] bool has_gradient(const Boundary& boundary);

/// What a sample of a model consists of and costs, and how fast the devices of a plan are at most.
struct SampleWork {
  std::optional<std::int64_t> tokens;  ///< in a sample; absent: the model does not read tokens
  /// Of the model's forward and, if the plan trains, backward; what recomputation repeats does not count. Absent: not
  /// counted for every layer.
  std::optional<Flops> flops;
  std::optional<FlopsPerSecond> peak;  ///< of all of the plan's devices together; absent: unknown for one of them
  std::string peak_of;                 ///< "NVIDIA H100 80GB HBM3 (bfloat16)"; empty without `peak`
  friend bool operator==(const SampleWork&, const SampleWork&) = default;
};

/// Everything that an executor needs besides the model itself.
struct Plan {
  std::string model;                           ///< Graph::name
  std::map<std::string, std::string> options;  ///< Graph::options
  std::optional<std::int64_t> microbatch_samples;
  std::string dtype;               ///< Graph::dtype: of the computation; empty: unknown, runs as float32
  StateTypes types;                ///< Graph::types
  std::optional<bool> allow_tf32;  ///< Graph::allow_tf32
  std::string optimizer;           ///< Graph::optimizer: that the predictions count on
  int microbatches = 1;
  std::string schedule = "1f1b";
  int chunks = 1;        ///< stages per device, see PipelineShape
  std::string strategy;  ///< that made it
  std::vector<Stage> stages;
  std::vector<Boundary> boundaries;
  std::vector<TiedLayers> tied;             ///< every tied parameter, ascending by name, including those within one
                                            ///< stage
  std::vector<int> warmups;                 ///< one per stage
  std::vector<std::vector<Action>> listed;  ///< for schedule "listed": each rank's actions without Update, see
                                            ///< action_lists
  /// Gradients of a stage are summed over its replicas in buckets of at most this many bytes; absent: all in one.
  std::optional<Bytes> gradient_bucket_bytes;
  /// The same for all stages, because tied parameters may join them.
  StateSharding sharding = StateSharding::None;
  /// The slowest stage's time per microbatch, by the strategy's own estimate; with chunks, the slowest device's.
  std::optional<Seconds> steady_state;
  std::optional<Seconds> iteration;  ///< predicted time of one step
  /// Of a step in a run, if it is less than `iteration` because steps overlap: see steady_step.
  std::optional<Seconds> run_iteration;
  SampleWork sample_work = {};  ///< of the graph on the devices, with `iteration`
  /// Of the predicted step, over all plans that the strategy considered; absent if it gives none.
  std::optional<Seconds> lower_bound;
  Provenance provenance;
  friend bool operator==(const Plan&, const Plan&) = default;
};

/// The result of a strategy: layer index -> stage (-1 for inputs), and per stage its replicas.
struct Partition {
  std::vector<int> stage_of_layer;  ///< one number per layer of the graph; -1 for input layers
  std::vector<int> replicas;        ///< one number per stage
  friend bool operator==(const Partition&, const Partition&) = default;
};

/// Plan settings that a partition does not decide.
struct PlanSettings {
  int microbatches = 4;
  std::string schedule = "1f1b";
  int chunks = 1;                                ///< Plan::chunks
  std::string strategy = "";                     ///< Plan::strategy
  std::vector<std::vector<Action>> listed = {};  ///< Plan::listed
  bool recompute = false;                        ///< Stage::recompute of every stage
  int recompute_every = 0;                       ///< Stage::recompute_every of every stage, with `recompute`
  std::optional<Bytes> gradient_bucket_bytes = {};
  StateSharding sharding = StateSharding::None;  ///< Plan::sharding
};

/// The plan of `partition`: layers in topological order, devices in order from 0, stage by stage, with chunks one for
/// each pipeline position (see PipelineShape), boundaries from the
/// edges that cross stages (a tensor that several layers of one stage read crosses once, one that several stages read
/// goes from each to the next), tied parameters from Layer::tied, warm-ups by warmup_counts. It lists no parameters:
/// see list_parameters. Throws std::invalid_argument naming the layer whose edge goes to an earlier stage, the empty
/// stage, the device count if there are more replicas than devices, a layer that is not Layer::replicable in a stage of
/// several replicas, an update from several microbatches with Graph::whole_batch_loss; and as check_chunks.
[[nodiscard]] Plan make_plan(const Graph& graph, const Topology& topology, const Partition& partition,
                             const PlanSettings& settings);

/// Throws std::invalid_argument naming what does not fit: a layer of the graph missing or twice, an unknown layer, an
/// edge to an earlier stage, boundaries that do not match the edges, parameters, buffers or tied parameters that do not
/// match the layers (a plan need not list those that the graph names, for older plans do not), a
/// device that does not exist or is used twice by different stages (chunks = 1), a schedule that cannot run it, missing
/// warm-ups, a dtype, types or TF32 other than the graph's, replicas or microbatches with which the graph does not
/// train as a whole (see make_plan).
void validate(const Plan& plan, const Graph& graph, const Topology& topology);

/// The part of validate that needs graph and topology, for a plan that is valid by itself.
void check_fits(const Plan& plan, const Graph& graph, const Topology& topology);

/// Throws std::invalid_argument unless `stages` stages can be divided into `chunks` chunks per device: "5 stages cannot
/// be divided into 2 chunks per device, 4 or 6 can".
void check_chunks(int stages, int chunks);

/// The graph's layers of each stage, in the plan's order; they refer to the graph. Throws as layer_index for a layer
/// that the graph does not have.
[[nodiscard]] std::vector<std::vector<const Layer*>> layers_of_stages(const Graph& graph, const Plan& plan);

/// The schedule of the plan; for "listed", with the properties of its lists.
[[nodiscard]] ScheduleEntry schedule_of(const Plan& plan);

/// Throws std::invalid_argument if every plan with the settings updates the parameters from several microbatches, and
/// the graph has a Graph::whole_batch_loss.
void check_loss(const Graph& graph, const PlanSettings& settings);
/// Whether an update of the parameters adds the gradients of several microbatches.
[[nodiscard]] bool updates_by_several(const Plan& plan);

/// The part of validate that needs no graph or topology: counts, ids, boundaries between existing stages, parameters
/// and tied parameters of existing layers, schedule.
void validate(const Plan& plan);

/// Sets what the stages list of parameters and buffers: what the graph names, or nothing if it does not name them all.
/// For plans that leave the program: searches make many, and need no lists. Throws as layers_of_stages.
void list_parameters(const Graph& graph, Plan& plan);
/// Whether the plan lists the parameters of its stages.
[[nodiscard]] bool lists_parameters(const Plan& plan);

/// Where the schedule, or the lists, of these settings put the stages of a rank.
[[nodiscard]] Placement placement_of(const PlanSettings& settings);

/// Shape of the plan's pipeline for the schedule functions; it refers to the plan's `listed`, which must outlive it.
[[nodiscard]] PipelineShape pipeline_shape(const Plan& plan);

// A graph as a list of layers that is cut into stages, which is what other systems mean by a split.

/// Layers of stages, in topological order: the graph's without its inputs.
[[nodiscard]] std::vector<int> layer_list(const Graph& graph);

/// Positions in `layers` (layer ids, in order) where stages begin, 0 first and the length last, for stages that begin
/// at the layers `names` and one before them. A name is a layer's id, or a module's path, such as "h.3" for "h.3.attn",
/// which means the first of its layers. Throws std::invalid_argument for an unknown name, listing the known ones, for
/// the first layer, and for names out of order.
[[nodiscard]] std::vector<int> bounds_at(const std::vector<std::string>& layers, const std::vector<std::string>& names);

/// The stages layer_list(graph)[bounds[s] .. bounds[s + 1]), one replica each. Throws std::invalid_argument for bounds
/// that do not increase from 0 to the number of layers.
[[nodiscard]] Partition partition_of_bounds(const Graph& graph, const std::vector<int>& bounds);

/// Ids of layer_list(graph).
[[nodiscard]] std::vector<std::string> layer_ids(const Graph& graph);

}  // namespace stagecraft

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "costmodel/conditions.h"
#include "costmodel/state_types.h"
#include "costmodel/units.h"

namespace stagecraft {

/// Time of one execution on one device.
/// `spread` is the median absolute deviation; absent with fewer than 5 samples. `count` is the number of samples; 0
/// means that the value was given or estimated, not measured here.
struct Timing {
  Seconds median;
  std::optional<Seconds> spread;
  std::int64_t count = 0;
  /// For an estimated time: the standard deviation of its logarithm, common to all times of the graph.
  std::optional<double> log_spread = {};
  friend bool operator==(const Timing&, const Timing&) = default;
};

/// One output tensor of a layer for one microbatch. `bytes` counts the whole microbatch.
/// `shape` (the first axis is usually the batch) and `dtype` ("float32", "int64", ...) are empty if the source of the
/// graph does not give them; then the graph can be planned but not run. `requires_grad` is false if no gradient comes
/// back.
struct Output {
  Bytes bytes;
  std::vector<std::int64_t> shape;
  std::string dtype;
  bool requires_grad = true;
  /// Whether a layer keeps it for the backward; absent: unknown.
  std::optional<bool> saved = {};
  friend bool operator==(const Output&, const Output&) = default;
};

/// A parameter that several layers hold under one name; its gradients are summed over all holders.
struct TiedParameter {
  std::string name;
  Bytes bytes;
  friend bool operator==(const TiedParameter&, const TiedParameter&) = default;
};

/// A tensor that a layer keeps from step to step. Layers that share it give it one name.
struct StateTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string dtype;
  friend bool operator==(const StateTensor&, const StateTensor&) = default;
};

/// A layer's share of the profiled steps in one direction, summed over all steps. In integer nanoseconds: with the
/// residuals in ProfileQuality, the shares of all layers add up to the steps exactly. On a device `busy` is the union
/// of its kernels and `share` the time for which the step waited on it, idle gaps before its kernels included; on a
/// processor both are the time from the start of the layer to that of the next.
struct LayerShare {
  std::int64_t busy_ns = 0;
  std::int64_t share_ns = 0;
  std::int64_t activities = 0;     ///< kernels, copies and memsets; time intervals on a processor
  std::optional<Timing> isolated;  ///< of one execution of the layer alone, repeated, its work launched ahead
  friend bool operator==(const LayerShare&, const LayerShare&) = default;
};

/// The two parts of a layer's backward where a schedule splits it: the gradient of the layer's inputs, and later that
/// of its weights. Together they may take longer than the whole backward.
struct BackwardParts {
  Timing inputs;   ///< of one execution; 0 of a layer whose inputs need no gradient
  Timing weights;  ///< of one execution; 0 of a layer without trainable parameters
  /// False if the executor cannot separate the parts because the layer uses a weight more than once: all of it is in
  /// `inputs`, and stages that hold the layer do not split their backward.
  bool separable = true;
  friend bool operator==(const BackwardParts&, const BackwardParts&) = default;
};

/// What the operators of a layer compute and move in one direction for one microbatch, independent of the device.
struct Work {
  Flops flops;                 ///< floating-point operations; a multiply-add counts as two
  Bytes moved;                 ///< read and written: each input and each result of an operator once
  std::int64_t operators = 0;  ///< that compute or move something; on a GPU each starts at least one kernel
  Work& operator+=(const Work& other) {
    flops += other.flops;
    moved += other.moved;
    operators += other.operators;
    return *this;
  }
  friend bool operator==(const Work&, const Work&) = default;
};

/// One unit of computation, with its own costs for one microbatch on one device.
struct Layer {
  std::string id;    ///< unique in its graph; edges and plans use it
  std::string name;  ///< for display; any text
  std::string kind;  ///< "Conv2d", "Linear", ...; `kInputKind` for data that is loaded, not computed
  Timing forward;
  Timing backward;
  std::optional<BackwardParts> backward_parts;
  std::optional<Timing> accumulation = {};  ///< part of the backward that adds to gradients of earlier microbatches;
                                            ///< the first backward of a step creates them instead
  std::optional<Timing> update;             ///< the optimizer's step on this layer's parameters
  std::optional<Timing> loading = {};  ///< of an input on a GPU: the host's time to load a microbatch, while the device
                                       ///< computes; the forward is the upload
  std::vector<Output> outputs;
  Bytes parameter_bytes;     ///< trainable parameters, tied ones included
  Bytes frozen_bytes = {};   ///< frozen parameters and buffers, which have no gradients and no optimizer state
  Bytes written_bytes = {};  ///< of these, what a forward writes; a stage that recomputes keeps it for each microbatch
  bool replicable = true;    ///< false: a forward writes a buffer in a way that replicas cannot replay
  std::vector<TiedParameter> tied;
  std::optional<Bytes> saved_bytes;      ///< memory that stays allocated from forward to backward, including outputs
                                         ///< that stay
  std::optional<Bytes> workspace_bytes;  ///< the largest transient allocation on top, forward or backward
  std::optional<Bytes> gradient_bytes;   ///< of the parameters, each tensor counted once
  /// Tensors that autograd keeps from forward to backward, without parameters; each storage counts for the first layer
  /// that keeps it.
  std::optional<Bytes> saved_for_backward_bytes;
  std::optional<Work> forward_work;
  std::optional<Work> backward_work;
  std::optional<LayerShare> forward_share;
  std::optional<LayerShare> backward_share;
  std::optional<LayerShare> update_share;
  std::optional<std::int64_t> parameters;  ///< trainable parameter count; absent: parameter_bytes / 4
  std::optional<int> stage;                ///< only in an imported, already partitioned graph; otherwise the plan
                                           ///< decides
  std::vector<StateTensor> parameter_tensors = {};  ///< its trainable parameters, tied ones included; none if the
                                                    ///< source of the graph does not name them
  std::vector<StateTensor> exchanged_buffers = {};  ///< buffers that a forward in training writes, and that replicas
                                                    ///< exchange

  friend bool operator==(const Layer&, const Layer&) = default;
};

/// The kind of layers that represent loaded data: no stage, no backward. The stage that reads them loads them; a
/// forward time with a count above 0 is what loading one microbatch adds to its forward, others are ignored.
inline constexpr const char* kInputKind = "Input";

/// `destination` reads output `output` of `source` (indices into Graph::layers). A destination's in-edges, in the
/// order of Graph::edges, are its arguments. `output` absent: all outputs together (imported graphs do not distinguish
/// them).
struct Edge {
  int source = 0;
  int destination = 0;
  std::optional<int> output;
  friend bool operator==(const Edge&, const Edge&) = default;
};

/// How a graph was measured. Golden tests ignore it.
struct Provenance {
  std::string tool;    ///< program and version that wrote the file
  std::string device;  ///< processor or GPU model
  std::map<std::string, std::string> versions;
  std::string date;  ///< ISO 8601, UTC
  std::map<std::string, std::string> notes;
  friend bool operator==(const Provenance&, const Provenance&) = default;
};

enum class DeviceKind { Unknown, Processor, Gpu };

/// The device on which a graph's times were measured. Unknown fields are empty, Unknown and 0.
struct MeasuredDevice {
  std::string name;  ///< model, "AMD EPYC 9654 96-Core Processor" or "NVIDIA H200"
  DeviceKind kind = DeviceKind::Unknown;
  int host_processors = 0;  ///< of its host; Graph::slowdown is valid on hosts with the same number
  friend bool operator==(const MeasuredDevice&, const MeasuredDevice&) = default;
};

/// How far a measured graph can be trusted. "Work" is work on the profiled device: kernels, copies and memsets.
struct ProfileQuality {
  std::string clock;  ///< "host", "cupti" or "events"
  bool trusted = true;
  std::vector<std::string> reasons;  ///< reasons not to trust it
  std::int64_t steps = 0;            ///< that were watched
  std::int64_t watched_ns = 0;       ///< their length == all layers' shares + data_wait + unattributed
  std::int64_t data_wait_ns = 0;
  std::int64_t unattributed_ns = 0;
  Timing watched;         ///< a watched step; Graph::iteration is an unwatched one
  bool debiased = false;  ///< idle gaps were scaled so that a watched step lasts as long as an unwatched one
  std::int64_t work = 0;
  std::int64_t work_attributed = 0;
  std::int64_t work_ns = 0;
  std::int64_t work_attributed_ns = 0;
  std::int64_t dropped = 0;         ///< records
  std::int64_t bad_timestamps = 0;  ///< work without time stamps, or that ends before it begins or begins before its
                                    ///< launch
  std::int64_t disagreements = 0;   ///< work that two ways of attribution assign to different layers
  std::int64_t host_wait_ns = 0;    ///< device idle because the host had not launched yet
  std::int64_t kernel_wait_ns = 0;  ///< device idle between kernels that were already launched
  Bytes summed_peak_bytes;     ///< parameters, gradients, optimizer state, saved activations and the largest workspace
  Bytes allocator_peak_bytes;  ///< as the allocator counted
  friend bool operator==(const ProfileQuality&, const ProfileQuality&) = default;
};

/// How the times of a graph were estimated for its device, see prediction/estimate.h.
struct Estimate {
  std::string from;           ///< device on which the times it started from were measured; empty: there were none
  std::string from_math;      ///< of those times: "float32", "tf32", "bfloat16", ...; empty without them
  std::string math;           ///< of the estimated times
  FlopsPerSecond peak;        ///< of the device with that math
  BytesPerSecond bandwidth;   ///< of its memory
  Seconds time_per_operator;  ///< to start an operator
  friend bool operator==(const Estimate&, const Estimate&) = default;
};

/// What the layers of a graph cost on devices of another type, see prediction/device_match.h.
struct DeviceProfile {
  std::string type;       ///< Device::name in a topology
  MeasuredDevice device;  ///< as Graph::device
  std::optional<Timing> iteration;
  std::vector<Layer> layers;  ///< in the order of Graph::layers
  friend bool operator==(const DeviceProfile&, const DeviceProfile&) = default;
};

/// Forwards and backwards take `factor` times as long while a rank holds the activations of `microbatches` microbatches
/// of the whole model at once, because caches hold fewer of them.
struct InFlightSlowdown {
  int microbatches = 2;
  double factor = 1;
  friend bool operator==(const InFlightSlowdown&, const InFlightSlowdown&) = default;
};

/// A directed acyclic graph of layers, with the costs of one microbatch on one device.
struct Graph {
  std::string name;                                ///< of the model
  std::map<std::string, std::string> options;      ///< the model's options that are not defaults
  std::optional<std::int64_t> microbatch_samples;  ///< samples in one microbatch; absent in imported profiles
  std::string dtype;                               ///< of the computation; empty if unknown
  StateTypes types;                                ///< of what training keeps
  std::optional<bool> allow_tf32;                  ///< whether GPUs might round float32 to TF32; absent if unknown
  std::string optimizer;                           ///< of the update times; empty if none were measured
  std::int64_t optimizer_state_values = 0;  ///< values the optimizer keeps for each parameter (SGD 0, momentum 1, Adam
                                            ///< 2) in the type of its moments, without master values
  bool whole_batch_loss = false;            ///< the loss of a batch does not follow from those of its microbatches
  Bytes library_bytes = {};         ///< device memory that libraries keep in each process, such as cuBLAS's workspaces
  std::int64_t threads = 0;         ///< intra-op threads while measuring; 0: unknown
  std::optional<Timing> iteration;  ///< the whole forward, backward and update, measured without the profiler
  MeasuredDevice device;            ///< of the times, measured or estimated; see device_match.h
  /// slowdown[k-1]: factor on compute times while k ranks compute at once on the host of `device`; empty: hosts are not
  /// shared.
  std::vector<double> slowdown;
  std::optional<InFlightSlowdown> in_flight_slowdown = {};  ///< absent: not measured
  std::optional<ProfileQuality> quality;
  std::optional<Estimate> estimate;  ///< present if the times were not measured on `device` but estimated
  std::vector<Layer> layers;
  std::vector<Edge> edges;
  Conditions conditions;  ///< while the times were measured
  Provenance provenance;
  std::vector<DeviceProfile> profiles = {};  ///< on other types of devices; read from other files, never written

  friend bool operator==(const Graph&, const Graph&) = default;
};

/// Throws std::invalid_argument naming the layer or edge: duplicate ids, an edge out of range, to itself, into an
/// input, twice without an output index (with one, a layer may read an output twice), or from an output that does not
/// exist; a cycle; a time that is negative or not finite; negative bytes or more than 2^60 in the graph; no layers.
void validate(const Graph& graph);

/// Layer indices such that every edge goes forward; among ready layers, the earliest in Graph::layers first.
/// Throws std::invalid_argument naming a layer on a cycle.
[[nodiscard]] std::vector<int> topological_order(const Graph& graph);

/// Bytes of one value of `dtype`; 0 for an unknown one.
[[nodiscard]] Bytes value_bytes(const std::string& dtype);
/// Bytes of the tensor; 0 if its dtype is unknown.
[[nodiscard]] Bytes tensor_bytes(const StateTensor& tensor);
/// Throws std::invalid_argument, beginning with `where`, for an empty name, an unknown dtype, a negative size or more
/// than 2^60 bytes.
void check_tensor(const StateTensor& tensor, const std::string& where);
/// Whether the graph names all parameters of its layers.
[[nodiscard]] bool names_parameters(const Graph& graph);

/// Of parameters of so many `bytes`: optimizer_bytes and update_bytes with the graph's types and optimizer.
[[nodiscard]] Bytes optimizer_bytes(const Graph& graph, Bytes bytes);
[[nodiscard]] Bytes update_bytes(const Graph& graph, Bytes bytes);

/// Throws std::invalid_argument, beginning with `where`, for a parameter in bfloat16 unless those of `types` are, and
/// for one that is not if they are.
void check_parameter(const StateTensor& tensor, const StateTypes& types, const std::string& where);

/// Bytes of all outputs of `layer`.
[[nodiscard]] Bytes activation_bytes(const Layer& layer);

/// Bytes that a layer keeps of a microbatch from forward to backward: saved_bytes, or all of its outputs without that.
[[nodiscard]] Bytes bytes_saved(const Layer& layer);

/// True for a layer that represents loaded data.
[[nodiscard]] bool is_input(const Layer& layer);

/// Index of the layer called `id`. Throws std::invalid_argument listing the ids.
[[nodiscard]] int layer_index(const Graph& graph, const std::string& id);

/// False if no layer other than inputs takes time: such a graph only describes the structure, so no time can be
/// predicted.
[[nodiscard]] bool has_times(const Graph& graph);

/// Throws std::invalid_argument, naming the command that measures the model, unless the graph has_times.
void check_has_times(const Graph& graph);

/// If the graph's profiler did not trust its measurement, one line that says so with the reasons: "the profile is not
/// trusted: 2 records were dropped; 3 backward nodes belong to no layer". Else empty.
[[nodiscard]] std::string distrust_text(const Graph& graph);

/// If the graph's times are estimates, one clause that says so: "the layers' times are estimates for NVIDIA H200
/// (tf32), by a roofline from times measured on NVIDIA TITAN RTX (float32)". Else empty.
[[nodiscard]] std::string estimate_text(const Graph& graph);

/// Time of the layers' forward and backward together, for one microbatch on one device.
[[nodiscard]] Seconds compute_time(const Graph& graph);

/// The layers of a graph by id, for looking up many of them: layer_index goes through all layers each time.
class LayersById {
 public:
  /// `graph` must outlive it.
  explicit LayersById(const Graph& graph);

  /// As layer_index.
  [[nodiscard]] int index(const std::string& id) const;

 private:
  const Graph& graph_;
  std::unordered_map<std::string_view, int> by_id_;
};

/// Multiplies the median and the spread by `factor`.
void scale(Timing& timing, double factor);

/// Multiplies every time of the layer's computation by `factor`: forward, backward and its parts, accumulation and
/// update. The host's time to load an input stays.
void scale(Layer& layer, double factor);

}  // namespace stagecraft

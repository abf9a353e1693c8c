#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/units.h"

namespace stagecraft::model {

/// Initial value of a parameter or buffer. It only depends on the run's seed and the parameter's name, not on the plan.
enum class Init { Zeros, Ones, Uniform, Normal };

/// A named tensor of a layer. Trainable ones are parameters, the others buffers (running statistics).
/// `scale` is the half width of Uniform and the standard deviation of Normal.
/// Layers that name the same parameter share it: each has its own copy, and the gradients are summed.
struct ParameterSpec {
  std::string name;  ///< full: "layer3.conv1.weight"
  std::vector<std::int64_t> shape;
  Init init = Init::Zeros;
  double scale = 0;
  bool trainable = true;
  at::ScalarType dtype = at::kFloat;  ///< of a buffer; parameters are float32, until a stage has them
  /// For a tensor from a file: each call makes a new one on the CPU; `init` and `scale` are then unused. Throws
  /// FormatError if its bytes are damaged.
  std::function<at::Tensor()> load = {};
  /// For a buffer that a training forward sets to decay * old + a term that does not depend on old (running statistics,
  /// counts): replicas can replay each other's updates. Absent: never written, or `written` is set.
  std::optional<double> decay = {};
  bool written = false;       ///< a forward writes it in a way that replicas cannot replay
  bool constant = false;      ///< not part of the model's state: never written, not in checkpoints or weight files
  bool in_state_dict = true;  ///< false: in checkpoints only (a buffer with persistent=False that a forward writes)
};

/// Where an argument of a layer comes from: output `output` of layer `layer`, or input `input` of the model.
struct ValueRef {
  int layer = -1;  ///< index into Model::layers, -1: a model input
  int output = 0;
  int input = -1;  ///< index into Model::inputs, if layer is -1
};

/// Arguments of a layer's forward. Randomness (dropout) must only follow from `seed`, `step`, `microbatch` and names,
/// never from placement or order.
struct LayerCall {
  std::span<const at::Tensor> inputs;
  std::span<const at::Tensor> parameters;  ///< as LayerSpec::parameters lists the trainable ones
  std::span<const at::Tensor> buffers;     ///< and the others; written in place when training
  bool training = true;
  std::uint64_t seed = 0;  ///< of the run
  std::int64_t step = 0;
  int microbatch = 0;
};

/// One layer: its kind, parameters and forward. Allocates nothing until its parameters are made.
struct LayerSpec {
  std::string name;  ///< unique in the model
  std::string kind;  ///< "Conv2d", "Linear", "LSTM", ...
  std::vector<ValueRef> inputs;
  int outputs = 1;
  std::vector<ParameterSpec> parameters;
  /// Never writes to its inputs. Returns `outputs` tensors.
  std::function<std::vector<at::Tensor>(const LayerCall&)> forward;
};

/// One sample of an input: `shape` without the batch axis.
struct ModelInput {
  std::string name;   ///< "image", "tokens", "target", ...
  std::string dtype;  ///< "float32" or "int64"; for a model from a file also "bool" and the other types of dtype.h
  std::vector<std::int64_t> shape;
  std::int64_t classes = 0;  ///< int64 inputs lie in [least, classes)
  std::int64_t least = 0;
  /// The smallest value of random data: above `least` if a loss ignores some of the values below it.
  std::optional<std::int64_t> least_drawn = {};
  /// Axis of the samples in the tensor that the layers read. Absent: no such axis, one tensor serves all samples.
  std::optional<int> batch_axis = 0;
  /// A value that follows only from other inputs and does not come from a data source: it is computed from the inputs
  /// in `sources` (indices of inputs that are not derived) wherever a layer reads it. Its shape is only known then.
  std::function<at::Tensor(std::span<const at::Tensor> sources)> derive = {};
  std::vector<int> sources = {};
  bool range_setting = false;  ///< the model comes from a file: its setting range.NAME sets another range
};

/// How the loss of a batch follows from those of its microbatches.
enum class LossKind {
  Mean,    ///< their mean; with a LossWeight, weighted by it
  Sum,     ///< their sum
  Across,  ///< not at all: it compares samples with each other, or adds means over different things
};

/// What a loss is divided by: max(count, least) + added. Counts add up over microbatches: labels that are not ignored,
/// the weights of their classes, or the sum of a mask. A loss divided by 0 is not a number and does not count.
struct LossWeight {
  std::vector<int> sources;  ///< indices into Model::inputs, none of them derived
  /// The count, one number, from tensors of the sources.
  std::function<at::Tensor(std::span<const at::Tensor> sources)> count;
  double least = 0;
  double added = 0;

  [[nodiscard]] double divisor(double counted) const { return std::max(counted, least) + added; }
};

enum class ModelMode { Training, Evaluation };

/// A model as a list of layers in execution order; the only output of the last layer is the loss of the
/// microbatch, see LossKind. Every argument comes from an earlier layer.
struct Model {
  std::string name;
  std::map<std::string, std::string> options;  ///< those that are not defaults
  std::vector<ModelInput> inputs;
  std::vector<LayerSpec> layers;
  std::int64_t least_samples = 1;  ///< in a microbatch
  std::int64_t most_samples = std::numeric_limits<std::int64_t>::max();
  LossKind loss_kind = LossKind::Mean;
  std::optional<LossWeight> loss_weight = {};
  /// Layers that had to be merged: the layer that they are part of, and why.
  std::map<std::string, std::string> merged;
  /// Its layers compute in this mode, regardless of LayerCall::training. Absent: in the mode of LayerCall::training.
  std::optional<ModelMode> mode = {};
};

/// Trainable parameters: uniform in +-scale, normal with deviation `scale`, or all the same.
[[nodiscard]] ParameterSpec uniform(std::string name, std::vector<std::int64_t> shape, double scale);
[[nodiscard]] ParameterSpec normal(std::string name, std::vector<std::int64_t> shape, double scale);
[[nodiscard]] ParameterSpec ones(std::string name, std::vector<std::int64_t> shape);
[[nodiscard]] ParameterSpec zeros(std::string name, std::vector<std::int64_t> shape);

/// Half the width of PyTorch's uniform initialisation of Linear, Conv2d and LSTM: 1 / sqrt(fan_in).
[[nodiscard]] double fan_in_scale(std::int64_t fan_in);

/// Appends `layer` to `model` and returns its first output.
ValueRef append(Model& model, LayerSpec layer);
/// Appends an input to `model` and returns it.
ValueRef append(Model& model, ModelInput input);

/// The initial value of a parameter or buffer under `seed`, or from its file: on the CPU, without requires_grad.
[[nodiscard]] at::Tensor initial_value(const ParameterSpec& parameter, std::uint64_t seed);

/// A seed mixed from a run seed, words and numbers: the same on every machine.
[[nodiscard]] std::uint64_t mix_seed(std::uint64_t seed, const std::string& word, std::uint64_t a = 0,
                                     std::uint64_t b = 0);

/// Number of trainable values in a layer, and in a model with shared names counted once.
[[nodiscard]] std::int64_t parameter_count(const LayerSpec& layer);
[[nodiscard]] std::int64_t parameter_count(const Model& model);
/// Bytes of a layer's other tensors: frozen parameters and buffers.
[[nodiscard]] Bytes frozen_bytes(const LayerSpec& layer);
/// Its trainable tensors, in its order, where parameters have this type.
[[nodiscard]] std::vector<StateTensor> parameter_tensors(const LayerSpec& layer, StateType type = StateType::Float32);
/// Its buffers that a forward in training writes and that replicas exchange: those with a decay.
[[nodiscard]] std::vector<StateTensor> exchanged_buffers(const LayerSpec& layer);
/// Whether a forward in training writes the buffer; and the bytes of those that it writes.
[[nodiscard]] bool is_written(const ParameterSpec& buffer);
[[nodiscard]] Bytes written_bytes(const LayerSpec& layer);
/// The first buffer that a forward writes in a way that replicas cannot replay; null if there is none.
[[nodiscard]] const ParameterSpec* written_buffer(const LayerSpec& layer);

/// Index into Model::layers of each plan stage's layers, ascending. Throws std::invalid_argument if the plan does not
/// fit the model: a layer that the model lacks (listing its layers, or naming the layer that it is part of and why), a
/// layer in no stage, or a boundary without shapes.
[[nodiscard]] std::vector<std::vector<int>> layers_of_stages(const Plan& plan, const Model& model);

/// Throws std::invalid_argument naming model and bounds if `model` does not support microbatches of `samples`.
void check_samples(const Model& model, std::int64_t samples);

}  // namespace stagecraft::model

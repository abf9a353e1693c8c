#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stagecraft {

/// How a parameter or buffer begins. The values depend on the run's seed and the parameter's name alone, so that no
/// plan changes them.
enum class Init { Zeros, Ones, Uniform, Normal };

/// A named tensor of a layer. Trainable ones are parameters, the others buffers (running statistics).
/// `scale` is the half width of Uniform and the standard deviation of Normal.
/// Layers that name the same parameter share it: each holds its own copy, the gradients are summed.
struct ParameterSpec {
  std::string name;  ///< full: "layer3.conv1.weight"
  std::vector<std::int64_t> shape;
  Init init = Init::Zeros;
  double scale = 0;
  bool trainable = true;
  at::ScalarType dtype = at::kFloat;  ///< of a buffer; parameters are float32
  /// Where the tensor comes from a file: makes a fresh one, on the CPU, at each call. `init` and `scale` then say
  /// nothing. Throws FormatError if its bytes are damaged.
  std::function<at::Tensor()> load = {};
  /// Of a buffer that a training forward moves to decay * old + something that does not depend on old (running
  /// statistics, counts): replicas can replay each other's moves. Absent: it is never written, or `written` says so.
  std::optional<double> decay = {};
  bool written = false;   ///< a forward writes it in a way that nobody can replay
  bool constant = false;  ///< no part of the model's state: in no checkpoint, asked of no file of weights
};

/// Where an argument of a layer comes from: output `output` of layer `layer`, or input `input` of the model.
struct ValueRef {
  int layer = -1;  ///< index into Model::layers, -1: a model input
  int output = 0;
  int input = -1;  ///< index into Model::inputs, if layer is -1
};

/// What a layer's forward gets. Randomness (dropout) must come from `random_seed` alone, which depends on
/// (run seed, step, microbatch, layer name), never on placement or order.
struct LayerCall {
  std::span<const at::Tensor> inputs;
  std::span<const at::Tensor> parameters;  ///< as LayerSpec::parameters lists the trainable ones
  std::span<const at::Tensor> buffers;     ///< and the others; written in place when training
  std::uint64_t random_seed = 0;
  bool training = true;
  std::uint64_t seed = 0;  ///< what random_seed was mixed from, with the layer's name
  std::int64_t step = 0;
  int microbatch = 0;
};

/// One layer: what it is, what it holds, what it does. Costs nothing until its parameters are made.
struct LayerSpec {
  std::string name;  ///< unique in the model
  std::string kind;  ///< "Conv2d", "Linear", "LSTM", ...
  std::vector<ValueRef> inputs;
  int outputs = 1;
  std::vector<ParameterSpec> parameters;
  /// Never writes into its inputs. Returns `outputs` tensors.
  std::function<std::vector<at::Tensor>(const LayerCall&)> forward;
};

/// What a data source must give for one sample: `shape` without the batch axis.
struct ModelInput {
  std::string name;   ///< "image", "tokens", "target", ...
  std::string dtype;  ///< "float32" or "int64"; of a model from a file also "bool" and the other types of dtype.h
  std::vector<std::int64_t> shape;
  std::int64_t classes = 0;  ///< int64 inputs lie in [least, classes)
  std::int64_t least = 0;
  /// The least of random data: more than `least` where a loss ignores some of the numbers below it.
  std::optional<std::int64_t> least_drawn = {};
  /// Where the samples stand in the tensor that the layers read. Absent: it has no such axis, one tensor serves all.
  std::optional<int> batch_axis = 0;
  /// A value that follows from other inputs alone and that no data source gives: it is made from those that `sources`
  /// lists (indices of inputs that are not derived), wherever a layer reads it. Its shape is only known then.
  std::function<at::Tensor(std::span<const at::Tensor> sources)> derive = {};
  std::vector<int> sources = {};
  bool range_setting = false;  ///< the model's setting range.NAME says another range: it comes from a file
};

enum class ModelMode { Training, Evaluation };

/// A model as a list of layers in execution order; the last layer gives the loss, the mean over the microbatch, as its
/// only output. Every argument comes from an earlier layer.
struct Model {
  std::string name;
  std::map<std::string, std::string> options;  ///< those that are not defaults
  std::vector<ModelInput> inputs;
  std::vector<LayerSpec> layers;
  std::int64_t least_samples = 1;  ///< in a microbatch
  std::int64_t most_samples = std::numeric_limits<std::int64_t>::max();
  /// Names of layers that could not stand alone: which layer they are part of, and why.
  std::map<std::string, std::string> merged;
  /// Its layers compute in this mode, whatever LayerCall::training says. Absent: in the one that it says.
  std::optional<ModelMode> mode = {};
};

/// The initial value of a parameter or buffer under `seed`, or as its file has it: on the CPU, without requires_grad.
[[nodiscard]] at::Tensor initial_value(const ParameterSpec& parameter, std::uint64_t seed);

/// A seed from a run seed and any words and numbers: the same on every machine.
[[nodiscard]] std::uint64_t mix_seed(std::uint64_t seed, const std::string& word, std::uint64_t a = 0,
                                     std::uint64_t b = 0);

/// Number of trainable values in a layer, and in a model with shared names counted once.
[[nodiscard]] std::int64_t parameter_count(const LayerSpec& layer);
[[nodiscard]] std::int64_t parameter_count(const Model& model);

}  // namespace stagecraft

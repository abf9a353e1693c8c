#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "costmodel/state_types.h"
#include "executor/device/ranges.h"
#include "executor/model/model.h"
#include "executor/stage/split_backward.h"

namespace stagecraft::stage {

/// `tensor` with the strides of `like`, which has its shape: `tensor` itself if it already has them or if `like`
/// overlaps or has gaps, else a copy. Needed because optimizers walk raw memory, and because kernels choose the order
/// of their sums by the layout.
[[nodiscard]] at::Tensor laid_out_like(const at::Tensor& tensor, const at::Tensor& like);

/// The part of the one-dimensional `flat` from value `offset` on as a tensor with the shape of `like`, and its strides
/// unless `like` overlaps or has gaps: then contiguous.
[[nodiscard]] at::Tensor view_laid_out_like(const at::Tensor& flat, std::int64_t offset, const at::Tensor& like);

/// The values of a tensor without overlaps and gaps as a vector in the order of its memory, which it shares.
[[nodiscard]] at::Tensor in_memory_order(const at::Tensor& tensor);

/// Releases the memory of a tensor that alone has it; the tensor keeps its shape, and views of it stay views.
void release_memory(const at::Tensor& tensor);
/// Gives it memory again, of any values; no effect if it has some. A graph that saved the tensor uses the new values.
void restore_memory(const at::Tensor& tensor);
[[nodiscard]] bool has_memory(const at::Tensor& tensor);

/// `parameter` without overlaps and gaps in its memory, in its own layout if it has none.
[[nodiscard]] at::Tensor dense(const at::Tensor& parameter);

/// A leaf over the memory of `values`, whose gradients autograd adds up in the type `gradients`.
[[nodiscard]] at::Tensor make_leaf(const at::Tensor& values, at::ScalarType gradients);
/// The type of a leaf's gradients.
[[nodiscard]] at::ScalarType gradient_type(const at::Tensor& leaf);

/// A parameter as layers read it: one of bfloat16 with one dimension (of a norm, a bias) in float32, since kernels of
/// norms take weights of float32 or of their input's type, whatever that is.
[[nodiscard]] at::Tensor as_read(const at::Tensor& parameter);

/// A value received from another stage.
struct ReceivedValue {
  model::ValueRef value;  ///< an output of a layer of another stage
  bool gradient = true;
};

/// A trainable tensor of a stage, or a buffer.
struct Parameter {
  std::string name;
  int layer = 0;  ///< index into Model::layers
  at::Tensor value;
};

/// Called when a layer's forward begins and ends; `layer` is an index into Model::layers.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  virtual void begin(int layer) = 0;
  /// Called between them with the layer's outputs, before the values that it was the last to read are released.
  virtual void made(int /*layer*/, std::span<const at::Tensor> /*outputs*/) {}
  virtual void end(int layer) = 0;
};

/// One microbatch between its forward and its backward.
struct Flight {
  std::vector<at::Tensor> received;  ///< where the graph begins, in the order of StageProgram's `received`
  std::vector<at::Tensor> data;
  std::vector<at::Tensor> sent;          ///< in the order of `sent`, with their graph
  at::Tensor loss;                       ///< of the stage that holds the last layer
  std::vector<at::Tensor> kept;          ///< if the stage recomputes: values between its segments
  std::vector<at::Tensor> kept_buffers;  ///< and buffers that its forward may write, with their values before it
  std::int64_t step = 0;
  int microbatch = 0;

  /// Releases all tensors; the vectors keep their memory.
  void clear();
};

/// The device and types of a stage's computation. With a `compute` type other than float32 (bfloat16, float16), each
/// operation runs in the type chosen by LibTorch's autocast.
struct ComputePlace {
  c10::Device device{c10::kCPU};
  at::ScalarType compute = at::kFloat;
  StateTypes types = {};  ///< of parameters and gradients; buffers are as the model has them
};

/// Some layers of a model with their parameters, run forward and backward. Stages, the profiler and the single-process
/// reference all use it: what is measured is what runs.
class StageProgram {
 public:
  /// `layers` ascending indices into `model.layers`; every value that they read must come from them, from `received` or
  /// from the model's inputs; `sent` are their values that other stages read. Initial parameters depend on `seed` and
  /// their names. Throws std::invalid_argument naming the layer and a value without a source. `model` must outlive it.
  StageProgram(const model::Model& model, std::vector<int> layers, std::vector<ReceivedValue> received,
               const std::vector<model::ValueRef>& sent, std::uint64_t seed, ComputePlace placement = {});

  /// Model inputs that the layers read, ascending; forward takes them in this order.
  [[nodiscard]] const std::vector<int>& data_inputs() const { return data_inputs_; }
  /// Each parameter once, under the first layer that holds it.
  [[nodiscard]] std::vector<Parameter>& parameters() { return parameters_; }
  /// By layer: a parameter that several layers hold has a leaf for each, over the memory of the first, which is the one
  /// in parameters(). A backward gives each leaf the gradient of its layer.
  [[nodiscard]] std::vector<Parameter>& leaves() { return leaves_; }
  /// Buffers such as running statistics, in layer order, without constants; they share memory with the program.
  [[nodiscard]] std::vector<Parameter> buffers() const;

  /// Uses `values` from now on, one leaf per entry of parameters() in order; flights in progress keep the values with
  /// which they began.
  void bind(const std::vector<at::Tensor>& values);

  /// From now on, layers compute as in evaluation: no dropout, batch norm with its running statistics, buffers are not
  /// written. Throws std::logic_error if the model's layers can only train (Model::mode).
  void evaluate();

  /// Runs the layers on `data`, which is copied to the device first. Values are released after their last reader.
  /// `keep_graph` = false runs without autograd: then only `sent` and `loss` can be used.
  [[nodiscard]] Flight forward(std::vector<at::Tensor> received, std::vector<at::Tensor> data, std::int64_t step,
                               int microbatch, bool keep_graph = true, LayerObserver* observer = nullptr);

  /// The same in place: `flight` has the received values, data, step and microbatch. Reusing a cleared flight does not
  /// allocate.
  void forward(Flight& flight, bool keep_graph = true, LayerObserver* observer = nullptr);

  /// From now on, a forward keeps no graph, only the values between segments of `layers` layers, and the values that it
  /// found in buffers that it may write; backward runs the segments again one by one, from the last, with the same
  /// random numbers and buffers, and without writing the stage's. 0: all layers are one segment. Gradients have the
  /// same bits as without it.
  void recompute_every(int layers);

  /// Adds to the parameters' gradients and returns the gradient of each received value: undefined if not needed, zeros
  /// if the layers did not use it, in the layout that the backward gave it; do not write to it. `sent_gradients` has
  /// one tensor per sent value, undefined if it has no gradient. The loss's own gradient is `loss_gradient`.
  [[nodiscard]] std::vector<at::Tensor> backward(Flight flight, const std::vector<at::Tensor>& sent_gradients,
                                                 double loss_gradient = 1);

  /// The first part of backward: the same result, while the work for the parameters' gradients waits in `rest`. If the
  /// stage recomputes, recomputed values are kept until `rest` is done.
  [[nodiscard]] std::vector<at::Tensor> backward_of_inputs(Flight flight, const std::vector<at::Tensor>& sent_gradients,
                                                           SplitBackward& rest, double loss_gradient = 1);

  /// backward, or with `rest` backward_of_inputs, of a flight that it clears; the result replaces `received_gradients`.
  void backward(Flight& flight, const std::vector<at::Tensor>& sent_gradients, double loss_gradient,
                std::vector<at::Tensor>& received_gradients, SplitBackward* rest = nullptr);

 private:
  struct LocalLayer {
    const model::LayerSpec* spec = nullptr;
    int index = 0;
    std::vector<int> arguments;  ///< slots
    std::vector<int> results;    ///< slots
    std::vector<int> last_use;   ///< slots to release afterwards
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> buffers;
    /// By buffer: its place among those that a forward may write, of all layers; -1 if none does.
    std::vector<int> written;
    device::RangeName range;
  };
  /// Layers that are recomputed together: [first, last).
  struct Segment {
    std::size_t first = 0;
    std::size_t last = 0;
    std::vector<int> inputs;   ///< slots that its layers read and other segments fill
    std::vector<int> outputs;  ///< slots that it fills and that are kept, sent or the loss
  };
  using Values = std::vector<at::Tensor>;  ///< by slot
  /// The received values and the data in their slots; a graph begins at the former.
  void begin(Flight& flight, Values& values) const;
  enum class Manner {
    Once,         ///< keeps the graph
    First,        ///< drops each layer's graph once it has run, and keeps its buffers for the second time
    Recomputing,  ///< the second time
  };
  /// Runs layers `first` to before `last` of the stage.
  void run(Flight& flight, std::size_t first, std::size_t last, Values& values, Manner how, LayerObserver* observer);
  void end(Flight& flight, const Values& values) const;
  [[nodiscard]] std::string backward_text() const;
  /// Puts the results of backward, before received_gradients, into `found`.
  void backward_by_segments(Flight& flight, const std::vector<at::Tensor>& sent_gradients, SplitBackward* rest,
                            double loss_gradient, std::vector<at::Tensor>& found);

  std::vector<LocalLayer> layers_;
  std::vector<Parameter> parameters_;
  std::vector<Parameter> leaves_;
  std::vector<ReceivedValue> received_;
  std::vector<int> data_inputs_;
  std::vector<int> received_slots_;
  std::vector<int> data_slots_;
  std::vector<int> sent_slots_;
  int loss_slot_ = -1;
  std::vector<Segment> segments_;  ///< if the stage recomputes
  std::vector<int> kept_slots_;
  int slots_ = 0;
  int written_buffers_ = 0;
  // Empty between calls; kept for their memory.
  Values values_;
  std::vector<at::Tensor> arguments_;
  std::vector<at::Tensor> read_;  ///< a layer's parameters
  GraphInputs inputs_;
  std::vector<at::Tensor> roots_;
  std::vector<at::Tensor> root_gradients_;
  std::uint64_t seed_;
  ComputePlace placement_;
  bool training_ = true;
  bool only_trains_ = false;
};

/// "layer3 output 0" or "input tokens".
[[nodiscard]] std::string to_string(const model::Model& model, const model::ValueRef& value);

}  // namespace stagecraft::stage

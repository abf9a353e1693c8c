#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "executor/intake/graph/module_frame.h"
#include "executor/intake/graph/tensor_meta.h"
#include "executor/model/model.h"

namespace stagecraft::intake {

/// Masks of dropout from one stream of random numbers, one after the other. The generator is on the device of the
/// values, so that nothing is copied: masks are the same on all CPUs, and on all GPUs.
class MaskStream {
 public:
  explicit MaskStream(std::uint64_t seed) : seed_(seed) {}
  [[nodiscard]] std::uint64_t seed() const { return seed_; }
  /// Masks drawn so far.
  [[nodiscard]] int drawn() const { return drawn_; }
  /// `x` with each value set to zero with `probability`, and the others scaled to keep the expectation.
  [[nodiscard]] at::Tensor drop(const at::Tensor& x, double probability);
  /// Draws the mask of a tensor of `sizes`, of the type and on the device of `like`, and forgets it.
  void skip(at::IntArrayRef sizes, const at::Tensor& like, double probability);

 private:
  at::Tensor draw(at::IntArrayRef sizes, const at::Tensor& like, double keep);

  std::uint64_t seed_;
  int drawn_ = 0;
  at::Generator generator_;  ///< made by the first draw
};

struct ProgramGraph;

/// A value of a graph: a number or a tensor; other values (lists, optionals of TorchScript) stay inside one
/// layer.
struct GraphValue {
  enum class Kind { Tensor, Number, Other };
  enum class Origin { Node, Parameter, Buffer, Constant, Input };
  std::string name;
  Kind kind = Kind::Tensor;
  Origin origin = Origin::Node;
  int source = -1;  ///< index into OperatorGraph's nodes, tensors (parameters, buffers, constants) or inputs
  std::optional<TensorMeta> meta = {};        ///< of a tensor, if the file contains it
  std::optional<SizeExpression> number = {};  ///< of an integer that follows from the symbols
};

/// torch.no_grad, torch.enable_grad or torch.autocast around some nodes.
struct GraphBlock {
  std::string name;       ///< unique
  bool autocast = false;  ///< otherwise it sets whether autograd records
  bool enabled = false;
  std::optional<c10::ScalarType> dtype = {};  ///< of autocast; absent: unchanged
  std::optional<bool> cache = {};  ///< of autocast: whether casts of parameters are cached; absent: unchanged
  friend bool operator==(const GraphBlock& a, const GraphBlock& b) { return a.name == b.name; }
};

/// A node in execution order, with what matters to layers and their boundaries.
struct GraphNode {
  std::string name;
  std::string target;  ///< of the operator
  std::vector<ModuleFrame> modules;
  std::vector<int> reads = {};  ///< values, each once
  std::vector<int> gives = {};
  std::vector<int> writes = {};                   ///< those of `reads` whose memory it changes
  std::vector<std::pair<int, int>> aliases = {};  ///< (of gives, of reads) that may share memory
  std::vector<std::pair<int, double>> decays =
      {};                             ///< (of writes, d): the new value is d * old + a term that does not depend on old
  std::vector<int> only_writes = {};  ///< of `writes`: no other effect of the node depends on them
  std::vector<GraphBlock> blocks = {};  ///< that it is in, outermost first
  bool random = false;                  ///< draws random numbers
  bool number = false;                  ///< computes numbers only from numbers or sizes
  bool repeatable = false;              ///< cheap and deterministic: may be computed wherever it is needed
  bool holds_graphs = false;            ///< contains graphs, which may need the value of any symbol
  std::string joined = {};              ///< why it must be in the layer of the node before it; empty: it need not
};

/// A parameter, buffer or constant.
struct GraphTensor {
  std::string name;  ///< tied ones have one
  std::vector<std::int64_t> shape;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool trainable = false;
  bool constant = false;  ///< not part of the state dict
  std::function<at::Tensor()> load;
  bool has_values = true;  ///< false: the file has its shape only, and `load` throws
  /// Initial values, if `load` is absent.
  model::Init init = model::Init::Zeros;
  double scale = 0;
};

/// What a run of a program needs besides its arguments.
struct NodeRun {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  int microbatch = 0;
};

/// The state of one call of a layer. Slots are the layer's numbering of values.
struct Frame {
  std::vector<c10::IValue> slots;
  std::vector<c10::IValue> stack;  ///< empty between nodes
  c10::Device device{c10::kCPU};
  const Symbols* symbols = nullptr;
  NodeRun run = {};
  std::vector<MaskStream> masks = {};  ///< those that nodes have drawn from, told apart by their seeds
};

/// Runs one node on a frame.
using NodeCall = std::function<void(Frame&)>;

/// The values that a loss is divided by, see model::LossWeight: `count` itself; or of labels those that are not
/// `ignored`, by the weights of their classes unless these are absent (-1).
struct LossTerms {
  int count = -1;  ///< or the labels, if any can be ignored or weighted
  std::optional<std::int64_t> ignored = {};
  int class_weights = -1;
  double least = 0;
  double added = 0;
};

/// A model: its nodes in order, and how to run each.
struct OperatorGraph {
  std::string file;  ///< or the name of a built-in model
  std::vector<GraphValue> values;
  std::vector<GraphNode> nodes;
  std::vector<GraphTensor> tensors;
  std::vector<model::ModelInput> inputs;
  std::vector<int> outputs;                   ///< values that the model returns; -1: not a tensor
  int loss = -1;                              ///< among outputs, if one is the loss
  std::vector<std::string> output_keys = {};  ///< if the model returns a dictionary, otherwise empty
  std::optional<int> scores = {};             ///< the output of a dictionary that a named loss reads; absent: open
  std::optional<LossTerms> loss_terms = {};
  model::LossKind loss_kind = model::LossKind::Mean;
  std::vector<std::string> symbols;
  model::ModelMode mode = model::ModelMode::Training;
  /// For evaluation: whether the file itself contains the evaluation graph. Otherwise it contains the training graph,
  /// set to evaluation as far as operators have arguments for that.
  bool exact_evaluation = false;
  /// Of a training graph: whether the model in evaluation mode is this with evaluation_value, as far as is known.
  bool evaluates = true;
  std::string evaluation_advice;  ///< how to make a file with the evaluation graph
  std::int64_t least_samples = 1;
  std::int64_t most_samples = std::numeric_limits<std::int64_t>::max();
  /// Layers list the values that they read in the order of their nodes, otherwise ascending.
  bool reading_order = false;
  /// The operators and arguments of the nodes, as data: nodes and values have the same numbers there. To change them,
  /// give add_program a changed copy. Null for TorchScript.
  std::shared_ptr<const ProgramGraph> program = {};
  /// Makes the function that runs node `node` in a layer whose slot of a value is `slot(value)`.
  std::function<NodeCall(int node, const std::function<int(int)>& slot)> compile;
};

/// "file: node "relu_" (torch.ops.aten.relu_.default) in module "layer1.0"".
[[nodiscard]] std::string place_of(const OperatorGraph& graph, const GraphNode& node);

/// Why a parameter of type `dtype` is not trained, with advice: `how` changes the model's type, such as "export
/// model.float()".
[[nodiscard]] std::string untrainable_text(const std::string& name, c10::ScalarType dtype, const std::string& how);

/// Values whose memory `nodes`, ascending, write: their own, and those of which these are views.
[[nodiscard]] std::set<int> written_values(const OperatorGraph& graph, const std::vector<int>& nodes);

}  // namespace stagecraft::intake

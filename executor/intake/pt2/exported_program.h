#pragma once

#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <complex>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "executor/intake/graph/size_expression.h"

namespace stagecraft {

/// What the file says of a tensor.
struct TensorMeta {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<SizeExpression> sizes;
  std::vector<SizeExpression> strides;
  SizeExpression storage_offset;
  c10::Device device{c10::kCPU};
  bool requires_grad = false;
};

/// A value of a graph: a tensor or a number, assigned once.
struct ProgramValue {
  enum class Kind { Tensor, Int, Float, Bool };
  std::string name;
  Kind kind = Kind::Tensor;
  std::optional<TensorMeta> tensor;      ///< of Tensor
  std::optional<SizeExpression> number;  ///< of Int
};

struct ProgramGraph;

/// A value that is meant where an argument wants a tensor or a number: an index into ProgramGraph::values.
struct ValueIndex {
  int index = -1;
  friend bool operator==(const ValueIndex&, const ValueIndex&) = default;
};

/// A whole number as it is, or a value of the graph.
using IntItem = std::variant<std::int64_t, ValueIndex>;

/// What stands for an argument. Lists of tensors may hold nothing at a place.
using ArgumentValue = std::variant<std::monostate, ValueIndex, std::vector<std::optional<ValueIndex>>, bool,
                                   std::int64_t, double, std::string, std::complex<double>, std::vector<bool>,
                                   std::vector<IntItem>, std::vector<double>, std::vector<std::string>, c10::ScalarType,
                                   c10::Layout, c10::MemoryFormat, c10::Device, std::shared_ptr<const ProgramGraph>>;

struct ProgramArgument {
  std::string name;  ///< of the schema's argument; empty for operands of higher-order operators
  ArgumentValue value;
};

/// One return of an operator: a tensor or number, a list of tensors, or nothing.
struct ProgramResult {
  std::vector<ValueIndex> values;
  bool list = false;
};

/// A frame of the stack of modules: call number `call` of the module at `path`, counted from 0.
struct ModuleFrame {
  std::string path;  ///< "layer1.0.conv1"; "" is the whole model
  std::string type;  ///< "torch.nn.modules.conv.Conv2d"
  int call = 0;
  friend bool operator==(const ModuleFrame&, const ModuleFrame&) = default;
};

/// A block of torch.no_grad, torch.enable_grad or torch.autocast whose nodes are in the graph around it.
struct ProgramBlock {
  std::string name;  ///< of the node that held it, unique
  std::string target;
  std::vector<ProgramArgument> arguments;  ///< those before its graph
};

struct ProgramNode {
  std::string name;    ///< unique in its graph
  std::string target;  ///< "torch.ops.aten.conv2d.default", "_operator.add", ...
  std::vector<ProgramArgument> arguments;
  std::vector<ProgramResult> results;
  std::vector<ModuleFrame> modules;  ///< outermost first; empty where the file does not say
  std::vector<ProgramBlock> blocks = {};  ///< that it is in, outermost first
};

/// Nodes in the order of execution. Every value is an input or a result of exactly one node, before its first reader.
struct ProgramGraph {
  std::vector<ProgramValue> values;
  std::vector<ValueIndex> inputs;
  std::vector<ProgramNode> nodes;
  std::vector<ArgumentValue> outputs;
};

/// What an input of the whole graph is.
struct ProgramInput {
  enum class Kind { Parameter, Buffer, Constant, User, Folded };
  Kind kind = Kind::User;
  ValueIndex value;        ///< none of a Folded one: a Python number that stands in the nodes already
  std::string name;        ///< of a parameter, buffer or constant in the model; of a user input its own
  bool persistent = true;  ///< of a buffer: whether it is in the state dict
};

/// A graph of torch.export in training form, as the file holds it.
struct ExportedProgram {
  ProgramGraph graph;
  std::vector<ProgramInput> inputs;  ///< one for each of graph.inputs, and the folded ones
  /// Least and most value of each symbol.
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> ranges;
  std::string torch_version;
};

/// A tensor whose bytes are in a record of the archive.
struct StoredTensor {
  std::string record;  ///< full name in the archive
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t storage_offset = 0;  ///< in values
  bool parameter = false;
  bool requires_grad = false;
  /// Two names with equal records and geometry are one tensor: tied.
  friend bool operator==(const StoredTensor&, const StoredTensor&) = default;
};

}  // namespace stagecraft

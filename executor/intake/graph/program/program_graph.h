#pragma once

#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <complex>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "executor/intake/graph/module_frame.h"
#include "executor/intake/graph/tensor_meta.h"

namespace stagecraft::intake {

/// A value of a graph: a tensor or a number, assigned once.
struct ProgramValue {
  enum class Kind { Tensor, Int, Float, Bool };
  std::string name;
  Kind kind = Kind::Tensor;
  std::optional<TensorMeta> tensor;      ///< of Tensor
  std::optional<SizeExpression> number;  ///< of Int
};

struct ProgramGraph;

/// A reference to a value, in place of a tensor or a number: an index into ProgramGraph::values.
struct ValueIndex {
  int index = -1;
  friend bool operator==(const ValueIndex&, const ValueIndex&) = default;
};

/// A literal integer, or a value of the graph.
using IntItem = std::variant<std::int64_t, ValueIndex>;

/// The value of an argument. Lists of tensors may have empty entries.
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

/// A block of torch.no_grad, torch.enable_grad or torch.autocast whose nodes are in the graph around it.
struct ProgramBlock {
  std::string name;  ///< of the node that held it, unique
  std::string target;
  std::vector<ProgramArgument> arguments;  ///< arguments before its graph
};

struct ProgramNode {
  std::string name;    ///< unique in its graph
  std::string target;  ///< "torch.ops.aten.conv2d.default", "_operator.add", ...
  std::vector<ProgramArgument> arguments;
  std::vector<ProgramResult> results;
  std::vector<ModuleFrame> modules;       ///< outermost first; empty if the file does not contain them
  std::vector<ProgramBlock> blocks = {};  ///< that it is in, outermost first
};

/// Nodes in the order of execution. Every value is an input or a result of exactly one node, before its first reader.
struct ProgramGraph {
  std::vector<ProgramValue> values;
  std::vector<ValueIndex> inputs;
  std::vector<ProgramNode> nodes;
  std::vector<ArgumentValue> outputs;
};

}  // namespace stagecraft::intake

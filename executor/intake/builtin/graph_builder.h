#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executor/intake/graph/layers/granularity.h"
#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/graph/program/program_graph.h"
#include "executor/model/model.h"

namespace stagecraft::intake {

/// Sizes in an argument.
using SizeList = std::vector<IntItem>;
/// Tensors in an argument.
using ValueList = std::vector<std::optional<ValueIndex>>;

/// Makes the graph of a model, operator by operator. Each call also runs on tensors without values, for two batch
/// sizes, which gives the shape of its result. Views have the strides that this gives, other results are taken as
/// contiguous.
class GraphBuilder {
 public:
  /// `name` begins errors.
  GraphBuilder(const std::string& name, model::ModelMode mode);

  [[nodiscard]] bool trains() const { return graph_.mode == model::ModelMode::Training; }

  /// An input, whose first axis is the batch.
  ValueIndex input(model::ModelInput input);
  /// A parameter or buffer; the same value for the same name.
  ValueIndex parameter(const model::ParameterSpec& spec);

  /// Nodes are in a module while it exists.
  class Module {
   public:
    explicit Module(std::vector<ModuleFrame>& frames) : frames_(frames) {}
    ~Module() { frames_.pop_back(); }
    Module(const Module&) = delete;
    Module& operator=(const Module&) = delete;

   private:
    std::vector<ModuleFrame>& frames_;
  };
  /// Module `path` of the model inside the current one; `type` is the kind of its layer.
  [[nodiscard]] Module module(const std::string& path, const std::string& type);

  /// The first result of operator `op`, such as "aten::linear" or "aten::add.Tensor". `arguments` are in its schema's
  /// order; those after the last have their defaults. The node is called `name`, or like the operator; names are unique
  /// in a module. Throws FormatError that names the node for an unknown operator, one argument too many or too few, or
  /// one of another type; std::invalid_argument for arguments that the operator refuses.
  ValueIndex call(const std::string& op, std::vector<ArgumentValue> arguments, const std::string& name = "");
  /// The results of an operator that returns a list of `count` tensors.
  std::vector<ValueIndex> list(const std::string& op, std::vector<ArgumentValue> arguments, std::size_t count);
  /// The size of `of` in `axis`, as a number.
  ValueIndex size(ValueIndex of, std::int64_t axis);
  /// See DropoutArguments: `percent` / 100 is the probability in training, and the block is the layer that the node is
  /// in by default.
  ValueIndex dropout(ValueIndex x, std::int64_t percent, const std::string& stream = "");
  /// The last node must be in the layer of the one before it, because of `reason`.
  void join(const std::string& reason) { joined_.back() = reason; }

  /// The size in `axis` of `of`, which must not depend on the batch.
  [[nodiscard]] std::int64_t extent(ValueIndex of, std::size_t axis) const;

  /// The graph up to its loss, or another result. Nothing may be added afterwards.
  [[nodiscard]] OperatorGraph finish(ValueIndex loss);

 private:
  ValueIndex add_value(const std::string& name, ProgramValue::Kind kind = ProgramValue::Kind::Tensor);
  std::vector<ValueIndex> add_call(const std::string& op, std::vector<ArgumentValue> arguments, std::size_t count,
                                   const std::string& name);
  void add_node(ProgramNode node);
  std::string unique_name(const std::string& wanted);
  void set_tensor(ValueIndex value, const std::vector<std::int64_t>& shape, at::ScalarType dtype, bool batched);
  void run_dry(const ProgramNode& node, const std::string& place);

  OperatorGraph graph_;
  ProgramGraph program_;
  std::vector<ModuleFrame> frames_;
  std::vector<std::string> joined_;                         // by node
  std::vector<std::pair<ValueIndex, GraphValue>> origins_;  // of inputs and parameters: origin and source
  std::map<std::string, ValueIndex> parameters_;
  std::map<std::string, int> names_;                          // path and name of a node -> how often
  std::map<std::pair<std::string, std::string>, int> drawn_;  // block and stream -> masks
  std::vector<Frame> dry_;                                    // by batch size: values without numbers
};

/// Adds a model's nodes and returns its loss. Called for each mode; only nodes whose results have equal names in both
/// may be read outside a layer.
using BuildGraph = std::function<ValueIndex(GraphBuilder&)>;

/// What `build` makes, in one mode.
[[nodiscard]] OperatorGraph built_graph(const std::string& name, const BuildGraph& build, model::ModelMode mode);

/// The model of what `build` makes, in both modes.
[[nodiscard]] model::Model built_model(const std::string& name, const BuildGraph& build,
                                       const Granularity& granularity = {});

}  // namespace stagecraft::intake

#include "executor/intake/builtin/graph_builder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>

#include "costmodel/index.h"
#include "executor/device/dtype.h"
#include "executor/device/shape_kernels.h"
#include "executor/intake/graph/dry_sizes.h"
#include "executor/intake/graph/layers/two_modes.h"
#include "executor/intake/graph/program/dropout_call.h"
#include "executor/intake/graph/program/operator_call.h"
#include "executor/intake/graph/program/program_nodes.h"

namespace stagecraft::intake {
namespace {

const DryRuns kRuns{{2, 3}};

/// "torch.ops.aten.add.Tensor" of "aten::add.Tensor", as files write it.
std::string target_of(const std::string& op) {
  const std::size_t colons = op.find("::");
  const std::string name = colons == std::string::npos ? op : op.substr(colons + 2);
  return "torch.ops." + op.substr(0, colons) + "." + name + (name.find('.') == std::string::npos ? ".default" : "");
}

at::Tensor without_values(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::empty(sizes, at::TensorOptions().dtype(dtype).device(at::kMeta));
}

/// The result of a node that need not run: an LSTM would take one step for each position, and fused attention puts the
/// positions before the heads in memory.
std::optional<at::Tensor> known_result(const ProgramNode& node, const Frame& frame) {
  const auto tensor = [&](const ArgumentValue& argument) {
    return frame.slots[to_index(std::get<ValueIndex>(argument).index)].toTensor();
  };
  if (node.target == "torch.ops.aten.lstm.input") {
    const at::Tensor x = tensor(node.arguments[0].value);
    const auto& states = std::get<ValueList>(node.arguments[1].value);
    const at::Tensor state = tensor(states.at(0).value());
    return without_values({x.size(0), x.size(1), state.size(0) * state.size(2)}, x.scalar_type());
  }
  if (node.target == "torch.ops.aten.scaled_dot_product_attention.default") {
    const at::Tensor q = tensor(node.arguments[0].value);
    const at::Tensor v = tensor(node.arguments[2].value);
    return without_values({q.size(0), q.size(2), q.size(1), v.size(3)}, q.scalar_type()).transpose(1, 2);
  }
  return std::nullopt;
}

}  // namespace

GraphBuilder::GraphBuilder(const std::string& name, model::ModelMode mode)
    : frames_{{.path = "", .type = name}}, dry_(kRuns.samples.size()) {
  graph_.file = name;
  graph_.mode = mode;
  graph_.exact_evaluation = true;
  graph_.reading_order = true;
  graph_.symbols = {kBatch};
  for (Frame& frame : dry_) frame.device = at::kMeta;
  device::register_shape_kernels();
}

ValueIndex GraphBuilder::add_value(const std::string& name, ProgramValue::Kind kind) {
  program_.values.push_back({.name = name, .kind = kind, .tensor = {}, .number = {}});
  for (Frame& frame : dry_) frame.slots.emplace_back();
  return {to_int(program_.values.size()) - 1};
}

void GraphBuilder::set_tensor(ValueIndex value, const std::vector<std::int64_t>& shape, at::ScalarType dtype,
                              bool batched) {
  std::vector<at::Tensor> found;
  for (std::size_t i = 0; i < dry_.size(); ++i) {
    std::vector<std::int64_t> sizes = shape;
    if (batched) sizes.insert(sizes.begin(), kRuns.samples[i]);
    found.push_back(without_values(sizes, dtype));
    dry_[i].slots[to_index(value.index)] = found.back();
  }
  program_.values[to_index(value.index)].tensor = meta_of(kRuns, found);
}

ValueIndex GraphBuilder::input(model::ModelInput input) {
  const ValueIndex out = add_value(input.name);
  set_tensor(out, input.shape, device::dtype_of(input.dtype), /*batched=*/true);
  origins_.emplace_back(
      out, GraphValue{.name = "", .origin = GraphValue::Origin::Input, .source = to_int(graph_.inputs.size())});
  program_.inputs.push_back(out);
  graph_.inputs.push_back(std::move(input));
  return out;
}

ValueIndex GraphBuilder::parameter(const model::ParameterSpec& spec) {
  if (const auto it = parameters_.find(spec.name); it != parameters_.end()) return it->second;
  const ValueIndex out = parameters_[spec.name] = add_value(spec.name);
  set_tensor(out, spec.shape, spec.dtype, /*batched=*/false);
  const auto origin = spec.trainable ? GraphValue::Origin::Parameter : GraphValue::Origin::Buffer;
  origins_.emplace_back(out, GraphValue{.name = "", .origin = origin, .source = to_int(graph_.tensors.size())});
  program_.inputs.push_back(out);
  graph_.tensors.push_back({.name = spec.name,
                            .shape = spec.shape,
                            .dtype = spec.dtype,
                            .trainable = spec.trainable,
                            .load = spec.load,
                            .init = spec.init,
                            .scale = spec.scale});
  return out;
}

GraphBuilder::Module GraphBuilder::module(const std::string& path, const std::string& type) {
  frames_.push_back({.path = path, .type = type});
  return Module(frames_);
}

std::string GraphBuilder::unique_name(const std::string& wanted) {
  const int times = names_[frames_.back().path + ":" + wanted]++;
  return times == 0 ? wanted : wanted + "_" + std::to_string(times);
}

ValueIndex GraphBuilder::call(const std::string& op, std::vector<ArgumentValue> arguments, const std::string& name) {
  return add_call(op, std::move(arguments), 0, name).at(0);
}

std::vector<ValueIndex> GraphBuilder::list(const std::string& op, std::vector<ArgumentValue> arguments,
                                           std::size_t count) {
  return add_call(op, std::move(arguments), count, "");
}

std::vector<ValueIndex> GraphBuilder::add_call(const std::string& op, std::vector<ArgumentValue> arguments,
                                               std::size_t count, const std::string& name) {
  const std::string target = target_of(op);
  const std::string last = target.substr(0, target.rfind('.'));
  ProgramNode node{.name = unique_name(name.empty() ? last.substr(last.rfind('.') + 1) : name),
                   .target = target,
                   .arguments = {},
                   .results = {},
                   .modules = frames_};
  const std::string place = place_of(graph_, {.name = node.name, .target = target, .modules = frames_});
  const c10::FunctionSchema& schema = schema_of(node, place);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool named = i < schema.arguments().size();
    node.arguments.push_back({named ? schema.arguments()[i].name() : "", std::move(arguments[i])});
  }
  const std::string value = frames_.back().path + (frames_.back().path.empty() ? "" : ".") + node.name;
  std::vector<ValueIndex> out;
  for (std::size_t r = 0; r < schema.returns().size(); ++r) {
    ProgramResult result{{}, schema.returns()[r].type()->kind() == c10::TypeKind::ListType};
    for (std::size_t i = 0; i < (result.list ? count : 1); ++i) {
      result.values.push_back(add_value(value + (out.empty() ? "" : "." + std::to_string(out.size()))));
      out.push_back(result.values.back());
    }
    node.results.push_back(std::move(result));
  }
  run_dry(node, place);
  add_node(std::move(node));
  return out;
}

void GraphBuilder::run_dry(const ProgramNode& node, const std::string& place) {
  const c10::NoGradGuard no_grad;
  const NodeCall run = make_call(program_, node, place, [](int value) { return value; });
  const std::vector<std::pair<int, int>> aliases = facts_of(program_, node, place).aliases;
  for (Frame& frame : dry_) {
    if (std::optional<at::Tensor> known = known_result(node, frame)) {
      frame.slots[to_index(node.results[0].values[0].index)] = std::move(*known);
      continue;
    }
    try {
      run(frame);
    } catch (const c10::Error& e) { throw std::invalid_argument(place + ": " + e.what_without_backtrace()); }
  }
  for (const ProgramResult& result : node.results) {
    for (const ValueIndex value : result.values) {
      const bool view = std::ranges::find(aliases, value.index, &std::pair<int, int>::first) != aliases.end() ||
                        node.target == "torch.ops.aten.scaled_dot_product_attention.default";
      std::vector<at::Tensor> found;
      for (Frame& frame : dry_) {
        c10::IValue& slot = frame.slots[to_index(value.index)];
        if (!slot.isTensor()) break;  // not known, and not used
        if (!view) slot = slot.toTensor().contiguous();
        found.push_back(slot.toTensor());
      }
      if (!found.empty()) program_.values[to_index(value.index)].tensor = meta_of(kRuns, found);
    }
  }
}

void GraphBuilder::add_node(ProgramNode node) {
  program_.nodes.push_back(std::move(node));
  joined_.emplace_back();
}

ValueIndex GraphBuilder::size(ValueIndex of, std::int64_t axis) {
  const std::string name = unique_name("sym_size");
  const ValueIndex out = add_value(frames_.back().path + "." + name, ProgramValue::Kind::Int);
  std::vector<std::int64_t> found;
  for (Frame& frame : dry_) {
    found.push_back(frame.slots[to_index(of.index)].toTensor().size(axis));
    frame.slots[to_index(out.index)] = found.back();
  }
  program_.values[to_index(out.index)].number = affine(kRuns, found);
  add_node({.name = name,
            .target = "torch.ops.aten.sym_size.int",
            .arguments = {{"self", of}, {"dim", axis}},
            .results = {{{out}, false}},
            .modules = frames_});
  return out;
}

ValueIndex GraphBuilder::dropout(ValueIndex x, std::int64_t percent, const std::string& stream) {
  DropoutArguments arguments{.input = x,
                             .probability = static_cast<double>(percent) / 100,
                             .train = trains(),
                             .block = label_of({.name = "", .target = "", .modules = frames_}, {}).name,
                             .stream = stream};
  if (arguments.active()) arguments.place = drawn_[{arguments.block, stream}]++;
  const std::string name = unique_name("dropout");
  const ValueIndex out = add_value(frames_.back().path + "." + name);
  ProgramNode node = dropout_node(arguments, out);
  node.name = name;
  node.modules = frames_;
  program_.values[to_index(out.index)].tensor = program_.values[to_index(x.index)].tensor;
  for (Frame& frame : dry_) frame.slots[to_index(out.index)] = frame.slots[to_index(x.index)];
  add_node(std::move(node));
  return out;
}

std::int64_t GraphBuilder::extent(ValueIndex of, std::size_t axis) const {
  return constant_value(program_.values[to_index(of.index)].tensor.value().sizes.at(axis)).value();
}

OperatorGraph GraphBuilder::finish(ValueIndex loss) {
  add_program(graph_, std::make_shared<const ProgramGraph>(std::move(program_)));
  for (std::size_t n = 0; n < joined_.size(); ++n) graph_.nodes[n].joined = joined_[n];
  for (const auto& [value, from] : origins_) {
    graph_.values[to_index(value.index)].origin = from.origin;
    graph_.values[to_index(value.index)].source = from.source;
  }
  graph_.outputs = {loss.index};
  graph_.loss = 0;
  return std::move(graph_);
}

OperatorGraph built_graph(const std::string& name, const BuildGraph& build, model::ModelMode mode) {
  GraphBuilder builder(name, mode);
  const ValueIndex loss = build(builder);
  return builder.finish(loss);
}

model::Model built_model(const std::string& name, const BuildGraph& build, const Granularity& granularity) {
  model::Model out = model_of_modes(built_graph(name, build, model::ModelMode::Training),
                                    built_graph(name, build, model::ModelMode::Evaluation), granularity);
  out.name = name;
  return out;
}

}  // namespace stagecraft::intake

#include "executor/intake/torchscript/script_layout.h"

#include <ATen/core/class_type.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <unordered_map>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/intake/graph/calls/evaluation.h"
#include "executor/intake/torchscript/dry_run.h"
#include "executor/intake/torchscript/script_control.h"
#include "executor/intake/torchscript/script_graph.h"
#include "executor/intake/torchscript/script_value.h"

namespace stagecraft::intake {
namespace {

namespace jit = torch::jit;
using Kind = ScriptValue::Kind;

constexpr std::size_t kMostNodes = 200'000;
constexpr std::size_t kDeepestCalls = 200;
constexpr std::int64_t kMostTurns = 10'000;

/// Lays out one module.
class Layout {
 public:
  Layout(const std::string& file, ScriptState& state, std::optional<std::int64_t> samples)
      : state_(state), graph_(file, state, samples) {}

  OperatorGraph run(const std::vector<ScriptInput>& inputs) {
    const c10::NoGradGuard no_grad;
    std::vector<ScriptValue> arguments{module_value(state_.root())};
    for (const ScriptInput& input : inputs)
      arguments.push_back(input.constant ? constant_value_of(*input.constant) : add_input(input.model));
    graph_.enter({"", class_name(*state_.root()), 0});
    std::vector<ScriptValue> results = call(*state_.root()->type()->findMethod("forward"), std::move(arguments));
    for (const ScriptValue& result : results) graph_.add_output(result);
    OperatorGraph out = graph_.take();
    out.exact_evaluation = state_.exact_evaluation();
    numbers_.set_classes(out.inputs);
    return out;
  }

 private:
  using Names = std::unordered_map<const jit::Value*, ScriptValue>;

  static ScriptValue module_value(const c10::intrusive_ptr<c10::ivalue::Object>& module) {
    return {.kind = Kind::Module, .constant = module};
  }

  ScriptValue add_input(const model::ModelInput& model) {
    const int input = to_int(graph_.graph().inputs.size());
    ScriptValue out = graph_.add_input(model);
    numbers_.add(out.value, input);
    return out;
  }

  // ---- running code

  std::string place(const jit::Node& node) const {
    std::string out = graph_.graph().file + ": " + node.kind().toQualString();
    if (!graph_.modules().empty() && !graph_.modules().back().path.empty())
      out += " in module \"" + graph_.modules().back().path + "\"";
    return out;
  }
  [[noreturn]] void refuse(const jit::Node& node, const std::string& what) const {
    throw FormatError(ErrorKind::UnsupportedModel, place(node) + ": " + what);
  }

  std::vector<ScriptValue> call(jit::Function& function, std::vector<ScriptValue> arguments) {
    auto* const script = dynamic_cast<jit::GraphFunction*>(&function);
    if (!script)
      throw FormatError(ErrorKind::UnsupportedModel,
                        graph_.graph().file + ": calls \"" + function.name() + "\", which is not TorchScript");
    if (++depth_ > kDeepestCalls)
      throw FormatError(ErrorKind::UnsupportedModel, graph_.graph().file + ": calls are nested more than 200 deep");
    script->ensure_defined();
    const std::shared_ptr<jit::Graph> graph = script->graph();
    Names names;
    for (std::size_t i = 0; i < graph->inputs().size(); ++i) names[graph->inputs()[i]] = std::move(arguments.at(i));
    block(graph->block(), names);
    std::vector<ScriptValue> out;
    for (const jit::Value* const output : graph->outputs()) out.push_back(names.at(output));
    --depth_;
    graphs_.push_back(graph);
    return out;
  }

  void block(jit::Block* code, Names& names) {
    for (jit::Node* const node : code->nodes()) {
      if (graph_.graph().nodes.size() > kMostNodes || ++visited_ > 10 * kMostNodes)
        throw FormatError(ErrorKind::UnsupportedModel, graph_.graph().file + ": the model has more than " +
                                                           std::to_string(kMostNodes) + " operations");
      run_node(node, names);
    }
  }

  std::vector<ScriptValue> inputs_of(const jit::Node* node, const Names& names) const {
    std::vector<ScriptValue> out;
    for (const jit::Value* const input : node->inputs()) out.push_back(names.at(input));
    return out;
  }

  void run_node(jit::Node* node, Names& names) {
    const auto give = [&](ScriptValue value) { names[node->output()] = std::move(value); };
    switch (node->kind()) {
      case c10::prim::Constant:
        return give(constant(node));
      case c10::prim::GetAttr:
        return give(attribute(node, names.at(node->input())));
      case c10::prim::SetAttr:
        refuse(*node, "changes the attribute \"" + node->s(c10::attr::name) +
                          "\", which replicas cannot replay; write a buffer in place instead");
      case c10::prim::CallMethod:
        return outputs(node, names, call_method(node, inputs_of(node, names)));
      case c10::prim::CallFunction: {
        std::vector<ScriptValue> arguments = inputs_of(node, names);
        arguments.erase(arguments.begin());
        jit::Function* const function = node->input(0)->type()->expectRef<c10::FunctionType>().function();
        return outputs(node, names, call(*function, std::move(arguments)));
      }
      case c10::prim::If:
        return branch(node, names);
      case c10::prim::Loop:
        return loop(node, names);
      case c10::prim::ListConstruct:
      case c10::prim::TupleConstruct: {
        auto items = std::make_shared<ScriptItems>();
        items->tuple = node->kind() == c10::prim::TupleConstruct;
        items->items = inputs_of(node, names);
        if (!items->tuple) items->element = node->output()->type()->expectRef<c10::ListType>().getElementType();
        return give({.kind = Kind::Items, .items = std::move(items)});
      }
      case c10::prim::unchecked_cast:
        return give(names.at(node->input()));
      case c10::prim::Uninitialized:
        return give({});
      case c10::prim::RaiseException:
        refuse(*node, "the model raises an exception on inputs of these shapes");
      case c10::prim::Print:
        return;
      default:
        break;
    }
    const std::string name = node->kind().toQualString();
    if (name == "aten::warn") return;
    std::vector<ScriptValue> arguments = inputs_of(node, names);
    if (auto known = on_items(name, arguments, node->outputs().size(), place(*node)))
      return outputs(node, names, std::move(*known));
    if (auto known = known_results(graph_.graph(), graph_.runs(), node, name, arguments, place(*node)))
      return outputs(node, names, std::move(*known));
    outputs(node, names, emit(node, name, std::move(arguments)));
  }

  static void outputs(const jit::Node* node, Names& names, std::vector<ScriptValue> values) {
    for (std::size_t i = 0; i < node->outputs().size(); ++i) names[node->outputs()[i]] = std::move(values.at(i));
  }

  ScriptValue constant(const jit::Node* node) {
    if (node->output()->type()->kind() == c10::TypeKind::FunctionType) return {};
    const auto value = jit::toIValue(node->output());
    if (!value) refuse(*node, "holds a constant that cannot be read");
    return known(*value);
  }

  /// Constant tensors become values of the graph.
  ScriptValue known(const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().defined()) return graph_.held_tensor(value.toTensor());
    ScriptValue out = constant_value_of(value);
    if (out.kind == Kind::Items) {
      for (ScriptValue& item : out.items->items) item = item.constant.isTensor() ? known(item.constant) : item;
    }
    return out;
  }

  ScriptValue attribute(const jit::Node* node, const ScriptValue& owner) {
    if (owner.kind != Kind::Module) refuse(*node, "reads an attribute of an object that is not a module");
    const c10::ivalue::Object& module = owner.constant.toObjectRef();
    const std::string& name = node->s(c10::attr::name);
    if (name == "training") return constant_value_of(state_.training(module));
    const c10::IValue value = module.getAttr(name);
    return value.isObject() ? module_value(value.toObject()) : known(value);
  }

  std::vector<ScriptValue> call_method(const jit::Node* node, std::vector<ScriptValue> arguments) {
    if (arguments.at(0).kind != Kind::Module) refuse(*node, "calls a method of an object that is not a module");
    const c10::ivalue::Object& module = arguments[0].constant.toObjectRef();
    const std::string* const path = state_.path_of(&module);
    const std::string& name = node->s(c10::attr::name);
    jit::Function* const method = module.type()->findMethod(name);
    if (!path || !method) refuse(*node, "calls \"" + name + "\" of an object that is not a module of the model");
    // The second call of a traced module is its method "forward1".
    const bool forward = name.starts_with("forward") && name.find_first_not_of("0123456789", 7) == std::string::npos;
    const bool inner = forward || graph_.modules().back().path != *path;
    if (inner) {
      int& calls = calls_of_[*path];
      graph_.enter({*path, class_name(module), forward ? calls++ : std::max(0, calls - 1)});
    }
    std::vector<ScriptValue> out = call(*method, std::move(arguments));
    if (inner) graph_.leave();
    return out;
  }

  // ---- branches and loops

  void branch(jit::Node* node, Names& names) {
    const ScriptValue& condition = names.at(node->input());
    std::optional<bool> taken;
    if (condition.kind == Kind::Constant && condition.constant.isBool()) taken = condition.constant.toBool();
    if (condition.kind == Kind::Number) {
      // An assertion about the batch size that holds.
      const auto raises = [](jit::Block* code) {
        return std::ranges::any_of(code->nodes(),
                                   [](const jit::Node* n) { return n->kind() == c10::prim::RaiseException; });
      };
      const bool first = condition.runs.front().toBool();
      const bool same =
          std::ranges::all_of(condition.runs, [&](const c10::IValue& run) { return run.toBool() == first; });
      const bool asserts = raises(node->blocks()[first ? 1 : 0]);
      if (same && asserts) taken = first;
    }
    if (!taken) return control(node, names);
    jit::Block* const code = node->blocks()[*taken ? 0 : 1];
    block(code, names);
    for (std::size_t i = 0; i < node->outputs().size(); ++i) {
      ScriptValue value = names.at(code->outputs()[i]);
      names[node->outputs()[i]] = std::move(value);
    }
  }

  void loop(jit::Node* node, Names& names) {
    const ScriptValue turns = names.at(node->input(0));
    const ScriptValue begins = names.at(node->input(1));
    jit::Block* const code = node->blocks()[0];
    const auto goes_on = jit::toIValue(code->outputs()[0]);
    const bool counted = turns.kind == Kind::Constant && begins.kind == Kind::Constant && goes_on &&
                         goes_on->isBool() && goes_on->toBool() && turns.constant.toInt() <= kMostTurns;
    if (!counted) return control(node, names);
    std::vector<ScriptValue> carried;
    for (std::size_t i = 2; i < node->inputs().size(); ++i) carried.push_back(names.at(node->inputs()[i]));
    const std::int64_t count = begins.constant.toBool() ? turns.constant.toInt() : 0;
    for (std::int64_t turn = 0; turn < count; ++turn) {
      names[code->inputs()[0]] = constant_value_of(turn);
      for (std::size_t i = 0; i < carried.size(); ++i) names[code->inputs()[i + 1]] = carried[i];
      block(code, names);
      for (std::size_t i = 0; i < carried.size(); ++i) carried[i] = names.at(code->outputs()[i + 1]);
    }
    outputs(node, names, std::move(carried));
  }

  void control(jit::Node* node, Names& names) {
    const std::string where = place(*node);
    ScriptControl block = script_control(
        node, state_, [&](jit::Value* value) { return names.at(value); },
        [&](const at::Tensor& tensor) { return graph_.held_tensor(tensor); }, where);
    GraphNode out = graph_.new_node(node->kind() == c10::prim::If ? "if" : "loop",
                                    node->kind() == c10::prim::If ? "prim.If" : "prim.Loop");
    ScriptCall made{.run = block.run, .arguments = {}, .results = {}, .place = {}};
    for (const ScriptValue& argument : block.arguments) made.arguments.push_back(graph_.argument_of(argument, out));
    made.place = place_of(graph_.graph(), out);
    auto found = dry_run(graph_.runs(), made.run, block.arguments, node->outputs().size(), made.place);
    // If branches, or a loop without iterations, would give different shapes, shapes are left open.
    std::vector<bool> sure(node->outputs().size(), true);
    if (node->kind() == c10::prim::If) {
      for (const bool taken : {true, false}) {
        std::vector<ScriptValue> forced = block.arguments;
        forced.at(0) = constant_value_of(taken);
        try {
          const auto other = dry_run(graph_.runs(), made.run, forced, node->outputs().size(), made.place);
          for (std::size_t r = 0; r < sure.size(); ++r) sure[r] = sure[r] && same_shape(other[r], found[r]);
        } catch (const FormatError&) { sure.assign(sure.size(), false); }
      }
    } else {
      for (std::size_t r = 0; r < sure.size(); ++r) {
        const ScriptValue& begin = names.at(node->inputs()[r + 2]);
        sure[r] = begin.kind == Kind::Value && same_shape(begin.runs, found[r]);
      }
    }
    std::vector<ScriptValue> results;
    for (std::size_t r = 0; r < node->outputs().size(); ++r)
      results.push_back(graph_.add_result(out, made, *node->outputs()[r]->type(), std::move(found[r]), r, sure[r]));
    const auto values_in = [&](std::size_t argument, auto&& visit) {
      for_each_value(block.arguments[argument], [&](const ScriptValue& part) {
        if (part.kind == Kind::Value) visit(part.value);
      });
    };
    for (const std::size_t argument : block.written)
      values_in(argument, [&](int value) { out.writes.push_back(value); });
    for (const auto& [result, argument] : block.aliases) {
      values_in(argument, [&](int value) {
        for_each_value(results[result], [&](const ScriptValue& part) { out.aliases.emplace_back(part.value, value); });
      });
    }
    out.random = block.random;
    graph_.finish(std::move(out), std::move(made));
    outputs(node, names, std::move(results));
  }

  /// Arguments that select training, set for evaluation.
  static void set_for_evaluation(const c10::FunctionSchema& schema, std::vector<ScriptValue>& arguments) {
    const std::size_t count = std::min(arguments.size(), schema.arguments().size());
    bool statistics = false;
    for (std::size_t i = 0; i < count; ++i)
      statistics = statistics || (schema.arguments()[i].name() == "running_mean" && arguments[i].kind == Kind::Value);
    for (std::size_t i = 0; i < count; ++i) {
      if (arguments[i].kind != Kind::Constant) continue;
      if (const auto value = evaluation_value(schema, i, arguments[i].constant, statistics))
        arguments[i] = constant_value_of(*value);
    }
  }

  std::vector<ScriptValue> emit(jit::Node* node, const std::string& name, std::vector<ScriptValue> arguments) {
    const c10::FunctionSchema* const schema = node->maybeSchema();
    if (!schema || has_side_effects(name) || !(name.starts_with("aten::") || name.starts_with("prim::")))
      refuse(*node, "cannot run in stages; only PyTorch's own operators (\"aten\") can");
    if (state_.mode() == model::ModelMode::Evaluation) set_for_evaluation(*schema, arguments);
    const std::string last = name.substr(6);
    GraphNode out = graph_.new_node(last, "torch.ops." + name.substr(0, 4) + "." + last + "." +
                                              (schema->overload_name().empty() ? "default" : schema->overload_name()));
    ScriptCall made{.run = operation_of(node), .arguments = {}, .results = {}, .place = {}};
    made.place = place_of(graph_.graph(), out);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* const info = i < schema->arguments().size() ? schema->arguments()[i].alias_info() : nullptr;
      if (info && info->isWrite() && arguments[i].kind != Kind::Value)
        throw FormatError(ErrorKind::UnsupportedModel,
                          made.place + ": changes a list or number that other values may alias, which cannot be cut");
      made.arguments.push_back(graph_.argument_of(arguments[i], out));
    }
    numbers_.follow_classes(last, *schema, arguments, graph_.graph().inputs, made.place);
    auto found = dry_run(graph_.runs(), made.run, arguments, node->outputs().size(), made.place);

    std::vector<ScriptValue> results;
    for (std::size_t r = 0; r < node->outputs().size(); ++r)
      results.push_back(graph_.add_result(out, made, *node->outputs()[r]->type(), std::move(found[r]), r, true));
    add_facts(graph_.graph(), out, *schema, arguments, results, made.place);
    numbers_.follow_results(last, *schema, arguments, results);
    graph_.finish(std::move(out), std::move(made));
    return results;
  }

  ScriptState& state_;
  ScriptGraph graph_;
  InputNumbers numbers_;
  std::vector<std::shared_ptr<jit::Graph>> graphs_;  // keeps alive what values of the code point to
  std::map<std::string, int> calls_of_;              // by path of module
  std::size_t depth_ = 0;
  std::size_t visited_ = 0;
};

}  // namespace

OperatorGraph lay_out_script(const std::string& file, ScriptState& state, const std::vector<ScriptInput>& inputs,
                             std::optional<std::int64_t> samples) {
  const KeepGenerator keep;
  return Layout(file, state, samples).run(inputs);
}

}  // namespace stagecraft::intake

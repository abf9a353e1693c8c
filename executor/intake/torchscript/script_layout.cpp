#include "executor/intake/torchscript/script_layout.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/class_type.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "costmodel/errors.h"
#include "executor/device/dtype.h"
#include "executor/intake/graph/evaluation.h"
#include "executor/intake/graph/operator_facts.h"
#include "executor/intake/torchscript/dry_sizes.h"
#include "executor/intake/torchscript/script_call.h"
#include "executor/intake/torchscript/script_control.h"
#include "executor/intake/torchscript/script_items.h"
#include "executor/intake/torchscript/script_operators.h"
#include "executor/intake/torchscript/script_value.h"
#include "executor/intake/torchscript/torchscript_archive.h"

namespace stagecraft {
namespace {

namespace jit = torch::jit;
using Kind = ScriptValue::Kind;
using Origin = GraphValue::Origin;

constexpr std::size_t kMostNodes = 200'000;
constexpr std::size_t kDeepestCalls = 200;
constexpr std::int64_t kMostTurns = 10'000;

std::size_t at_(int i) { return static_cast<std::size_t>(i); }

/// Lays out one module.
class Layout {
 public:
  Layout(const std::string& file, ScriptState& state, std::optional<std::int64_t> samples) : state_(state) {
    out_.file = file;
    out_.mode = state.mode();
    out_.evaluation_advice = "trace or script it after model.eval()";
    runs_.samples = samples ? std::vector<std::int64_t>{*samples, *samples} : std::vector<std::int64_t>{2, 3, 5, 3};
    if (!samples) {
      out_.symbols = {kBatch};
    } else {
      out_.least_samples = out_.most_samples = *samples;
    }
  }

  OperatorGraph run(const std::vector<ScriptInput>& inputs) {
    const c10::NoGradGuard no_grad;
    for (std::size_t t = 0; t < state_.held().size(); ++t) (void)held_value(static_cast<int>(t));
    std::vector<ScriptValue> arguments{module_value(state_.root())};
    for (const ScriptInput& input : inputs)
      arguments.push_back(input.constant ? constant_value_of(*input.constant) : add_input(input.model));
    frames_.push_back({"", class_name(*state_.root()), 0});
    std::vector<ScriptValue> results = call(*state_.root()->type()->findMethod("forward"), std::move(arguments));
    for (const ScriptValue& result : results) add_output(result);
    out_.exact_evaluation = state_.exact_evaluation();
    for (const auto& [input, classes] : classes_) {
      ModelInput& model = out_.inputs[at_(input)];
      if (model.classes == 0) model.classes = classes;
    }
    out_.compile = [calls = std::make_shared<const std::vector<ScriptCall>>(std::move(calls_))](
                       int node, const std::function<int(int)>& slot) {
      return script_call((*calls)[at_(node)], slot);
    };
    return std::move(out_);
  }

 private:
  using Names = std::unordered_map<const jit::Value*, ScriptValue>;

  // ---- what the file and the caller give

  static ScriptValue module_value(const c10::intrusive_ptr<c10::ivalue::Object>& module) {
    return {.kind = Kind::Module, .constant = module};
  }

  ScriptValue held_value(int tensor) {
    const HeldTensor& held = state_.held()[at_(tensor)];
    if (const auto it = held_values_.find(tensor); it != held_values_.end()) return it->second;
    const bool trainable = held.parameter && held.tensor.requires_grad();
    if (trainable && held.tensor.scalar_type() != c10::ScalarType::Float) {
      throw FormatError(out_.file + ": " +
                        untrainable_text(held.name, held.tensor.scalar_type(), "save model.float()"));
    }
    if (held.tensor.layout() != c10::kStrided || held.tensor.is_quantized())
      throw FormatError(out_.file + ": tensor \"" + held.name + "\" is sparse or quantized, wanted a plain one");
    const at::Tensor plain = held.tensor.detach();
    GraphValue value{.name = held.name,
                     .origin = trainable                       ? Origin::Parameter
                               : held.parameter || held.buffer ? Origin::Buffer
                                                               : Origin::Constant,
                     .source = static_cast<int>(out_.tensors.size())};
    ScriptValue out{.kind = Kind::Value, .value = static_cast<int>(out_.values.size())};
    // A dry run may write to buffers.
    for (std::size_t run = 0; run < runs_.samples.size(); ++run)
      out.runs.emplace_back(trainable ? plain : plain.clone());
    value.meta = fixed_meta(plain);
    out_.values.push_back(std::move(value));
    out_.tensors.push_back({held.name, plain.sizes().vec(), plain.scalar_type(), trainable,
                            !held.parameter && !held.buffer, [plain] { return plain.clone(); }});
    return held_values_[tensor] = out;
  }

  static TensorMeta fixed_meta(const at::Tensor& tensor) {
    TensorMeta out;
    out.dtype = tensor.scalar_type();
    out.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
    out.strides.assign(tensor.strides().begin(), tensor.strides().end());
    out.storage_offset = SizeExpression(tensor.storage_offset());
    return out;
  }

  ScriptValue held_tensor(const at::Tensor& tensor) {
    return held_value(state_.index_of(tensor, "constant" + std::to_string(out_.tensors.size())));
  }

  ScriptValue add_input(const ModelInput& model) {
    const c10::ScalarType dtype = dtype_of(model.dtype);
    std::vector<c10::IValue> runs;
    std::vector<at::Tensor> tensors;
    for (std::size_t run = 0; run < runs_.samples.size(); ++run) {
      std::vector<std::int64_t> sizes = model.shape;
      if (model.batch_axis) sizes.insert(sizes.begin() + *model.batch_axis, runs_.samples[run]);
      tensors.push_back(random_input(sizes, dtype, model, run));
      runs.emplace_back(tensors.back());
    }
    const int value = static_cast<int>(out_.values.size());
    const auto meta = meta_of(runs_, tensors);
    out_.values.push_back({.name = unique(model.name),
                           .origin = Origin::Input,
                           .source = static_cast<int>(out_.inputs.size()),
                           .meta = meta});
    inputs_behind_[value] = static_cast<int>(out_.inputs.size());
    out_.inputs.push_back(model);
    return {.kind = Kind::Value, .value = value, .runs = std::move(runs)};
  }

  at::Tensor random_input(const std::vector<std::int64_t>& sizes, c10::ScalarType dtype, const ModelInput& model,
                          std::size_t run) {
    at::Generator generator = at::detail::createCPUGenerator(run + 1 + 16 * out_.inputs.size());
    const auto options = at::TensorOptions(dtype);
    if (c10::isFloatingType(dtype)) return at::randn(sizes, generator, at::kFloat).to(dtype);
    const std::int64_t below = dtype != at::kBool && model.classes > model.least ? model.classes : 2;
    return at::randint(dtype == at::kBool ? 0 : model.least, below, sizes, generator, at::kLong).to(options.dtype());
  }

  void add_output(const ScriptValue& result) {
    if (result.kind == Kind::Items) {
      for (const ScriptValue& each : result.items->items) add_output(each);
      return;
    }
    const bool tensor = result.kind == Kind::Value && out_.values[at_(result.value)].kind == GraphValue::Kind::Tensor;
    out_.outputs.push_back(tensor ? result.value : -1);
  }

  // ---- running code

  std::string place(const jit::Node& node) const {
    std::string out = out_.file + ": " + node.kind().toQualString();
    if (!frames_.empty() && !frames_.back().path.empty()) out += " in module \"" + frames_.back().path + "\"";
    return out;
  }
  [[noreturn]] void refuse(const jit::Node& node, const std::string& what) const {
    throw FormatError(place(node) + ": " + what);
  }

  std::vector<ScriptValue> call(jit::Function& function, std::vector<ScriptValue> arguments) {
    auto* const own = dynamic_cast<jit::GraphFunction*>(&function);
    if (!own) throw FormatError(out_.file + ": calls \"" + function.name() + "\", which is no TorchScript");
    if (++depth_ > kDeepestCalls) throw FormatError(out_.file + ": calls are nested more than 200 deep");
    own->ensure_defined();
    const std::shared_ptr<jit::Graph> graph = own->graph();
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
      if (out_.nodes.size() > kMostNodes || ++visited_ > 10 * kMostNodes)
        throw FormatError(out_.file + ": the model has more than " + std::to_string(kMostNodes) + " operations");
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
                          "\", which replicas cannot do alike; wanted a buffer that is written in place");
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
    if (auto known = statically(node, name, arguments)) return outputs(node, names, std::move(*known));
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

  /// Tensors of constants are held.
  ScriptValue known(const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().defined()) return held_tensor(value.toTensor());
    ScriptValue out = constant_value_of(value);
    if (out.kind == Kind::Items) {
      for (ScriptValue& each : out.items->items) each = each.constant.isTensor() ? known(each.constant) : each;
    }
    return out;
  }

  ScriptValue attribute(const jit::Node* node, const ScriptValue& owner) {
    if (owner.kind != Kind::Module) refuse(*node, "reads an attribute of something that is no module");
    const c10::ivalue::Object& module = owner.constant.toObjectRef();
    const std::string& name = node->s(c10::attr::name);
    if (name == "training") return constant_value_of(state_.training(module));
    const c10::IValue value = module.getAttr(name);
    return value.isObject() ? module_value(value.toObject()) : known(value);
  }

  std::vector<ScriptValue> call_method(const jit::Node* node, std::vector<ScriptValue> arguments) {
    if (arguments.at(0).kind != Kind::Module) refuse(*node, "calls a method of something that is no module");
    const c10::ivalue::Object& module = arguments[0].constant.toObjectRef();
    const std::string* const path = state_.path_of(&module);
    const std::string& name = node->s(c10::attr::name);
    jit::Function* const method = module.type()->findMethod(name);
    if (!path || !method) refuse(*node, "calls \"" + name + "\" of an object that is no module of the model");
    // The second call of a traced module is its method "forward1".
    const bool forward = name.starts_with("forward") && name.find_first_not_of("0123456789", 7) == std::string::npos;
    const bool inner = forward || frames_.back().path != *path;
    if (inner) {
      int& calls = calls_of_[*path];
      frames_.push_back({*path, class_name(module), forward ? calls++ : std::max(0, calls - 1)});
    }
    std::vector<ScriptValue> out = call(*method, std::move(arguments));
    if (inner) frames_.pop_back();
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
          std::ranges::all_of(condition.runs, [&](const c10::IValue& each) { return each.toBool() == first; });
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
    ScriptControl own = script_control(
        node, state_, [&](jit::Value* value) { return names.at(value); },
        [&](const at::Tensor& tensor) { return held_tensor(tensor); }, where);
    GraphNode out = new_node(node->kind() == c10::prim::If ? "if" : "loop",
                             node->kind() == c10::prim::If ? "prim.If" : "prim.Loop");
    ScriptCall made{.run = own.run, .arguments = {}, .results = {}, .place = {}};
    for (const ScriptValue& argument : own.arguments) made.arguments.push_back(argument_of(argument, out));
    made.place = place_of(out_, out);
    auto found = run_all(made.run, own.arguments, node->outputs().size(), made.place);
    // Where the branches, or no turn of the loop, would give other shapes, nothing is said of them.
    std::vector<bool> sure(node->outputs().size(), true);
    if (node->kind() == c10::prim::If) {
      for (const bool taken : {true, false}) {
        std::vector<ScriptValue> forced = own.arguments;
        forced.at(0) = constant_value_of(taken);
        try {
          const auto other = run_all(made.run, forced, node->outputs().size(), made.place);
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
      results.push_back(add_result(out, made, *node->outputs()[r]->type(), std::move(found[r]), r, sure[r]));
    const auto values_in = [&](std::size_t argument, auto&& visit) {
      for_each_value(own.arguments[argument], [&](const ScriptValue& each) {
        if (each.kind == Kind::Value) visit(each.value);
      });
    };
    for (const std::size_t each : own.written) values_in(each, [&](int value) { out.writes.push_back(value); });
    for (const auto& [result, argument] : own.aliases) {
      values_in(argument, [&](int value) {
        for_each_value(results[result], [&](const ScriptValue& each) { out.aliases.emplace_back(each.value, value); });
      });
    }
    out.random = own.random;
    finish(std::move(out), std::move(made));
    outputs(node, names, std::move(results));
  }

  static bool same_shape(const std::vector<c10::IValue>& a, const std::vector<c10::IValue>& b) {
    for (std::size_t run = 0; run < a.size(); ++run) {
      if (!a[run].isTensor() || !b[run].isTensor()) return false;
      const at::Tensor x = a[run].toTensor();
      const at::Tensor y = b[run].toTensor();
      if (!x.defined() || !y.defined() || x.scalar_type() != y.scalar_type() || x.sizes() != y.sizes() ||
          x.strides() != y.strides())
        return false;
    }
    return true;
  }

  // ---- what is known without running

  /// Whether `value` is known before anything runs: numbers, and constant tensors that hold a whole number.
  [[nodiscard]] bool is_known(const ScriptValue& value) const {
    if (value.kind != Kind::Value) return is_static(value);
    const GraphValue& held = out_.values[at_(value.value)];
    return held.origin == Origin::Constant && held.meta && held.meta->sizes.empty() &&
           c10::isIntegralType(held.meta->dtype, /*includeBool=*/false);
  }

  std::optional<std::vector<ScriptValue>> statically(jit::Node* node, const std::string& name,
                                                     const std::vector<ScriptValue>& arguments) {
    const c10::FunctionSchema* const schema = node->maybeSchema();
    if (!schema || node->outputs().size() != 1 || schema->is_mutable()) return std::nullopt;
    const bool shape = tells_of_shape(name) && !arguments.empty() && arguments[0].kind == Kind::Value &&
                       out_.values[at_(arguments[0].value)].kind == GraphValue::Kind::Tensor;
    if (shape && !out_.values[at_(arguments[0].value)].meta) return std::nullopt;
    for (std::size_t i = shape ? 1 : 0; i < arguments.size(); ++i) {
      if (!is_known(arguments[i])) return std::nullopt;
    }
    const c10::TypeKind type = node->output()->type()->kind();
    const bool tensor = type == c10::TypeKind::TensorType;
    if (tensor && !computes_traced_size(name)) return std::nullopt;
    const bool list = type == c10::TypeKind::ListType;
    if (list &&
        node->output()->type()->expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::TensorType)
      return std::nullopt;
    if (has_side_effects(name) || (arguments.empty() && name != "prim::rangelist")) return std::nullopt;

    const auto run = runner(node);
    const auto found = run_all(run, arguments, 1, place(*node)).front();
    const bool fixed = !shape && std::ranges::all_of(arguments, [&](const ScriptValue& each) {
      return is_constant(each) || each.kind == Kind::Value;
    });
    if (fixed) return std::vector<ScriptValue>{constant_value_of(found.front())};
    if (!list) return std::vector<ScriptValue>{number(name, run, arguments, found)};
    // A list of sizes.
    if (!shape) return std::nullopt;
    auto items = std::make_shared<ScriptItems>();
    items->element = node->output()->type()->expectRef<c10::ListType>().getElementType();
    for (std::size_t i = 0; i < found.front().toListRef().size(); ++i) {
      std::vector<c10::IValue> each;
      for (const c10::IValue& one : found) each.push_back(one.toListRef()[i]);
      items->items.push_back(number(name, {}, {}, std::move(each)));
    }
    return std::vector<ScriptValue>{{.kind = Kind::Items, .items = std::move(items)}};
  }

  ScriptValue number(const std::string& name, std::function<void(jit::Stack&)> run, std::vector<ScriptValue> arguments,
                     std::vector<c10::IValue> found) {
    auto made = std::make_shared<ScriptNumber>();
    made->target = name;
    std::vector<std::int64_t> whole;
    for (const c10::IValue& each : found) {
      if (each.isInt()) whole.push_back(each.toInt());
      if (each.isTensor() && each.toTensor().dim() == 0 && c10::isIntegralType(each.toTensor().scalar_type(), false))
        whole.push_back(each.toTensor().item<std::int64_t>());
    }
    const bool all_affine = std::ranges::all_of(arguments, [](const ScriptValue& each) {
      bool out = true;
      for_each_value(each,
                     [&](const ScriptValue& v) { out = out && (v.kind != Kind::Number || v.number->expression); });
      return out;
    });
    if (keeps_affine(name) && all_affine && whole.size() == found.size()) made->expression = affine(runs_, whole);
    if (made->expression && constant_value(*made->expression)) return constant_value_of(found.front());
    if (tells_of_shape(name) && !made->expression) {
      // Types, devices and numbers of axes are the same whatever the batch size; others must be seen at each run.
      const auto same = std::ranges::all_of(found, [&](const c10::IValue& each) { return each == found.front(); });
      if (same) return constant_value_of(found.front());
    }
    made->call = std::move(run);
    made->arguments = std::move(arguments);
    return {.kind = Kind::Number, .runs = std::move(found), .number = std::move(made)};
  }

  // ---- nodes of the graph

  static std::function<void(jit::Stack&)> runner(jit::Node* node) {
    const bool counted = node->schema().is_vararg();
    const auto count = static_cast<std::int64_t>(node->inputs().size());
    return [operation = node->getOperation(), counted, count](jit::Stack& stack) {
      // Its call is not const, and several threads are here.
      jit::Operation own = operation;
      if (counted) stack.emplace_back(count);
      own(stack);
    };
  }

  /// By result, by dry run.
  std::vector<std::vector<c10::IValue>> run_all(const std::function<void(jit::Stack&)>& run,
                                                const std::vector<ScriptValue>& arguments, std::size_t results,
                                                const std::string& where) const {
    std::vector<std::vector<c10::IValue>> out(results);
    for (std::size_t i = 0; i < runs_.samples.size(); ++i) {
      jit::Stack stack;
      for (const ScriptValue& argument : arguments) stack.push_back(in_run(argument, i));
      const auto fail = [&](const std::string& why) {
        throw FormatError(where + ": fails on " + std::to_string(runs_.samples[i]) + " samples: " + first_line(why));
      };
      try {
        run(stack);
      } catch (const c10::Error& e) { fail(e.what_without_backtrace()); } catch (const std::exception& e) {
        fail(e.what());
      }
      if (stack.size() != results) fail("gave " + std::to_string(stack.size()) + " results");
      for (std::size_t r = 0; r < results; ++r) out[r].push_back(std::move(stack[r]));
    }
    return out;
  }

  std::string unique(const std::string& wanted) {
    const int times = names_[wanted]++;
    return times == 0 ? wanted : unique(wanted + "_" + std::to_string(times));
  }

  GraphNode new_node(const std::string& name, const std::string& target) {
    return {.name = unique(name), .target = target, .modules = frames_};
  }

  static void add_once(std::vector<int>& list, int value) {
    if (std::ranges::find(list, value) == list.end()) list.push_back(value);
  }

  /// What `node` pushes for `value`; values that it reads are added to it.
  ScriptArgument argument_of(const ScriptValue& value, GraphNode& node) {
    switch (value.kind) {
      case Kind::Constant:
        if (value.constant.isDevice()) return {.form = ScriptArgument::Form::Device};
        if (value.constant.isTensor() && value.constant.toTensor().defined())
          return argument_of(held_tensor(value.constant.toTensor()), node);
        return {.form = ScriptArgument::Form::Constant, .constant = value.constant};
      case Kind::Value:
        add_once(node.reads, value.value);
        return {.form = ScriptArgument::Form::Value, .value = value.value};
      case Kind::Number: {
        const int index = number_value(value);
        add_once(node.reads, index);
        return {.form = ScriptArgument::Form::Value, .value = index};
      }
      case Kind::Module:
        throw FormatError(place_of(out_, node) + ": takes a module for an argument");
      case Kind::Items:
        break;
    }
    ScriptArgument out{.form = value.items->tuple ? ScriptArgument::Form::Tuple : ScriptArgument::Form::List};
    out.element = value.items->element;
    for (const ScriptValue& each : value.items->items) out.parts.push_back(argument_of(each, node));
    return out;
  }

  /// The graph's value of a number, made where it is wanted first.
  int number_value(const ScriptValue& value) {
    ScriptNumber& own = *value.number;
    if (own.value >= 0) return own.value;
    const bool tensor = value.runs.front().isTensor();
    if (own.expression && !tensor) {
      own.value = static_cast<int>(out_.values.size());
      out_.values.push_back({.name = unique("size"), .kind = GraphValue::Kind::Number, .number = own.expression});
      return own.value;
    }
    const std::string last = own.target.substr(own.target.rfind(':') + 1);
    GraphNode node =
        new_node(last, "torch.ops." + own.target.substr(0, own.target.find(':')) + "." + last + ".default");
    ScriptCall made{.run = own.call, .arguments = {}, .results = {}, .place = {}};
    for (const ScriptValue& argument : own.arguments) made.arguments.push_back(argument_of(argument, node));
    made.place = place_of(out_, node);
    node.number = !tensor && std::ranges::all_of(node.reads, [&](int read) {
      return out_.values[at_(read)].kind == GraphValue::Kind::Number;
    });
    node.repeatable = tensor;
    own.value = static_cast<int>(out_.values.size());
    GraphValue out{.name = node.name};
    out.kind = tensor ? GraphValue::Kind::Tensor : node.number ? GraphValue::Kind::Number : GraphValue::Kind::Other;
    if (tensor) out.meta = fixed_meta(value.runs.front().toTensor());
    out_.values.push_back(std::move(out));
    node.gives = {own.value};
    made.results = {{own.value}};
    finish(std::move(node), std::move(made));
    return own.value;
  }

  void finish(GraphNode node, ScriptCall made) {
    for (const int value : node.gives) out_.values[at_(value)].source = static_cast<int>(out_.nodes.size());
    out_.nodes.push_back(std::move(node));
    calls_.push_back(std::move(made));
  }

  /// Result `index` of `node` as it came out of the dry runs.
  ScriptValue add_result(GraphNode& node, ScriptCall& made, const c10::Type& type, std::vector<c10::IValue> found,
                         std::size_t index, bool sure) {
    const auto name = [&](const std::string& suffix) {
      return index == 0 && suffix.empty() ? node.name : unique(node.name + "." + std::to_string(index) + suffix);
    };
    const auto add = [&](std::vector<c10::IValue> runs, const std::string& suffix) -> ScriptValue {
      GraphValue value{.name = name(suffix)};
      const bool tensors = std::ranges::all_of(runs, [](const c10::IValue& each) { return each.isTensor(); });
      if (!tensors) value.kind = GraphValue::Kind::Other;
      if (tensors && sure) {
        std::vector<at::Tensor> own;
        for (const c10::IValue& each : runs) own.push_back(each.toTensor());
        value.meta = meta_of(runs_, own);
      }
      const int at = static_cast<int>(out_.values.size());
      out_.values.push_back(std::move(value));
      node.gives.push_back(at);
      return {.kind = Kind::Value, .value = at, .runs = std::move(runs)};
    };
    const bool list =
        type.kind() == c10::TypeKind::ListType && std::ranges::all_of(found, [&](const c10::IValue& each) {
          return each.isTensorList() && each.toListRef().size() == found.front().toListRef().size();
        });
    if (!list || !sure) {
      ScriptValue out = add(std::move(found), "");
      made.results.push_back({out.value});
      return out;
    }
    auto items = std::make_shared<ScriptItems>();
    items->element = c10::TensorType::get();
    std::vector<int> parts;
    for (std::size_t i = 0; i < found.front().toListRef().size(); ++i) {
      std::vector<c10::IValue> runs;
      for (const c10::IValue& each : found) runs.push_back(each.toListRef()[i]);
      items->items.push_back(add(std::move(runs), "." + std::to_string(i)));
      parts.push_back(items->items.back().value);
    }
    made.results.push_back({-1, std::move(parts)});
    return {.kind = Kind::Items, .items = std::move(items)};
  }

  /// Arguments that say that the model trains, set to evaluate.
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
      refuse(*node, "is nothing that stages can run; wanted operators of PyTorch, \"aten\"");
    if (state_.mode() == ModelMode::Evaluation) set_for_evaluation(*schema, arguments);
    const std::string last = name.substr(6);
    GraphNode out = new_node(last, "torch.ops." + name.substr(0, 4) + "." + last + "." +
                                       (schema->overload_name().empty() ? "default" : schema->overload_name()));
    ScriptCall made{.run = runner(node), .arguments = {}, .results = {}, .place = {}};
    made.place = place_of(out_, out);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* const info = i < schema->arguments().size() ? schema->arguments()[i].alias_info() : nullptr;
      if (info && info->isWrite() && arguments[i].kind != Kind::Value)
        throw FormatError(made.place +
                          ": changes a list or a number that others may hold, which is not known how to cut");
      made.arguments.push_back(argument_of(arguments[i], out));
    }
    follow_classes(last, *schema, arguments, made.place);
    auto found = run_all(made.run, arguments, node->outputs().size(), made.place);

    std::vector<ScriptValue> results;
    for (std::size_t r = 0; r < node->outputs().size(); ++r)
      results.push_back(add_result(out, made, *node->outputs()[r]->type(), std::move(found[r]), r, true));
    add_facts(out, *schema, arguments, results, made.place);
    follow_numbers(last, *schema, arguments, results);
    finish(std::move(out), std::move(made));
    return results;
  }

  void add_facts(GraphNode& node, const c10::FunctionSchema& schema, const std::vector<ScriptValue>& arguments,
                 const std::vector<ScriptValue>& results, const std::string& where) {
    const auto op = c10::Dispatcher::singleton().findSchema(schema.operator_name());
    std::vector<CallArgument> given;
    for (const ScriptValue& argument : arguments) {
      CallArgument out;
      for_each_value(argument, [&](const ScriptValue& each) {
        if (each.kind == Kind::Value) out.tensors.push_back(each.value);
      });
      if (argument.kind == Kind::Value) out.value = argument.value;
      if (argument.kind == Kind::Constant) out.constant = argument.constant;
      given.push_back(std::move(out));
    }
    std::vector<std::vector<int>> given_back;
    for (const ScriptValue& result : results) {
      given_back.emplace_back();
      for_each_value(result, [&](const ScriptValue& each) { given_back.back().push_back(each.value); });
    }
    NodeFacts facts = operator_facts(schema, op ? &*op : nullptr, given, given_back, where);
    node.writes = std::move(facts.writes);
    node.aliases = std::move(facts.aliases);
    node.decays = std::move(facts.decays);
    node.random = facts.random;
    node.repeatable = facts.repeatable;
    // What schemas leave out: results that are arguments, in memory.
    for (const ScriptValue& result : results) {
      for_each_value(result, [&](const ScriptValue& own) {
        const bool other = out_.values[at_(own.value)].kind == GraphValue::Kind::Other;
        for (const ScriptValue& argument : arguments) {
          for_each_value(argument, [&](const ScriptValue& read) {
            if (read.kind != Kind::Value) return;
            const std::pair<int, int> pair{own.value, read.value};
            const bool same = other || shares_memory(own.runs.front(), read.runs.front());
            if (same && std::ranges::find(node.aliases, pair) == node.aliases.end()) node.aliases.push_back(pair);
          });
        }
      });
    }
  }

  static bool shares_memory(const c10::IValue& a, const c10::IValue& b) {
    if (!a.isTensor()) return false;
    if (!b.isTensor()) return true;
    const at::Tensor x = a.toTensor();
    const at::Tensor y = b.toTensor();
    if (!x.defined() || !y.defined() || !x.has_storage() || !y.has_storage()) return false;
    return x.storage().unsafeGetStorageImpl() == y.storage().unsafeGetStorageImpl();
  }

  /// Argument `wanted` of a call, if it is a value.
  static const ScriptValue* value_argument(const c10::FunctionSchema& schema, const std::vector<ScriptValue>& arguments,
                                           const char* wanted) {
    const auto it = std::ranges::find(schema.arguments(), wanted, &c10::Argument::name);
    const auto at = static_cast<std::size_t>(it - schema.arguments().begin());
    return at < arguments.size() && arguments[at].kind == Kind::Value ? &arguments[at] : nullptr;
  }
  /// The input whose numbers that argument holds, or -1.
  int input_behind(const c10::FunctionSchema& schema, const std::vector<ScriptValue>& arguments, const char* wanted) {
    const ScriptValue* const value = value_argument(schema, arguments, wanted);
    const auto it = value ? inputs_behind_.find(value->value) : inputs_behind_.end();
    return it == inputs_behind_.end() ? -1 : it->second;
  }

  /// Learns how many classes a whole-number input has, from the embedding or cross entropy that reads it. Throws
  /// std::invalid_argument if the range that was told reaches beyond them.
  void follow_classes(const std::string& name, const c10::FunctionSchema& schema,
                      const std::vector<ScriptValue>& arguments, const std::string& where) {
    const bool scores = name == "cross_entropy_loss" || name == "nll_loss" || name == "nll_loss_nd";
    if (!scores && name != "embedding") return;
    const int input = input_behind(schema, arguments, scores ? "target" : "indices");
    const ScriptValue* const told = value_argument(schema, arguments, scores ? "self" : "weight");
    if (input < 0 || !told || !told->runs.front().isTensor()) return;
    const at::Tensor sizes = told->runs.front().toTensor();
    if (sizes.dim() == 0) return;
    const std::int64_t classes = sizes.size(scores && sizes.dim() > 1 ? 1 : 0);
    classes_.emplace(input, classes);
    const ModelInput& model = out_.inputs[at_(input)];
    if (model.classes > classes) {
      throw std::invalid_argument(where + ": has " + std::to_string(classes) + (scores ? " classes" : " rows") +
                                  "; found range " + std::to_string(model.least) + ".." +
                                  std::to_string(model.classes) + " of input \"" + model.name +
                                  "\", wanted one that ends at " + std::to_string(classes) +
                                  " or before, the upper end excluded");
    }
  }

  /// Which results hold the numbers of an input.
  void follow_numbers(const std::string& name, const c10::FunctionSchema& schema,
                      const std::vector<ScriptValue>& arguments, const std::vector<ScriptValue>& results) {
    if (!moves_numbers(name) || results.size() != 1 || results[0].kind != Kind::Value) return;
    const int input = std::max(input_behind(schema, arguments, "self"), input_behind(schema, arguments, "input"));
    if (input >= 0) inputs_behind_[results[0].value] = input;
  }

  ScriptState& state_;
  DryRuns runs_;
  OperatorGraph out_;
  std::vector<ScriptCall> calls_;
  std::vector<std::shared_ptr<jit::Graph>> graphs_;  // keeps what values of the code point to
  std::map<int, ScriptValue> held_values_;           // by index into state_.held()
  std::vector<ModuleFrame> frames_;
  std::map<std::string, int> calls_of_;  // by path of module
  std::map<std::string, int> names_;
  std::map<int, int> inputs_behind_;     // value -> input whose numbers it holds
  std::map<int, std::int64_t> classes_;  // by input
  std::size_t depth_ = 0;
  std::size_t visited_ = 0;
};

/// Dry runs draw random numbers; nobody is to notice.
class KeepGenerator {
 public:
  KeepGenerator() : generator_(at::globalContext().defaultGenerator(c10::kCPU)) {
    const std::lock_guard lock(generator_.mutex());
    kept_ = generator_.get_state();
  }
  ~KeepGenerator() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(kept_);
  }
  KeepGenerator(const KeepGenerator&) = delete;
  KeepGenerator& operator=(const KeepGenerator&) = delete;

 private:
  at::Generator generator_;
  at::Tensor kept_;
};

}  // namespace

OperatorGraph lay_out_script(const std::string& file, ScriptState& state, const std::vector<ScriptInput>& inputs,
                             std::optional<std::int64_t> samples) {
  const KeepGenerator keep;
  return Layout(file, state, samples).run(inputs);
}

}  // namespace stagecraft

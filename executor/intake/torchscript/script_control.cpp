#include "executor/intake/torchscript/script_control.h"

#include <ATen/core/class_type.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <algorithm>
#include <map>
#include <utility>

#include "costmodel/errors.h"

namespace stagecraft::intake {
namespace {

namespace jit = torch::jit;

void for_each_node(jit::Block* block, const std::function<void(jit::Node*)>& visit) {
  for (auto it = block->nodes().begin(); it != block->nodes().end();) {
    jit::Node* const node = *it++;
    for (jit::Block* const inner : node->blocks()) for_each_node(inner, visit);
    visit(node);
  }
}

bool is_random(const jit::Node& node) {
  const c10::FunctionSchema* const schema = node.maybeSchema();
  if (!schema) return false;
  const auto op = c10::Dispatcher::singleton().findSchema(schema->operator_name());
  return op && op->hasTag(at::Tag::nondeterministic_seeded);
}

class Extractor {
 public:
  Extractor(jit::Node* node, ScriptState& state, const std::function<ScriptValue(jit::Value*)>& lookup,
            const std::function<ScriptValue(const at::Tensor&)>& tensor_value, const std::string& place)
      : state_(state),
        lookup_(lookup),
        tensor_value_(tensor_value),
        place_(place),
        graph_(std::make_shared<jit::Graph>()) {
    jit::Node* const copy = graph_->createClone(node, [&](jit::Value* v) { return outside(v); });
    graph_->appendNode(copy);
    for (jit::Value* const output : copy->outputs()) graph_->registerOutput(output);
  }

  ScriptControl run() {
    jit::Inline(*graph_);
    // Chains of attributes, from the outermost module inwards.
    resolve(graph_->block());
    jit::EliminateDeadCode(graph_);
    for (std::size_t i = graph_->inputs().size(); i-- > 0;) {
      if (arguments_[i].kind != ScriptValue::Kind::Module) continue;
      if (graph_->inputs()[i]->hasUses()) refuse("uses a module other than by calling it");
      graph_->eraseInput(i);
      arguments_.erase(arguments_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    ScriptControl out;
    find_writes(out);
    out.arguments = std::move(arguments_);
    const jit::Code code(graph_, "");
    out.run = [code](torch::jit::Stack& stack) { jit::InterpreterState(code).run(stack); };
    return out;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw FormatError(ErrorKind::UnsupportedModel,
                      place_ + ": a branch or loop that depends on data or on the batch " + what);
  }

  jit::Value* outside(jit::Value* value) {
    if (const auto it = inside_.find(value); it != inside_.end()) return it->second;
    jit::Value*& out = inside_[value];
    if (value->node()->kind() == c10::prim::Constant) {
      jit::Node* const copy = graph_->createClone(value->node(), [](jit::Value* v) { return v; });
      return out = graph_->appendNode(copy)->output();
    }
    return out = add_input(lookup_(value), value->type());
  }

  jit::Value* add_input(ScriptValue what, const c10::TypePtr& type) {
    jit::Value* const input = graph_->addInput();
    input->setType(type);
    arguments_.push_back(std::move(what));
    if (arguments_.back().kind == ScriptValue::Kind::Module) modules_[input] = arguments_.back().constant.toObject();
    return input;
  }

  void resolve(jit::Block* block) {
    for (jit::Node* const node : block->nodes()) {
      switch (node->kind()) {
        case c10::prim::GetAttr:
          resolve(node);
          break;
        case c10::prim::SetAttr:
          refuse("changes the attribute \"" + node->s(c10::attr::name) + "\"");
        case c10::prim::CallMethod:
        case c10::prim::CallFunction:
        case c10::prim::CreateObject:
        case c10::prim::fork:
          refuse(std::string("holds ") + node->kind().toQualString() + ", which stages cannot run");
        default:
          break;
      }
      for (jit::Block* const inner : node->blocks()) resolve(inner);
    }
  }

  void resolve(jit::Node* node) {
    const auto owner = modules_.find(node->input());
    if (owner == modules_.end()) refuse("reads an attribute of an object that is not a module of the model");
    const c10::ivalue::Object& module = *owner->second;
    const std::string name = node->s(c10::attr::name);
    const c10::IValue value = name == "training" ? c10::IValue(state_.training(module)) : module.getAttr(name);
    if (value.isObject()) {
      modules_[node->output()] = value.toObject();
      return;
    }
    ScriptValue known = value.isTensor() ? tensor_value_(value.toTensor()) : constant_value_of(value);
    if (known.kind == ScriptValue::Kind::Items) {
      for (ScriptValue& item : known.items->items) {
        if (item.constant.isTensor()) item = tensor_value_(item.constant.toTensor());
      }
    }
    node->output()->replaceAllUsesWith(add_input(std::move(known), node->output()->type()));
  }

  void find_writes(ScriptControl& out) {
    const jit::AliasDb memory(graph_);
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      jit::Value* const input = graph_->inputs()[i];
      if (!memory.hasWriters(input)) continue;
      if (arguments_[i].kind == ScriptValue::Kind::Items) refuse("changes a list made before it");
      out.written.push_back(i);
    }
    for_each_node(graph_->block(), [&](jit::Node* node) {
      out.random = out.random || is_random(*node);
      const c10::FunctionSchema* const schema = node->maybeSchema();
      if (!schema) return;
      // Schemas of normalisations do not declare that they update their statistics in training.
      if (state_.mode() == model::ModelMode::Evaluation) return;
      for (std::size_t i = 0; i < std::min(schema->arguments().size(), node->inputs().size()); ++i) {
        const std::string& name = schema->arguments()[i].name();
        if (name != "running_mean" && name != "running_var") continue;
        for (std::size_t a = 0; a < arguments_.size(); ++a) {
          if (graph_->inputs()[a] == node->inputs()[i]) out.written.push_back(a);
        }
      }
    });
    for (std::size_t r = 0; r < graph_->outputs().size(); ++r) {
      for (std::size_t a = 0; a < arguments_.size(); ++a) {
        if (memory.mayContainAlias(graph_->inputs()[a], graph_->outputs()[r])) out.aliases.emplace_back(r, a);
      }
    }
  }

  ScriptState& state_;
  const std::function<ScriptValue(jit::Value*)>& lookup_;
  const std::function<ScriptValue(const at::Tensor&)>& tensor_value_;
  const std::string& place_;
  std::shared_ptr<jit::Graph> graph_;
  std::map<jit::Value*, jit::Value*> inside_;
  std::map<jit::Value*, c10::intrusive_ptr<c10::ivalue::Object>> modules_;
  std::vector<ScriptValue> arguments_;  // one for each of the graph's inputs
};

}  // namespace

ScriptControl script_control(jit::Node* node, ScriptState& state, const std::function<ScriptValue(jit::Value*)>& lookup,
                             const std::function<ScriptValue(const at::Tensor&)>& tensor_value,
                             const std::string& place) {
  return Extractor(node, state, lookup, tensor_value, place).run();
}

}  // namespace stagecraft::intake

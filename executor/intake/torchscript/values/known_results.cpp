#include "executor/intake/torchscript/values/known_results.h"

#include <ATen/core/function_schema.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <memory>

#include "costmodel/index.h"
#include "executor/intake/torchscript/values/dry_run.h"
#include "executor/intake/torchscript/values/script_operators.h"

namespace stagecraft::intake {
namespace {

namespace jit = torch::jit;
using Kind = ScriptValue::Kind;
using Origin = GraphValue::Origin;

/// Whether `value` is known before anything runs: numbers, and constant tensors with an integer.
bool is_known(const OperatorGraph& graph, const ScriptValue& value) {
  if (value.kind != Kind::Value) return is_static(value);
  const GraphValue& source = graph.values[to_index(value.value)];
  return source.origin == Origin::Constant && source.meta && source.meta->sizes.empty() &&
         c10::isIntegralType(source.meta->dtype, /*includeBool=*/false);
}

ScriptValue number(const DryRuns& runs, const std::string& name, std::function<void(jit::Stack&)> run,
                   std::vector<ScriptValue> arguments, std::vector<c10::IValue> found) {
  auto made = std::make_shared<ScriptNumber>();
  made->target = name;
  std::vector<std::int64_t> whole;
  for (const c10::IValue& result : found) {
    if (result.isInt()) whole.push_back(result.toInt());
    if (result.isTensor() && result.toTensor().dim() == 0 &&
        c10::isIntegralType(result.toTensor().scalar_type(), false))
      whole.push_back(result.toTensor().item<std::int64_t>());
  }
  const bool all_affine = std::ranges::all_of(arguments, [](const ScriptValue& argument) {
    bool out = true;
    for_each_value(argument,
                   [&](const ScriptValue& v) { out = out && (v.kind != Kind::Number || v.number->expression); });
    return out;
  });
  if (keeps_affine(name) && all_affine && whole.size() == found.size()) made->expression = affine(runs, whole);
  if (made->expression && constant_value(*made->expression)) return constant_value_of(found.front());
  if (tells_of_shape(name) && !made->expression) {
    // Types, devices and numbers of axes do not depend on the batch size; others must be computed in each run.
    const auto same = std::ranges::all_of(found, [&](const c10::IValue& result) { return result == found.front(); });
    if (same) return constant_value_of(found.front());
  }
  made->call = std::move(run);
  made->arguments = std::move(arguments);
  return {.kind = Kind::Number, .runs = std::move(found), .number = std::move(made)};
}

}  // namespace

std::optional<std::vector<ScriptValue>> known_results(const OperatorGraph& graph, const DryRuns& runs, jit::Node* node,
                                                      const std::string& name,
                                                      const std::vector<ScriptValue>& arguments,
                                                      const std::string& where) {
  const c10::FunctionSchema* const schema = node->maybeSchema();
  if (!schema || node->outputs().size() != 1 || schema->is_mutable()) return std::nullopt;
  const bool shape = tells_of_shape(name) && !arguments.empty() && arguments[0].kind == Kind::Value &&
                     graph.values[to_index(arguments[0].value)].kind == GraphValue::Kind::Tensor;
  if (shape && !graph.values[to_index(arguments[0].value)].meta) return std::nullopt;
  for (std::size_t i = shape ? 1 : 0; i < arguments.size(); ++i) {
    if (!is_known(graph, arguments[i])) return std::nullopt;
  }
  const c10::TypeKind type = node->output()->type()->kind();
  const bool tensor = type == c10::TypeKind::TensorType;
  if (tensor && !computes_traced_size(name)) return std::nullopt;
  const bool list = type == c10::TypeKind::ListType;
  if (list && node->output()->type()->expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::TensorType)
    return std::nullopt;
  if (has_side_effects(name) || (arguments.empty() && name != "prim::rangelist")) return std::nullopt;

  const auto run = operation_of(node);
  const auto found = dry_run(runs, run, arguments, 1, where).front();
  const bool fixed = !shape && std::ranges::all_of(arguments, [&](const ScriptValue& argument) {
    return is_constant(argument) || argument.kind == Kind::Value;
  });
  if (fixed) return std::vector<ScriptValue>{constant_value_of(found.front())};
  if (!list) return std::vector<ScriptValue>{number(runs, name, run, arguments, found)};
  // A list of sizes.
  if (!shape) return std::nullopt;
  auto items = std::make_shared<ScriptItems>();
  items->element = node->output()->type()->expectRef<c10::ListType>().getElementType();
  for (std::size_t i = 0; i < found.front().toListRef().size(); ++i) {
    std::vector<c10::IValue> sizes;
    for (const c10::IValue& one : found) sizes.push_back(one.toListRef()[i]);
    items->items.push_back(number(runs, name, {}, {}, std::move(sizes)));
  }
  return std::vector<ScriptValue>{{.kind = Kind::Items, .items = std::move(items)}};
}

}  // namespace stagecraft::intake

#include "executor/intake/torchscript/dry_run.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/function_schema.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/device/dtype.h"
#include "executor/intake/torchscript/script_module.h"
#include "executor/intake/torchscript/script_value.h"

namespace stagecraft::intake {
namespace {

namespace jit = torch::jit;

at::Tensor random_input(const std::vector<std::int64_t>& sizes, c10::ScalarType dtype, const model::ModelInput& model,
                        std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const auto options = at::TensorOptions(dtype);
  if (c10::isFloatingType(dtype)) return at::randn(sizes, generator, at::kFloat).to(dtype);
  const std::int64_t below = dtype != at::kBool && model.classes > model.least ? model.classes : 2;
  return at::randint(dtype == at::kBool ? 0 : model.least, below, sizes, generator, at::kLong).to(options.dtype());
}

}  // namespace

std::function<void(jit::Stack&)> operation_of(jit::Node* node) {
  const bool counted = node->schema().is_vararg();
  const auto count = static_cast<std::int64_t>(node->inputs().size());
  return [operation = node->getOperation(), counted, count](jit::Stack& stack) {
    // Its call is not const, and several threads may run this.
    jit::Operation copy = operation;
    if (counted) stack.emplace_back(count);
    copy(stack);
  };
}

std::vector<std::vector<c10::IValue>> dry_run(const DryRuns& runs, const std::function<void(jit::Stack&)>& run,
                                              const std::vector<ScriptValue>& arguments, std::size_t results,
                                              const std::string& where) {
  std::vector<std::vector<c10::IValue>> out(results);
  for (std::size_t i = 0; i < runs.samples.size(); ++i) {
    jit::Stack stack;
    for (const ScriptValue& argument : arguments) stack.push_back(in_run(argument, i));
    const auto fail = [&](const std::string& why) {
      throw FormatError(ErrorKind::UnsupportedModel,
                        where + ": fails on " + std::to_string(runs.samples[i]) + " samples: " + first_line(why));
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

bool same_shape(const std::vector<c10::IValue>& a, const std::vector<c10::IValue>& b) {
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

std::vector<at::Tensor> random_inputs(const DryRuns& runs, const model::ModelInput& model, std::size_t number) {
  const c10::ScalarType dtype = device::dtype_of(model.dtype);
  std::vector<at::Tensor> out;
  for (std::size_t run = 0; run < runs.samples.size(); ++run) {
    std::vector<std::int64_t> sizes = model.shape;
    if (model.batch_axis) sizes.insert(sizes.begin() + *model.batch_axis, runs.samples[run]);
    out.push_back(random_input(sizes, dtype, model, run + 1 + 16 * number));
  }
  return out;
}

KeepGenerator::KeepGenerator() : generator_(at::globalContext().defaultGenerator(c10::kCPU)) {
  const std::lock_guard lock(generator_.mutex());
  kept_ = generator_.get_state();
}

KeepGenerator::~KeepGenerator() {
  const std::lock_guard lock(generator_.mutex());
  generator_.set_state(kept_);
}

namespace {

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

#include "executor/intake/torchscript/values/dry_run.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/ir/ir.h>

#include <mutex>
#include <stdexcept>

#include "costmodel/errors.h"
#include "executor/device/dtype.h"
#include "executor/intake/torchscript/loading/torchscript_archive.h"

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

}  // namespace stagecraft::intake

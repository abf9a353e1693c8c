#include "profiler/structure.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <exception>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/errors.h"
#include "executor/device/dtype.h"
#include "executor/device/shape_kernels.h"
#include "profiler/layers/layer_work.h"
#include "profiler/layers/measured_memory.h"
#include "profiler/subject/subject.h"

namespace stagecraft::profiler {
namespace {

/// LibTorch has no key for autocast of tensors without memory; this one belongs to a device that nothing here uses.
constexpr auto kKey = c10::DispatchKey::AutocastPrivateUse1;

/// What the autocast of a processor computes in the lower precision, in float32, and in the widest type of the
/// arguments: of LibTorch's lists, what models train with.
const std::set<std::string>& lower() {
  static const std::set<std::string> names = {"conv1d",
                                              "conv2d",
                                              "conv3d",
                                              "conv_transpose1d",
                                              "conv_transpose2d.input",
                                              "conv_transpose3d.input",
                                              "_convolution.deprecated",
                                              "bmm",
                                              "mm",
                                              "linalg_vecdot",
                                              "baddbmm",
                                              "addmm",
                                              "addbmm",
                                              "linear",
                                              "matmul",
                                              "prelu",
                                              "scaled_dot_product_attention"};
  return names;
}

const std::set<std::string>& full() {
  static const std::set<std::string> names = {
      "mse_loss",       "nll_loss",   "nll_loss2d", "cross_entropy_loss",   "l1_loss",
      "smooth_l1_loss", "huber_loss", "kl_div",     "binary_cross_entropy", "binary_cross_entropy_with_logits"};
  return names;
}

const std::set<std::string>& widest() {
  static const std::set<std::string> names = {"stack", "cat"};
  return names;
}

bool is_cast(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.defined() && tensor.is_meta() && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble &&
         tensor.scalar_type() != type;
}

/// Calls `change` with each tensor among the last arguments on the stack, in lists too, and takes what it returns.
template <class Change>
void each_argument(const c10::OperatorHandle& op, c10::Stack& stack, const Change& change) {
  const std::size_t count = op.schema().arguments().size();
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
    c10::IValue& value = stack[i];
    if (value.isTensor()) {
      value = change(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> tensors = value.toTensorVector();
      for (at::Tensor& tensor : tensors) tensor = change(tensor);
      value = tensors;
    }
  }
}

void call_in(at::ScalarType type, const c10::OperatorHandle& op, c10::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKeySet{kKey});
  each_argument(op, *stack, [&](const at::Tensor& tensor) { return is_cast(tensor, type) ? tensor.to(type) : tensor; });
  op.callBoxed(stack);
}

void call_lower(const c10::OperatorHandle& op, c10::Stack* stack) {
  call_in(at::autocast::get_autocast_dtype(at::kPrivateUse1), op, stack);
}

void call_full(const c10::OperatorHandle& op, c10::Stack* stack) { call_in(at::kFloat, op, stack); }

void call_widest(const c10::OperatorHandle& op, c10::Stack* stack) {
  at::ScalarType type = at::autocast::get_autocast_dtype(at::kPrivateUse1);
  each_argument(op, *stack, [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.scalar_type() == at::kFloat) type = at::kFloat;
    return tensor;
  });
  call_in(type, op, stack);
}

void refuse(const c10::OperatorHandle& op, c10::Stack* /*stack*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.operator_name(), " under autocast has no kernel without memory");
}

/// Lets autocast act on tensors without memory as it does on those of a processor: operators get copies of their
/// arguments in the type that LibTorch's autocast gives them there. device::AutocastScope of the device "meta" turns it
/// on. An operator that autocast treats in a way of its own throws c10::Error. For the process; later calls have no
/// effect.
void register_shape_autocast() {
  static const bool registered = [] {
    static torch::Library others(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    others.fallback(torch::CppFunction::makeFallthrough());
    static torch::Library library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (!name.name.starts_with("aten::")) continue;
      const auto handle = c10::Dispatcher::singleton().findSchema(name);
      if (!handle || !handle->hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU)) continue;
      const std::string plain = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
      const auto is_in = [&](const std::set<std::string>& names) { return names.contains(plain); };
      library.impl(plain.c_str(), is_in(lower())    ? torch::CppFunction::makeFromBoxedFunction<&call_lower>()
                                  : is_in(full())   ? torch::CppFunction::makeFromBoxedFunction<&call_full>()
                                  : is_in(widest()) ? torch::CppFunction::makeFromBoxedFunction<&call_widest>()
                                                    : torch::CppFunction::makeFromBoxedFunction<&refuse>());
    }
    return true;
  }();
  (void)registered;
}

/// Gives the layers, which follow the inputs, their work, and what they keep for backward.
void add_work(Graph& graph, Subject& subject, const std::vector<at::Tensor>& batch, std::size_t layers) {
  const std::span<Layer> counted = std::span(graph.layers).last(layers);
  const WorkByLayer work = count_work(subject, layers, batch);
  for (std::size_t i = 0; i < layers; ++i) {
    counted[i].forward_work = work.forward[i];
    counted[i].backward_work = work.backward[i];
  }
  count_kept_bytes(counted, subject, batch);
}

/// `model`, whose parameters and buffers have shapes only.
model::Model without_memory(model::Model model) {
  for (model::LayerSpec& layer : model.layers) {
    for (model::ParameterSpec& parameter : layer.parameters) {
      parameter.load = [shape = parameter.shape, type = parameter.dtype] {
        return at::empty(shape, at::TensorOptions().dtype(type).device(at::kMeta));
      };
    }
  }
  return model;
}

/// Of a text that may have LibTorch's stack.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

Graph traced(const model::Model& model, const std::vector<at::Tensor>& batch, std::int64_t samples,
             const StructureOptions& options, const stage::ComputePlace& placement) {
  const auto watched = [&](const char* what) {
    if (!options.progress) return model;
    return announcing(model, [&options, what](int layer) { options.progress(what, layer); });
  };
  Graph graph = model_graph(model, batch, layer_outputs(watched("shapes"), batch, options.seed, placement), samples,
                            placement.types);
  if (options.count_work) {
    const model::Model counted = watched("operations and bytes");  // the subject refers to it
    Subject subject(counted, options.optimizer, options.seed, placement, false);
    add_work(graph, subject, batch, model.layers.size());
  }
  return graph;
}

}  // namespace

Structure structure_of(const model::Model& model, const std::vector<at::Tensor>& batch, std::int64_t samples,
                       const StructureOptions& options) {
  Structure out;
  const auto finished = [&](Graph graph) {
    graph.dtype = device::dtype_name(options.placement.compute);
    graph.optimizer = options.optimizer.name;
    graph.optimizer_state_values = stage::state_values(options.optimizer);
    out.graph = std::move(graph);
    return std::move(out);
  };
  if (options.placement.device.is_cpu() && !options.run) {
    device::register_shape_kernels();
    register_shape_autocast();
    try {
      return finished(traced(without_memory(model), batch, samples, options,
                             {at::kMeta, options.placement.compute, options.placement.types}));
    } catch (const std::exception& e) { out.ran = first_line(e.what()); }
  }
  try {
    return finished(traced(model, batch, samples, options, options.placement));
  } catch (const InputError& e) {  // a file without values, say
    if (out.ran.empty()) throw;
    throw InputError(e.kind(), fmt::format("{}, and without values {}", e.what(), out.ran));
  }
}

}  // namespace stagecraft::profiler

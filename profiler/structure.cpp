#include "profiler/structure.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <exception>
#include <span>
#include <utility>

#include "costmodel/errors.h"
#include "executor/device/dtype.h"
#include "executor/device/shape_kernels.h"
#include "profiler/layers/layer_work.h"
#include "profiler/layers/shape_autocast.h"
#include "profiler/memory/measured_memory.h"
#include "profiler/subject/model_graph.h"
#include "profiler/subject/subject.h"

namespace stagecraft::profiler {
namespace {

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
             const StructureOptions& options, const stage::Placement& placement) {
  const auto watched = [&](const char* what) {
    if (!options.progress) return model;
    return announcing(model, [&options, what](int layer) { options.progress(what, layer); });
  };
  Graph graph = model_graph(model, batch, layer_outputs(watched("shapes"), batch, options.seed, placement), samples);
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
      return finished(traced(without_memory(model), batch, samples, options, {at::kMeta, options.placement.compute}));
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

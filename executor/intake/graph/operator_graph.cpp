#include "executor/intake/graph/operator_graph.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include "costmodel/index.h"

namespace stagecraft::intake {

at::Tensor MaskStream::draw(at::IntArrayRef sizes, const at::Tensor& like, double keep) {
  if (!generator_.defined() && (like.is_cpu() || like.is_meta())) {
    generator_ = at::make_generator<at::CPUGeneratorImpl>(seed_);
  } else if (!generator_.defined()) {
    const auto& hooks = at::globalContext().getAcceleratorHooksInterface(like.device().type());
    generator_ = hooks.getNewGenerator(like.get_device());
    generator_.set_current_seed(seed_);
  }
  ++drawn_;
  return at::empty(sizes, like.options().requires_grad(false)).bernoulli_(keep, generator_);
}

at::Tensor MaskStream::drop(const at::Tensor& x, double probability) {
  const double keep = 1 - probability;
  return x.mul(draw(x.sizes(), x, keep).div_(keep));
}

void MaskStream::skip(at::IntArrayRef sizes, const at::Tensor& like, double probability) {
  (void)draw(sizes, like, 1 - probability);
}

std::string place_of(const OperatorGraph& graph, const GraphNode& node) {
  std::string out = graph.file + ": node \"" + node.name + "\" (" + node.target + ")";
  if (!node.modules.empty() && !node.modules.back().path.empty())
    out += " in module \"" + node.modules.back().path + "\"";
  return out;
}

std::string untrainable_text(const std::string& name, c10::ScalarType dtype, const std::string& how) {
  const std::string begin = "parameter \"" + name + "\" is " + c10::toString(dtype) + ", expected float32: ";
  if (!c10::isComplexType(dtype)) return begin + how + ", and profile with --dtype for another type";
  return begin + "store torch.view_as_real(" + name + ") as the parameter and call torch.view_as_complex in forward";
}

std::set<int> written_values(const OperatorGraph& graph, const std::vector<int>& nodes) {
  std::set<int> out;
  for (const int n : nodes) {
    const std::vector<int>& writes = graph.nodes[to_index(n)].writes;
    out.insert(writes.begin(), writes.end());
  }
  for (auto n = nodes.rbegin(); n != nodes.rend(); ++n) {
    for (const auto& [result, read] : graph.nodes[to_index(*n)].aliases) {
      if (out.contains(result)) out.insert(read);
    }
  }
  return out;
}

}  // namespace stagecraft::intake

#include "costmodel/prediction/gradient_sums.h"

#include <string>
#include <unordered_map>

#include "costmodel/index.h"
#include "costmodel/prediction/memory.h"

namespace stagecraft {
namespace {

/// In the order of BoundPlan::tied.
std::vector<Bytes> bytes_of_tied(const Graph& graph, const BoundPlan& plan) {
  std::vector<Bytes> out;
  if (plan.tied().empty()) return out;
  std::unordered_map<std::string, Bytes> bytes;
  for (const Layer& layer : graph.layers) {
    for (const TiedParameter& tied : layer.tied) bytes[tied.name] = tied.bytes;
  }
  for (const TiedHolders& tied : plan.tied()) out.push_back(bytes.at(tied.parameter));
  return out;
}

}  // namespace

std::vector<std::vector<GradientSum>> gradient_sums(const Graph& graph, const BoundPlan& plan) {
  const std::vector<Bytes> tied = bytes_of_tied(graph, plan);
  const auto layers = layers_of_stages(graph, plan.plan());
  std::vector<std::vector<GradientSum>> out(to_index(plan.stages()));
  for (int s = 0; s < plan.stages(); ++s) {
    Bytes own = held_parameter_bytes(layers[to_index(s)]);
    for (const int parameter : plan.shared(s)) own -= tied[to_index(parameter)];
    if (plan.replicas(s) > 1) out[to_index(s)].push_back({plan.ranks_of(s), own, {}});
    for (const int parameter : plan.shared(s)) {
      const Bytes bytes = tied[to_index(parameter)];
      if (bytes > Bytes(0)) out[to_index(s)].push_back({plan.tied()[to_index(parameter)].ranks, bytes, parameter});
    }
  }
  return out;
}

Bytes untied_bytes(const Layer& layer) {
  Bytes out = layer.parameter_bytes;
  for (const TiedParameter& tied : layer.tied) out -= tied.bytes;
  return out;
}

std::vector<LayersBucket> fill_buckets(std::span<const Bytes> layers, Bytes full) {
  std::vector<LayersBucket> out;
  Bytes bytes;
  for (std::size_t i = layers.size(); i-- > 0;) {
    bytes += layers[i];
    if (bytes == Bytes(0) || (bytes < full && i > 0)) continue;
    out.push_back({bytes, i});
    bytes = Bytes(0);
  }
  return out;
}

}  // namespace stagecraft

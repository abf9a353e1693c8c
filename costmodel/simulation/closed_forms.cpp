#include "costmodel/simulation/closed_forms.h"

#include <algorithm>
#include <numeric>

namespace stagecraft {
namespace {

Seconds sum(const std::vector<Seconds>& times) { return std::accumulate(times.begin(), times.end(), Seconds(0)); }
Seconds largest(const std::vector<Seconds>& times) { return *std::max_element(times.begin(), times.end()); }

Bytes all_layers(const TransformerShape& shape, double bytes_per_layer) {
  const double p = static_cast<double>(shape.pipeline_stages);
  const double v = static_cast<double>(shape.chunks);
  const double factor = shape.chunks > 1 ? 1 + (p - 1) / (p * v) : 1;
  return Bytes(static_cast<std::int64_t>(bytes_per_layer * static_cast<double>(shape.layers) * factor));
}

double tokens_times_hidden(const TransformerShape& shape) {
  return static_cast<double>(shape.sequence * shape.microbatch_samples * shape.hidden);
}

}  // namespace

Seconds gpipe_time(const StageTimes& stages, int microbatches, Seconds hop) {
  const double more = microbatches - 1;
  const double hops = 2.0 * (static_cast<double>(stages.forward.size()) - 1);
  return sum(stages.forward) + more * largest(stages.forward) + sum(stages.backward) + more * largest(stages.backward) +
         hops * hop;
}

Seconds one_forward_one_backward_time(Seconds forward, Seconds backward, int stages, int microbatches, Seconds hop) {
  const double p = stages;
  const double m = microbatches;
  const Seconds both = forward + backward;
  if (hop == Seconds(0) || stages == 1) return (m + p - 1) * both;
  return m / p * (p * both + 2 * (p - 1) * hop) + (p - 1) * both + 2 * (p - 2) * hop;
}

Seconds interleaved_time(Seconds forward, Seconds backward, int devices, int chunks, int microbatches) {
  const Seconds both = forward + backward;
  return microbatches * both + (devices - 1.0) / chunks * both;
}

Seconds zero_bubble_h1_time(Seconds forward, Seconds backward, Seconds weight_gradient, int stages, int microbatches) {
  return microbatches * (forward + backward + weight_gradient) +
         (stages - 1.0) * (forward + backward - weight_gradient);
}

Bracket one_forward_one_backward_bracket(const StageTimes& stages, int microbatches) {
  Bracket out;
  Seconds before;
  for (std::size_t s = 0; s < stages.forward.size(); ++s) {
    const Seconds both = stages.forward[s] + stages.backward[s];
    out.low = std::max(out.low, microbatches * both + before);
    before += both;
  }
  out.high = before + (microbatches - 1.0) * (largest(stages.forward) + largest(stages.backward));
  return out;
}

Bytes transformer_static_bytes(const TransformerShape& shape) {
  return Bytes(216 * shape.layers * shape.hidden * shape.hidden / (shape.tensor_parallel * shape.pipeline_stages));
}

Bytes transformer_activation_bytes(const TransformerShape& shape) {
  const double t = static_cast<double>(shape.tensor_parallel);
  const double scores = 5.0 * static_cast<double>(shape.heads * shape.sequence) / static_cast<double>(shape.hidden);
  return all_layers(shape, tokens_times_hidden(shape) * (10 + 24 / t + scores / t));
}

Bytes transformer_selective_activation_bytes(const TransformerShape& shape) {
  return all_layers(shape, 34 * tokens_times_hidden(shape) / static_cast<double>(shape.tensor_parallel));
}

std::vector<int> weight_versions(const std::vector<int>& replicas) {
  std::vector<int> out;
  for (std::size_t s = 0; s < replicas.size(); ++s) {
    const int later = std::accumulate(replicas.begin() + static_cast<std::ptrdiff_t>(s), replicas.end(), 0);
    out.push_back((later + replicas[s] - 1) / replicas[s]);
  }
  return out;
}

}  // namespace stagecraft

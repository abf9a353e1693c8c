#include "costmodel/prediction/microbatch_size.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"

namespace stagecraft {
namespace {

std::string samples_text(const Graph& graph) {
  return "the profile with microbatches of " + std::to_string(*graph.microbatch_samples);
}

/// Throws unless both are profiles of the same model, device and settings.
void check_belong_together(const Graph& one, const Graph& two) {
  const auto refuse = [&](const std::string& why) { throw std::invalid_argument(samples_text(two) + " " + why); };
  const auto check = [&](const auto& found, const auto& expected, const std::string& what) {
    if (found != expected) refuse("has a different " + what + " from " + samples_text(one));
  };
  check(two.name, one.name, "model");
  check(two.options, one.options, "set of the model's options");
  check(two.dtype, one.dtype, "dtype");
  check(two.allow_tf32, one.allow_tf32, "setting of TF32");
  check(two.optimizer, one.optimizer, "optimizer");
  check(two.device, one.device, "device");
  check(two.threads, one.threads, "number of threads");
  check(two.layers.size(), one.layers.size(), "number of layers");
  for (std::size_t i = 0; i < one.layers.size(); ++i) {
    const Layer& a = one.layers[i];
    const Layer& b = two.layers[i];
    if (b.id != a.id) refuse("has layer \"" + b.id + "\" where " + samples_text(one) + " has \"" + a.id + "\"");
    if (b.parameter_bytes != a.parameter_bytes || b.outputs.size() != a.outputs.size() || b.kind != a.kind)
      refuse("has a different kind, outputs or parameters in layer \"" + a.id + "\"");
  }
  check(two.edges, one.edges, "order of layers");
}

/// A value at `part` of the way from one size to the other; below 0 or above 1 it continues the line.
class FittedLine {
 public:
  explicit FittedLine(double part) : part_(part) {}

  [[nodiscard]] double between(double a, double b) const { return a + part_ * (b - a); }
  [[nodiscard]] Seconds between(Seconds a, Seconds b) const {
    return std::max(Seconds(0), Seconds(between(a.value, b.value)));
  }
  [[nodiscard]] Bytes between(Bytes a, Bytes b) const {
    const double value = between(static_cast<double>(a.value), static_cast<double>(b.value));
    return Bytes(std::max<std::int64_t>(0, std::llround(value)));
  }
  [[nodiscard]] Timing between(const Timing& a, const Timing& b) const {
    Timing out;
    out.median = between(a.median, b.median);
    if (is_outside()) return out;
    if (a.spread && b.spread) out.spread = between(*a.spread, *b.spread);
    out.count = std::min(a.count, b.count);
    if (a.log_spread && b.log_spread) out.log_spread = std::max(*a.log_spread, *b.log_spread);
    return out;
  }
  [[nodiscard]] BackwardParts between(const BackwardParts& a, const BackwardParts& b) const {
    return {between(a.inputs, b.inputs), between(a.weights, b.weights), a.separable && b.separable};
  }
  [[nodiscard]] Work between(const Work& a, const Work& b) const {
    return {Flops(std::max(0.0, between(a.flops.value, b.flops.value))), between(a.moved, b.moved),
            (part_ <= 0.5 ? a : b).operators};
  }
  template <class T>
  [[nodiscard]] std::optional<T> between(const std::optional<T>& a, const std::optional<T>& b) const {
    if (!a || !b) return std::nullopt;
    return between(*a, *b);
  }
  [[nodiscard]] bool is_outside() const { return part_ < 0 || part_ > 1; }

 private:
  double part_;
};

Output resized(const Output& a, const Output& b, const FittedLine& line, const std::string& id) {
  Output out = a;
  out.bytes = line.between(a.bytes, b.bytes);
  if (b.shape.size() != a.shape.size()) {
    throw std::invalid_argument("layer \"" + id + "\" has outputs of " + std::to_string(a.shape.size()) + " and of " +
                                std::to_string(b.shape.size()) + " dimensions");
  }
  for (std::size_t i = 0; i < a.shape.size(); ++i) {
    const double size = line.between(static_cast<double>(a.shape[i]), static_cast<double>(b.shape[i]));
    out.shape[i] = std::llround(size);
    if (std::abs(size - std::round(size)) > 1e-6 || size < 0) {
      throw std::invalid_argument("dimension " + std::to_string(i) + " of an output of layer \"" + id + "\" would be " +
                                  std::to_string(size) + ": it does not grow with the samples");
    }
  }
  return out;
}

Layer resized(const Layer& a, const Layer& b, const FittedLine& line, bool nearer_to_b) {
  Layer out = nearer_to_b ? b : a;  // with its update
  out.forward = line.between(a.forward, b.forward);
  out.loading = line.between(a.loading, b.loading);
  out.backward = line.between(a.backward, b.backward);
  out.accumulation = nearer_to_b ? b.accumulation : a.accumulation;  // of the parameters, whatever the samples
  out.backward_parts = line.between(a.backward_parts, b.backward_parts);
  for (std::size_t i = 0; i < a.outputs.size(); ++i) out.outputs[i] = resized(a.outputs[i], b.outputs[i], line, a.id);
  out.saved_bytes = line.between(a.saved_bytes, b.saved_bytes);
  out.workspace_bytes = line.between(a.workspace_bytes, b.workspace_bytes);
  out.saved_for_backward_bytes = line.between(a.saved_for_backward_bytes, b.saved_for_backward_bytes);
  out.forward_work = line.between(a.forward_work, b.forward_work);
  out.backward_work = line.between(a.backward_work, b.backward_work);
  out.forward_share = out.backward_share = out.update_share = std::nullopt;
  return out;
}

}  // namespace

ResizedGraph graph_of_samples(std::vector<Graph> profiles, std::int64_t samples) {
  if (profiles.empty()) throw std::invalid_argument("there is no profile");
  for (const Graph& profile : profiles) {
    if (!profile.microbatch_samples)
      throw std::invalid_argument("a profile does not give the samples of its microbatch");
  }
  std::ranges::stable_sort(profiles, {}, [](const Graph& graph) { return *graph.microbatch_samples; });
  for (std::size_t i = 1; i < profiles.size(); ++i) {
    if (profiles[i].microbatch_samples == profiles[i - 1].microbatch_samples) {
      throw std::invalid_argument("there are two profiles with microbatches of " +
                                  std::to_string(*profiles[i].microbatch_samples) + " samples");
    }
    check_belong_together(profiles.front(), profiles[i]);
  }
  const auto upper =
      std::ranges::lower_bound(profiles, samples, {}, [](const Graph& graph) { return *graph.microbatch_samples; });
  if (upper != profiles.end() && *upper->microbatch_samples == samples)
    return {*upper, "measured with microbatches of " + std::to_string(samples) + " samples"};
  if (profiles.size() == 1) {
    throw std::invalid_argument("there is only " + samples_text(profiles.front()) + "; times of " +
                                std::to_string(samples) + " samples need a profile with another size");
  }
  const auto last = std::clamp(upper - profiles.begin(), std::ptrdiff_t{1}, std::ssize(profiles) - 1);
  const Graph& a = profiles[to_index(last) - 1];
  const Graph& b = profiles[to_index(last)];
  const auto from = static_cast<double>(*a.microbatch_samples);
  const double part = (static_cast<double>(samples) - from) / (static_cast<double>(*b.microbatch_samples) - from);
  const FittedLine line(part);
  const bool nearer_to_b = part > 0.5;
  ResizedGraph out{nearer_to_b ? b : a, {}, line.is_outside()};
  Graph& graph = out.graph;
  for (std::size_t i = 0; i < graph.layers.size(); ++i)
    graph.layers[i] = resized(a.layers[i], b.layers[i], line, nearer_to_b);
  graph.microbatch_samples = samples;
  graph.iteration = line.between(a.iteration, b.iteration);
  graph.quality.reset();
  graph.conditions = {};
  out.origin = std::string(out.extrapolated ? "extrapolated from" : "interpolated between") +
               " profiles with microbatches of " + std::to_string(*a.microbatch_samples) + " and " +
               std::to_string(*b.microbatch_samples) + " samples";
  graph.provenance.notes["microbatch"] = out.origin;
  return out;
}

}  // namespace stagecraft

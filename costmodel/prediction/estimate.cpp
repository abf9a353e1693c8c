#include "costmodel/prediction/estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <optional>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/stage_costs.h"
#include "costmodel/version.h"

namespace stagecraft {
namespace {

// Declared shares of the peaks; roofline_time gives the sources.
constexpr double kOfCores = 0.85;
constexpr double kOfTensorCores = 0.45;
constexpr double kOfBandwidth = 0.8;
// Declared spreads; estimated explains them.
constexpr double kLikeMachines = 0.15;
constexpr double kUnlikeMachines = 0.3;
constexpr double kNoReference = 0.5;
constexpr double kOfKind = 0.3;
constexpr double kMixSpread = std::numbers::ln2;

enum class Direction { Forward, Backward, Update };

FlopsPerSecond usual_rate(const Machine& machine) {
  return FlopsPerSecond(machine.peak.value * (machine.tensor_cores ? kOfTensorCores : kOfCores));
}

BytesPerSecond usual_bandwidth(const Machine& machine) { return machine.bandwidth * kOfBandwidth; }

Seconds compute_part(const Work& work, const Machine& machine) { return work.flops / usual_rate(machine); }
Seconds memory_part(const Work& work, const Machine& machine) { return work.moved / usual_bandwidth(machine); }

bool are_alike(const Machine& a, const Machine& b) {
  return a.device.kind == b.device.kind && a.tensor_cores == b.tensor_cores;
}

/// The work of a layer in one direction; absent if it was not counted.
std::optional<Work> work_of(const Layer& layer, Direction direction, const Graph& graph) {
  if (direction == Direction::Forward) return layer.forward_work;
  if (direction == Direction::Backward) return layer.backward_work;
  return Work{Flops(0), update_bytes(graph, layer.parameter_bytes), 1};
}

std::optional<Timing> timing_of(const Layer& layer, Direction direction) {
  if (direction == Direction::Update) return layer.update;
  return direction == Direction::Forward ? layer.forward : layer.backward;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// What a reference says of layers.
class Measured {
 public:
  explicit Measured(const RooflineReference& reference) : machine_(reference.machine) {
    const double closure = closure_factor(reference.graph);
    for (const Layer& layer : reference.graph.layers) {
      if (is_input(layer)) continue;
      for (const Direction direction : {Direction::Forward, Direction::Backward, Direction::Update}) {
        const auto timing = timing_of(layer, direction);
        if (!timing) continue;
        const Seconds time = timing->median * closure;
        times_[{layer.id, direction}] = {layer.kind, time};
        const auto work = work_of(layer, direction, reference.graph);
        const Seconds usual = work ? roofline_time(*work, machine_) : Seconds(0);
        if (time <= Seconds(0) || usual <= Seconds(0)) continue;
        of_kind_[{layer.kind, direction}].push_back(time / usual);
        of_all_[direction].push_back(time / usual);
      }
    }
  }

  const Machine& machine() const { return machine_; }

  /// Absent if the reference does not have the layer.
  std::optional<Seconds> time(const Layer& layer, Direction direction) const {
    const auto found = times_.find({layer.id, direction});
    if (found == times_.end() || found->second.first != layer.kind) return std::nullopt;
    return found->second.second;
  }

  /// Absent if no layer has a factor in this direction.
  std::optional<double> factor_of_kind(const std::string& kind, Direction direction) const {
    if (const auto found = of_kind_.find({kind, direction}); found != of_kind_.end()) return median(found->second);
    if (const auto found = of_all_.find(direction); found != of_all_.end()) return median(found->second);
    return std::nullopt;
  }

 private:
  Machine machine_;
  std::map<std::pair<std::string, Direction>, std::pair<std::string, Seconds>> times_;  // by layer; with its kind
  std::map<std::pair<std::string, Direction>, std::vector<double>> of_kind_;
  std::map<Direction, std::vector<double>> of_all_;
};

/// Spread of a time because the mix of computing and moving may be another one than the counts say.
double mix_spread(const Work& work, const Machine& from, const Machine& to) {
  const Seconds compute = compute_part(work, from);
  const Seconds memory = memory_part(work, from);
  if (compute <= Seconds(0) || memory <= Seconds(0)) return 0;
  const double share = compute / (compute + memory);
  const double of_compute = compute_part(work, to) / compute;
  const double of_memory = memory_part(work, to) / memory;
  return kMixSpread * share * (1 - share) * std::abs(of_compute - of_memory) /
         (share * of_compute + (1 - share) * of_memory);
}

Timing estimated_time(Seconds median, double log_spread) { return {median, std::nullopt, 0, log_spread}; }

/// A measured time of unknown work on another machine.
Timing scaled(Seconds time, const Machine& from, const Machine& to, double log_spread) {
  const double of_compute = usual_rate(from).value / usual_rate(to).value;
  const double of_memory = usual_bandwidth(from).value / usual_bandwidth(to).value;
  return estimated_time(time * std::sqrt(of_compute * of_memory),
                        std::hypot(log_spread, std::abs(std::log(of_compute / of_memory)) / 2));
}

/// The time of a layer in one direction; absent for an update that was not measured.
std::optional<Timing> time_on(const Machine& target, const Measured* measured, const Layer& layer, Direction direction,
                              const Graph& graph) {
  const std::optional<Work> work = work_of(layer, direction, graph);
  const std::optional<Seconds> measured_time = measured ? measured->time(layer, direction) : std::nullopt;
  if (direction == Direction::Update && !measured_time) return std::nullopt;
  if (measured_time && *measured_time <= Seconds(0)) return estimated_time(Seconds(0), 0);
  if (!measured) {
    if (!work) {
      throw InputError(ErrorKind::NoCountedWork,
                       "layer \"" + layer.id +
                           "\" has no counted operations and bytes (forward_work, backward_work), and no "
                           "measured time of it can be used");
    }
    return estimated_time(roofline_time(*work, target), kNoReference);
  }
  const Machine& from = measured->machine();
  const double spread = are_alike(from, target) ? kLikeMachines : kUnlikeMachines;
  const Seconds usual = work ? roofline_time(*work, from) : Seconds(0);
  if (measured_time) {
    if (usual <= Seconds(0)) return scaled(*measured_time, from, target, spread);
    return estimated_time(roofline_time(*work, target) * (*measured_time / usual),
                          std::hypot(spread, mix_spread(*work, from, target)));
  }
  if (!work) {
    throw InputError(ErrorKind::NoCountedWork,
                     "layer \"" + layer.id +
                         "\" has no counted operations and bytes (forward_work, backward_work), and the "
                         "measured profile has no time of it");
  }
  const std::optional<double> factor = measured->factor_of_kind(layer.kind, direction);
  if (!factor) return estimated_time(roofline_time(*work, target), kNoReference);
  return estimated_time(roofline_time(*work, target) * *factor,
                        std::hypot(spread, kOfKind, mix_spread(*work, from, target)));
}

/// The parts of a backward that was split, scaled like the whole.
void scale_parts(Layer& layer, const Timing& backward) {
  if (!layer.backward_parts) return;
  const Seconds before = layer.backward.median;
  const double ratio = before > Seconds(0) ? backward.median / before : 0;
  for (Timing* part : {&layer.backward_parts->inputs, &layer.backward_parts->weights})
    *part = estimated_time(part->median * ratio, backward.log_spread.value_or(0));
}

void estimate_layer(Layer& layer, const Machine& target, const Measured* measured, const Graph& graph) {
  layer.forward_share.reset();
  layer.backward_share.reset();
  layer.update_share.reset();
  layer.accumulation.reset();
  if (is_input(layer)) {
    layer.forward = {};
    layer.loading.reset();
    return;
  }
  const auto time = [&](Direction direction) { return time_on(target, measured, layer, direction, graph); };
  const Timing forward = *time(Direction::Forward);
  const Timing backward = *time(Direction::Backward);
  const std::optional<Timing> update = time(Direction::Update);
  scale_parts(layer, backward);
  layer.forward = forward;
  layer.backward = backward;
  layer.update = update;
}

void forget_measurement(Graph& graph, const Machine& target) {
  graph.iteration.reset();
  graph.slowdown.clear();
  graph.in_flight_slowdown.reset();
  graph.quality.reset();
  graph.conditions = {};
  graph.allow_tf32.reset();
  if (target.device.kind == DeviceKind::Gpu) {
    graph.threads = 0;
    if (graph.dtype.empty() || graph.dtype == "float32") graph.allow_tf32 = target.math == "tf32";
  }
}

}  // namespace

Seconds default_time_per_operator(DeviceKind kind) { return kind == DeviceKind::Processor ? 2_us : 5_us; }

Machine machine_of(const Card& card, const std::string& dtype, bool allow_tf32) {
  const bool is_float32 = dtype.empty() || dtype == "float32";
  const bool tf32 = is_float32 && allow_tf32;
  return {{card.name, DeviceKind::Gpu, 0},
          tf32         ? "tf32"
          : is_float32 ? "float32"
                       : dtype,
          peak_rate(card, dtype, tf32),
          uses_tensor_cores(card, dtype, tf32),
          card.bandwidth,
          default_time_per_operator(DeviceKind::Gpu)};
}

Seconds roofline_time(const Work& work, const Machine& machine) {
  const Seconds compute = compute_part(work, machine);
  const Seconds memory = memory_part(work, machine);
  return (work.operators == 1 ? std::max(compute, memory) : compute + memory) +
         machine.time_per_operator * static_cast<double>(work.operators);
}

Graph estimated(Graph graph, const Machine& target, const std::optional<RooflineReference>& reference) {
  std::optional<Measured> measured;
  if (reference) measured.emplace(*reference);
  const std::string distrust = reference ? distrust_text(reference->graph) : "";
  for (Layer& layer : graph.layers) estimate_layer(layer, target, measured ? &*measured : nullptr, graph);
  const Provenance before = reference ? reference->graph.provenance : graph.provenance;
  forget_measurement(graph, target);
  graph.device = target.device;
  graph.estimate = Estimate{reference ? reference->machine.device.name : "",
                            reference ? reference->machine.math : "",
                            target.math,
                            target.peak,
                            target.bandwidth,
                            target.time_per_operator};
  graph.provenance = {
      std::string("stagecraft-estimate ") + version(), target.device.name, {}, before.date, before.notes};
  graph.provenance.notes["estimated"] =
      "estimated from " + (reference ? reference->machine.device.name : std::string("operations and bytes")) +
      " by roofline";
  if (!before.tool.empty()) graph.provenance.notes["estimated from a document of"] = before.tool;
  if (!distrust.empty()) graph.provenance.notes["not trusted"] = distrust;
  validate(graph);
  return graph;
}

std::string impossible_rate(const RooflineReference& reference) {
  const double closure = closure_factor(reference.graph);
  double most = reference.machine.peak.value;
  std::string out;
  for (const Layer& layer : reference.graph.layers) {
    if (is_input(layer)) continue;
    for (const Direction direction : {Direction::Forward, Direction::Backward}) {
      const auto work = work_of(layer, direction, reference.graph);
      const Seconds time = timing_of(layer, direction)->median * closure;
      if (!work || time <= Seconds(0) || work->flops.value / time.value <= most) continue;
      most = work->flops.value / time.value;
      out = fmt::format("layer \"{}\" reached {:.3g} TFLOP/s in the {}, more than the {:.3g} TFLOP/s of {} with {}",
                        layer.id, most / 1e12, direction == Direction::Forward ? "forward" : "backward",
                        reference.machine.peak.value / 1e12, reference.machine.device.name, reference.machine.math);
    }
  }
  return out;
}

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

#include "profiler/profile.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"
#include "executor/device/device.h"
#include "executor/device/dtype.h"
#include "executor/device/machine/processor.h"
#include "executor/device/machine/yardstick.h"
#include "executor/device/memory_tracker.h"
#include "executor/model/model.h"
#include "profiler/layers/isolated.h"
#include "profiler/layers/layer_work.h"
#include "profiler/layers/measured_memory.h"
#include "profiler/rank_processes.h"
#include "profiler/sampling.h"
#include "profiler/slowdown.h"
#include "profiler/subject/subject.h"
#include "profiler/subject/watch.h"

namespace stagecraft::profiler {
namespace {

/// Share of an iteration that the host takes to enqueue it, above which a tracer makes the iteration longer.
constexpr double kHostShare = 0.5;
/// Series of steps without a tracer.
constexpr int kUntracedRows = 5;
/// Iterations of the least sample: an unwatched and a watched one.
constexpr double kLeastSampled = 2;
/// Iterations that a profile takes at least once it is warm: one for memory, one for counted work, then samples.
constexpr double kLeastIterations = 2 + kLeastSampled;
/// Share of the remaining time for samples; the rest is for the two parts of backwards.
constexpr double kSampleShare = 0.85;
/// Share of the time that then remains for the two parts of backwards, if layers also run alone.
constexpr double kSplitShare = 0.5;
/// As kSampleShare, if several concurrent ranks come after them.
constexpr double kSampleShareOfSeveral = 0.4;
/// Share of the time that remains after the samples for concurrent ranks.
constexpr double kRanksShare = 0.65;
/// Share of the time that then remains for several microbatches in flight.
constexpr double kInFlightShare = 0.7;

/// Iterations that are enough for every phase that runs the model once: 5 of warm-up and memory, 20 samples, 16 in
/// flight.
constexpr double kEnoughIterations = 50;
/// More for each concurrent rank: they take turns of 1, 2, ... ranks, each of which may wait for the others.
constexpr double kEnoughIterationsPerRank = 25;

using ReportProgress = std::function<void(const ProfileProgress&)>;

void check(const model::Model& model, const ProfileOptions& options) {
  const auto at_least = [](const char* what, std::int64_t value, std::int64_t low) {
    if (value < low)
      throw std::invalid_argument(std::string(what) + " is " + std::to_string(value) + ", must be at least " +
                                  std::to_string(low));
  };
  at_least("the microbatch", options.microbatch_samples, 1);
  at_least("the number of threads", options.threads, 1);
  at_least("the number of concurrent ranks", options.concurrent, 1);
  at_least("the warm-up", options.warmup, 0);
  at_least("the minimum number of samples", static_cast<std::int64_t>(options.rule.fewest), 1);
  validate(options.optimizer);
  model::check_samples(model, options.microbatch_samples);
}

bool runs_ranks_at_once(const ProfileOptions& options) {
  return options.concurrent > 1 && options.placement.device.is_cpu();
}

/// The layers and edges of `model`, and the options that a profile depends on; nothing that is measured.
Graph describe_model(const model::Model& model, const std::vector<at::Tensor>& batch, const ProfileOptions& options,
                     const std::string& clock) {
  const auto outputs = layer_outputs(model, batch, options.seed, options.placement);
  Graph graph = model_graph(model, batch, outputs, options.microbatch_samples, options.placement.types);
  graph.dtype = device::dtype_name(options.placement.compute);
  if (!options.placement.device.is_cpu()) graph.allow_tf32 = device::tf32_allowed();
  graph.optimizer = options.optimizer.name;
  graph.optimizer_state_values = stage::state_values(options.optimizer);
  graph.threads = options.threads;
  graph.quality = ProfileQuality{};
  graph.quality->clock = clock;
  return graph;
}

struct WarmUp {
  int iterations = 0;
  double iteration = 0;  ///< seconds of the last one
};

/// At least one iteration; fewer than the options say if `limit`, which it sets, would not leave time for the profile
/// itself.
WarmUp warm_up(FedSubject& fed, const ProfileOptions& options, TimeLimit& limit, const ReportProgress& progress) {
  WarmUp out;
  // Memory is counted together with gradients and optimizer state, which the first iteration creates.
  for (; out.iterations < std::max(options.warmup, 1); ++out.iterations) {
    if (out.iterations > 0 && limit.left() < (kLeastIterations + 1) * out.iteration) break;
    progress({"warm-up", to_index(out.iterations) + 1});
    const double begin = steady_seconds();
    fed.subject.iterate(fed.batch, out.iterations, fed.timer);
    device::synchronize(fed.device);
    out.iteration = steady_seconds() - begin;
    limit.allow(seconds_allowed(options, out.iteration));
  }
  return out;
}

/// Sets the bytes and the work of each layer. `memory` must be counting.
void count_memory_and_work(Graph& graph, FedSubject& fed, device::MemoryTracker& memory, bool briefly) {
  const std::span<Layer> layers = without_inputs(graph);
  graph.library_bytes = measured_library_bytes(fed.subject, fed.batch, fed.device);
  const PeakBytes peak = measure_memory(layers, fed.subject, fed.batch, memory, fed.device, briefly);
  graph.quality->summed_peak_bytes = peak.summed;
  graph.quality->allocator_peak_bytes = peak.allocator;
  // Always: one iteration, and without the counts the profile cannot be estimated for another device.
  const WorkByLayer work = count_work(fed.subject, layers.size(), fed.batch);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i].forward_work = work.forward[i];
    layers[i].backward_work = work.backward[i];
  }
}

/// As times_without_tracer, of a warm subject.
std::vector<double> untraced_steps(FedSubject& fed, double iteration, const TimeLimit& limit) {
  std::vector<double> out;
  (void)fed.timer.take();
  const double begin = steady_seconds();
  fed.subject.iterate(fed.batch, 0, fed.timer);
  const double enqueued = steady_seconds() - begin;
  device::synchronize(fed.device);
  const bool launches_matter = enqueued > kHostShare * (steady_seconds() - begin);
  (void)fed.timer.take();
  for (int row = 0; row < kUntracedRows && launches_matter && limit.left() > kStepsInARow * iteration; ++row) {
    for (int i = 0; i < kStepsInARow; ++i) fed.subject.iterate(fed.batch, i, fed.timer);
    device::synchronize(fed.device);
    const std::vector<double> steps = fed.timer.take();
    out.insert(out.end(), steps.begin() + 1, steps.end());
  }
  return out;
}

WatchClock clock_of(c10::Device device, const KernelTracer* tracer) {
  if (tracer) return WatchClock::Tracer;
  return device.is_cpu() ? WatchClock::Host : WatchClock::Events;
}

std::string clock_name(WatchClock clock, const KernelTracer* tracer) {
  if (clock == WatchClock::Tracer) return tracer->name();
  return clock == WatchClock::Host ? "host" : "events";
}

/// A watch by `clock`. If there is `time_to_warm_up`, it has watched a step, which makes the state of what only watched
/// steps use.
std::unique_ptr<Watch> start_watch(const model::Model& model, FedSubject& fed, WatchClock clock, KernelTracer* tracer,
                                   bool time_to_warm_up) {
  const std::vector<stage::Parameter>& parameters = fed.subject.program().leaves();
  std::vector<device::RangeName> ranges;
  for (const model::LayerSpec& layer : model.layers) ranges.push_back(device::range_name(layer.name + " backward"));
  const int last_layer = to_int(model.layers.size()) - 1;
  std::unique_ptr<Watch> watch =
      clock == WatchClock::Tracer
          ? make_tracing_watch(parameters, *tracer, fed.device, last_layer, ranges)
          : make_marking_watch(parameters, clock == WatchClock::Host ? make_host_marks() : make_event_marks(fed.device),
                               ranges);
  if (time_to_warm_up) {
    fed.subject.watch(fed.batch, 0, *watch);
    device::synchronize(fed.device);
    (void)watch->take();
  }
  (void)fed.timer.take();
  return watch;
}

/// `rule` with at most `most_seconds`; if that is less than `wanted`, one sample is enough.
StoppingRule shortened(StoppingRule rule, double wanted, double most_seconds) {
  rule.most_seconds = std::min(wanted, most_seconds);
  if (rule.most_seconds < wanted) rule.least = 1;
  return rule;
}

/// For samples of iterations of `iteration` seconds.
StoppingRule sampling_rule(const ProfileOptions& options, double iteration, const TimeLimit& limit) {
  const double share = runs_ranks_at_once(options) ? kSampleShareOfSeveral : kSampleShare;
  const double wanted =
      std::max(options.rule.most_seconds,
               std::min(static_cast<double>(options.rule.fewest) * iteration, options.most_seconds_if_slow));
  return shortened(options.rule, wanted, std::max(limit.left(), 0.0) * share);
}

/// For the measurement of one of `layers` layers that wants `seconds`, if all together get `share` of the time left.
StoppingRule rule_of_layer(const ProfileOptions& options, double seconds, const TimeLimit& limit, double share,
                           std::size_t layers) {
  return shortened(options.rule, seconds, share * limit.left() / static_cast<double>(layers));
}

Bytes cache_of(c10::Device device) {
  return device.is_cpu() ? device::core_cache() : device::gpu_properties(device.index()).l2_bytes;
}

std::optional<InFlightSlowdown> in_flight_slowdown(Graph& graph, FedSubject& fed, const TimeLimit& limit) {
  Bytes saved;
  for (const Layer& layer : without_inputs(graph)) saved += bytes_saved(layer);
  return measure_in_flight_slowdown(fed.subject, fed.batch, saved, graph.iteration->median,
                                    kInFlightShare * std::max(0.0, limit.left()));
}

/// Sets the two parts of each layer's backward, whose time is known.
void split_backwards(Graph& graph, const model::Model& model, const std::vector<at::Tensor>& batch,
                     const ProfileOptions& options, const TimeLimit& limit, const ReportProgress& progress) {
  const auto outputs = layer_outputs(model, batch, options.seed, options.placement);
  const StoppingRule rule =
      rule_of_layer(options, options.split_seconds, limit, options.isolated ? kSplitShare : 1, model.layers.size());
  const std::vector<std::optional<SplitTime>> split =
      split_times(model, batch, outputs, options.seed, options.placement, cache_of(options.placement.device), rule,
                  [&](const std::string& layer) { progress({"backward in two parts: " + layer}); });
  const std::span<Layer> layers = without_inputs(graph);
  for (std::size_t i = 0; i < split.size(); ++i) {
    layers[i].backward_parts = split[i] ? backward_parts(layers[i].backward, *split[i])
                                        : backward_parts(layers[i].backward, sends_gradient(model, to_int(i), outputs));
  }
}

/// Sets the times of each layer alone.
void run_layers_alone(Graph& graph, const model::Model& model, const std::vector<at::Tensor>& batch,
                      const ProfileOptions& options, const TimeLimit& limit, const ReportProgress& progress) {
  const auto outputs = layer_outputs(model, batch, options.seed, options.placement);
  const StoppingRule rule = rule_of_layer(options, options.isolated_seconds, limit, 1, model.layers.size());
  const std::vector<IsolatedTime> alone =
      isolated_times(model, batch, outputs, options.seed, options.placement, cache_of(options.placement.device), rule,
                     [&](const std::string& layer) { progress({"alone: " + layer}); });
  const std::span<Layer> layers = without_inputs(graph);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    if (layers[i].forward_share) layers[i].forward_share->isolated = alone[i].forward;
    if (layers[i].backward_share) layers[i].backward_share->isolated = alone[i].backward;
  }
}

}  // namespace

double seconds_allowed(const ProfileOptions& options, double iteration) {
  const int ranks = runs_ranks_at_once(options) ? options.concurrent : 0;
  const double enough = (kEnoughIterations + kEnoughIterationsPerRank * ranks) * iteration;
  return std::max(options.most_seconds, std::min(enough, options.most_seconds_if_slow));
}

std::vector<double> times_without_tracer(const model::Model& model, const data::DataSource& data,
                                         const ProfileOptions& options) {
  if (options.placement.device.is_cpu()) return {};
  check(model, options);
  at::set_num_threads(options.threads);
  TimeLimit limit(options.most_seconds);
  FedSubject fed(model, data, options, /*update_by_layer=*/false);
  const WarmUp warm = warm_up(fed, options, limit, [](const ProfileProgress&) {});
  return untraced_steps(fed, warm.iteration, limit);
}

Profile profile_model(const model::Model& model, const data::DataSource& data, const ProfileOptions& options,
                      const std::function<void(const ProfileProgress&)>& progress, KernelTracer* tracer) {
  check(model, options);
  at::set_num_threads(options.threads);
  const ReportProgress tell = progress ? progress : [](const ProfileProgress&) {};
  const c10::Device device = options.placement.device;
  const WatchClock clock = clock_of(device, tracer);
  const device::ProcessorMoment before = device::processor_moment();
  device::YardstickMeter yardstick = device::device_yardstick(device, options.threads);
  yardstick.read();

  TimeLimit limit(options.most_seconds);
  device::MemoryTracker memory(device.type());
  std::optional<device::MemoryTracker::Scope> counting(std::in_place, memory);
  FedSubject fed(model, data, options, /*update_by_layer=*/clock == WatchClock::Host);
  Profile out;
  Graph& graph = out.graph;
  tell({"warm-up"});
  graph = describe_model(model, fed.batch, options, clock_name(clock, tracer));
  const WarmUp warm = warm_up(fed, options, limit, tell);
  if (warm.iterations < options.warmup)
    out.cut.push_back(fmt::format("warm-up of {} iterations ({})", options.warmup, warm.iterations));

  tell({"memory"});
  const bool briefly = limit.left() < (kLeastIterations + 1) * warm.iteration;
  if (briefly) out.cut.emplace_back("bytes saved for backward");
  count_memory_and_work(graph, fed, memory, briefly);
  counting.reset();

  std::vector<double> untraced;
  if (options.without_tracer) {
    untraced = *options.without_tracer;
  } else if (tracer && !device.is_cpu()) {
    untraced = untraced_steps(fed, warm.iteration, limit);
  }
  const bool time_to_warm_up = limit.left() > (kLeastSampled + 1) * warm.iteration;
  const std::unique_ptr<Watch> watch = start_watch(model, fed, clock, tracer, time_to_warm_up);
  SampledSteps sampled = sample_steps(
      fed, *watch, without_inputs(graph), {clock, graph.quality->clock, sampling_rule(options, warm.iteration, limit)},
      yardstick, [&](std::size_t steps, double error) { tell({"measuring", steps, error}); });
  watch->pause();
  const StepSums sums = summarize_steps(graph, sampled, untraced);
  out.sum = sums.sum;
  out.watched = sums.watched;
  out.stop = sampled.stop;
  out.unmapped = sampled.unmapped;
  out.steps = std::move(sampled.steps);
  out.trace = std::move(sampled.trace);

  // What changes predictions most comes first: ranks at once, then microbatches in flight, then parts of backwards.
  RankRounds ranks;
  if (runs_ranks_at_once(options)) {
    const auto start = [&] {
      return options.rank_command.empty() ? ranks_as_threads(model, fed.batch, options)
                                          : ranks_as_processes(options.rank_command, options);
    };
    const TimeLimit share(kRanksShare * std::max(0.0, limit.left()));
    ranks = run_rank_rounds(start, options.concurrent, graph.iteration->median, share, [&](int count) {
      tell({std::to_string(count) + " at once"});
      yardstick.read_if_due();
    });
    for (int count = std::max(2, to_int(ranks.slowdown.size()) + 1); count <= options.concurrent; ++count)
      out.cut.push_back(fmt::format("slowdown of {} ranks", count));
    if (ranks.slowdown.size() > 1) graph.slowdown = ranks.slowdown;  // that of one does not apply to several
    if (ranks.disturbed) judge_others(*graph.quality, *ranks.disturbed, "the ranks at once");
  }
  if (device.is_cpu()) {
    tell({"several microbatches in flight"});
    graph.in_flight_slowdown = in_flight_slowdown(graph, fed, limit);
    if (!graph.in_flight_slowdown) out.cut.emplace_back("in-flight slowdown");
  }
  if (limit.left() > 0) {
    split_backwards(graph, model, fed.batch, options, limit, tell);
  } else {
    out.cut.emplace_back("backwards in two parts");
  }
  if (options.isolated && limit.left() > 0) {
    run_layers_alone(graph, model, fed.batch, options, limit, tell);
  } else if (options.isolated) {
    out.cut.emplace_back("layers alone");
  }
  out.seconds = limit.spent();

  yardstick.read();
  device::ProcessorReport use = device::processor_report(before, device::processor_moment());
  use.process_time += ranks.other_processes_time;
  graph.conditions = {device::processor_use({&use, 1}), yardstick.result()};
  return out;
}

}  // namespace stagecraft::profiler

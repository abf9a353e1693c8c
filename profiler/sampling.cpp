#include "profiler/sampling.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/conditions.h"
#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/timeline.h"
#include "executor/data/prefetch.h"
#include "executor/device/device.h"
#include "profiler/subject/watch.h"

namespace stagecraft::profiler {
namespace {

/// Device work longer than the unwatched step by more than this is not noise.
constexpr double kMostWorkOverPlain = 0.01;
/// So many samples of accumulation are enough to tell a difference from noise.
constexpr std::size_t kFewestCreations = 3;

std::optional<LayerShare>& share_in(Layer& layer, Phase phase) {
  if (phase == Phase::Forward) return layer.forward_share;
  return phase == Phase::Backward ? layer.backward_share : layer.update_share;
}

/// The time of adding to gradients, never longer than the backward; absent if there are fewer samples than `fewest`.
std::optional<Timing> accumulation_of(const std::vector<double>& samples, std::size_t fewest, Seconds backward) {
  if (samples.size() < fewest) return std::nullopt;
  Timing out = summarize(samples);
  out.median = std::clamp(out.median, Seconds(0), backward);
  return out;
}

/// Sets the times of each layer; returns the sum of their medians.
Seconds summarize_layers(std::span<Layer> layers, const LayerSamples& samples, const SampledSteps& sampled) {
  Seconds sum;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Layer& layer = layers[i];
    layer.forward = summarize(samples.forward[i]);
    layer.backward = summarize(samples.backward[i]);
    sum += layer.forward.median + layer.backward.median;
    if (layer.parameter_bytes > Bytes(0)) {
      // A trace shows it in every step.
      layer.accumulation = sampled.clock == WatchClock::Tracer
                               ? accumulation_of(samples.accumulation[i], 1, layer.backward.median)
                               : accumulation_of(sampled.accumulating[i], kFewestCreations, layer.backward.median);
    }
    if (!layer.update_share) continue;
    layer.update = summarize(samples.update[i]);
    sum += layer.update->median;
  }
  return sum;
}

/// Loads for each series of steps.
constexpr int kLoadsInARow = 3;
/// Of so many rows of samples, the last one also watches a backward that creates the gradients.
constexpr std::size_t kRowsPerCreation = 2;

/// Rows of samples. A row is one unwatched and one watched step under a host clock, else a series of each.
class RowSampler {
 public:
  RowSampler(FedSubject& fed, Watch& watch, std::span<const Layer> layers, WatchClock clock,
             device::YardstickMeter& yardstick)
      : fed_(fed),
        watch_(watch),
        layers_(layers),
        host_(clock == WatchClock::Host),
        yardstick_(yardstick),
        rough_(layers.size()) {
    out_.clock = clock;
    out_.accumulating.resize(layers.size());
  }

  void sample_row();
  /// By the steps so far and `seconds` of sampling.
  [[nodiscard]] Stop should_stop(const StoppingRule& rule, double seconds) const {
    return profiler::should_stop(rule, out_.plain, rough_.parts(), seconds);
  }
  [[nodiscard]] const SampledSteps& sampled() const { return out_; }
  [[nodiscard]] SampledSteps take() { return std::move(out_); }

 private:
  void sample_creation();

  FedSubject& fed_;
  Watch& watch_;
  std::span<const Layer> layers_;
  bool host_;
  device::YardstickMeter& yardstick_;
  LayerSamples rough_;  ///< watched steps as they were seen
  SampledSteps out_;
  int step_ = 1;
};

void RowSampler::sample_row() {
  const int in_a_row = host_ ? 1 : kStepsInARow;
  watch_.pause();
  yardstick_.read_if_due();
  fed_.batch = fed_.loader.load(step_);
  for (int i = 0; i < in_a_row; ++i) fed_.subject.iterate(fed_.batch, step_ + i, fed_.timer);
  // As in a run, where the host loads while the device computes.
  for (int i = 0; i < kLoadsInARow && !fed_.device.is_cpu(); ++i) (void)fed_.loader.load_on_host(step_ + i);
  device::synchronize(fed_.device);
  const std::vector<double> plain = fed_.timer.take();
  watch_.resume();
  for (int i = 0; i < in_a_row; ++i) fed_.subject.watch(fed_.batch, step_++, watch_);
  device::synchronize(fed_.device);
  std::vector<StepShares> steps = watch_.take();
  out_.seen += watch_.trace().quality;
  // The first step of a row starts on an idle device.
  const std::size_t skipped = in_a_row > 1 ? 1 : 0;
  out_.plain.insert(out_.plain.end(), plain.begin() + static_cast<std::ptrdiff_t>(skipped), plain.end());
  for (std::size_t i = skipped; i < steps.size(); ++i) {
    if (!host_) divide_update(steps[i], layers_);
    rough_.add(steps[i]);
    out_.steps.push_back(std::move(steps[i]));
  }
  if (host_ && out_.steps.size() % kRowsPerCreation == 0) sample_creation();
}

/// Pairs the backwards of the last watched step with those of one that creates the gradients.
void RowSampler::sample_creation() {
  fed_.subject.watch(fed_.batch, step_++, watch_, /*creates_gradients=*/true);
  const std::vector<StepShares> created = watch_.take();
  for (std::size_t i = 0; i < out_.accumulating.size(); ++i) {
    const LayerPhase part{static_cast<std::int64_t>(i), Phase::Backward};
    out_.accumulating[i].push_back(in_seconds(out_.steps.back().share_of(part) - created.front().share_of(part)));
  }
}

}  // namespace

void LayerSamples::add(const StepShares& step) {
  std::int64_t sum = 0;
  for (std::size_t layer = 0; layer < forward.size(); ++layer) {
    const auto share = [&](Phase phase) {
      const std::int64_t out = step.share_of({static_cast<std::int64_t>(layer), phase});
      sum += out;
      return in_seconds(out);
    };
    forward[layer].push_back(share(Phase::Forward));
    backward[layer].push_back(share(Phase::Backward));
    const auto part = step.parts.find({static_cast<std::int64_t>(layer), Phase::Backward});
    accumulation[layer].push_back(
        part == step.parts.end() ? 0 : in_seconds(part->second.accumulating_ns + part->second.accumulating_gap_ns));
    update[layer].push_back(share(Phase::Optimizer));
  }
  sums.push_back(in_seconds(sum));
}

std::vector<std::vector<double>> LayerSamples::parts() const {
  std::vector<std::vector<double>> out = forward;
  out.insert(out.end(), backward.begin(), backward.end());
  return out;
}

void divide_update(StepShares& step, std::span<const Layer> layers) {
  const auto whole = step.parts.extract({0, Phase::Optimizer});
  if (whole.empty()) return;
  std::int64_t all = 0;
  for (const Layer& layer : layers) all += layer.parameters.value_or(0);
  PartTime given;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::int64_t parameters = layers[i].parameters.value_or(0);
    if (parameters == 0) continue;
    sum += parameters;
    const double part = static_cast<double>(sum) / static_cast<double>(all);
    const auto up_to = [&](std::int64_t PartTime::* member) {
      const std::int64_t value = whole.mapped().*member;
      return sum == all ? value : static_cast<std::int64_t>(part * static_cast<double>(value));
    };
    PartTime& time = step.parts[{static_cast<std::int64_t>(i), Phase::Optimizer}];
    for (const auto member : {&PartTime::busy_ns, &PartTime::active_ns, &PartTime::gap_ns}) {
      time.*member = up_to(member) - given.*member;
      given.*member += time.*member;
    }
    time.activities = whole.mapped().activities;
  }
}

void add_shares(std::span<Layer> layers, ProfileQuality& quality, const StepShares& step) {
  ++quality.steps;
  quality.watched_ns += step.end_ns - step.begin_ns;
  quality.data_wait_ns += step.data_wait_ns();
  quality.unattributed_ns += step.unattributed_ns();
  if (quality.debiased) {
    quality.host_wait_ns += step.gaps.host_wait_ns;
    quality.kernel_wait_ns += step.gaps.kernel_wait_ns;
  }
  for (const auto& [part, time] : step.parts) {
    if (part.phase == Phase::None || part.phase == Phase::Data) continue;
    std::optional<LayerShare>& share = share_in(layers[to_index(part.layer)], part.phase);
    if (!share) share = LayerShare{};
    share->busy_ns += time.busy_ns;
    share->share_ns += time.share_ns();
    share->activities += time.activities;
  }
}

void copy_trace_quality(ProfileQuality& quality, const TraceQuality& trace) {
  quality.reasons = distrust(trace);
  quality.work = trace.activities;
  quality.work_attributed = trace.attributed;
  quality.work_ns = trace.busy_ns;
  quality.work_attributed_ns = trace.attributed_ns;
  quality.dropped = trace.dropped;
  quality.bad_timestamps = trace.zero_times + trace.reversed_times + trace.before_launch;
  quality.disagreements = trace.disagreements;
}

void judge(ProfileQuality& quality, std::int64_t unmapped, double work_over_plain) {
  if (unmapped > 0)
    quality.reasons.push_back(std::to_string(unmapped) + " backward nodes could not be assigned to a layer");
  if (work_over_plain > kMostWorkOverPlain) {
    quality.reasons.push_back("the device is busy " + std::to_string(work_over_plain * 100) +
                              " % longer in a profiled step than an unprofiled step lasts: tracing slows it down");
  }
  quality.trusted = quality.reasons.empty();
}

void judge_others(ProfileQuality& quality, const device::ProcessorReport& use, const std::string& measured) {
  for (std::string& reason : crowded_reasons({device::processor_use({&use, 1}), {}}, measured)) {
    quality.reasons.push_back(std::move(reason));
    quality.trusted = false;
  }
}

std::span<Layer> without_inputs(Graph& graph) {
  return {std::ranges::find_if_not(graph.layers, is_input), graph.layers.end()};
}

StepSums summarize_steps(Graph& graph, const SampledSteps& sampled, const std::vector<double>& untraced) {
  const bool host = sampled.clock == WatchClock::Host;
  const std::span<Layer> layers = without_inputs(graph);
  ProfileQuality& quality = *graph.quality;
  graph.iteration = summarize(untraced.empty() ? sampled.plain : untraced);
  const double plain = graph.iteration->median.value;
  const auto plain_ns = static_cast<std::int64_t>(plain * kNanosecondsPerSecond);
  quality.debiased = !host;
  LayerSamples samples(layers.size());
  std::vector<double> watched;
  std::vector<double> work;
  for (const StepShares& seen : sampled.steps) {
    const StepShares counted = host ? seen : debias(seen, plain_ns);
    samples.add(counted);
    add_shares(layers, quality, counted);
    watched.push_back(in_seconds(seen.end_ns - seen.begin_ns));
    work.push_back(in_seconds(seen.work_ns));
  }
  quality.watched = summarize(watched);
  if (sampled.clock == WatchClock::Tracer) copy_trace_quality(quality, sampled.seen);
  judge(quality, sampled.unmapped, host ? 0 : median(work) / plain - 1);
  judge_others(quality, sampled.use, "the profile");
  StepSums out{summarize_layers(layers, samples, sampled), Seconds(median(samples.sums))};
  if (layers.size() == graph.layers.size()) return out;
  Layer& input = graph.layers.front();
  const auto& [loading, uploading] = sampled.loads;
  input.forward = summarize(uploading.empty() ? loading : uploading);
  if (!uploading.empty()) input.loading = summarize(loading);
  return out;
}

BatchLoader::BatchLoader(const data::DataSource& data, std::vector<int> inputs, std::int64_t samples,
                         c10::Device device)
    : data_(data), inputs_(std::move(inputs)), samples_(samples), device_(device) {}

std::vector<at::Tensor> BatchLoader::load_on_host(std::int64_t step) {
  const double start = steady_seconds();
  std::vector<at::Tensor> out = data::ready_to_upload(data_.batch(step, 0, 1, samples_, inputs_), device_);
  times_.loading.push_back(steady_seconds() - start);
  return out;
}

std::vector<at::Tensor> BatchLoader::load(std::int64_t step) {
  std::vector<at::Tensor> loaded = load_on_host(step);
  if (device_.is_cpu()) return loaded;
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : loaded) out.push_back(tensor.to(device_, /*non_blocking=*/true));
  device::synchronize(device_);
  const double again = steady_seconds();
  for (std::size_t i = 0; i < out.size(); ++i) out[i].copy_(loaded[i], /*non_blocking=*/true);
  device::synchronize(device_);
  times_.uploading.push_back(steady_seconds() - again);
  return out;
}

LoadTimes BatchLoader::take() { return std::exchange(times_, {}); }

FedSubject::FedSubject(const model::Model& model, const data::DataSource& data, const ProfileOptions& options,
                       bool update_by_layer)
    : device(options.placement.device),
      subject(model, options.optimizer, options.seed, options.placement, update_by_layer),
      timer(device),
      loader(data, subject.program().data_inputs(), options.microbatch_samples, device),
      batch(loader.load(0)) {}

SampledSteps sample_steps(FedSubject& fed, Watch& watch, std::span<const Layer> layers, const Sampling& sampling,
                          device::YardstickMeter& yardstick, const std::function<void(std::size_t, double)>& progress) {
  const device::ProcessorMoment before = device::processor_moment();
  (void)fed.loader.take();
  RowSampler sampler(fed, watch, layers, sampling.clock, yardstick);
  Stop stop = Stop::No;
  for (const double start = steady_seconds(); stop == Stop::No;) {
    sampler.sample_row();
    if (sampler.sampled().steps.empty()) {
      throw DeviceError("no step of the model was found in what " + sampling.clock_name + " recorded; " +
                        "measure with --clock events");
    }
    stop = sampler.should_stop(sampling.rule, steady_seconds() - start);
    const std::vector<double>& plain = sampler.sampled().plain;
    progress(plain.size(), relative_error(plain));
  }
  SampledSteps out = sampler.take();
  out.use = device::processor_report(before, device::processor_moment());
  out.stop = stop;
  out.loads = fed.loader.take();
  out.unmapped = watch.unmapped();
  out.trace = watch.trace();
  return out;
}

}  // namespace stagecraft::profiler

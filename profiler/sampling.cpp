#include "profiler/sampling.h"

#include <utility>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/timeline.h"
#include "executor/data/prefetch.h"
#include "executor/device/device.h"
#include "profiler/subject/watch.h"

namespace stagecraft::profiler {
namespace {

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

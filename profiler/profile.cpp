#include "profiler/profile.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/timeline.h"
#include "executor/data/prefetch.h"
#include "executor/device/device.h"
#include "executor/device/dtype.h"
#include "executor/device/machine/processor.h"
#include "executor/device/machine/processor_use.h"
#include "executor/device/machine/yardstick.h"
#include "executor/device/memory_tracker.h"
#include "executor/model/stage_layers.h"
#include "profiler/concurrent_time.h"
#include "profiler/in_flight_slowdown.h"
#include "profiler/layers/isolated.h"
#include "profiler/layers/layer_alone.h"
#include "profiler/layers/layer_work.h"
#include "profiler/layers/split_times.h"
#include "profiler/memory/measured_memory.h"
#include "profiler/rank_processes.h"
#include "profiler/sampled_steps.h"
#include "profiler/subject/model_graph.h"
#include "profiler/subject/subject.h"
#include "profiler/subject/time_limit.h"
#include "profiler/subject/watch.h"

namespace stagecraft::profiler {
namespace {

/// Steps in a row on a device: the first starts with nothing launched ahead and does not count.
constexpr int kStepsInARow = 10;
/// Loads for each series of steps.
constexpr int kLoadsInARow = 3;
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
constexpr double kSampleShareOfSeveral = 0.55;
/// Share of the time that remains after the samples for several microbatches in flight.
constexpr double kInFlightShare = 0.3;
/// Of so many rows of samples, the last one also watches a backward that creates the gradients.
constexpr std::size_t kRowsPerCreation = 2;
/// Of these, so many are enough to tell a difference from noise.
constexpr std::size_t kFewestCreations = 3;
/// Rounds in which 1, 2, ... concurrent ranks take turns, so that a change of the machine's speed hits all alike.
constexpr int kRoundsOfRanks = 5;
/// Processors that other programs keep busy, above which they disturb a round.
constexpr double kDisturbing = 0.1;
/// Rounds at most, if other programs disturb some of them.
constexpr int kMostRoundsOfRanks = 2 * kRoundsOfRanks;

void check(const ProfileOptions& options) {
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
}

/// One profile as it is taken. The phases run in the order in which they are declared.
class ProfileSession {
 public:
  ProfileSession(const model::Model& model, const data::DataSource& data, const ProfileOptions& options,
                 const std::function<void(const ProfileProgress&)>& progress, KernelTracer* tracer,
                 device::YardstickMeter& yardstick)
      : model_(model),
        data_(data),
        options_(options),
        progress_(progress),
        tracer_(tracer),
        yardstick_(yardstick),
        device_(options.placement.device),
        host_(device_.is_cpu() && !tracer),
        memory_(device_.type()),
        counting_(std::in_place, memory_),
        subject_(model, options.optimizer, options.seed, options.placement, host_),
        timer_(device_) {}

  void describe_model();
  void warm_up();
  void count_memory();
  /// As times_without_tracer.
  void time_without_tracer();
  [[nodiscard]] std::vector<double>& untraced() { return untraced_; }
  void start_watch();
  void sample_steps();
  void summarize_steps();
  void run_in_flight();
  void split_backwards();
  void run_layers_alone();
  void run_ranks_at_once();
  [[nodiscard]] Profile take();
  /// Processor time of the processes that were concurrent ranks.
  [[nodiscard]] Seconds rank_processes_time() const { return rank_processes_time_; }

 private:
  void tell(const std::string& phase, std::size_t iteration, double error = 0) const {
    if (progress_) progress_({phase, iteration, error});
  }
  [[nodiscard]] Graph& graph() { return profile_.graph; }
  [[nodiscard]] ProfileQuality& quality() { return *profile_.graph.quality; }
  /// The graph's layers without its inputs: as many as the model has.
  [[nodiscard]] std::span<Layer> layers() { return std::span(graph().layers).subspan(model_.inputs.size()); }
  [[nodiscard]] bool runs_ranks_at_once() const { return options_.concurrent > 1 && device_.is_cpu(); }
  [[nodiscard]] std::vector<at::Tensor> load_on_host(std::int64_t step);
  [[nodiscard]] std::vector<at::Tensor> load(std::int64_t step);
  [[nodiscard]] StoppingRule sampling_rule() const;
  /// For the measurement of one layer by itself, if all layers together get `share` of the time that is left.
  [[nodiscard]] StoppingRule rule_of_layer(double most_seconds, double share) const;
  [[nodiscard]] Bytes cache() const;
  void sample_row();
  /// Distrusts the profile if other programs kept the processors busy while `measured` used them.
  void judge_others(const device::ProcessorReport& use, const std::string& measured);
  void summarize_layers(const LayerSamples& samples);
  void sample_creation();

  const model::Model& model_;
  const data::DataSource& data_;
  const ProfileOptions& options_;
  const std::function<void(const ProfileProgress&)>& progress_;
  KernelTracer* tracer_;
  device::YardstickMeter& yardstick_;
  c10::Device device_;
  bool host_;  ///< whether a host clock watches
  TimeLimit limit_{options_.most_seconds};
  device::MemoryTracker memory_;
  std::optional<device::MemoryTracker::Scope> counting_;  ///< until memory is counted
  Subject subject_;
  StepTimer timer_;
  Profile profile_;
  std::vector<at::Tensor> batch_;
  std::vector<double> loading_;    ///< seconds of the host for each load
  std::vector<double> uploading_;  ///< seconds of each copy to a GPU
  double iteration_ = 0;           ///< seconds of the last iteration of the warm-up
  std::unique_ptr<Watch> watch_;
  Seconds rank_processes_time_;
  device::ProcessorReport sampling_;  ///< of all rows
  std::vector<double> plain_;         ///< seconds of each unwatched step
  std::vector<double> untraced_;      ///< the same before there was a tracer, if it would slow them down
  std::vector<std::vector<double>> accumulating_{model_.layers.size()};  ///< by layer: seconds by which a backward that
                                                                         ///< adds is longer than one that creates
  LayerSamples rough_{model_.layers.size()};                             ///< watched steps as they were seen
  TraceQuality seen_;                                                    ///< of all watched steps
  int step_ = 1;
};

std::vector<at::Tensor> ProfileSession::load_on_host(std::int64_t step) {
  const double start = steady_seconds();
  std::vector<at::Tensor> out = data::ready_to_upload(
      data_.batch(step, 0, 1, options_.microbatch_samples, subject_.program().data_inputs()), device_);
  loading_.push_back(steady_seconds() - start);
  return out;
}

std::vector<at::Tensor> ProfileSession::load(std::int64_t step) {
  std::vector<at::Tensor> loaded = load_on_host(step);
  if (device_.is_cpu()) return loaded;
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : loaded) out.push_back(tensor.to(device_, /*non_blocking=*/true));
  device::synchronize(device_);
  // Once more into the same memory: the first work after CUPTI was switched off takes tens of milliseconds.
  const double again = steady_seconds();
  for (std::size_t i = 0; i < out.size(); ++i) out[i].copy_(loaded[i], /*non_blocking=*/true);
  device::synchronize(device_);
  uploading_.push_back(steady_seconds() - again);
  return out;
}

void ProfileSession::describe_model() {
  batch_ = load(0);
  tell("warm-up", 0);
  const auto outputs = layer_outputs(model_, batch_, options_.seed, options_.placement);
  graph() = model_graph(model_, batch_, outputs, options_.microbatch_samples);
  graph().dtype = device::dtype_name(options_.placement.compute);
  if (!options_.placement.device.is_cpu()) graph().allow_tf32 = device::tf32_allowed();
  graph().optimizer = options_.optimizer.name;
  graph().optimizer_state_values = stage::state_values(options_.optimizer);
  graph().threads = options_.threads;
  graph().quality = ProfileQuality{};
  quality().clock = tracer_ ? tracer_->name() : device_.is_cpu() ? "host" : "events";
}

void ProfileSession::warm_up() {
  int warm = 0;
  // Memory is counted together with gradients and optimizer state, which the first iteration creates.
  for (; warm < std::max(options_.warmup, 1); ++warm) {
    if (warm > 0 && limit_.left() < (kLeastIterations + 1) * iteration_) break;
    tell("warm-up", to_index(warm) + 1);
    const double begin = steady_seconds();
    subject_.iterate(batch_, warm, timer_);
    device::synchronize(device_);
    iteration_ = steady_seconds() - begin;
  }
  if (warm < options_.warmup)
    profile_.cut.push_back(fmt::format("warm-up of {} iterations ({})", options_.warmup, warm));
}

void ProfileSession::count_memory() {
  tell("memory", 0);
  const bool briefly = limit_.left() < (kLeastIterations + 1) * iteration_;
  if (briefly) profile_.cut.emplace_back("bytes saved for backward");
  graph().library_bytes = measured_library_bytes(subject_, batch_, device_);
  const PeakBytes peak = measure_memory(layers(), subject_, batch_, memory_, device_, briefly);
  quality().summed_peak_bytes = peak.summed;
  quality().allocator_peak_bytes = peak.allocator;
  // Always: one iteration, and without the counts the profile cannot be estimated for another device.
  const WorkByLayer work = count_work(subject_, layers().size(), batch_);
  for (std::size_t i = 0; i < layers().size(); ++i) {
    layers()[i].forward_work = work.forward[i];
    layers()[i].backward_work = work.backward[i];
  }
  counting_.reset();
}

void ProfileSession::time_without_tracer() {
  (void)timer_.take();
  const double begin = steady_seconds();
  subject_.iterate(batch_, 0, timer_);
  const double enqueued = steady_seconds() - begin;
  device::synchronize(device_);
  const bool launches_matter = enqueued > kHostShare * (steady_seconds() - begin);
  (void)timer_.take();
  for (int row = 0; row < kUntracedRows && launches_matter && limit_.left() > kStepsInARow * iteration_; ++row) {
    for (int i = 0; i < kStepsInARow; ++i) subject_.iterate(batch_, i, timer_);
    device::synchronize(device_);
    const std::vector<double> steps = timer_.take();
    untraced_.insert(untraced_.end(), steps.begin() + 1, steps.end());
  }
}

void ProfileSession::start_watch() {
  const std::vector<stage::Parameter>& parameters = subject_.program().parameters();
  std::vector<device::RangeName> ranges;
  for (const model::LayerSpec& layer : model_.layers) ranges.push_back(device::range_name(layer.name + " backward"));
  const int last_layer = to_int(model_.layers.size()) - 1;
  watch_ = tracer_ ? make_tracing_watch(parameters, *tracer_, device_, last_layer, ranges)
                   : make_marking_watch(parameters, host_ ? make_host_marks() : make_event_marks(device_), ranges);
  if (limit_.left() > (kLeastSampled + 1) * iteration_) {
    subject_.watch(batch_, 0, *watch_);  // makes the state of what only watched steps use
    device::synchronize(device_);
    (void)watch_->take();
  }
  (void)timer_.take();
}

StoppingRule ProfileSession::sampling_rule() const {
  StoppingRule rule = options_.rule;
  const double share = runs_ranks_at_once() ? kSampleShareOfSeveral : kSampleShare;
  rule.most_seconds = std::min(rule.most_seconds, std::max(limit_.left(), 0.0) * share);
  if (rule.most_seconds < options_.rule.most_seconds) rule.least = 1;
  return rule;
}

void ProfileSession::sample_row() {
  const int in_a_row = host_ ? 1 : kStepsInARow;
  watch_->pause();
  yardstick_.read_if_due();
  batch_ = load(step_);
  for (int i = 0; i < in_a_row; ++i) subject_.iterate(batch_, step_ + i, timer_);
  // As in a run, where the host loads while the device computes.
  for (int i = 0; i < kLoadsInARow && !device_.is_cpu(); ++i) (void)load_on_host(step_ + i);
  device::synchronize(device_);
  const std::vector<double> plain = timer_.take();
  watch_->resume();
  for (int i = 0; i < in_a_row; ++i) subject_.watch(batch_, step_++, *watch_);
  device::synchronize(device_);
  std::vector<StepShares> steps = watch_->take();
  seen_ += watch_->trace().quality;
  // The first step of a row starts on an idle device.
  const std::size_t skipped = in_a_row > 1 ? 1 : 0;
  plain_.insert(plain_.end(), plain.begin() + static_cast<std::ptrdiff_t>(skipped), plain.end());
  for (std::size_t i = skipped; i < steps.size(); ++i) {
    if (!host_) divide_update(steps[i], layers());
    rough_.add(steps[i]);
    profile_.steps.push_back(std::move(steps[i]));
  }
  if (host_ && profile_.steps.size() % kRowsPerCreation == 0) sample_creation();
}

/// Pairs the backwards of the last watched step with those of one that creates the gradients.
void ProfileSession::sample_creation() {
  subject_.watch(batch_, step_++, *watch_, /*creates_gradients=*/true);
  const std::vector<StepShares> created = watch_->take();
  for (std::size_t i = 0; i < accumulating_.size(); ++i) {
    const LayerPhase part{static_cast<std::int64_t>(i), Phase::Backward};
    accumulating_[i].push_back(in_seconds(profile_.steps.back().share_of(part) - created.front().share_of(part)));
  }
}

void ProfileSession::judge_others(const device::ProcessorReport& use, const std::string& measured) {
  for (std::string& reason : crowded_reasons({device::processor_use({&use, 1}), {}}, measured)) {
    quality().reasons.push_back(std::move(reason));
    quality().trusted = false;
  }
}

void ProfileSession::sample_steps() {
  const device::ProcessorMoment before = device::processor_moment();
  loading_.clear();
  uploading_.clear();
  const StoppingRule rule = sampling_rule();
  for (const double start = steady_seconds(); profile_.stop == Stop::No;) {
    sample_row();
    if (profile_.steps.empty()) {
      throw DeviceError("no step of the model was found in what " + quality().clock + " recorded; " +
                        "measure with --clock events");
    }
    profile_.stop = should_stop(rule, plain_, rough_.parts(), steady_seconds() - start);
    tell("measuring", plain_.size(), relative_error(plain_));
  }
  sampling_ = device::processor_report(before, device::processor_moment());
  profile_.unmapped = watch_->unmapped();
  profile_.trace = watch_->trace();
}

void ProfileSession::summarize_steps() {
  graph().iteration = summarize(untraced_.empty() ? plain_ : untraced_);
  const double plain = graph().iteration->median.value;
  const auto plain_ns = static_cast<std::int64_t>(plain * kNanosecondsPerSecond);
  quality().debiased = !host_;
  LayerSamples samples(model_.layers.size());
  std::vector<double> watched;
  std::vector<double> work;
  for (const StepShares& seen : profile_.steps) {
    const StepShares counted = host_ ? seen : debias(seen, plain_ns);
    samples.add(counted);
    add_shares(layers(), quality(), counted);
    watched.push_back(in_seconds(seen.end_ns - seen.begin_ns));
    work.push_back(in_seconds(seen.work_ns));
  }
  quality().watched = summarize(watched);
  if (tracer_) copy_trace_quality(quality(), seen_);
  judge(quality(), profile_.unmapped, host_ ? 0 : median(work) / plain - 1);
  judge_others(sampling_, "the profile");
  summarize_layers(samples);
}

void ProfileSession::summarize_layers(const LayerSamples& samples) {
  for (std::size_t i = 0; i < layers().size(); ++i) {
    Layer& layer = layers()[i];
    layer.forward = summarize(samples.forward[i]);
    layer.backward = summarize(samples.backward[i]);
    profile_.sum += layer.forward.median + layer.backward.median;
    // A trace shows it in every step.
    const std::vector<double>& accumulating = tracer_ ? samples.accumulation[i] : accumulating_[i];
    if (layer.parameter_bytes > Bytes(0) && accumulating.size() >= (tracer_ ? 1 : kFewestCreations)) {
      Timing accumulation = summarize(accumulating);
      accumulation.median = std::clamp(accumulation.median, Seconds(0), layer.backward.median);
      layer.accumulation = accumulation;
    }
    if (!layer.update_share) continue;
    layer.update = summarize(samples.update[i]);
    profile_.sum += layer.update->median;
  }
  profile_.watched = Seconds(median(samples.sums));
  // Loading is one call for all inputs; the first input has its time.
  if (model_.inputs.empty()) return;
  Layer& input = graph().layers.front();
  input.forward = summarize(device_.is_cpu() ? loading_ : uploading_);
  if (!device_.is_cpu()) input.loading = summarize(loading_);
}

StoppingRule ProfileSession::rule_of_layer(double most_seconds, double share) const {
  StoppingRule rule = options_.rule;
  rule.most_seconds = std::min(most_seconds, share * limit_.left() / static_cast<double>(model_.layers.size()));
  if (rule.most_seconds < most_seconds) rule.least = 1;
  return rule;
}

Bytes ProfileSession::cache() const {
  return device_.is_cpu() ? device::core_cache() : device::gpu_properties(device_.index()).l2_bytes;
}

void ProfileSession::run_in_flight() {
  if (!device_.is_cpu()) return;
  watch_->pause();
  tell("several microbatches in flight", 0);
  Bytes saved;
  for (const Layer& layer : layers()) saved += bytes_saved(layer);
  graph().in_flight_slowdown = measure_in_flight_slowdown(subject_, batch_, saved, graph().iteration->median,
                                                          kInFlightShare * std::max(0.0, limit_.left()));
  if (!graph().in_flight_slowdown) profile_.cut.emplace_back("in-flight slowdown");
}

void ProfileSession::split_backwards() {
  if (limit_.left() <= 0) {
    profile_.cut.emplace_back("backwards in two parts");
    return;
  }
  watch_->pause();
  const auto outputs = layer_outputs(model_, batch_, options_.seed, options_.placement);
  const std::vector<std::optional<SplitTime>> split =
      split_times(model_, batch_, outputs, options_.seed, options_.placement, cache(),
                  rule_of_layer(options_.split_seconds, options_.isolated ? kSplitShare : 1),
                  [&](const std::string& layer) { tell("backward in two parts: " + layer, 0); });
  for (std::size_t i = 0; i < split.size(); ++i) {
    Layer& layer = layers()[i];
    layer.backward_parts = split[i] ? backward_parts(layer.backward, *split[i])
                                    : backward_parts(layer.backward, sends_gradient(model_, to_int(i), outputs));
  }
}

void ProfileSession::run_layers_alone() {
  if (!options_.isolated) return;
  if (limit_.left() <= 0) {
    profile_.cut.emplace_back("layers alone");
    return;
  }
  watch_->pause();
  const auto outputs = layer_outputs(model_, batch_, options_.seed, options_.placement);
  const std::vector<IsolatedTime> alone = isolated_times(model_, batch_, outputs, options_.seed, options_.placement,
                                                         cache(), rule_of_layer(options_.isolated_seconds, 1),
                                                         [&](const std::string& layer) { tell("alone: " + layer, 0); });
  for (std::size_t i = 0; i < alone.size(); ++i) {
    Layer& layer = layers()[i];
    if (layer.forward_share) layer.forward_share->isolated = alone[i].forward;
    if (layer.backward_share) layer.backward_share->isolated = alone[i].backward;
  }
}

void ProfileSession::run_ranks_at_once() {
  if (!runs_ranks_at_once()) return;
  const Seconds iteration = graph().iteration->median;
  // A turn is a warm-up and a sample at least, of ranks that at worst wait for each other.
  const auto has_time = [&](int count) { return limit_.left() >= 2 * count * iteration.value; };
  std::unique_ptr<ConcurrentRanks> ranks;  // which take time to start
  if (has_time(1)) {
    ranks = options_.rank_command.empty() ? ranks_as_threads(model_, batch_, options_)
                                          : ranks_as_processes(options_.rank_command, options_);
  }
  std::vector<RoundOfRanks> rounds;
  device::ProcessorReport use;  // of the last round
  const auto quiet = [&] { return to_int(std::ranges::count(rounds, false, &RoundOfRanks::is_disturbed)); };
  while (ranks && quiet() < kRoundsOfRanks && to_int(rounds.size()) < kMostRoundsOfRanks) {
    RoundOfRanks round;
    const device::ProcessorMoment before = device::processor_moment();
    const Seconds processes_before = ranks->other_processes_time();
    int turns = (kRoundsOfRanks - quiet()) * options_.concurrent;
    for (int count = 1; count <= options_.concurrent && has_time(count); ++count) {
      tell(std::to_string(count) + " at once", 0);
      yardstick_.read_if_due();
      round.times.push_back(ranks->time(count, limit_.left() / turns--));
    }
    if (round.times.empty()) break;
    use = device::processor_report(before, device::processor_moment());
    use.process_time += ranks->other_processes_time() - processes_before;
    round.is_disturbed = std::ranges::any_of(device::processor_use({&use, 1}),
                                             [](const ProcessorUse& host) { return host.others > kDisturbing; });
    rounds.push_back(std::move(round));
  }
  if (ranks) rank_processes_time_ = ranks->other_processes_time();
  std::vector<double>& slowdown = graph().slowdown;
  slowdown = slowdown_of(rounds);
  for (int count = std::max(2, to_int(slowdown.size()) + 1); count <= options_.concurrent; ++count)
    profile_.cut.push_back(fmt::format("slowdown of {} ranks", count));
  if (slowdown.size() == 1) slowdown.clear();  // does not apply to several
  if (!rounds.empty() && quiet() == 0) judge_others(use, "the ranks at once");
}

Profile ProfileSession::take() {
  profile_.seconds = limit_.spent();
  return std::move(profile_);
}

}  // namespace

std::vector<double> times_without_tracer(const model::Model& model, const data::DataSource& data,
                                         const ProfileOptions& options) {
  if (options.placement.device.is_cpu()) return {};
  check(options);
  model::check_samples(model, options.microbatch_samples);
  at::set_num_threads(options.threads);
  device::YardstickMeter yardstick = device::device_yardstick(options.placement.device, options.threads);
  const std::function<void(const ProfileProgress&)> silent;
  ProfileSession session(model, data, options, silent, nullptr, yardstick);
  session.describe_model();
  session.warm_up();
  session.time_without_tracer();
  return std::move(session.untraced());
}

Profile profile_model(const model::Model& model, const data::DataSource& data, const ProfileOptions& options,
                      const std::function<void(const ProfileProgress&)>& progress, KernelTracer* tracer) {
  check(options);
  model::check_samples(model, options.microbatch_samples);
  at::set_num_threads(options.threads);
  const device::ProcessorMoment before = device::processor_moment();
  device::YardstickMeter yardstick = device::device_yardstick(options.placement.device, options.threads);
  yardstick.read();
  ProfileSession session(model, data, options, progress, tracer, yardstick);
  session.describe_model();
  session.warm_up();
  session.count_memory();
  if (options.without_tracer) {
    session.untraced() = *options.without_tracer;
  } else if (tracer && !options.placement.device.is_cpu()) {
    session.time_without_tracer();
  }
  session.start_watch();
  session.sample_steps();
  session.summarize_steps();
  session.run_in_flight();
  session.split_backwards();
  session.run_layers_alone();
  session.run_ranks_at_once();
  Profile out = session.take();
  yardstick.read();
  device::ProcessorReport use = device::processor_report(before, device::processor_moment());
  use.process_time += session.rank_processes_time();
  out.graph.conditions = {device::processor_use({&use, 1}), yardstick.result()};
  return out;
}

}  // namespace stagecraft::profiler

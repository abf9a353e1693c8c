#include "profiler/profile.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <map>
#include <memory>
#include <stdexcept>
#include <thread>

#include "costmodel/errors.h"
#include "costmodel/timeline.h"
#include "executor/device/device.h"
#include "executor/device/dtype.h"
#include "executor/device/memory_tracker.h"
#include "executor/model/stage_layers.h"
#include "profiler/isolated.h"
#include "profiler/layer_memory.h"
#include "profiler/model_graph.h"
#include "profiler/saved_bytes.h"
#include "profiler/subject.h"
#include "profiler/watch.h"

namespace stagecraft {
namespace {

constexpr double kNanosecondsPerSecond = 1e9;
/// Steps in a row on a device: the first starts with nothing launched ahead and does not count.
constexpr int kStepsInARow = 10;
/// Device work longer than the unwatched step by more than this is not noise.
constexpr double kMostWorkOverPlain = 0.01;

double seconds_of(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / kNanosecondsPerSecond; }

/// How long a profile may still take.
class TimeLimit {
 public:
  explicit TimeLimit(double seconds) : begin_(steady_seconds()), seconds_(seconds) {}
  [[nodiscard]] double spent() const { return steady_seconds() - begin_; }
  [[nodiscard]] double left() const { return seconds_ - spent(); }

 private:
  double begin_;
  double seconds_;
};

/// Iterations that a profile takes at least once it is warm: one for memory, an unwatched and a watched one.
constexpr double kLeastIterations = 3;
/// Of the time for samples: the rest goes to several ranks at once.
constexpr double kSampleShare = 0.6;

/// Seconds of each layer in each watched step.
struct Samples {
  explicit Samples(std::size_t layers) : forward(layers), backward(layers), update(layers) {}
  std::vector<std::vector<double>> forward, backward, update;
  std::vector<double> sums;

  void add(const StepShares& step) {
    std::int64_t sum = 0;
    for (std::size_t layer = 0; layer < forward.size(); ++layer) {
      const auto share = [&](Phase phase) {
        const std::int64_t out = step.share_of({static_cast<std::int64_t>(layer), phase});
        sum += out;
        return seconds_of(out);
      };
      forward[layer].push_back(share(Phase::Forward));
      backward[layer].push_back(share(Phase::Backward));
      update[layer].push_back(share(Phase::Optimizer));
    }
    sums.push_back(seconds_of(sum));
  }
};

/// Divides the one update of a device, which stands under layer 0, among the layers in proportion to their parameters;
/// nanoseconds that do not divide follow the running sum.
void divide_update(StepShares& step, const Graph& graph, std::size_t inputs) {
  const auto whole = step.parts.extract({0, Phase::Optimizer});
  if (whole.empty()) return;
  std::int64_t all = 0;
  for (const Layer& layer : graph.layers) all += layer.parameters.value_or(0);
  PartTime given;
  std::int64_t sum = 0;
  for (std::size_t i = inputs; i < graph.layers.size(); ++i) {
    const std::int64_t own = graph.layers[i].parameters.value_or(0);
    if (own == 0) continue;
    sum += own;
    const double part = static_cast<double>(sum) / static_cast<double>(all);
    const auto up_to = [&](std::int64_t PartTime::* member) {
      const std::int64_t value = whole.mapped().*member;
      return sum == all ? value : static_cast<std::int64_t>(part * static_cast<double>(value));
    };
    PartTime& time = step.parts[{static_cast<std::int64_t>(i - inputs), Phase::Optimizer}];
    for (const auto member : {&PartTime::busy_ns, &PartTime::active_ns, &PartTime::gap_ns}) {
      time.*member = up_to(member) - given.*member;
      given.*member += time.*member;
    }
    time.activities = whole.mapped().activities;
  }
}

void add_shares(Graph& graph, std::size_t inputs, const StepShares& step) {
  ProfileQuality& quality = *graph.quality;
  ++quality.steps;
  quality.watched_ns += step.end_ns - step.begin_ns;
  quality.data_wait_ns += step.data_wait_ns();
  quality.unattributed_ns += step.unattributed_ns();
  if (quality.debiased) {  // of a device: a host does not wait for its own launches
    quality.host_wait_ns += step.gaps.host_wait_ns;
    quality.kernel_wait_ns += step.gaps.kernel_wait_ns;
  }
  for (const auto& [part, time] : step.parts) {
    if (part.phase == Phase::None || part.phase == Phase::Data) continue;
    Layer& layer = graph.layers[inputs + static_cast<std::size_t>(part.layer)];
    std::optional<LayerShare>& share = part.phase == Phase::Forward    ? layer.forward_share
                                       : part.phase == Phase::Backward ? layer.backward_share
                                                                       : layer.update_share;
    if (!share) share = LayerShare{};
    share->busy_ns += time.busy_ns;
    share->share_ns += time.share_ns();
    share->activities += time.activities;
  }
}

/// What speaks against a measurement, beside what the trace says.
void judge(ProfileQuality& quality, std::int64_t unmapped, double work_over_plain) {
  if (unmapped > 0)
    quality.reasons.push_back(std::to_string(unmapped) + " backward nodes could not be given to a layer");
  if (work_over_plain > kMostWorkOverPlain) {
    quality.reasons.push_back("the device works for longer in a watched step than an unwatched step lasts, by " +
                              std::to_string(work_over_plain * 100) + " %: watching slows it down");
  }
  quality.trusted = quality.reasons.empty();
}

void copy_counts(ProfileQuality& quality, const TraceQuality& trace) {
  quality.reasons = distrust(trace);
  quality.work = trace.activities;
  quality.work_attributed = trace.attributed;
  quality.work_ns = trace.busy_ns;
  quality.work_attributed_ns = trace.attributed_ns;
  quality.dropped = trace.dropped;
  quality.bad_timestamps = trace.zero_times + trace.reversed_times + trace.before_launch;
  quality.disagreements = trace.disagreements;
}

std::int64_t allocator_peak(c10::Device device, const MemoryTracker& memory) {
  if (device.is_cpu()) return memory.peak().value;
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return at::accelerator::getDeviceStats(device.index()).allocated_bytes[kAll].peak;
}

/// Fills the layers' bytes from one iteration, and what they add up to beside the allocator's peak. `briefly`: in this
/// one iteration alone, without what autograd saves.
void measure_memory(Graph& graph, std::size_t inputs, Subject& subject, const std::vector<at::Tensor>& batch,
                    MemoryTracker& memory, c10::Device device, bool briefly) {
  const std::vector<Parameter>& parameters = subject.program().parameters();
  const std::int64_t before = memory.live().value;  // parameters, gradients, optimizer state, buffers, the batch
  LayerMemory observed(graph.layers.size() - inputs, parameters, memory);
  memory.reset_peak();
  subject.observe(batch, observed, [&] { observed.begin_backward(); }, [&] { observed.end_backward(); });
  // A layer that lets more go than it leaves has its surplus taken off the layers after it.
  std::int64_t carried = 0;
  std::int64_t held = 0;
  std::int64_t most = 0;
  // While earlier layers' backwards run, the loss and its own gradient are still there: the caller holds them.
  const std::int64_t to_the_end = 2 * activation_bytes(graph.layers.back()).value;
  for (std::size_t i = inputs; i < graph.layers.size(); ++i) {
    Layer& layer = graph.layers[i];
    const std::int64_t growth = observed.growth()[i - inputs] + carried;
    layer.saved_bytes = Bytes(std::max<std::int64_t>(growth, 0));
    carried = std::min<std::int64_t>(growth, 0);
    layer.workspace_bytes = Bytes(std::max<std::int64_t>(observed.transient()[i - inputs], 0));
    held += layer.saved_bytes->value;
    const bool last = i + 1 == graph.layers.size();
    most = std::max(most, held + layer.workspace_bytes->value + (last ? 0 : to_the_end));
    layer.gradient_bytes = Bytes(0);
  }
  for (const Parameter& parameter : parameters) {
    std::optional<Bytes>& gradient = graph.layers[inputs + static_cast<std::size_t>(parameter.layer)].gradient_bytes;
    if (parameter.value.grad().defined())
      *gradient += Bytes(static_cast<std::int64_t>(parameter.value.grad().nbytes()));
  }
  graph.quality->summed_peak_bytes = Bytes(before + most);
  if (briefly) {
    graph.quality->allocator_peak_bytes = Bytes(device.is_cpu() ? observed.peak() : allocator_peak(device, memory));
    return;
  }
  std::vector<Parameter> own = parameters;  // buffers hold frozen parameters, which graphs save as well
  for (Parameter& buffer : subject.program().buffers()) own.push_back(std::move(buffer));
  SavedBytes saved(graph.layers.size() - inputs, own);
  (void)subject.program().forward({}, batch, 0, 0, true, &saved);
  for (std::size_t i = inputs; i < graph.layers.size(); ++i)
    graph.layers[i].saved_for_backward_bytes = saved.by_layer()[i - inputs];
  memory.reset_peak();
  if (!device.is_cpu()) at::accelerator::resetPeakStats(device.index());
  struct Unobserved : LayerObserver {
    void begin(int) override {}
    void end(int) override {}
  } unobserved;
  subject.observe(batch, unobserved, [] {}, [] {});
  synchronize(device);
  graph.quality->allocator_peak_bytes = Bytes(allocator_peak(device, memory));
}

/// Seconds of an iteration while `count` threads run it at once. `seconds`: of all of it, about.
double concurrent_time(const Model& model, const std::vector<at::Tensor>& batch, const ProfileOptions& options,
                       int count, double seconds) {
  const TimeLimit limit(seconds);
  std::vector<std::unique_ptr<Subject>> subjects;
  for (int i = 0; i < count; ++i)
    subjects.push_back(std::make_unique<Subject>(model, options.optimizer, options.seed, options.placement, false));
  std::vector<std::vector<double>> samples(static_cast<std::size_t>(count));
  std::atomic<bool> stop{false};
  std::barrier ready(count);
  std::vector<std::jthread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      at::set_num_threads(options.threads);
      Subject& subject = *subjects[static_cast<std::size_t>(i)];
      auto& own = samples[static_cast<std::size_t>(i)];
      StepTimer timer(options.placement.device);
      for (int k = 0; k < options.warmup && (k == 0 || limit.left() > limit.spent()); ++k)
        subject.iterate(batch, k, timer);
      (void)timer.take();
      ready.arrive_and_wait();
      const double start = steady_seconds();
      // All go on until the slowest has enough, so that every sample was taken with company.
      while (!stop) {
        subject.iterate(batch, static_cast<int>(own.size()), timer);
        own.push_back(timer.take().front());
        const double spent = steady_seconds() - start;
        const bool enough = own.size() >= 5 && spent > options.rule.most_seconds / 8;
        if (i == 0 && (enough || spent > options.rule.most_seconds || limit.left() <= 0)) stop = true;
      }
    });
  }
  threads.clear();
  std::vector<double> all;
  for (const auto& own : samples) all.insert(all.end(), own.begin(), own.end());
  return median(std::move(all));
}

void check(const ProfileOptions& options) {
  const auto at_least = [](const char* what, std::int64_t value, std::int64_t low) {
    if (value < low)
      throw std::invalid_argument(std::string(what) + " is " + std::to_string(value) + ", wanted at least " +
                                  std::to_string(low));
  };
  at_least("the microbatch", options.microbatch_samples, 1);
  at_least("the number of threads", options.threads, 1);
  at_least("the number of ranks at once", options.concurrent, 1);
  at_least("the warm-up", options.warmup, 0);
  at_least("the fewest samples", static_cast<std::int64_t>(options.rule.fewest), 1);
  validate(options.optimizer);
}

}  // namespace

Profile profile_model(const Model& model, const DataSource& data, const ProfileOptions& options,
                      const std::function<void(const ProfileProgress&)>& progress, KernelTracer* tracer) {
  check(options);
  check_samples(model, options.microbatch_samples);
  const TimeLimit limit(options.most_seconds);
  const auto tell = [&](const std::string& phase, std::size_t iteration, double error = 0) {
    if (progress) progress({phase, iteration, error});
  };
  at::set_num_threads(options.threads);
  const c10::Device device = options.placement.device;
  const bool host = device.is_cpu() && !tracer;
  const int in_a_row = host ? 1 : kStepsInARow;
  const std::size_t layers = model.layers.size();
  const std::size_t inputs = model.inputs.size();
  MemoryTracker memory(device.type());
  auto counting = std::make_unique<MemoryTracker::Scope>(memory);
  Subject subject(model, options.optimizer, options.seed, options.placement, host);
  StepTimer timer(device);
  std::vector<double> loading;
  const auto load = [&](std::int64_t step) {
    const double start = steady_seconds();
    std::vector<at::Tensor> out = data.batch(step, 0, 1, options.microbatch_samples, subject.program().data_inputs());
    for (at::Tensor& tensor : out) tensor = tensor.to(device);
    synchronize(device);
    loading.push_back(steady_seconds() - start);
    return out;
  };
  std::vector<at::Tensor> batch = load(0);
  tell("warm-up", 0);
  Profile out;
  out.graph = model_graph(model, batch, layer_outputs(model, batch, options.seed, options.placement),
                          options.microbatch_samples);
  Graph& graph = out.graph;
  graph.dtype = dtype_name(options.placement.compute);
  graph.optimizer = options.optimizer.name;
  graph.optimizer_state_values = state_values(options.optimizer);
  graph.threads = options.threads;
  graph.quality = ProfileQuality{};
  ProfileQuality& quality = *graph.quality;
  quality.clock = tracer ? tracer->name() : device.is_cpu() ? "host" : "events";

  double iteration = 0;  // about
  int warm = 0;
  // Memory is counted beside gradients and optimizer state, which the first iteration makes.
  for (; warm < std::max(options.warmup, 1); ++warm) {
    if (warm > 0 && limit.left() < (kLeastIterations + 1) * iteration) break;
    tell("warm-up", static_cast<std::size_t>(warm) + 1);
    const double begin = steady_seconds();
    subject.iterate(batch, warm, timer);
    synchronize(device);
    iteration = steady_seconds() - begin;
  }
  if (warm < options.warmup) out.cut.push_back(fmt::format("warm-up of {} iterations ({})", options.warmup, warm));
  tell("memory", 0);
  const bool briefly = limit.left() < (kLeastIterations + 2) * iteration;
  if (briefly) out.cut.emplace_back("bytes saved for backward");
  measure_memory(graph, inputs, subject, batch, memory, device, briefly);
  counting.reset();

  const std::vector<Parameter>& parameters = subject.program().parameters();
  std::vector<RangeName> ranges;
  for (const LayerSpec& layer : model.layers) ranges.push_back(range_name(layer.name + " backward"));
  const std::unique_ptr<Watch> watch =
      tracer ? make_tracing_watch(parameters, *tracer, device, static_cast<int>(layers) - 1, ranges)
             : make_marking_watch(parameters, host ? make_host_marks() : make_event_marks(device), ranges);
  if (limit.left() > kLeastIterations * iteration) {
    subject.watch(batch, 0, *watch);  // makes the state of what only watched steps use
    synchronize(device);
    (void)watch->take();
  }
  (void)timer.take();

  std::vector<double> whole;
  Samples rough(layers);
  TraceQuality seen;
  int step = 1;
  loading.clear();
  StoppingRule rule = options.rule;
  const bool at_once = options.concurrent > 1 && device.is_cpu();
  rule.most_seconds = std::min(rule.most_seconds, std::max(limit.left(), 0.0) * (at_once ? kSampleShare : 1));
  if (rule.most_seconds < options.rule.most_seconds) rule.least = 1;
  for (const double start = steady_seconds(); out.stop == Stop::No;) {
    watch->pause();
    batch = load(step);
    for (int i = 0; i < in_a_row; ++i) subject.iterate(batch, step + i, timer);
    synchronize(device);
    const std::vector<double> plain = timer.take();
    watch->resume();
    for (int i = 0; i < in_a_row; ++i) subject.watch(batch, step++, *watch);
    synchronize(device);
    std::vector<StepShares> steps = watch->take();
    seen += watch->trace().quality;
    // Of a row the first starts with an idle device.
    const std::size_t skipped = in_a_row > 1 ? 1 : 0;
    whole.insert(whole.end(), plain.begin() + static_cast<std::ptrdiff_t>(skipped), plain.end());
    for (std::size_t i = skipped; i < steps.size(); ++i) {
      if (!host) divide_update(steps[i], graph, inputs);
      rough.add(steps[i]);
      out.steps.push_back(std::move(steps[i]));
    }
    if (out.steps.empty()) {
      throw DeviceError("no step of the model could be seen in what " + quality.clock + " recorded; " +
                        "measure with --clock events");
    }
    std::vector<std::vector<double>> parts = rough.forward;
    parts.insert(parts.end(), rough.backward.begin(), rough.backward.end());
    out.stop = should_stop(rule, whole, parts, steady_seconds() - start);
    tell("measuring", whole.size(), relative_error(whole));
  }
  out.unmapped = watch->unmapped();
  out.trace = watch->trace();

  graph.iteration = summarize(whole);
  const auto plain_ns = static_cast<std::int64_t>(graph.iteration->median.value * kNanosecondsPerSecond);
  quality.debiased = !host;
  Samples samples(layers);
  std::vector<double> watched;
  std::vector<double> work;
  for (const StepShares& each : out.steps) {
    const StepShares counted = host ? each : debias(each, plain_ns);
    samples.add(counted);
    add_shares(graph, inputs, counted);
    watched.push_back(seconds_of(each.end_ns - each.begin_ns));
    work.push_back(seconds_of(each.work_ns));
  }
  quality.watched = summarize(watched);
  if (tracer) copy_counts(quality, seen);
  judge(quality, out.unmapped, host ? 0 : median(work) / graph.iteration->median.value - 1);

  for (std::size_t l = 0; l < layers; ++l) {
    Layer& layer = graph.layers[inputs + l];
    layer.forward = summarize(samples.forward[l]);
    layer.backward = summarize(samples.backward[l]);
    out.sum += layer.forward.median + layer.backward.median;
    if (!layer.update_share) continue;
    layer.update = summarize(samples.update[l]);
    out.sum += layer.update->median;
  }
  out.watched = Seconds(median(samples.sums));
  // Loading is one call for all inputs; it is told with the first.
  if (inputs > 0) graph.layers.front().forward = summarize(loading);

  if (options.isolated && limit.left() <= 0) out.cut.emplace_back("layers alone");
  if (options.isolated && limit.left() > 0) {
    watch->pause();
    rule = options.rule;
    rule.most_seconds = std::min(options.isolated_seconds, limit.left() / static_cast<double>(layers));
    if (rule.most_seconds < options.isolated_seconds) rule.least = 1;
    const Bytes cache = device.is_cpu() ? Bytes(0) : gpu_properties(device.index()).l2_bytes;
    const std::vector<IsolatedTime> alone =
        isolated_times(model, batch, layer_outputs(model, batch, options.seed, options.placement), options.seed,
                       options.placement, cache, rule, [&](const std::string& layer) { tell("alone: " + layer, 0); });
    for (std::size_t l = 0; l < layers; ++l) {
      Layer& layer = graph.layers[inputs + l];
      if (layer.forward_share) layer.forward_share->isolated = alone[l].forward;
      if (layer.backward_share) layer.backward_share->isolated = alone[l].backward;
    }
  }
  if (at_once) {
    graph.slowdown = {1};
    double single = graph.iteration->median.value;
    for (int count = 1; count <= options.concurrent; ++count) {
      // A warm-up and a sample, of ranks that at worst wait for each other.
      if (limit.left() < 2 * count * graph.iteration->median.value) {
        if (count > 1) out.cut.push_back(fmt::format("slowdown of {} ranks", count));
        continue;
      }
      tell(std::to_string(count) + " at once", 0);
      const double time =
          concurrent_time(model, batch, options, count, limit.left() / (options.concurrent - count + 1));
      if (count == 1) {
        single = time;
      } else {
        graph.slowdown.push_back(std::max(graph.slowdown.back(), time / single));
      }
    }
    if (graph.slowdown.size() == 1) graph.slowdown.clear();  // says nothing of several
  }
  out.seconds = limit.spent();
  return out;
}

}  // namespace stagecraft

#include "profiler/slowdown.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "costmodel/conditions.h"
#include "costmodel/index.h"
#include "costmodel/timeline.h"
#include "profiler/subject/subject.h"
#include "profiler/subject/watch.h"

namespace stagecraft::profiler {
namespace {

/// State shared by the threads.
struct Together {
  Together(int count, double seconds) : limit(seconds), ready(count) {}
  TimeLimit limit;
  std::barrier<> ready;
  std::atomic<bool> stop{false};
};

/// Rounds that other programs did not disturb.
constexpr int kRounds = 5;
/// Processors that other programs keep busy, above which they disturb a round.
constexpr double kDisturbing = 0.1;
/// Rounds at most, if other programs disturb some of them.
constexpr int kMostRounds = 2 * kRounds;

bool is_disturbed(const device::ProcessorReport& use) {
  return std::ranges::any_of(device::processor_use({&use, 1}),
                             [](const ProcessorUse& host) { return host.others > kDisturbing; });
}

/// More change little: the caches then hold almost nothing of the first one.
constexpr int kInFlight = 4;
constexpr double kFewestRounds = 1;
/// Enough for a model whose rounds take long.
constexpr double kEnoughRounds = 5;
/// Rounds of a small model: as many as take so long, and at most so many.
constexpr double kSeconds = 3;
constexpr double kMostInFlightRounds = 15;
constexpr std::int64_t kBytesPerKiB = 1024;

double seconds_of(Subject& subject, const std::vector<at::Tensor>& batch, bool in_flight) {
  StepTimer timer(c10::Device(c10::kCPU));
  subject.run_microbatches(batch, kInFlight, in_flight, timer);
  return timer.take().front();
}

}  // namespace

Seconds time_together(const std::vector<std::vector<double>>& samples, bool share_processors) {
  if (share_processors) {
    double rates = 0;
    for (const auto& iterations : samples) {
      const double spent = std::accumulate(iterations.begin(), iterations.end(), 0.0);
      if (spent > 0) rates += static_cast<double>(iterations.size()) / spent;
    }
    if (rates > 0) return Seconds(static_cast<double>(samples.size()) / rates);
  }
  std::vector<double> all;
  for (const auto& iterations : samples) all.insert(all.end(), iterations.begin(), iterations.end());
  return Seconds(median(std::move(all)));
}

namespace {

/// One rank, in a thread of its own while it runs.
struct Rank {
  Rank(const model::Model& model, const ProfileOptions& options)
      : subject(model, options.optimizer, options.seed, options.placement, false), warmup(options.warmup) {}
  Subject subject;
  int warmup;  ///< iterations of the next one

  /// Seconds of each iteration. The one that leads ends all.
  std::vector<double> iterate(const std::vector<at::Tensor>& batch, const ProfileOptions& options, bool leads,
                              Together& together) {
    at::set_num_threads(options.threads);
    const TimeLimit& limit = together.limit;
    StepTimer timer(options.placement.device);
    for (int k = 0; k < warmup && (k == 0 || limit.left() > limit.spent()); ++k) subject.iterate(batch, k, timer);
    warmup = std::min(warmup, 1);
    (void)timer.take();
    together.ready.arrive_and_wait();
    const double start = steady_seconds();
    std::vector<double> out;
    // All continue until the leader has enough samples, so that every sample is taken under load.
    while (!together.stop) {
      subject.iterate(batch, to_int(out.size()), timer);
      out.push_back(timer.take().front());
      const bool enough = out.size() >= kEnoughSamples && steady_seconds() - start > options.rule.most_seconds / 24;
      if (leads && (enough || limit.left() <= 0)) together.stop = true;
    }
    return out;
  }
};

class ThreadRanks : public ConcurrentRanks {
 public:
  ThreadRanks(const model::Model& model, const std::vector<at::Tensor>& batch, const ProfileOptions& options)
      : model_(model), batch_(batch), options_(options) {}

  Seconds time(int count, double seconds) override {
    Together together(count, seconds);
    while (to_int(ranks_.size()) < count) ranks_.push_back(std::make_unique<Rank>(model_, options_));
    std::vector<std::vector<double>> samples(to_index(count));
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < samples.size(); ++i)
      threads.emplace_back([&, i] { samples[i] = ranks_[i]->iterate(batch_, options_, i == 0, together); });
    threads.clear();
    return time_together(samples, share_processors(count, options_));
  }
  Seconds other_processes_time() const override { return {}; }

 private:
  const model::Model& model_;
  const std::vector<at::Tensor>& batch_;
  const ProfileOptions& options_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace

bool share_processors(int count, const ProfileOptions& options) {
  const int processors = to_int(std::thread::hardware_concurrency());
  return processors > 0 && count * options.threads > processors;
}

std::unique_ptr<ConcurrentRanks> ranks_as_threads(const model::Model& model, const std::vector<at::Tensor>& batch,
                                                  const ProfileOptions& options) {
  return std::make_unique<ThreadRanks>(model, batch, options);
}

std::vector<double> slowdown_of(const std::vector<RoundOfRanks>& rounds) {
  const bool all_disturbed = std::ranges::all_of(rounds, &RoundOfRanks::is_disturbed);
  std::vector<double> out;
  for (std::size_t k = 0;; ++k) {
    std::vector<double> ratios;
    for (const RoundOfRanks& round : rounds) {
      if (k < round.times.size() && (all_disturbed || !round.is_disturbed))
        ratios.push_back(round.times[k] / round.times.front());
    }
    if (ratios.empty()) return out;
    out.push_back(std::max(k == 0 ? 1.0 : out.back(), median(std::move(ratios))));
  }
}

RankRounds run_rank_rounds(const std::function<std::unique_ptr<ConcurrentRanks>()>& start, int most, Seconds iteration,
                           const TimeLimit& limit, const std::function<void(int count)>& begin_turn,
                           const std::function<device::ProcessorMoment()>& now) {
  RankRounds out;
  // A turn is a warm-up and a sample at least, of ranks that at worst wait for each other.
  const auto has_time = [&](int count) { return limit.left() >= 2 * count * iteration.value; };
  if (!has_time(1)) return out;  // starting ranks takes time
  const std::unique_ptr<ConcurrentRanks> ranks = start();
  std::vector<RoundOfRanks> rounds;
  device::ProcessorReport use;  // of the last round
  const auto quiet = [&] { return to_int(std::ranges::count(rounds, false, &RoundOfRanks::is_disturbed)); };
  while (quiet() < kRounds && to_int(rounds.size()) < kMostRounds) {
    RoundOfRanks round;
    const device::ProcessorMoment before = now();
    const Seconds processes_before = ranks->other_processes_time();
    int turns = (kRounds - quiet()) * most;
    for (int count = 1; count <= most && has_time(count); ++count) {
      begin_turn(count);
      round.times.push_back(ranks->time(count, limit.left() / turns--));
    }
    if (round.times.empty()) break;
    use = device::processor_report(before, now());
    use.process_time += ranks->other_processes_time() - processes_before;
    round.is_disturbed = is_disturbed(use);
    rounds.push_back(std::move(round));
  }
  out.other_processes_time = ranks->other_processes_time();
  out.slowdown = slowdown_of(rounds);
  if (!rounds.empty() && quiet() == 0) out.disturbed = use;
  return out;
}

double in_flight_factor_of(const std::vector<InFlightRound>& rounds) {
  std::vector<double> ratios;
  for (const InFlightRound& round : rounds) ratios.push_back(round.in_flight / round.one_by_one);
  return std::max(1.0, median(std::move(ratios)));
}

std::optional<Bytes> available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  for (std::int64_t value = 0; file >> key >> value; file.ignore(80, '\n')) {
    if (key == "MemAvailable:") return Bytes(value * kBytesPerKiB);
  }
  return std::nullopt;
}

std::optional<InFlightSlowdown> measure_in_flight_slowdown(Subject& subject, const std::vector<at::Tensor>& batch,
                                                           Bytes saved, Seconds iteration, double seconds) {
  const double round_seconds = 2 * kInFlight * iteration.value;
  const double wanted = std::clamp(kSeconds / round_seconds, kEnoughRounds, kMostInFlightRounds);
  // Half a round is for a warm-up.
  const double fitting = std::min(wanted, seconds / round_seconds - 0.5);
  const std::optional<Bytes> available = available_memory();
  if (!(fitting >= kFewestRounds) || (available && 2 * kInFlight * saved > *available)) return std::nullopt;
  (void)seconds_of(subject, batch, true);
  std::vector<InFlightRound> rounds;
  while (static_cast<double>(rounds.size() + 1) <= fitting) {
    // The orders take turns in going first, so that a machine that becomes slower favours neither.
    InFlightRound& round = rounds.emplace_back();
    const bool first = rounds.size() % 2 == 0;
    for (const bool in_flight : {first, !first})
      (in_flight ? round.in_flight : round.one_by_one) = seconds_of(subject, batch, in_flight);
  }
  return InFlightSlowdown{kInFlight, in_flight_factor_of(rounds)};
}

}  // namespace stagecraft::profiler

#include "profiler/concurrent_time.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <barrier>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "costmodel/index.h"
#include "costmodel/timeline.h"
#include "profiler/subject/subject.h"
#include "profiler/subject/time_limit.h"

namespace stagecraft::profiler {
namespace {

constexpr std::size_t kEnoughSamples = 5;

/// State shared by the threads.
struct Together {
  Together(int count, double seconds) : limit(seconds), ready(count) {}
  TimeLimit limit;
  std::barrier<> ready;
  std::atomic<bool> stop{false};
};

/// Seconds of each iteration of one thread. The one with `leads` ends all.
std::vector<double> iterate_together(Subject& subject, const std::vector<at::Tensor>& batch,
                                     const ProfileOptions& options, bool leads, Together& together) {
  at::set_num_threads(options.threads);
  const TimeLimit& limit = together.limit;
  StepTimer timer(options.placement.device);
  for (int k = 0; k < options.warmup && (k == 0 || limit.left() > limit.spent()); ++k) subject.iterate(batch, k, timer);
  (void)timer.take();
  together.ready.arrive_and_wait();
  const double start = steady_seconds();
  std::vector<double> out;
  // All continue until the leader has enough samples, so that every sample is taken under load.
  while (!together.stop) {
    subject.iterate(batch, to_int(out.size()), timer);
    out.push_back(timer.take().front());
    const double spent = steady_seconds() - start;
    const bool enough = out.size() >= kEnoughSamples && spent > options.rule.most_seconds / 8;
    if (leads && (enough || spent > options.rule.most_seconds || limit.left() <= 0)) together.stop = true;
  }
  return out;
}

}  // namespace

Seconds time_together(const std::vector<std::vector<double>>& samples, bool share_processors) {
  if (share_processors) {
    double rates = 0;
    for (const auto& each : samples) {
      const double spent = std::accumulate(each.begin(), each.end(), 0.0);
      if (spent > 0) rates += static_cast<double>(each.size()) / spent;
    }
    if (rates > 0) return Seconds(static_cast<double>(samples.size()) / rates);
  }
  std::vector<double> all;
  for (const auto& each : samples) all.insert(all.end(), each.begin(), each.end());
  return Seconds(median(std::move(all)));
}

Seconds concurrent_time(const model::Model& model, const std::vector<at::Tensor>& batch, const ProfileOptions& options,
                        int count, double seconds) {
  Together together(count, seconds);
  std::vector<std::unique_ptr<Subject>> subjects;
  for (int i = 0; i < count; ++i)
    subjects.push_back(std::make_unique<Subject>(model, options.optimizer, options.seed, options.placement, false));
  std::vector<std::vector<double>> samples(to_index(count));
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    threads.emplace_back([&, i] { samples[i] = iterate_together(*subjects[i], batch, options, i == 0, together); });
  }
  threads.clear();
  const int processors = to_int(std::thread::hardware_concurrency());
  return time_together(samples, processors > 0 && count * options.threads > processors);
}

}  // namespace stagecraft::profiler

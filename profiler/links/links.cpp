#include "profiler/links/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ranges>
#include <span>
#include <stdexcept>

#include "costmodel/timeline.h"

namespace stagecraft::profiler {
namespace {

using enum LinkOperation;

// Of one size in one round: a round of all sizes is short beside drift, a visit long beside the start of its messages.
constexpr double kVisitSeconds = 0.002;
constexpr double kShortVisitSeconds = 0.0002;  // if time is short
constexpr double kMostVisit = 4096;
constexpr double kMostBatch = 1000;
constexpr std::size_t kFewestRounds = 10;  // without which nothing is precise enough
constexpr std::size_t kLeastRounds = 5;    // even when time is up
constexpr std::size_t kRestRounds = 20;    // at most of what is precise already

/// A point while it is measured.
struct Course {
  LinkTask task;
  double once = 0;              ///< seconds of one run, as last measured
  std::vector<double> medians;  ///< by round that it took part in
  std::int64_t samples = 0;
  double spent = 0;  ///< seconds in rounds
  Stop stop = Stop::No;
};

double seconds_of_one(double measured) { return std::max(measured, 1e-9); }

/// Takes the samples of one round, for about `seconds`, but at least one.
void visit(LinkMeter& meter, Course& course, double seconds) {
  const double batch = std::clamp(std::ceil(meter.shortest_sample().value / course.once), 1.0, kMostBatch);
  const double count = std::clamp(std::floor(seconds / (course.once * batch)), 1.0, kMostVisit);
  // The first of several samples wakes the ends; one that is as long as a visit does not notice that.
  const bool drop_first = count > 1;
  std::vector<double> samples = meter.seconds_of(course.task, static_cast<std::int64_t>(count) + (drop_first ? 1 : 0),
                                                 static_cast<std::int64_t>(batch));
  if (drop_first) samples.erase(samples.begin());
  course.samples += static_cast<std::int64_t>(samples.size());
  course.medians.push_back(median(std::move(samples)));
  course.once = seconds_of_one(course.medians.back());
}

/// The mean time that points spent which are not precise; there must be one.
double mean_spent(const std::vector<Course>& courses) {
  double sum = 0;
  double count = 0;
  for (const Course& course : courses) {
    if (course.stop == Stop::Precise) continue;
    sum += course.spent;
    ++count;
  }
  return sum / count;
}

/// Whether a point takes part in the next round, when a share `passed` of the time is over. Points that are not precise
/// get equal time, up to a visit, so long messages skip rounds. But no point misses a long part of the time, in which
/// the machine may have become slower.
bool is_due(const Course& course, double equal_seconds, double passed) {
  const std::size_t rounds = course.medians.size();
  if (passed >= 1) return rounds < kLeastRounds;
  const bool precise = course.stop == Stop::Precise;
  const auto spread = static_cast<double>(precise ? kRestRounds : kLeastRounds);
  return (!precise && course.spent <= equal_seconds) || static_cast<double>(rounds) < passed * spread;
}

/// Tasks that differ in their bytes only, ascending, for about `most_seconds`, in rounds, so that drift of the machine
/// is in all points alike. `progress` is called before each round, with 0 before the first runs.
std::vector<LinkPoint> measure_together(LinkMeter& meter, std::span<const LinkTask> tasks, double error,
                                        double most_seconds, const std::function<void(int)>& progress,
                                        const std::function<double()>& now) {
  const double start = now();
  const double visit_seconds =
      std::clamp(most_seconds / static_cast<double>(kLeastRounds * tasks.size()), kShortVisitSeconds, kVisitSeconds);
  const StoppingRule rule{
      .iteration_error = error, .fewest = kFewestRounds, .least = kLeastRounds, .most_seconds = most_seconds};
  // The first time through, buffers are made, connections set up, and the ends agree on the shape. From then on every
  // other pass goes down in bytes: a message follows one of its own or a similar size, and the smallest does not follow
  // the largest, which empties the caches.
  progress(0);
  std::vector<Course> courses;
  for (const LinkTask& task : std::views::reverse(tasks))
    courses.push_back({.task = task, .once = seconds_of_one(meter.seconds_of(task, 2, 1).back()), .medians = {}});
  const auto ended = [&] { return std::ranges::find(courses, Stop::No, &Course::stop) == courses.end(); };
  double elapsed = now() - start;
  for (int round = 1; !ended(); ++round) {
    progress(round);
    std::ranges::reverse(courses);
    const double equal_seconds = mean_spent(courses) + visit_seconds;
    const double passed = elapsed < most_seconds ? elapsed / most_seconds : 1;
    for (Course& course : courses) {
      if (!is_due(course, equal_seconds, passed)) continue;
      const double begin = now();
      visit(meter, course, visit_seconds);
      course.spent += now() - begin;
    }
    elapsed = now() - start;
    for (Course& course : courses) course.stop = should_stop(rule, course.medians, {}, elapsed);
  }
  std::ranges::sort(courses, {}, [](const Course& course) { return course.task.bytes; });
  std::vector<LinkPoint> out;
  for (const Course& course : courses)
    out.push_back({course.task.bytes, summarize(course.medians), course.stop, course.samples});
  return out;
}

bool needs_ranks(LinkOperation operation) {
  return operation == Pairs || operation == AllReduce || operation == AllGather || operation == ReduceScatter;
}

}  // namespace

std::string curve_name(LinkOperation operation, int ranks) {
  const auto text = [&] {
    switch (operation) {
      case SendReceive:
        return "send_receive";
      case Duplex:
        return "duplex";
      case Pairs:
        return "pairs";
      case AllReduce:
        return "all_reduce";
      case AllGather:
        return "all_gather";
      case ReduceScatter:
        return "reduce_scatter";
      case HostToDevice:
        return "host_to_device";
      case DeviceToHost:
        return "device_to_host";
    }
    return "";
  };
  return needs_ranks(operation) ? fmt::format("{} of {}", text(), ranks) : text();
}

std::vector<Bytes> message_bytes(Bytes most, int per_octave) {
  constexpr std::int64_t kFloat = sizeof(float);
  // A GPU copies 16 bytes at a time where it may: on an H100, NCCL took 12.8 ms for 362 MiB that 16 did not divide, and
  // 3.9 ms otherwise. Nearly all tensors have such a size.
  constexpr std::int64_t kFloatsAligned = 4;
  constexpr std::int64_t kFloatsOfUnaligned = 16;
  if (most.value < kFloat || most > 16_GiB) {
    throw std::invalid_argument(
        fmt::format("the largest message is {} bytes, must be {} to {}", most.value, kFloat, (16_GiB).value));
  }
  if (per_octave < 1 || per_octave > 64)
    throw std::invalid_argument(fmt::format("the number of sizes per octave is {}, must be 1 to 64", per_octave));
  const std::int64_t last = most.value / kFloat;
  std::vector<Bytes> out;
  for (int i = 0;; ++i) {
    auto floats = static_cast<std::int64_t>(std::exp2(static_cast<double>(i) / per_octave));
    if (floats >= kFloatsOfUnaligned) floats -= floats % kFloatsAligned;
    if (floats >= last) break;
    if (out.empty() || out.back().value < floats * kFloat) out.emplace_back(floats * kFloat);
  }
  out.emplace_back(last * kFloat);
  return out;
}

std::vector<LinkTask> link_tasks(int ranks, bool copies, const LinksOptions& options) {
  if (ranks < 1) throw std::invalid_argument(fmt::format("the number of ranks is {}, must be at least 1", ranks));
  const std::vector<Bytes> sizes = message_bytes(options.most_bytes, options.sizes_per_octave);
  std::vector<LinkTask> out;
  const auto add = [&](LinkOperation operation, int members) {
    for (const Bytes bytes : sizes) out.push_back({operation, bytes, members, 0, members == 1 ? 0 : 1});
  };
  add(SendReceive, std::min(ranks, 2));
  if (ranks > 1) add(Duplex, 2);
  if (ranks > 3) add(Pairs, ranks / 2 * 2);
  for (const LinkOperation collective : {AllReduce, AllGather, ReduceScatter}) {
    for (int members = std::min(ranks, 2); members <= ranks; ++members) add(collective, members);
  }
  if (copies) {
    add(HostToDevice, 1);
    add(DeviceToHost, 1);
  }
  return out;
}

LinkMeasurement measure_links(LinkMeter& meter, const LinksOptions& options,
                              const std::function<void(const std::string&)>& progress,
                              const std::function<double()>& now) {
  if (!(options.most_time > Seconds(0)))
    throw std::invalid_argument(fmt::format("the time is {} s, must be above 0", options.most_time.value));
  if (!(options.error > 0))
    throw std::invalid_argument(fmt::format("the relative error is {}, must be above 0", options.error));
  LinkMeasurement out;
  out.ranks = meter.ranks();
  const std::vector<LinkTask> tasks = link_tasks(out.ranks, meter.copies(), options);
  const Bytes largest = tasks.back().bytes;
  std::vector<LinkTask> pairs;
  for (int from = 0; out.ranks > 2 && from < out.ranks; ++from) {
    for (int to = from + 1; to < out.ranks; ++to) pairs.push_back({SendReceive, largest, 2, from, to});
  }
  // Pairs are measured one by one: interleaved, a meter that connects the ends of one task at a time (NCCL) would
  // connect them again in each round.
  std::vector<std::span<const LinkTask>> curves;
  for (std::size_t i = 0; i < tasks.size();) {
    const std::size_t first = i;
    while (i < tasks.size() && tasks[i].operation == tasks[first].operation && tasks[i].ranks == tasks[first].ranks)
      ++i;
    curves.push_back(std::span(tasks).subspan(first, i - first));
  }
  const double end = now() + options.most_time.value;
  const std::size_t groups = curves.size() + pairs.size();
  std::size_t group = 0;
  std::size_t left = tasks.size() + pairs.size();
  const auto measure = [&](std::span<const LinkTask> together, const std::string& name) {
    const double share = std::max(end - now(), 0.0) * static_cast<double>(together.size()) / static_cast<double>(left);
    ++group;
    left -= together.size();
    const auto tell = [&](int round) {
      if (!progress) return;
      progress(fmt::format("{}, {} ({} of {})", name, round == 0 ? "warm-up" : fmt::format("round {}", round), group,
                           groups));
    };
    return measure_together(meter, together, options.error, share, tell, now);
  };
  for (const auto& curve : curves) {
    const LinkTask& task = curve.front();
    out.curves.push_back({task.operation, task.ranks, measure(curve, curve_name(task.operation, task.ranks))});
  }
  if (pairs.empty()) return out;
  SlowestPair slowest{.bytes = largest};
  double neighbours = 0;
  for (const LinkTask& task : pairs) {
    const double time =
        measure(std::span(&task, 1), fmt::format("ranks {} and {}", task.from, task.to)).front().time.median.value;
    if (neighbours == 0) neighbours = time;
    if (time / neighbours > slowest.ratio) slowest = {task.from, task.to, largest, time / neighbours};
  }
  out.slowest_pair = slowest;
  return out;
}

}  // namespace stagecraft::profiler

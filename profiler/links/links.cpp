#include "profiler/links/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "costmodel/units_text.h"

namespace stagecraft::profiler {
namespace {

using enum LinkOperation;

constexpr double kRoundSeconds = 0.01;  // of a first round: beginning and ending one costs messages to all
constexpr double kMostRound = 4096;
constexpr double kMostBatch = 1000;

LinkPoint measure_point(LinkMeter& meter, const LinkTask& task, const StoppingRule& rule,
                        const std::function<double()>& now) {
  // The first time through, buffers are made, connections set up, and the ends agree on the shape.
  const double once = std::max(meter.seconds_of(task, 2, 1).back(), 1e-9);
  const double batch = std::clamp(std::ceil(meter.shortest_sample().value / once), 1.0, kMostBatch);
  const auto samples_in = [&](double seconds) { return std::floor(seconds / (once * batch)); };
  const double least = static_cast<double>(rule.least);
  double count = std::clamp(samples_in(std::min(kRoundSeconds, rule.most_seconds)), least, kMostRound);
  std::vector<double> samples;
  LinkPoint out{task.bytes, {}, Stop::No};
  for (const double start = now(); out.stop == Stop::No; count = std::min(count * 2, kMostRound)) {
    if (!samples.empty()) count = std::clamp(samples_in(rule.most_seconds - (now() - start)), 1.0, count);
    const auto more = meter.seconds_of(task, static_cast<std::int64_t>(count), static_cast<std::int64_t>(batch));
    samples.insert(samples.end(), more.begin(), more.end());
    out.stop = should_stop(rule, samples, {}, now() - start);
  }
  out.time = summarize(samples);
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
  if (most.value < kFloat || most > 16_GiB) {
    throw std::invalid_argument(
        fmt::format("the largest message is {} bytes, must be {} to {}", most.value, kFloat, (16_GiB).value));
  }
  if (per_octave < 1 || per_octave > 64)
    throw std::invalid_argument(fmt::format("the number of sizes per octave is {}, must be 1 to 64", per_octave));
  const std::int64_t last = most.value / kFloat;
  std::vector<Bytes> out;
  for (int i = 0;; ++i) {
    const auto floats = static_cast<std::int64_t>(std::exp2(static_cast<double>(i) / per_octave));
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
  const double end = now() + options.most_time.value;
  std::size_t left = tasks.size() + pairs.size();
  const auto point = [&](const LinkTask& task, const std::string& text) {
    const double share = std::max(end - now(), 0.0) / static_cast<double>(left);
    if (progress)
      progress(fmt::format("{}, {} ({} of {})", text, format_bytes(task.bytes), tasks.size() + pairs.size() - left + 1,
                           tasks.size() + pairs.size()));
    --left;
    return measure_point(meter, task,
                         {.iteration_error = options.error, .fewest = 10, .least = 5, .most_seconds = share}, now);
  };
  for (const LinkTask& task : tasks) {
    if (out.curves.empty() || out.curves.back().operation != task.operation || out.curves.back().ranks != task.ranks)
      out.curves.push_back({task.operation, task.ranks, {}});
    out.curves.back().points.push_back(point(task, curve_name(task.operation, task.ranks)));
  }
  if (pairs.empty()) return out;
  SlowestPair slowest{.bytes = largest};
  double neighbours = 0;
  for (const LinkTask& task : pairs) {
    const double time = point(task, fmt::format("ranks {} and {}", task.from, task.to)).time.median.value;
    if (neighbours == 0) neighbours = time;
    if (time / neighbours > slowest.ratio) slowest = {task.from, task.to, largest, time / neighbours};
  }
  out.slowest_pair = slowest;
  return out;
}

}  // namespace stagecraft::profiler

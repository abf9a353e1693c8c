#include "profiler/links.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "costmodel/units_text.h"
#include "profiler/layer_clock.h"

namespace stagecraft {
namespace {

constexpr int kTag = 0;
constexpr double kRoundSeconds =
    0.01;  // of a first round: rounds end with a message to all, which small ones would feel
constexpr double kMostRound = 4096;

at::Tensor floats(Bytes bytes) {
  return at::zeros({bytes.value / static_cast<std::int64_t>(sizeof(float))}, at::TensorOptions().dtype(at::kFloat));
}

/// One rank's part in the measurement of a channel.
class Meter {
 public:
  Meter(Channel& channel, const StoppingRule& rule) : channel_(channel), rule_(rule) {}

  /// A transfer between `from`, which holds the clock, and `to`. All ranks call it; the point is `from`'s.
  LinkPoint send_receive(Bytes bytes, int from, int to) {
    const at::Tensor message = floats(bytes);
    const TensorSpec spec{message.sizes().vec(), message.scalar_type()};
    const auto ping = [&] {
      const auto receiving = channel_.receive(spec, to, kTag);
      const auto sending = channel_.send(message, to, kTag);
      (void)receiving->wait();
      sending->wait();
    };
    const auto pong = [&] {
      (void)channel_.receive(spec, from, kTag)->wait();
      channel_.send(message, from, kTag)->wait();
    };
    LinkPoint point =
        channel_.rank() == from ? repeat(ping, from) : follow(channel_.rank() == to ? pong : Work(), from);
    point.bytes = bytes;
    point.time.median = point.time.median / 2;
    if (point.time.spread) point.time.spread = *point.time.spread / 2;
    return point;
  }

  /// An all-reduce among the first `members` ranks; the point is rank 0's.
  LinkPoint all_reduce(Bytes bytes, int members) {
    std::vector<int> ranks(static_cast<std::size_t>(members));
    std::iota(ranks.begin(), ranks.end(), 0);
    at::Tensor values = floats(bytes);
    const auto reduce = [&] { channel_.all_reduce(values, ranks, kTag); };
    LinkPoint point = channel_.rank() == 0 ? repeat(reduce, 0) : follow(channel_.rank() < members ? reduce : Work(), 0);
    point.bytes = bytes;
    return point;
  }

  /// `value` of rank `from`, on rank 0; 0 elsewhere.
  double tell_rank_0(double value, int from) {
    if (from == 0 || (channel_.rank() != 0 && channel_.rank() != from)) return channel_.rank() == from ? value : 0;
    if (channel_.rank() == 0)
      return channel_.receive({{}, at::kDouble}, from, Channel::kControlTag)->wait().item<double>();
    channel_.send(at::full({}, value, at::TensorOptions().dtype(at::kDouble)), 0, Channel::kControlTag)->wait();
    return 0;
  }

 private:
  using Work = std::function<void()>;

  /// Does `work` in rounds until the rule is satisfied, and tells the others how often each time.
  LinkPoint repeat(const Work& work, int leader) {
    std::vector<double> samples;
    const auto round = [&](double count) {
      announce(static_cast<std::int64_t>(count), leader);
      for (double i = 0; i < count; ++i) {
        const double start = steady_seconds();
        work();
        samples.push_back(steady_seconds() - start);
      }
    };
    // The first time through buffers are made and the channel's ends agree on the shape.
    round(2);
    const double fewest = static_cast<double>(rule_.fewest);
    const auto times_in = [&](double seconds) { return std::floor(seconds / std::max(samples.back(), 1e-9)); };
    double count = std::clamp(times_in(kRoundSeconds), fewest, std::max(fewest, kMostRound));
    samples.clear();
    LinkPoint point;
    for (const double start = steady_seconds(); point.stop == Stop::No; count = std::min(count * 2, kMostRound)) {
      if (!samples.empty()) count = std::clamp(times_in(rule_.most_seconds - (steady_seconds() - start)), 1.0, count);
      round(count);
      point.stop = should_stop(rule_, samples, {}, steady_seconds() - start);
    }
    announce(0, leader);
    point.time = summarize(samples);
    return point;
  }

  /// The other ranks' side of repeat; without work a rank just waits.
  LinkPoint follow(const Work& work, int leader) {
    while (true) {
      const auto count = channel_.receive({{}, at::kLong}, leader, Channel::kControlTag)->wait().item<std::int64_t>();
      if (count == 0) return {};
      for (std::int64_t i = 0; work && i < count; ++i) work();
    }
  }

  void announce(std::int64_t count, int leader) {
    const at::Tensor message = at::full({}, count, at::TensorOptions().dtype(at::kLong));
    for (int rank = 0; rank < channel_.ranks(); ++rank) {
      if (rank != leader) channel_.send(message, rank, Channel::kControlTag)->wait();
    }
  }

  Channel& channel_;
  StoppingRule rule_;
};

/// "13 points of 5 to 2000 samples, 2 ended by time; spread up to 3.1 % of the median, at 16 B".
std::string quality(const std::vector<LinkPoint>& points) {
  const auto [fewest, most] = std::ranges::minmax(points, {}, [](const LinkPoint& p) { return p.time.count; });
  const auto by_time = std::ranges::count(points, Stop::Time, &LinkPoint::stop);
  const auto spread = [](const LinkPoint& p) { return p.time.spread ? *p.time.spread / p.time.median : 0; };
  const LinkPoint& widest = *std::ranges::max_element(points, {}, spread);
  return fmt::format("{} points of {} to {} samples, {} ended by time; spread up to {:.1f} % of the median, at {}",
                     points.size(), fewest.time.count, most.time.count, by_time, spread(widest) * 100,
                     format_bytes(widest.bytes));
}

Curve curve_of(const std::vector<LinkPoint>& points) {
  Curve out;
  for (const LinkPoint& point : points) out.points.push_back({point.bytes, point.time.median});
  return out;
}

}  // namespace

std::vector<Bytes> message_bytes(Bytes most) {
  constexpr Bytes kFloat(sizeof(float));
  if (most < kFloat || most > 16_GiB) {
    throw std::invalid_argument(
        fmt::format("the largest message is {} bytes, wanted {} to {}", most.value, kFloat.value, (16_GiB).value));
  }
  const Bytes last(most.value / kFloat.value * kFloat.value);
  std::vector<Bytes> out;
  for (Bytes bytes = kFloat; bytes < last; bytes = bytes * 4) out.push_back(bytes);
  out.push_back(last);
  return out;
}

LinkMeasurement measure_links(Channel& channel, const LinksOptions& options,
                              const std::function<void(const std::string&)>& progress) {
  const int ranks = channel.ranks();
  if (ranks < 2) throw std::invalid_argument("a channel of 1 rank has no links, wanted at least 2");
  if (options.threads < 1)
    throw std::invalid_argument(fmt::format("the number of threads is {}, wanted at least 1", options.threads));
  const std::vector<Bytes> sizes = message_bytes(options.most_bytes);
  at::set_num_threads(options.threads);
  const auto tell = [&](const std::string& text) {
    if (progress && channel.rank() == 0) progress(text);
  };
  Meter meter(channel, options.rule);
  LinkMeasurement out;
  out.ranks = ranks;
  for (const Bytes bytes : sizes) {
    tell("send and receive " + format_bytes(bytes));
    const LinkPoint point = meter.send_receive(bytes, 0, 1);
    if (channel.rank() == 0) out.send_receive.push_back(point);
  }
  for (int members = 2; members <= ranks; ++members) {
    for (const Bytes bytes : sizes) {
      tell(fmt::format("all-reduce of {} ranks, {}", members, format_bytes(bytes)));
      const LinkPoint point = meter.all_reduce(bytes, members);
      if (channel.rank() == 0) out.all_reduce[members].push_back(point);
    }
  }
  if (ranks == 2) return out;
  const Bytes bytes = sizes.back();
  SlowestPair slowest{.bytes = bytes};
  double neighbours = 0;
  for (int from = 0; from < ranks; ++from) {
    for (int to = from + 1; to < ranks; ++to) {
      tell(fmt::format("ranks {} and {}, {}", from, to, format_bytes(bytes)));
      const double time = meter.tell_rank_0(meter.send_receive(bytes, from, to).time.median.value, from);
      if (channel.rank() != 0) continue;
      if (neighbours == 0) neighbours = time;
      if (time / neighbours > slowest.ratio) slowest = {from, to, bytes, time / neighbours};
    }
  }
  if (channel.rank() == 0) out.slowest_pair = slowest;
  return out;
}

Topology topology_of(const LinkMeasurement& measured, const std::string& channel, Device device,
                     Provenance provenance) {
  if (measured.send_receive.empty()) throw std::invalid_argument("no transfer was measured");
  Topology out;
  out.name = fmt::format("{} ranks on one host, {} channel", measured.ranks, channel);
  out.device = std::move(device);
  out.provenance = std::move(provenance);
  auto& notes = out.provenance.notes;
  notes["channel"] = channel;
  notes["send_receive"] = quality(measured.send_receive);
  Level host{"host", measured.ranks, {}};
  const LinkPoint& largest = measured.send_receive.back();
  host.link.latency = measured.send_receive.front().time.median;
  host.link.bandwidth = largest.bytes / largest.time.median;
  host.link.origin = Origin::Measured;
  host.link.send_receive = curve_of(measured.send_receive);
  for (const auto& [ranks, points] : measured.all_reduce) {
    host.link.all_reduce[ranks] = curve_of(points);
    if (!points.empty()) notes[fmt::format("all_reduce of {}", ranks)] = quality(points);
  }
  if (const auto& pair = measured.slowest_pair) {
    notes["slowest pair"] = fmt::format("ranks {} and {}: {:.2f} times ranks 0 and 1, at {}", pair->from, pair->to,
                                        pair->ratio, format_bytes(pair->bytes));
  }
  out.levels.push_back(std::move(host));
  validate(out);
  return out;
}

}  // namespace stagecraft

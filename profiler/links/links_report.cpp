#include "profiler/links/links_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "costmodel/index.h"
#include "costmodel/links/curve_fit.h"
#include "costmodel/text/units_text.h"
#include "costmodel/timeline.h"

namespace stagecraft::profiler {
namespace {

using enum LinkOperation;

/// Half the width of a 95 % confidence interval / the median, above which a point is uncertain.
constexpr double kVague = 0.1;

/// "7", or "5 to 2000".
std::string range_text(const std::vector<LinkPoint>& points, const auto& count) {
  const auto [fewest, most] = std::ranges::minmax(points, {}, count);
  const std::int64_t least = std::invoke(count, fewest);
  const std::int64_t largest = std::invoke(count, most);
  return least == largest ? std::to_string(least) : fmt::format("{} to {}", least, largest);
}

/// "13 points of 25 rounds and 25 to 5000 samples, 2 stopped by the time limit; medians within 3.1 % (95 %), the widest
/// at 16 B".
std::string quality(const std::vector<LinkPoint>& points) {
  const auto error = [](const LinkPoint& p) { return relative_error(p.time); };
  const auto by_time = std::ranges::count(points, Stop::Time, &LinkPoint::stop);
  const LinkPoint& widest = *std::ranges::max_element(points, {}, error);
  return fmt::format(
      "{} points of {} rounds and {} samples, {} stopped by the time limit; medians within {:.1f} % (95 %), the widest "
      "at {}",
      points.size(), range_text(points, [](const LinkPoint& p) { return p.time.count; }),
      range_text(points, &LinkPoint::samples), by_time, error(widest) * 100, format_bytes(widest.bytes));
}

Curve curve_of(const std::vector<LinkPoint>& points) {
  Curve out;
  for (const LinkPoint& point : points) out.points.push_back({point.bytes, point.time.median});
  return out;
}

/// Time of a message without its bytes. A byte takes the median of the slopes between all pairs of points (Theil-Sen:
/// Sen, JASA 63(324), 1968), and a message is small if its bytes take at most half of its time. The median over small
/// messages of their times without their bytes counts: the smallest message alone often is an outlier, of which a fit
/// by least squares keeps a part. If no message is small, the smallest one's time.
Seconds latency_of(const std::vector<LinkPoint>& points) {
  std::vector<double> slopes;
  for (std::size_t j = 1; j < points.size(); ++j) {
    for (std::size_t i = 0; i < j; ++i) {
      slopes.push_back((points[j].time.median - points[i].time.median).value /
                       static_cast<double>(points[j].bytes.value - points[i].bytes.value));
    }
  }
  const double per_byte = slopes.empty() ? 0 : std::max(median(std::move(slopes)), 0.0);
  std::vector<double> latencies;
  for (const LinkPoint& point : points) {
    const double of_bytes = per_byte * static_cast<double>(point.bytes.value);
    if (of_bytes <= point.time.median.value / 2) latencies.push_back(point.time.median.value - of_bytes);
  }
  return latencies.empty() ? points.front().time.median : Seconds(median(std::move(latencies)));
}

/// "; at 64.0 MiB 1.85 times one way".
std::string beside_one_way(const LinkPoint& point, const LinkPoint& one_way) {
  return fmt::format("; at {} {:.2f} times one way", format_bytes(point.bytes),
                     point.time.median / one_way.time.median);
}

bool is_copy(LinkOperation operation) { return operation == HostToDevice || operation == DeviceToHost; }

/// Where a topology stores a curve; none for curves that are only in the notes.
Curve* place_of(const LinkCurve& curve, Topology& topology) {
  Link& link = topology.levels.front().link;
  switch (curve.operation) {
    case SendReceive:
      return &link.send_receive;
    case AllReduce:
      return curve.ranks > 1 ? &link.all_reduce[curve.ranks] : nullptr;
    case AllGather:
      return curve.ranks > 1 ? &link.all_gather[curve.ranks] : nullptr;
    case ReduceScatter:
      return curve.ranks > 1 ? &link.reduce_scatter[curve.ranks] : nullptr;
    case HostToDevice:
      return &topology.device.host_to_device;
    case DeviceToHost:
      return &topology.device.device_to_host;
    case Duplex:
    case Pairs:
      return nullptr;
  }
  return nullptr;
}

}  // namespace

std::string links_table(const LinkMeasurement& measured) {
  std::string out = fmt::format("{:>10}", "message");
  for (const LinkCurve& curve : measured.curves)
    out += fmt::format(" {:>20}", curve_name(curve.operation, curve.ranks));
  const std::size_t rows = measured.curves.empty() ? 0 : measured.curves.front().points.size();
  for (std::size_t row = 0; row < rows; ++row) {
    out += fmt::format("\n{:>10}", format_bytes(measured.curves.front().points[row].bytes));
    for (const LinkCurve& curve : measured.curves) {
      const LinkPoint& point = curve.points.at(row);
      out += fmt::format(" {:>9} +- {:>4.1f} %{:1}", format_seconds(point.time.median),
                         relative_error(point.time) * 100, point.stop == Stop::Time ? "*" : "");
    }
  }
  return out + "\n+-: 95 % confidence interval of the median; *: time limit reached before the point was precise\n";
}

std::vector<std::string> distrust(const LinkMeasurement& measured) {
  std::vector<std::string> out = crowded_reasons(measured.conditions, "the ranks");
  std::size_t points = 0;
  std::size_t vague = 0;
  for (const LinkCurve& curve : measured.curves) {
    points += curve.points.size();
    vague += to_index(
        std::ranges::count_if(curve.points, [](const LinkPoint& p) { return relative_error(p.time) > kVague; }));
  }
  if (2 * vague > points) {
    out.push_back(
        fmt::format("{} of {} medians are uncertain by more than {:.0f} % (95 % confidence): the machine is busy, or "
                    "--seconds is too small",
                    vague, points, kVague * 100));
  }
  return out;
}

std::string fit_text(const LinkCurve& curve) {
  if (curve.points.size() < 2) return "too few points to fit";
  std::vector<FitPoint> points;
  for (const LinkPoint& point : curve.points)
    points.push_back({point.bytes, point.time.median, point.time.spread.value_or(Seconds(0))});
  const CurveFit fit = fit_curve(points);
  std::string out = fmt::format("{} line{}", fit.segments.size(), fit.segments.size() == 1 ? "" : "s");
  char before = ':';
  for (const FitSegment& segment : fit.segments) {
    out += fmt::format("{} from {} {}", before, format_bytes(segment.first), format_seconds(segment.latency));
    const double bandwidth = 1 / segment.seconds_per_byte;
    if (bandwidth < 1e18) out += fmt::format(" + {}/s", format_bytes(Bytes(static_cast<std::int64_t>(bandwidth))));
    before = ',';
  }
  if (!fit.held_out) return out + "; too few points for a held-out error";
  const FitResiduals& errors = *fit.held_out;
  return out + fmt::format("; held out: median {:.1f} %, p95 {:.1f} %, worst {:.1f} % at {} of {} points",
                           errors.median * 100, errors.p95 * 100, errors.worst * 100, format_bytes(errors.worst_bytes),
                           errors.points);
}

std::string processing_text(const MessageProcessing& processing) {
  std::string out = processing.thread == MessageThread::Own ? "on the thread that computes: " : "on another thread: ";
  for (std::size_t i = 0; i < processing.sender.points.size(); ++i) {
    out += fmt::format(
        "{}{} {} to send, {} to receive", i > 0 ? "; " : "", format_bytes(processing.sender.points[i].bytes),
        format_seconds(processing.sender.points[i].time), format_seconds(processing.receiver.points.at(i).time));
  }
  return out;
}

Topology topology_of(const LinkMeasurement& measured, const std::string& channel, Device device,
                     Provenance provenance) {
  const auto one_way = std::ranges::find(measured.curves, SendReceive, &LinkCurve::operation);
  if (one_way == measured.curves.end() || one_way->points.empty())
    throw std::invalid_argument("no transfer was measured");
  Topology out;
  out.name = fmt::format("{} rank{} on one host, {} channel", measured.ranks, measured.ranks == 1 ? "" : "s", channel);
  out.device = std::move(device);
  out.provenance = std::move(provenance);
  out.conditions = measured.conditions;
  const LinkPoint& largest = one_way->points.back();
  out.levels.push_back({"host", measured.ranks, {largest.bytes / largest.time.median, Seconds(0), {}, {}}});
  out.levels.front().link.origin = LinkOrigin::Measured;
  out.levels.front().link.channel = channel;
  out.levels.front().link.processing = measured.processing;
  out.levels.front().link.distrust = distrust(measured);
  std::vector<std::string> moved;  // of each curve
  for (const LinkCurve& curve : measured.curves) {
    MonotoneFit fit;
    fit.curve = curve_of(curve.points);
    if (!is_copy(curve.operation)) fit = fit_monotone(fit.curve);
    moved.push_back(moved_text(fit));
    if (Curve* place = place_of(curve, out)) *place = std::move(fit.curve);
  }
  validate(out);
  out.levels.front().link.latency = latency_of(one_way->points);  // of points that validate has accepted
  auto& notes = out.provenance.notes;
  notes["channel"] = channel;
  if (measured.ranks == 1) notes["one rank"] = "its send_receive is to itself, and its collectives are copies";
  for (std::size_t i = 0; i < measured.curves.size(); ++i) {
    const LinkCurve& curve = measured.curves[i];
    if (curve.points.empty()) continue;
    const std::string name = curve_name(curve.operation, curve.ranks);
    notes[name] = quality(curve.points);
    if (!moved[i].empty()) notes[name] += "; " + moved[i];
    if (curve.operation == Duplex || curve.operation == Pairs)
      notes[name] += beside_one_way(curve.points.back(), largest);
    notes[name + " fit"] = fit_text(curve);
  }
  if (measured.processing) notes["processor time of messages"] = processing_text(*measured.processing);
  if (const auto& pair = measured.slowest_pair) {
    notes["slowest pair"] = fmt::format("ranks {} and {}: {:.2f} times ranks 0 and 1, at {}", pair->from, pair->to,
                                        pair->ratio, format_bytes(pair->bytes));
  }
  return out;
}

}  // namespace stagecraft::profiler

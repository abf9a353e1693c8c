#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "costmodel/doctor/doctor.h"
#include "costmodel/index.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::doctor {
namespace {

constexpr double kLeastBandwidth = 1e6;  ///< B/s; Ethernet of 10 Mbit/s has 1.25e6
constexpr double kMostBandwidth = 1e13;  ///< B/s; all NVLinks of a GPU together have 1.8e12
constexpr double kMostLatency = 0.1;     ///< s; light takes that long half around the Earth in glass
constexpr double kLeastLatency = 1e-8;   ///< s; a load from memory takes longer
constexpr Bytes kLeastMemory = 16_MiB;
/// By which measured times may fall. Of 153 curves of clusters, 72 fall by more than 20 %, where the library changes
/// its algorithm, and 14 by more than half.
constexpr double kMostFall = 0.5;
constexpr double kBandwidthBound = 4;  ///< a curve that is this many times slower at its end shows a bandwidth
constexpr double kTie = 0.05;          ///< levels that differ by less are equally fast
constexpr double kMostMismatch = 2;    ///< between a bandwidth and its curve
constexpr double kBitsLow = 6.5;       ///< bits per byte, with what protocols take
constexpr double kBitsHigh = 9.5;
/// Bus bandwidth over the link's: a little for rounding. A measured one is of a ping-pong, one way at a time.
constexpr double kMostBusDeclared = 1.05;
constexpr double kMostBusMeasured = 2;
/// Rates of networks in bit/s that no port has in B/s.
constexpr std::array kBitRates = {2e11, 4e11, 8e11};

std::string level_place(std::size_t level, const std::string& key) { return fmt::format("/levels/{}/{}", level, key); }

/// Bytes per second between the last two points; absent if latency still dominates there.
std::optional<double> rate_at_end(const Curve& curve) {
  if (curve.points.size() < 2) return std::nullopt;
  const CurvePoint& last = curve.points.back();
  const CurvePoint& before = curve.points[curve.points.size() - 2];
  if (last.time < curve.points.front().time * kBandwidthBound || last.time <= before.time) return std::nullopt;
  return ((last.bytes - before.bytes) / (last.time - before.time)).value;
}

/// Visits every link: visit(file, index of its level, level).
template <class Visit>
void for_each_level(const ExaminedDocuments& documents, Visit visit) {
  for (const auto& [file, topology] : documents.topologies) {
    for (std::size_t i = 0; i < topology.levels.size(); ++i) visit(file, i, topology.levels[i]);
  }
}

/// Visits every curve of links: visit(place, curve, latency of as many messages as follow each other).
template <class Visit>
void for_each_link_curve(const Topology& topology, Visit visit) {
  for (std::size_t i = 0; i < topology.levels.size(); ++i) {
    const Link& link = topology.levels[i].link;
    visit(level_place(i, "send_receive"), link.send_receive, link.latency);
    const auto visit_collective = [&](const char* key, Collective collective) {
      std::size_t entry = 0;  // as in a document
      const auto place = [&] { return level_place(i, fmt::format("{}/{}", key, entry++)); };
      for (const auto& [ranks, curve] : curves_of(link, collective))
        visit(place(), curve, link.latency * ring_steps(collective, ranks));
      for (const auto& [span, curve] : link.spans) {
        if (span.collective == collective) visit(place(), curve, link.latency * ring_steps(collective, span.ranks));
      }
    };
    visit_collective("all_reduce", Collective::AllReduce);
    visit_collective("all_gather", Collective::AllGather);
    visit_collective("reduce_scatter", Collective::ReduceScatter);
    visit_collective("all_to_all", Collective::AllToAll);
  }
}

/// Visits every curve of a topology: visit(place, curve).
template <class Visit>
void for_each_curve(const Topology& topology, Visit visit) {
  visit(std::string("/device/host_to_device"), topology.device.host_to_device);
  visit(std::string("/device/device_to_host"), topology.device.device_to_host);
  for_each_link_curve(topology, [&](const std::string& place, const Curve& curve, Seconds) { visit(place, curve); });
}

void find_small_bandwidths(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for_each_level(documents, [&](const std::string& file, std::size_t i, const Level& level) {
    const double found = level.link.bandwidth.value;
    if (found >= kLeastBandwidth) return;
    report(file, level_place(i, "bandwidth_bytes_per_s"),
           fmt::format("{:g} B/s is slower than any network; if it is in GB/s, write {:g}, if in Gbit/s, {:g}", found,
                       found * 1e9, found * 1e9 / 8));
  });
}

void find_bit_rates(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for_each_level(documents, [&](const std::string& file, std::size_t i, const Level& level) {
    const double found = level.link.bandwidth.value;
    const std::optional<double> measured = rate_at_end(level.link.send_receive);
    const bool bits_of_curve = measured && found > kBitsLow * *measured && found < kBitsHigh * *measured;
    const bool bits_of_network = !measured && i > 0 && std::ranges::find(kBitRates, found) != kBitRates.end();
    if (!bits_of_curve && !bits_of_network) return;
    report(file, level_place(i, "bandwidth_bytes_per_s"),
           fmt::format("{:g} B/s is {}; if it is in bit/s, write {:g}", found,
                       measured ? fmt::format("{:.1f} times the {:.3g} B/s at the end of send_receive",
                                              found / *measured, *measured)
                                : fmt::format("{:g} Gbit/s, more than a network port has", found * 8 / 1e9),
                       found / 8));
  });
}

void find_curves_of_another_link(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for_each_level(documents, [&](const std::string& file, std::size_t i, const Level& level) {
    const std::optional<double> measured = rate_at_end(level.link.send_receive);
    if (!measured) return;
    const double ratio = level.link.bandwidth.value / *measured;
    if (ratio <= kMostMismatch && ratio >= 1 / kMostMismatch) return;
    if (ratio > kBitsLow && ratio < kBitsHigh) return;  // bits
    report(file, level_place(i, "send_receive"),
           fmt::format("ends at {:.3g} B/s, but bandwidth_bytes_per_s is {:.3g}: they are of different links, or one "
                       "has the wrong unit",
                       *measured, level.link.bandwidth.value));
  });
}

void find_bus_above_peak(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for_each_level(documents, [&](const std::string& file, std::size_t i, const Level& level) {
    const Link& link = level.link;
    const double most = link.origin == LinkOrigin::Declared ? kMostBusDeclared : kMostBusMeasured;
    const auto judge = [&](const char* key, const std::map<int, Curve>& curves, double rounds) {
      std::size_t entry = 0;
      for (const auto& [ranks, curve] : curves) {
        const std::string place = level_place(i, fmt::format("{}/{}", key, entry++));
        double best = 0;
        for (const CurvePoint& point : curve.points)
          best = std::max(best, rounds * (ranks - 1) / ranks * (point.bytes / point.time).value);
        if (best <= most * link.bandwidth.value) continue;
        report(file, place,
               fmt::format("has a bus bandwidth of {:.3g} B/s among {} ranks, above the link's {:.3g} B/s; a network "
                           "that reduces (SHARP, NVLS) may do that, else the bytes or the times have the wrong unit",
                           best, ranks, link.bandwidth.value));
      }
    };
    judge("all_reduce", link.all_reduce, 2);
    judge("all_gather", link.all_gather, 1);
    judge("reduce_scatter", link.reduce_scatter, 1);
    judge("all_to_all", link.all_to_all, 1);
  });
}

void find_falling_times(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& [file, topology] : documents.topologies) {
    for_each_curve(topology, [&, &file = file](const std::string& place, const Curve& curve) {
      const CurvePoint* worst = nullptr;
      const CurvePoint* slowest = nullptr;
      double least = 1 - kMostFall;
      const CurvePoint* slowest_before_worst = nullptr;
      for (const CurvePoint& point : curve.points) {
        if (slowest && point.time / slowest->time < least) {
          least = point.time / slowest->time;
          worst = &point;
          slowest_before_worst = slowest;
        }
        if (!slowest || point.time > slowest->time) slowest = &point;
      }
      if (!worst) return;
      report(file, place,
             fmt::format("{} takes {}, less than the {} of {}: measure again on a quiet machine",
                         format_bytes(worst->bytes), format_seconds(worst->time),
                         format_seconds(slowest_before_worst->time), format_bytes(slowest_before_worst->bytes)));
    });
  }
}

void find_unmeasured_sizes(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& [file, topology] : documents.topologies) {
    for_each_link_curve(topology, [&, &file = file](const std::string& place, const Curve& curve, Seconds latency) {
      if (curve.points.size() < 2 || latency_of(curve, Seconds(0)) == curve.points.front().time) return;
      report(file, place,
             fmt::format("was measured from {} to {}; smaller messages are extrapolated to a latency of {}: measure "
                         "from 8 bytes on",
                         format_bytes(curve.points.front().bytes), format_bytes(curve.points.back().bytes),
                         format_seconds(latency_of(curve, latency))));
    });
  }
}

void find_faster_outer_levels(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& [file, topology] : documents.topologies) {
    for (std::size_t i = 1; i < topology.levels.size(); ++i) {
      const Level& inner = topology.levels[i - 1];
      const Level& outer = topology.levels[i];
      if (outer.link.bandwidth.value > inner.link.bandwidth.value * (1 + kTie)) {
        report(file, level_place(i, "bandwidth_bytes_per_s"),
               fmt::format("level \"{}\" has {:.3g} B/s, more than the {:.3g} of \"{}\" inside it; levels are listed "
                           "innermost first",
                           outer.name, outer.link.bandwidth.value, inner.link.bandwidth.value, inner.name));
      }
      if (outer.link.latency < inner.link.latency * (1 - kTie)) {
        report(file, level_place(i, "latency_s"),
               fmt::format(
                   "level \"{}\" has {}, less than the {} of \"{}\" inside it; levels are listed innermost first",
                   outer.name, format_seconds(outer.link.latency), format_seconds(inner.link.latency), inner.name));
      }
    }
  }
}

void find_strange_latencies(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for_each_level(documents, [&](const std::string& file, std::size_t i, const Level& level) {
    const double found = level.link.latency.value;
    if (found > kMostLatency) {
      report(file, level_place(i, "latency_s"),
             fmt::format("{:g} s is more than any network takes; if it is in microseconds, write {:g}", found,
                         found * 1e-6));
    } else if (found > 0 && found < kLeastLatency) {
      report(file, level_place(i, "latency_s"),
             fmt::format("{:g} s is less than any link takes; it may have been converted twice", found));
    }
  });
}

void find_small_memory(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& [file, topology] : documents.topologies) {
    if (!topology.device.memory || *topology.device.memory >= kLeastMemory) continue;
    const std::int64_t found = topology.device.memory->value;
    report(file, "/device/memory_bytes",
           fmt::format("{} is less than any device has; if it is in GB, write {:g}", format_bytes(Bytes(found)),
                       static_cast<double>(found) * 1e9));
  }
}

void find_large_bandwidths(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for_each_level(documents, [&](const std::string& file, std::size_t i, const Level& level) {
    // A channel that hands tensors over measures more.
    if (level.link.origin == LinkOrigin::Measured || level.link.bandwidth.value <= kMostBandwidth) return;
    report(file, level_place(i, "bandwidth_bytes_per_s"),
           fmt::format("{:g} B/s is more than any link has; it may have been converted twice",
                       level.link.bandwidth.value));
  });
}

}  // namespace

std::vector<DoctorCheck> link_checks() {
  using enum Severity;
  return {
      {"SC101", Warning, "a bandwidth that looks like GB/s or Gbit/s, not B/s", find_small_bandwidths},
      {"SC102", Warning, "a bandwidth that looks like bit/s, not B/s", find_bit_rates},
      {"SC103", Warning, "a bandwidth that its measured curve contradicts", find_curves_of_another_link},
      {"SC104", Warning, "a collective whose bus bandwidth is above the link's", find_bus_above_peak},
      {"SC105", Warning, "a larger message that takes less than half the time", find_falling_times},
      {"SC106", Warning, "a level that is faster than the one inside it", find_faster_outer_levels},
      {"SC107", Warning, "a latency that looks like microseconds, or as if converted twice", find_strange_latencies},
      {"SC108", Warning, "device memory that looks like GB, not bytes", find_small_memory},
      {"SC109", Warning, "a bandwidth above that of any link", find_large_bandwidths},
      {"SC110", Warning, "a curve without small messages", find_unmeasured_sizes},
  };
}

}  // namespace stagecraft::doctor

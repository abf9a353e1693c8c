#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"
#include "costmodel/interchange/nccl_tests.h"
#include "costmodel/links/collectives.h"
#include "costmodel/links/curve_fit.h"
#include "costmodel/links/declared_links.h"
#include "costmodel/text/number.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::interchange {
namespace {

std::optional<Collective> collective_of(const std::string& operation) {
  for (const auto& [name, collective] : tested_collectives()) {
    if (name == operation) return collective;
  }
  return std::nullopt;
}

/// A level with its kind of link.
struct MeasuredLevel {
  Level level;
  Seconds latency;  ///< of links of this kind
};

/// Sets latency and bandwidth from the link's curves, if it has some.
void set_ends(MeasuredLevel& level, std::map<std::string, std::string>& notes) {
  Link& link = level.level.link;
  const auto set = [&](const Curve& curve, double steps, double share) {
    const CurvePoint& first = curve.points.front();
    const CurvePoint& last = curve.points.back();
    const bool is_known = latency_of(curve, Seconds(0)) == first.time;
    link.latency = is_known ? first.time / steps : level.latency;
    link.bandwidth = last.bytes / last.time * share;
    if (!is_known) {
      notes["latency of " + level.level.name] = "not measured, as messages begin at " + format_bytes(first.bytes) +
                                                "; taken as " + format_seconds(level.latency);
    }
  };
  if (!link.send_receive.points.empty()) return set(link.send_receive, 1, 1);
  for (const auto& [name, collective] : tested_collectives()) {
    const auto& curves = curves_of(link, collective);
    if (curves.empty()) continue;
    const auto& [ranks, curve] = *curves.rbegin();
    const double steps = ring_steps(collective, ranks);
    return set(curve, steps, steps / ranks);
  }
}

/// The value between two others at which `is_high` begins to hold, to six digits.
template <class IsHigh>
double first_high(double low, double high, IsHigh is_high) {
  for (int i = 0; i < 60 && high > low * (1 + 1e-9); ++i) {
    const double middle = std::sqrt(low * high);
    (is_high(middle) ? high : low) = middle;
  }
  return high;
}

/// Sets the link between hosts, known only from spans, so that collective_time has their times.
void fit_outer(Topology topology, Link& link, Seconds latency, std::map<std::string, std::string>& notes) {
  // The collective that comes first, with the most ranks.
  const auto& spans = link.spans;
  auto chosen = spans.begin();
  for (auto span = spans.begin(); span != spans.end(); ++span) {
    if (span->first.collective == chosen->first.collective && span->first.ranks > chosen->first.ranks) chosen = span;
  }
  const auto& [key, curve] = *chosen;
  std::vector<int> devices;
  for (int host = 0; host < key.ranks / key.per_group; ++host) {
    for (int i = 0; i < key.per_group; ++i) devices.push_back(host * topology.levels.front().count + i);
  }
  Link& tried = topology.levels.back().link;
  tried.spans.clear();
  tried.latency = latency;
  const auto time_at = [&](const CurvePoint& point) {
    return collective_time(key.collective, point.bytes, devices, topology).time;
  };
  const CurvePoint& last = curve.points.back();
  constexpr double kLeast = 1e3;
  constexpr double kMost = 1e15;
  const auto fit_bandwidth = [&] {
    const double fitted = first_high(kLeast, kMost, [&](double bandwidth) {
      tried.bandwidth = BytesPerSecond(bandwidth);
      return time_at(last) <= last.time;
    });
    // If the links inside hosts take all of the time, those between them have at least what crosses them.
    const double crossing =
        ring_steps(key.collective, key.ranks) * (last.bytes / last.time).value / key.ranks / key.per_group;
    tried.bandwidth = BytesPerSecond(fitted < kMost / 2 ? fitted : crossing);
  };
  fit_bandwidth();
  const CurvePoint& first = curve.points.front();
  if (latency_of(curve, Seconds(0)) == first.time) {
    tried.latency = Seconds(first_high(1e-9, first.time.value, [&](double value) {
      tried.latency = Seconds(value);
      return time_at(first) >= first.time;
    }));
    fit_bandwidth();
  } else {
    notes["latency of cluster"] =
        "not measured, as messages begin at " + format_bytes(first.bytes) + "; taken as " + format_seconds(latency);
  }
  link.latency = tried.latency;
  link.bandwidth = tried.bandwidth;
  notes["link of cluster"] =
      "fitted to times of " + std::to_string(key.ranks) + " ranks, " + std::to_string(key.per_group) + " on each host";
}

/// Ranks on each host. Throws for unequal numbers.
int ranks_per_host(const NcclTest& test, const std::string& what) {
  std::map<std::string, int> counts;
  for (const std::string& host : test.hosts) ++counts[host];
  for (const auto& [host, count] : counts) {
    if (count != counts.begin()->second)
      throw std::invalid_argument(what + ": found " + std::to_string(counts.begin()->second) + " ranks on " +
                                  counts.begin()->first + " and " + std::to_string(count) + " on " + host +
                                  ", expected equal numbers");
  }
  return counts.begin()->second;
}

}  // namespace

Topology measured_topology(const std::vector<NcclTest>& tests) {
  Topology out;
  out.device.kind = DeviceKind::Gpu;
  auto& notes = out.provenance.notes;
  MeasuredLevel node{{"node", 0, {}}, kNodeLatency};
  MeasuredLevel cluster{{"cluster", 0, {}}, kClusterLatency};
  std::string left_out;
  std::map<const Level*, std::optional<std::pair<int, int>>> send_shapes;
  for (const NcclTest& test : tests) {
    const auto collective = collective_of(test.operation);
    if (!collective && test.operation != kSendReceive) {
      if (left_out.find(test.operation) == left_out.npos) left_out += (left_out.empty() ? "" : ", ") + test.operation;
      continue;
    }
    const int ranks = to_int(test.hosts.size());
    const std::string what = test.operation + " of " + std::to_string(ranks) + " ranks";
    if (ranks < 2) throw std::invalid_argument(what + ", must be at least 2");
    if (out.device.name.empty()) out.device.name = test.device;
    if (test.device != out.device.name) {
      throw std::invalid_argument(what + ": found \"" + test.device + "\" and \"" + out.device.name + "\"");
    }
    const int per_host = ranks_per_host(test, what);
    const int hosts = ranks / per_host;
    Level& level = hosts == 1 ? node.level : cluster.level;
    level.count = std::max(level.count, hosts == 1 ? ranks : hosts);
    if (hosts > 1 && per_host > 1) node.level.count = std::max(node.level.count, per_host);
    Link& link = level.link;
    link.origin = LinkOrigin::Measured;
    const MonotoneFit fit = fit_monotone(test.curve);
    bool is_new = true;
    if (!collective) {
      // Of several ranks on each host, one of each sends to another host. A link has one curve: of few ranks on each
      // host, then of many ranks.
      const std::pair shape{hosts > 1 ? -per_host : 0, ranks};
      auto& chosen = send_shapes[&level];
      is_new = !chosen || *chosen != shape;
      if (chosen && is_new)
        notes["left out, sendrecv of " + std::to_string(std::min(*chosen, shape).second) + " ranks"] =
            "another is taken";
      if (!chosen || shape > *chosen) link.send_receive = fit.curve;
      chosen = std::max(chosen.value_or(shape), shape);
    } else if (hosts == 1 || per_host == 1) {
      is_new = curves_of(link, *collective).emplace(ranks, fit.curve).second;
    } else {
      is_new = link.spans.emplace(SpanKey{*collective, ranks, per_host}, fit.curve).second;
    }
    if (!is_new) throw std::invalid_argument(what + " appears twice for level \"" + level.name + "\"");
    if (fit.moved > 0) notes["fit of " + what] = moved_text(fit);
    if (test.left_out > 0) { notes["left out of " + what] = std::to_string(test.left_out) + " rows of 0 bytes"; }
    out.provenance.versions.insert(test.versions.begin(), test.versions.end());
  }
  if (!left_out.empty()) notes["left out"] = "tests of " + left_out + ", which no prediction uses";
  if (node.level.count == 0 && cluster.level.count == 0) {
    throw std::invalid_argument((left_out.empty() ? "no tests" : "found only tests of " + left_out) + ", expected " +
                                tested_operations());
  }
  if (node.level.count > 0 && node.level.link.origin == LinkOrigin::Declared) {
    throw std::invalid_argument("found tests of " + std::to_string(node.level.count) +
                                " ranks on each host, but none inside one host: add its log, without which the links "
                                "inside and between hosts cannot be told apart");
  }
  for (MeasuredLevel* measured : {&node, &cluster}) {
    if (measured->level.count == 0) continue;
    set_ends(*measured, notes);
    out.levels.push_back(measured->level);
  }
  Link& outer = out.levels.back().link;
  const bool has_flat = std::ranges::any_of(tested_collectives(),
                                            [&](const auto& entry) { return !curves_of(outer, entry.second).empty(); });
  if (!outer.spans.empty() && !has_flat) fit_outer(out, outer, cluster.latency, notes);
  out.name = std::to_string(device_count(out)) + " x " + out.device.name + ", nccl-tests";
  out.provenance.device = out.device.name;
  validate(out);
  return out;
}

}  // namespace stagecraft::interchange

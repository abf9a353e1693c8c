#pragma once

#include <string>
#include <vector>

#include "costmodel/topology.h"
#include "profiler/links.h"

namespace stagecraft {

/// For people: a row for each message, a column for each curve, each cell the median, the half-width of its 95 %
/// confidence interval, and a star where the point's time was up before it was precise.
[[nodiscard]] std::string links_table(const LinkMeasurement& measured);

/// Why the measurement is not to be trusted, a sentence each; empty if it is: other programs kept the ranks waiting
/// (is_crowded), or the medians of more than half of all points are uncertain by more than 10 % either way (95 %
/// confidence).
[[nodiscard]] std::vector<std::string> distrust(const LinkMeasurement& measured);

/// What fit_curve makes of a curve: its lines from their first byte on, and the error at points that a fit to the
/// others did not see. "2 lines: from 0 B 76.7 us, from 64.0 KiB 60.1 us + 1.10 GiB/s; held out: median 2.0 %, p95 9.1
/// %, worst 12.3 % at 2.00 MiB of 12 points". Fewer than two points: that there are too few. Throws as fit_curve.
[[nodiscard]] std::string fit_text(const LinkCurve& curve);

/// One level, "host", of `measured.ranks` devices whose curves are the medians as they were measured, not smoothed.
/// Latency is the smallest message's time, bandwidth the largest message's bytes over its time; of one rank alone they
/// are those of a message to itself. Copies go to the device; duplex, pairs and collectives of one rank to the notes of
/// `provenance`, which gain the channel, the reasons of distrust and, for each curve, samples, confidence, what ended
/// the points, and fit_text.
/// Throws std::invalid_argument as validate, and without any point of send_receive.
[[nodiscard]] Topology topology_of(const LinkMeasurement& measured, const std::string& channel, Device device,
                                   Provenance provenance);

}  // namespace stagecraft

#pragma once

#include <string>
#include <vector>

#include "costmodel/topology.h"
#include "profiler/links/links.h"

namespace stagecraft::profiler {

/// A human-readable table, with one row per message and one column per curve. Each cell has the median, half the width
/// of its 95 % confidence interval, and a star if the point's time was up before it was precise.
[[nodiscard]] std::string links_table(const LinkMeasurement& measured);

/// Reasons not to trust the measurement, one sentence each; empty if it can be trusted. A reason is that other programs
/// slowed down the ranks (crowded_reasons), or that the medians of more than half of all points are uncertain by more
/// than 10 % either way (95 % confidence).
[[nodiscard]] std::vector<std::string> distrust(const LinkMeasurement& measured);

/// The lines that fit_curve fits to a curve, each with its first byte, and the errors at points that were held out of
/// the fit: "2 lines: from 0 B 76.7 us, from 64.0 KiB 60.1 us + 1.10 GiB/s; held out: median 2.0 %, p95 9.1 %, worst
/// 12.3 % at 2.00 MiB of 12 points". With fewer than two points, the text says so. Throws as fit_curve does.
[[nodiscard]] std::string fit_text(const LinkCurve& curve);

/// Processor time of messages: "on another thread: 4 B 10.0 us to send, 20.0 us to receive; 1.00 MiB ...". Both curves
/// must have the same messages.
[[nodiscard]] std::string processing_text(const MessageProcessing& processing);

/// A topology of one level, "host", with `measured.ranks` devices. Its curves are those that fit_monotone fits to the
/// measured medians; the curves of copies are the medians.
/// Latency is the median over small messages of their times without their bytes; a byte takes the median slope between
/// points, and a message is small if its bytes take at most half of its time. If none is small, it is the smallest
/// message's time. Bandwidth is the largest message's bytes / its time. For a single rank, both are of a message to
/// itself. Copies become curves of the device. Duplex, pairs and collectives of one rank are only in the notes of
/// `provenance`, to which the channel and, for each curve, rounds, samples, confidence, what ended the points, and
/// fit_text are added; the level has the reasons of distrust. Throws std::invalid_argument as validate does, and if no
/// point of send_receive was measured.
[[nodiscard]] Topology topology_of(const LinkMeasurement& measured, const std::string& channel, Device device,
                                   Provenance provenance);

}  // namespace stagecraft::profiler

#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/topology.h"
#include "executor/channel.h"
#include "profiler/statistics.h"

namespace stagecraft {

/// How to measure a channel.
struct LinksOptions {
  Bytes most_bytes{std::int64_t{64} << 20};  ///< of the largest message
  int threads = 1;                           ///< intra-op threads of a rank, as a run will have; they add in all-reduce
  StoppingRule rule{.iteration_error = 0.02, .fewest = 5, .least = 5, .most_seconds = 0.3};  ///< of each point
};

/// One measured point.
struct LinkPoint {
  Bytes bytes;
  Timing time;
  Stop stop = Stop::No;  ///< what ended it
  friend bool operator==(const LinkPoint&, const LinkPoint&) = default;
};

/// The two ranks whose transfer of `bytes` took longest, beside ranks 0 and 1.
struct SlowestPair {
  int from = 0;
  int to = 1;
  Bytes bytes;
  double ratio = 1;  ///< its time over that of ranks 0 and 1
  friend bool operator==(const SlowestPair&, const SlowestPair&) = default;
};

/// What was measured between the ranks of a channel.
struct LinkMeasurement {
  int ranks = 0;
  std::vector<LinkPoint> send_receive;               ///< one way between ranks 0 and 1, ascending in bytes
  std::map<int, std::vector<LinkPoint>> all_reduce;  ///< among the first n ranks, by n
  std::optional<SlowestPair> slowest_pair;           ///< of three ranks and more
  friend bool operator==(const LinkMeasurement&, const LinkMeasurement&) = default;
};

/// The message bytes that are measured: 4, 16, 64, ... below `most`, and `most` rounded down to whole floats.
/// Throws std::invalid_argument if `most` is below 4 or above 2^34.
[[nodiscard]] std::vector<Bytes> message_bytes(Bytes most);

/// Measures `channel`; every rank calls it with the same options, and rank 0 gets the measurement, the others nothing
/// but their number. One way is half a ping-pong: rank 0's time from posting its receive and its send of floats until
/// both are done, the other rank sending as soon as it has received. An all-reduce is rank 0's time in the call, one
/// call right behind the other. `progress`, told on rank 0 alone, hears what comes next.
/// Throws std::invalid_argument for a channel of one rank and for options out of range, ChannelError as the channel.
[[nodiscard]] LinkMeasurement measure_links(Channel& channel, const LinksOptions& options,
                                            const std::function<void(const std::string&)>& progress = {});

/// One level, "host", of `measured.ranks` devices whose curves are the medians as they were measured, not smoothed.
/// Latency is the smallest message's time, bandwidth the largest message's bytes over its time. The notes of
/// `provenance` gain the channel and, for each curve, the samples, the spread and what ended the points.
/// Throws std::invalid_argument as validate, and without any point of send_receive.
[[nodiscard]] Topology topology_of(const LinkMeasurement& measured, const std::string& channel, Device device,
                                   Provenance provenance);

}  // namespace stagecraft

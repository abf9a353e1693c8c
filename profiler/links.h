#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/units.h"
#include "profiler/processor_use.h"
#include "profiler/statistics.h"
#include "profiler/watch.h"

namespace stagecraft {

/// What is timed. The bytes of a collective are the whole buffer, ranks times a rank's share.
enum class LinkOperation {
  SendReceive,    ///< a message one way; of one rank alone: to itself
  Duplex,         ///< two ranks send to each other at once, until both have received
  Pairs,          ///< ranks 0 and 1, 2 and 3, ... at once, a message one way in each; the slowest pair's time
  AllReduce,      ///< among the first ranks
  AllGather,      ///< among the first ranks
  ReduceScatter,  ///< among the first ranks
  HostToDevice,   ///< a copy from the memory of rank 0's host, pinned
  DeviceToHost    ///< and back
};

/// One thing to time.
struct LinkTask {
  LinkOperation operation = LinkOperation::SendReceive;
  Bytes bytes{4};  ///< whole floats
  int ranks = 2;   ///< that take part: the first ones, but for SendReceive
  int from = 0;    ///< of SendReceive
  int to = 1;      ///< of SendReceive
  friend bool operator==(const LinkTask&, const LinkTask&) = default;
};

/// Times operations between ranks.
class LinkMeter {
 public:
  virtual ~LinkMeter() = default;
  [[nodiscard]] virtual int ranks() const = 0;
  /// Whether the ranks are devices with a memory apart from their host's.
  [[nodiscard]] virtual bool copies() const = 0;
  /// What a sample must at least last for the meter's clock to resolve it.
  [[nodiscard]] virtual Seconds shortest_sample() const = 0;
  /// Seconds of one `task`: `samples` times the mean of `batch` right behind each other, both at least 1. What need not
  /// be repeated (buffers, connections) lies outside, but the first time after another task may be slower than the
  /// rest.
  [[nodiscard]] virtual std::vector<double> seconds_of(const LinkTask& task, std::int64_t samples,
                                                       std::int64_t batch) = 0;
};

/// How to measure.
struct LinksOptions {
  Bytes most_bytes{std::int64_t{64} << 20};  ///< of the largest message
  int sizes_per_octave = 1;                  ///< message bytes grow by 2^(1/this)
  /// Of all points together, about: each may take an equal share of what is left, and takes at least five samples.
  Seconds most_time{20};
  double error = 0.03;  ///< a point is precise at this relative_error of its median; then it leaves its time to others
};

/// One measured point.
struct LinkPoint {
  Bytes bytes;
  Timing time;
  Stop stop = Stop::No;  ///< what ended it
  friend bool operator==(const LinkPoint&, const LinkPoint&) = default;
};

/// The times of one operation, ascending in bytes.
struct LinkCurve {
  LinkOperation operation = LinkOperation::SendReceive;
  int ranks = 2;
  std::vector<LinkPoint> points;
  friend bool operator==(const LinkCurve&, const LinkCurve&) = default;
};

/// The two ranks whose transfer of `bytes` took longest, beside ranks 0 and 1.
struct SlowestPair {
  int from = 0;
  int to = 1;
  Bytes bytes;
  double ratio = 1;  ///< its time over that of ranks 0 and 1
  friend bool operator==(const SlowestPair&, const SlowestPair&) = default;
};

/// What was measured between ranks.
struct LinkMeasurement {
  int ranks = 0;
  std::vector<LinkCurve> curves;                ///< in the order of link_tasks
  std::optional<SlowestPair> slowest_pair;      ///< of three ranks and more
  std::optional<ProcessorUse> processors = {};  ///< meanwhile; absent if unknown
  friend bool operator==(const LinkMeasurement&, const LinkMeasurement&) = default;
};

/// "send_receive", "duplex", "pairs of 4", "all_reduce of 2", "host_to_device", ...
[[nodiscard]] std::string curve_name(LinkOperation operation, int ranks);

/// The message bytes that are measured: from 4 up to `most` by 2^(1/per_octave), all rounded down to whole floats and
/// without duplicates, the last being `most` itself. Throws std::invalid_argument if `most` is below 4 or above 2^34 or
/// `per_octave` is not in 1..64.
[[nodiscard]] std::vector<Bytes> message_bytes(Bytes most, int per_octave);

/// All points of the curves in the order in which they are measured. One rank: SendReceive to itself and collectives of
/// one. More: SendReceive and Duplex of ranks 0 and 1; from four on Pairs of the most ranks that pair up; each
/// collective among 2, 3, ... `ranks`. With `copies` both copies too. Throws as message_bytes, and if `ranks` < 1.
[[nodiscard]] std::vector<LinkTask> link_tasks(int ranks, bool copies, const LinksOptions& options);

/// Measures everything in link_tasks with `meter`, then, of three ranks and more, each pair at the largest message.
/// A point takes rounds of samples until it is precise or its time is up. `progress` hears what comes next, `now` tells
/// the time in seconds. Throws as link_tasks, std::invalid_argument for options out of range, and as the meter.
[[nodiscard]] LinkMeasurement measure_links(LinkMeter& meter, const LinksOptions& options,
                                            const std::function<void(const std::string&)>& progress = {},
                                            const std::function<double()>& now = steady_seconds);

}  // namespace stagecraft

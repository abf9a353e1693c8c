#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/conditions.h"
#include "costmodel/graph.h"
#include "costmodel/topology.h"
#include "costmodel/units.h"
#include "profiler/subject/statistics.h"
#include "profiler/subject/watch.h"

namespace stagecraft::profiler {

/// What is timed. The bytes of a collective are those of the whole buffer: the number of ranks times one rank's share.
enum class LinkOperation {
  SendReceive,  ///< a message one way; a single rank sends to itself
  Duplex,       ///< two ranks send to each other at the same time, until both have received
  Pairs,        ///< ranks 0 and 1, 2 and 3, ... at the same time, one message one way per pair; the slowest pair's time
  AllReduce,    ///< among the first ranks
  AllGather,    ///< among the first ranks
  ReduceScatter,  ///< among the first ranks
  HostToDevice,   ///< a copy from pinned memory of the host to rank 0's device
  DeviceToHost    ///< a copy back
};

/// One thing to time.
struct LinkTask {
  LinkOperation operation = LinkOperation::SendReceive;
  Bytes bytes{4};  ///< a multiple of a float's 4 bytes
  int ranks = 2;   ///< number of ranks that take part: the first ones, except for SendReceive
  int from = 0;    ///< for SendReceive
  int to = 1;      ///< for SendReceive
  friend bool operator==(const LinkTask&, const LinkTask&) = default;
};

/// Times operations between ranks.
class LinkMeter {
 public:
  virtual ~LinkMeter() = default;
  [[nodiscard]] virtual int ranks() const = 0;
  /// Whether the ranks are devices with their own memory, separate from the host's.
  [[nodiscard]] virtual bool copies() const = 0;
  /// The shortest sample that the meter's clock can resolve.
  [[nodiscard]] virtual Seconds shortest_sample() const = 0;
  /// `samples` samples, each the mean time of `batch` consecutive runs of `task`, in seconds; both must be at least 1.
  /// Setting up buffers and connections is not timed, but the first run after another task may be slower than the rest.
  [[nodiscard]] virtual std::vector<double> seconds_of(const LinkTask& task, std::int64_t samples,
                                                       std::int64_t batch) = 0;
};

/// How to measure.
struct LinksOptions {
  Bytes most_bytes{std::int64_t{64} << 20};  ///< largest message
  int sizes_per_octave = 1;                  ///< message bytes grow by a factor of 2^(1/sizes_per_octave)
  /// Approximate limit for all points together. Each curve may take a share of the remaining time in proportion to its
  /// share of the remaining points, but takes at least five rounds.
  Seconds most_time{20};
  /// relative_error at which a point is precise enough; a curve ends when all its points are, and the time that it
  /// leaves goes to later ones.
  double error = 0.03;
};

/// One measured point. A round's time is the median of its samples. Samples of one round are alike even if the machine
/// drifts, so rounds, not samples, say how precise the point is.
struct LinkPoint {
  Bytes bytes;
  Timing time;               ///< of the rounds' times; its count is the number of rounds that it took part in
  Stop stop = Stop::No;      ///< Precise, or Time if the curve's time was up before this point was precise
  std::int64_t samples = 0;  ///< of all rounds
  friend bool operator==(const LinkPoint&, const LinkPoint&) = default;
};

/// The times of one operation, ascending in bytes.
struct LinkCurve {
  LinkOperation operation = LinkOperation::SendReceive;
  int ranks = 2;
  std::vector<LinkPoint> points;
  friend bool operator==(const LinkCurve&, const LinkCurve&) = default;
};

/// The two ranks whose transfer of `bytes` took longest, compared with ranks 0 and 1.
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
  std::vector<LinkCurve> curves;                     ///< in the order of link_tasks
  std::optional<SlowestPair> slowest_pair;           ///< absent for fewer than three ranks
  Conditions conditions = {};                        ///< during the measurement
  std::optional<MessageProcessing> processing = {};  ///< absent: not measured
  friend bool operator==(const LinkMeasurement&, const LinkMeasurement&) = default;
};

/// "send_receive", "duplex", "pairs of 4", "all_reduce of 2", "host_to_device", ...
[[nodiscard]] std::string curve_name(LinkOperation operation, int ranks);

/// The message bytes to measure: from 4 to `most` by factors of 2^(1/per_octave), ascending, each rounded down to whole
/// floats, from 64 on to multiples of 16, without duplicates; the last is `most`. Throws std::invalid_argument if
/// `most` is below 4 or above 2^34, or if `per_octave` is not in 1..64.
[[nodiscard]] std::vector<Bytes> message_bytes(Bytes most, int per_octave);

/// All points of the curves, in the order of the curves and ascending in bytes. One rank: SendReceive to itself and
/// collectives of one rank. Two or more: SendReceive and Duplex between ranks 0 and 1, and each collective among 2, 3,
/// ... `ranks`. Four or more: Pairs of all ranks, except the last one if their number is odd. With `copies`, both
/// copies. Throws as message_bytes does, and std::invalid_argument if `ranks` < 1.
[[nodiscard]] std::vector<LinkTask> link_tasks(int ranks, bool copies, const LinksOptions& options);

/// Measures all link_tasks with `meter`, curve by curve, then, if there are three ranks or more, each pair with the
/// largest message. All messages of a curve are first run twice, which does not count. Then rounds follow, alternately
/// with growing and shrinking messages, until all points are precise or the curve's time is up. A message's turn takes
/// about 2 ms, but at least one sample; with several, one more is taken before them, which does not count. Points that
/// are not precise get equal time: messages that take long skip rounds. All points have five rounds or more, spread
/// over the time. `progress` is called before each round with a line about it; `now` returns the time in seconds.
/// Throws as link_tasks and as the meter, and std::invalid_argument if an option is out of range.
[[nodiscard]] LinkMeasurement measure_links(LinkMeter& meter, const LinksOptions& options,
                                            const std::function<void(const std::string&)>& progress = {},
                                            const std::function<double()>& now = steady_seconds);

/// A meter of NCCL between the first `ranks` GPUs of this machine; all GPUs if absent. Each GPU has its own thread and
/// stream and is timed by events on that stream; a sample is the time of the slowest GPU. A transfer one way is half a
/// ping-pong; a single GPU sends to itself, in a group. One operation runs before the first event, so that all ranks
/// are ready. In all-gather and reduce-scatter, each rank's share is rounded up to whole floats. Communicators are
/// created with the first task that needs them. seconds_of throws DeviceError if a call fails or a GPU does not finish
/// within `deadline`; after that, the meter cannot be used. make_nccl_meter throws std::invalid_argument if `ranks` is
/// not in 1..GPUs, and DeviceError, with advice, if there is no GPU or if this build has no CUDA.
[[nodiscard]] std::unique_ptr<LinkMeter> make_nccl_meter(std::optional<int> ranks, std::chrono::milliseconds deadline);

}  // namespace stagecraft::profiler

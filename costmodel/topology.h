#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/units.h"

namespace stagecraft {

/// One measured point of a curve: an operation on `bytes` took `time`.
struct CurvePoint {
  Bytes bytes;
  Seconds time;
  friend bool operator==(const CurvePoint&, const CurvePoint&) = default;
};

/// Measured times by message bytes, ascending and without duplicates; those of fit_monotone never fall.
struct Curve {
  std::vector<CurvePoint> points;
  /// How far measured times lie from the curve: a standard deviation on the scale of the logarithm; absent: unknown.
  std::optional<double> log_spread = {};
  friend bool operator==(const Curve&, const Curve&) = default;
};

/// Where a link's latency and bandwidth come from: a data sheet, a program's table or a person; or a measurement.
enum class LinkOrigin { Declared, Measured };

/// Which thread of a rank's process handles messages.
enum class MessageThread {
  Separate,  ///< one for all messages, while the rank computes
  Own,       ///< the one that computes: it receives only while it waits for a message
};

/// Processor time that one message takes at its two ends, by bytes; at least one curve has points.
struct MessageProcessing {
  MessageThread thread = MessageThread::Separate;
  Curve sender;    ///< empty: none
  Curve receiver;  ///< likewise
  friend bool operator==(const MessageProcessing&, const MessageProcessing&) = default;
};

/// Operations of several devices that were or may be measured.
enum class Collective { AllReduce, AllGather, ReduceScatter, AllToAll };

/// Devices of several groups of the level below that take part in a collective: `per_group`, 2 or more, of each.
struct SpanKey {
  Collective collective = Collective::AllReduce;
  int ranks = 0;  ///< in all
  int per_group = 0;
  friend auto operator<=>(const SpanKey&, const SpanKey&) = default;
};

/// The link between two devices. Latency and bandwidth are always set; measured curves take precedence.
/// The bytes of all collectives count the whole buffer: what every rank holds before and after an all-reduce and an
/// all-to-all, after an all-gather and before a reduce-scatter (ranks times a rank's share).
struct Link {
  BytesPerSecond bandwidth;
  Seconds latency;
  Curve send_receive;                        ///< empty: latency + bytes / bandwidth
  std::map<int, Curve> all_reduce;           ///< by number of ranks; missing: see all_reduce_time
  std::map<int, Curve> all_gather = {};      ///< by number of ranks
  std::map<int, Curve> reduce_scatter = {};  ///< by number of ranks
  LinkOrigin origin = LinkOrigin::Declared;
  std::string channel = {};                          ///< over which it was measured, "gloo"; empty: unknown
  std::optional<MessageProcessing> processing = {};  ///< absent: not measured
  std::vector<std::string> distrust = {};            ///< reasons not to trust the measurement, one sentence each
  std::map<int, Curve> all_to_all = {};              ///< by number of ranks
  std::map<SpanKey, Curve> spans = {};  ///< collectives of several ranks of each group; those above are of one
  friend bool operator==(const Link&, const Link&) = default;
};

/// `count` groups of the level below (devices, at the innermost level) joined by `link`.
struct Level {
  std::string name;
  int count = 1;
  Link link;
  friend bool operator==(const Level&, const Level&) = default;
};

/// One kind of device. `memory` is the limit for a plan; absent: unlimited. The copies between a device and its host
/// are measured by message bytes; empty: not measured.
struct Device {
  std::string name;
  std::optional<Bytes> memory;
  Curve host_to_device = {};
  Curve device_to_host = {};
  DeviceKind kind = DeviceKind::Unknown;
  int host_processors = 0;  ///< of each host, a group of the innermost level; 0: unknown
  friend bool operator==(const Device&, const Device&) = default;
};

/// Consecutive devices of another type.
struct DeviceRange {
  int first = 0;
  int count = 1;
  Device device;
  friend bool operator==(const DeviceRange&, const DeviceRange&) = default;
};

/// Devices and links. Levels are listed innermost first. Devices are numbered from 0 so that the members of each group
/// are consecutive.
struct Topology {
  std::string name;
  Device device;
  std::vector<Level> levels;
  Provenance provenance;
  Conditions conditions = {};            ///< while the links were measured
  std::vector<DeviceRange> others = {};  ///< devices that are not of the type `device`, ascending
  friend bool operator==(const Topology&, const Topology&) = default;
};

/// Throws std::invalid_argument naming the level: no level, a count below 1, a bandwidth that is not positive, a
/// negative latency, a number that is not finite, a curve that is not ascending in bytes or not positive in time, a
/// collective's curve without points or of fewer than 2 ranks, a log_spread that is negative; devices of another type
/// that do not exist, are not in ascending order or have the same name as `device`.
void validate(const Topology& topology);

/// `declared` with the links of `measured` at the levels of the same name, and with its copies to and from the host if
/// it has them, and its kind of device if only it has one; the counts are unchanged. Throws std::invalid_argument for a
/// level of `measured` that `declared` does not have.
[[nodiscard]] Topology with_measured(Topology declared, const Topology& measured);

/// If the links of any level were not trusted when they were measured, or other programs kept the processors busy
/// meanwhile, one line that says so with the reasons: "the links are not trusted: 8 of 15 medians are uncertain by more
/// than 10 %". Where several levels have reasons, each reason begins with its level's name. Else empty.
[[nodiscard]] std::string distrust_text(const Topology& topology);

/// The curves of `link` for one rank of each group, by number of ranks.
[[nodiscard]] const std::map<int, Curve>& curves_of(const Link& link, Collective collective);
[[nodiscard]] std::map<int, Curve>& curves_of(Link& link, Collective collective);

/// The messages that follow each other in a collective of `ranks` ranks on a ring: 2 (n - 1) or n - 1.
[[nodiscard]] int ring_steps(Collective collective, int ranks);

/// Product of the level counts.
[[nodiscard]] int device_count(const Topology& topology);

/// What is left of a topology of more than `devices` devices, which is at least 1: as many whole groups of the
/// outermost level as they fill, or, if they fill none, one group with what is left of it in the same way.
/// Precondition: the devices are of one type.
[[nodiscard]] Topology smaller_topology(Topology topology, int devices);

/// The type of a device: that of the range in `others` that has it, else `device`.
[[nodiscard]] const Device& device_at(const Topology& topology, int device);

/// Index of the outermost level whose groups `a` and `b` differ in, 0 if they share an innermost group; the level whose
/// link joins them. Precondition: a != b, both in range.
[[nodiscard]] int joining_level(const Topology& topology, int a, int b);

/// Number of the group below `level` that holds `device`: the device itself at level 0, its server at level 1, ...
[[nodiscard]] int group_below(const Topology& topology, int level, int device);

/// Time of a point-to-point transfer of `data` on an otherwise idle `link`: the measured curve, piecewise linear, below
/// its first point as interpolate with the link's latency, and rising at `bandwidth` above its last; without a curve,
/// latency + data / bandwidth. No bytes take no time.
[[nodiscard]] Seconds transfer_time(const Link& link, Bytes data);

/// Piecewise linear value of a non-empty `curve` at `data`; below the first point the first time, above the last point
/// the last time plus the further bytes at the slope of the last two points (one point: in proportion, a point of 0
/// bytes constant). Never below 0.
[[nodiscard]] Seconds interpolate(const Curve& curve, Bytes data);

/// The part of the times of a non-empty `curve` that does not grow with bytes: the first time, if it is of at most 64
/// KiB, or if its bytes account for at most half of it, by the last point and between the first two; else `declared`,
/// or the first time if that is less.
[[nodiscard]] Seconds latency_of(const Curve& curve, Seconds declared);

/// interpolate, but below the first point of a curve that begins with large messages on the line from latency_of at 0
/// bytes to that point.
[[nodiscard]] Seconds interpolate(const Curve& curve, Bytes data, Seconds declared_latency);

}  // namespace stagecraft

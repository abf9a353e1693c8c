#include "costmodel/format/topology_json.h"

#include <algorithm>

#include "costmodel/format/files/files.h"
#include "costmodel/format/shared_notations.h"

namespace stagecraft::format {
namespace {

constexpr const char* kDistrustNote = "not trusted";

Notation<std::vector<CurvePoint>> points() {
  return list(object<CurvePoint>(
                  {
                      required("bytes", &CurvePoint::bytes, bytes(), "The message, bytes"),
                      required("time_s", &CurvePoint::time, positive(), "The operation, seconds"),
                  },
                  "One measured point.")
                  .named("point"));
}

/// A curve of a collective with the number of ranks that it is for.
struct CollectiveCurve {
  int ranks = 2;
  int per_group = 1;
  Curve curve;
};

Field<Level> collective(const char* key, Collective collective, const char* help) {
  const auto entry =
      object<CollectiveCurve>(
          {
              required("ranks", &CollectiveCurve::ranks, integer(2, kMost), "Number of ranks."),
              optional("ranks_per_group", &CollectiveCurve::per_group, integer(1, kMost),
                       "Ranks in each group of the level below; absent: 1. Since version 9."),
              required("points", path(&CollectiveCurve::curve, &Curve::points), points().with("minItems", 1),
                       "Ascending in bytes."),
              optional("log_spread", path(&CollectiveCurve::curve, &Curve::log_spread), not_negative(),
                       "How far measured times lie from the points: standard deviation on the scale of the logarithm; "
                       "absent: unknown. Since version 8."),
          },
          "Measured times of a collective for a number of ranks.")
          .named("collective");
  const auto curves = [collective](const Level& level) {
    std::vector<CollectiveCurve> out;
    for (const auto& [ranks, curve] : curves_of(level.link, collective)) out.push_back({ranks, 1, curve});
    for (const auto& [span, curve] : level.link.spans) {
      if (span.collective == collective) out.push_back({span.ranks, span.per_group, curve});
    }
    return out;
  };
  return derived<Level, std::vector<CollectiveCurve>>(
             key, curves,
             [collective](const Cursor& at, Level& level, const std::vector<CollectiveCurve>& read) {
               for (std::size_t i = 0; i < read.size(); ++i) {
                 const auto& [ranks, per_group, curve] = read[i];
                 const bool fresh = per_group == 1
                                        ? curves_of(level.link, collective).emplace(ranks, curve).second
                                        : level.link.spans.emplace(SpanKey{collective, ranks, per_group}, curve).second;
                 if (!fresh)
                   at.at(i).member("ranks").fail("a curve for " + std::to_string(ranks) + " ranks already exists");
               }
             },
             list(entry), help)
      .only_if([curves](const Level& level) { return !curves(level).empty(); });
}

Notation<MessageProcessing> processing() {
  return object<MessageProcessing>(
             {
                 required("thread", &MessageProcessing::thread,
                          words<MessageThread>("thread",
                                               {{"own", MessageThread::Own}, {"separate", MessageThread::Separate}}),
                          "Thread of the rank's process that spends it: one for messages, or the one that computes, "
                          "which receives only while it waits for a message."),
                 optional("sender", path(&MessageProcessing::sender, &Curve::points), points(), "Absent: none."),
                 optional("receiver", path(&MessageProcessing::receiver, &Curve::points), points(), "Absent: none."),
             },
             "Processor time of one message at its two ends, ascending in bytes; at least one end. Absent: not "
             "measured. Since version 5.")
      .named("processing");
}

Notation<Level> level() {
  constexpr auto link = &Level::link;
  return object<Level>(
             {
                 required("name", &Level::name, text(), "For display: server, rack, ..."),
                 required("count", &Level::count, integer(1, kMost), "Groups of the level below."),
                 required("bandwidth_bytes_per_s", path(link, &Link::bandwidth), positive(),
                          "Bandwidth between two devices, bytes per second"),
                 required("latency_s", path(link, &Link::latency), not_negative(), "Latency of a message, seconds"),
                 optional("origin", path(link, &Link::origin),
                          words<LinkOrigin>("origin",
                                            {{"declared", LinkOrigin::Declared}, {"measured", LinkOrigin::Measured}}),
                          "Where bandwidth and latency come from; absent: declared.")
                     .always(),
                 optional("channel", path(link, &Link::channel), text(),
                          "Channel over which the link was measured, such as \"gloo\"; absent: unknown. Since version "
                          "5."),
                 optional("send_receive", path(link, &Link::send_receive, &Curve::points), points(),
                          "Measured transfers, ascending in bytes; take precedence over bandwidth and latency."),
                 optional("send_receive_log_spread", path(link, &Link::send_receive, &Curve::log_spread),
                          not_negative(),
                          "How far measured transfers lie from the points of send_receive: standard deviation on the "
                          "scale of the logarithm; absent: unknown. Since version 8."),
                 collective("all_reduce", Collective::AllReduce, "Measured all-reduces; each number of ranks once."),
                 collective("all_gather", Collective::AllGather,
                            "Measured all-gathers, by the bytes a rank holds after it; each number of ranks once."),
                 collective("reduce_scatter", Collective::ReduceScatter,
                            "Measured reduce-scatters, by the bytes a rank holds before it; each number of ranks "
                            "once."),
                 collective("all_to_all", Collective::AllToAll,
                            "Measured all-to-alls, by the bytes a rank sends in all; each number of ranks once. Since "
                            "version 9."),
                 optional("processing", path(link, &Link::processing), processing()),
                 optional("distrust", path(link, &Link::distrust), list(text()),
                          "Reasons not to trust the measurement of the link, one sentence each. Until version 6 they "
                          "were a note, \"not trusted\". Since version 7."),
             },
             "A number of groups of the level below (devices, at the innermost level), joined by one kind of link.")
      .named("level");
}

/// What two types of devices may differ in.
FieldList<Device> device_type() {
  return {
      required("name", &Device::name, text(), "Model of the device."),
      optional("kind", &Device::kind, device_kind(), "Kind of device; absent if unknown."),
      optional("host_processors", &Device::host_processors, processors(),
               "Processors of each host, a group of the innermost level; absent if unknown."),
      optional("memory_bytes", &Device::memory, integer(1, Cursor::kMostBytes),
               "Memory that a plan may use on a device; absent: unlimited, bytes"),
  };
}

Notation<Device> device() {
  return object(fields<Device>({device_type(),
                                {optional("host_to_device", path(&Device::host_to_device, &Curve::points), points(),
                                          "Measured copies from the host, ascending in bytes."),
                                 optional("device_to_host", path(&Device::device_to_host, &Curve::points), points(),
                                          "Measured copies to the host, ascending in bytes.")}}));
}

Notation<DeviceRange> device_range() {
  return object(fields<DeviceRange>(
      {{required("first_device", &DeviceRange::first, whole(), "Number of the first device of this type."),
        required("devices", &DeviceRange::count, integer(1, kMost), "How many consecutive devices there are.")},
       embedded(&DeviceRange::device, device_type())}));
}

/// Until version 6, `links` said only in a note why its measurement was not trusted.
void take_noted_distrust(Topology& topology) {
  const auto note = topology.provenance.notes.find(kDistrustNote);
  if (note == topology.provenance.notes.end() || topology.levels.empty()) return;
  if (std::ranges::all_of(topology.levels, [](const Level& level) { return level.link.distrust.empty(); }))
    topology.levels.front().link.distrust = {note->second};
}

const Document<Topology>& topology_document() {
  static const Document<Topology> document(
      {.name = "topology",
       .version = 9,
       .title = "Topology",
       .help = "Devices and links: devices in nested levels.",
       .changes = "Version 2 added origin, all_gather, reduce_scatter, host_to_device and device_to_host, version 3 "
                  "kind and host_processors of the device, version 4 conditions, version 5 channel and processing, "
                  "version 6 other_devices, version 7 distrust, version 8 log_spread and send_receive_log_spread, "
                  "version 9 all_to_all and ranks_per_group."},
      {
          required("name", &Topology::name, text(), "For display; any text."),
          required("device", &Topology::device, device(), "The type of all devices but those in other_devices."),
          optional("other_devices", &Topology::others, list(device_range()),
                   "Devices of other types, in ascending order."),
          required("levels", &Topology::levels, list(level()).with("minItems", 1),
                   "Innermost first. Devices are numbered so that the members of each group are consecutive; at most "
                   "2^24 in all."),
          conditions_field(&Topology::conditions),
          provenance_field(&Topology::provenance),
      },
      [](const Cursor& root, Topology& topology) {
        take_noted_distrust(topology);
        refuse_invalid(root, topology);
      });
  return document;
}

}  // namespace

Topology parse_topology(const std::string& text, const std::string& file) {
  return topology_document().parse(text, file);
}
Topology read_topology(const std::string& path) { return parse_topology(read_text(path), path); }
std::string topology_json(const Topology& topology) { return topology_document().text(topology); }
DocumentSchema topology_schema() { return topology_document().schema(); }

}  // namespace stagecraft::format

#include <algorithm>
#include <array>
#include <utility>

#include "costmodel/format/cursor.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/index.h"

namespace stagecraft::format {
namespace {

constexpr const char* kFormat = "stagecraft.topology";
constexpr int kVersion = 9;
constexpr const char* kDeclared = "declared";
constexpr const char* kMeasured = "measured";
constexpr const char* kOwn = "own";
constexpr const char* kSeparate = "separate";
constexpr const char* kDistrustNote = "not trusted";

Curve read_curve(const Cursor& at) {
  return {at.list([](const Cursor& c) {
    Fields point(c);
    CurvePoint p{point.required("bytes").bytes(), Seconds(point.required("time_s").positive())};
    point.done();
    return p;
  })};
}

Json curve_json(const Curve& curve) {
  Json out = Json::array();
  for (const CurvePoint& p : curve.points) out.push_back(Json{{"bytes", p.bytes.value}, {"time_s", p.time.value}});
  return out;
}

constexpr std::array<std::pair<const char*, Collective>, 4> kCollectives = {
    {{"all_reduce", Collective::AllReduce},
     {"all_gather", Collective::AllGather},
     {"reduce_scatter", Collective::ReduceScatter},
     {"all_to_all", Collective::AllToAll}}};

void read_collective(const Cursor& at, Collective collective, Link& out) {
  for (std::size_t i = 0; i < at.elements(); ++i) {
    Fields entry(at.at(i));
    const Cursor ranks = entry.required("ranks");
    const int n = to_int(ranks.integer(2, 1 << 24));
    int per_group = 1;
    if (const auto v = entry.optional("ranks_per_group")) per_group = to_int(v->integer(1, 1 << 24));
    Curve curve = read_curve(entry.required("points"));
    if (const auto v = entry.optional("log_spread")) curve.log_spread = v->not_negative();
    const bool fresh = per_group == 1 ? curves_of(out, collective).emplace(n, curve).second
                                      : out.spans.emplace(SpanKey{collective, n, per_group}, curve).second;
    if (!fresh) ranks.fail("a curve for " + std::to_string(n) + " ranks already exists");
    entry.done();
  }
}

Json collective_json(const Link& link, Collective collective) {
  Json out = Json::array();
  const auto add = [&out](int ranks, int per_group, const Curve& curve) {
    Json entry;
    entry["ranks"] = ranks;
    if (per_group > 1) entry["ranks_per_group"] = per_group;
    entry["points"] = curve_json(curve);
    if (curve.log_spread) entry["log_spread"] = *curve.log_spread;
    out.push_back(entry);
  };
  for (const auto& [ranks, curve] : curves_of(link, collective)) add(ranks, 1, curve);
  for (const auto& [key, curve] : link.spans) {
    if (key.collective == collective) add(key.ranks, key.per_group, curve);
  }
  return out;
}

LinkOrigin read_origin(const Cursor& at) {
  const std::string name = at.text();
  if (name == kMeasured) return LinkOrigin::Measured;
  if (name != kDeclared) at.fail(unknown_name("origin", name, {kDeclared, kMeasured}));
  return LinkOrigin::Declared;
}

MessageThread read_thread(const Cursor& at) {
  const std::string name = at.text();
  if (name == kOwn) return MessageThread::Own;
  if (name != kSeparate) at.fail(unknown_name("thread", name, {kOwn, kSeparate}));
  return MessageThread::Separate;
}

MessageProcessing read_processing(const Cursor& at) {
  Fields fields(at);
  MessageProcessing out;
  out.thread = read_thread(fields.required("thread"));
  if (const auto v = fields.optional("sender")) out.sender = read_curve(*v);
  if (const auto v = fields.optional("receiver")) out.receiver = read_curve(*v);
  fields.done();
  return out;
}

Json processing_json(const MessageProcessing& processing) {
  Json out;
  out["thread"] = processing.thread == MessageThread::Own ? kOwn : kSeparate;
  if (!processing.sender.points.empty()) out["sender"] = curve_json(processing.sender);
  if (!processing.receiver.points.empty()) out["receiver"] = curve_json(processing.receiver);
  return out;
}

Level read_level(const Cursor& at) {
  Fields fields(at);
  Level out;
  out.name = fields.required("name").text();
  out.count = to_int(fields.required("count").integer(1, 1 << 24));
  out.link.bandwidth = BytesPerSecond(fields.required("bandwidth_bytes_per_s").positive());
  out.link.latency = fields.required("latency_s").seconds();
  if (const auto v = fields.optional("origin")) out.link.origin = read_origin(*v);
  if (const auto v = fields.optional("channel")) out.link.channel = v->text();
  if (const auto v = fields.optional("send_receive")) out.link.send_receive = read_curve(*v);
  if (const auto v = fields.optional("send_receive_log_spread")) out.link.send_receive.log_spread = v->not_negative();
  for (const auto& [key, collective] : kCollectives) {
    if (const auto v = fields.optional(key)) read_collective(*v, collective, out.link);
  }
  if (const auto v = fields.optional("processing")) out.link.processing = read_processing(*v);
  if (const auto v = fields.optional("distrust")) out.link.distrust = v->list([](const Cursor& c) { return c.text(); });
  fields.done();
  return out;
}

Json level_json(const Level& level) {
  Json out;
  out["name"] = level.name;
  out["count"] = level.count;
  out["bandwidth_bytes_per_s"] = level.link.bandwidth.value;
  out["latency_s"] = level.link.latency.value;
  out["origin"] = level.link.origin == LinkOrigin::Measured ? kMeasured : kDeclared;
  if (!level.link.channel.empty()) out["channel"] = level.link.channel;
  if (!level.link.send_receive.points.empty()) out["send_receive"] = curve_json(level.link.send_receive);
  if (level.link.send_receive.log_spread) out["send_receive_log_spread"] = *level.link.send_receive.log_spread;
  for (const auto& [key, collective] : kCollectives) {
    if (const Json curves = collective_json(level.link, collective); !curves.empty()) out[key] = curves;
  }
  if (level.link.processing) out["processing"] = processing_json(*level.link.processing);
  if (!level.link.distrust.empty()) out["distrust"] = level.link.distrust;
  return out;
}

/// What two types of devices may differ in.
void read_device_type(Fields& fields, Device& out) {
  out.name = fields.required("name").text();
  if (const auto v = fields.optional("memory_bytes")) out.memory = Bytes(v->integer(1, Cursor::kMostBytes));
  if (const auto v = fields.optional("kind")) out.kind = read_device_kind(*v);
  if (const auto v = fields.optional("host_processors")) out.host_processors = read_processors(*v);
}

void write_device_type(const Device& device, Json& out) {
  out["name"] = device.name;
  if (device.kind != DeviceKind::Unknown) out["kind"] = device_kind_word(device.kind);
  if (device.host_processors > 0) out["host_processors"] = device.host_processors;
  if (device.memory) out["memory_bytes"] = device.memory->value;
}

DeviceRange read_range(const Cursor& at) {
  Fields fields(at);
  DeviceRange out;
  out.first = to_int(fields.required("first_device").integer(0, 1 << 24));
  out.count = to_int(fields.required("devices").integer(1, 1 << 24));
  read_device_type(fields, out.device);
  fields.done();
  return out;
}

/// Until version 6, `links` said only in a note why its measurement was not trusted.
void take_noted_distrust(Topology& topology) {
  const auto note = topology.provenance.notes.find(kDistrustNote);
  if (note == topology.provenance.notes.end() || topology.levels.empty()) return;
  if (std::ranges::all_of(topology.levels, [](const Level& level) { return level.link.distrust.empty(); }))
    topology.levels.front().link.distrust = {note->second};
}

}  // namespace

Topology parse_topology(const std::string& text, const std::string& file) {
  const Json json = parse_document(text, file);
  const Cursor root(json, file);
  Fields fields(root);
  check_header(fields, kFormat, kVersion);
  Topology out;
  out.name = fields.required("name").text();
  Fields device(fields.required("device"));
  read_device_type(device, out.device);
  if (const auto v = device.optional("host_to_device")) out.device.host_to_device = read_curve(*v);
  if (const auto v = device.optional("device_to_host")) out.device.device_to_host = read_curve(*v);
  device.done();
  if (const auto v = fields.optional("other_devices")) out.others = v->list(read_range);
  out.levels = fields.required("levels").list(read_level);
  if (const auto v = fields.optional("conditions")) out.conditions = read_conditions(*v);
  if (const auto v = fields.optional("provenance")) out.provenance = read_provenance(*v);
  fields.done();
  take_noted_distrust(out);
  return validated(root, std::move(out));
}

std::string topology_json(const Topology& topology) {
  Json out = document(kFormat, kVersion);
  out["name"] = topology.name;
  write_device_type(topology.device, out["device"]);
  const auto write_copies = [&out](const char* key, const Curve& curve) {
    if (!curve.points.empty()) out["device"][key] = curve_json(curve);
  };
  write_copies("host_to_device", topology.device.host_to_device);
  write_copies("device_to_host", topology.device.device_to_host);
  for (const DeviceRange& range : topology.others) {
    Json entry;
    entry["first_device"] = range.first;
    entry["devices"] = range.count;
    write_device_type(range.device, entry);
    out["other_devices"].push_back(entry);
  }
  out["levels"] = Json::array();
  for (const Level& level : topology.levels) out["levels"].push_back(level_json(level));
  if (topology.conditions != Conditions{}) out["conditions"] = conditions_json(topology.conditions);
  if (topology.provenance != Provenance{}) out["provenance"] = provenance_json(topology.provenance);
  return dump(out);
}

Topology read_topology(const std::string& path) { return parse_topology(read_text(path), path); }

}  // namespace stagecraft::format

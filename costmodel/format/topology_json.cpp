#include <algorithm>

#include "costmodel/format/cursor.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/json.h"
#include "costmodel/index.h"

namespace stagecraft::format {
namespace {

constexpr const char* kFormat = "stagecraft.topology";
constexpr int kVersion = 8;
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

std::map<int, Curve> read_collective(const Cursor& at) {
  std::map<int, Curve> out;
  for (std::size_t i = 0; i < at.elements(); ++i) {
    Fields entry(at.at(i));
    const Cursor ranks = entry.required("ranks");
    const int n = to_int(ranks.integer(2, 1 << 24));
    const auto [curve, fresh] = out.emplace(n, read_curve(entry.required("points")));
    if (!fresh) ranks.fail("a curve for " + std::to_string(n) + " ranks already exists");
    if (const auto v = entry.optional("log_spread")) curve->second.log_spread = v->not_negative();
    entry.done();
  }
  return out;
}

Json collective_json(const std::map<int, Curve>& curves) {
  Json out = Json::array();
  for (const auto& [ranks, curve] : curves) {
    Json entry;
    entry["ranks"] = ranks;
    entry["points"] = curve_json(curve);
    if (curve.log_spread) entry["log_spread"] = *curve.log_spread;
    out.push_back(entry);
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
  if (const auto v = fields.optional("all_reduce")) out.link.all_reduce = read_collective(*v);
  if (const auto v = fields.optional("all_gather")) out.link.all_gather = read_collective(*v);
  if (const auto v = fields.optional("reduce_scatter")) out.link.reduce_scatter = read_collective(*v);
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
  if (!level.link.all_reduce.empty()) out["all_reduce"] = collective_json(level.link.all_reduce);
  if (!level.link.all_gather.empty()) out["all_gather"] = collective_json(level.link.all_gather);
  if (!level.link.reduce_scatter.empty()) out["reduce_scatter"] = collective_json(level.link.reduce_scatter);
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

#include <limits>

#include "costmodel/format/cursor.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/format/throughput_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/index.h"

namespace stagecraft::format {
namespace {

constexpr int kPredictionVersion = 8;
constexpr int kTimelineVersion = 4;
constexpr int kMost = 1 << 24;

int whole(const Cursor& at) { return to_int(at.integer(0, kMost)); }
int whole_or_none(const Cursor& at) { return to_int(at.integer(-1, kMost)); }

/// JSON has no NaN and no infinity: a loss that is not finite is written as null and read as NaN.
double read_loss(const Cursor& at) {
  return at.value().is_null() ? std::numeric_limits<double>::quiet_NaN() : at.number();
}

// A span is a row of these columns: files hold hundreds of thousands of them.
constexpr const char* kColumns[] = {"action", "rank", "step", "stage", "microbatch", "peer", "start_s", "end_s"};

Span read_span(const Cursor& at) {
  if (at.elements() != std::size(kColumns)) at.fail_type("a row of " + std::to_string(std::size(kColumns)) + " values");
  Span out;
  try {
    out.action.kind = action_kind(at.at(0).text());
  } catch (const std::invalid_argument& e) { at.at(0).fail(e.what()); }
  out.rank = whole(at.at(1));
  out.step = whole(at.at(2));
  out.action.stage = whole(at.at(3));
  out.action.microbatch = whole_or_none(at.at(4));
  out.action.peer = whole_or_none(at.at(5));
  out.start = Seconds(at.at(6).number());
  out.end = Seconds(at.at(7).number());
  if (out.end < out.start) at.fail("the span ends before it starts");
  return out;
}

Json memory_json(const RankMemory& memory) {
  Json out;
  out["rank"] = memory.rank;
  out["total_bytes"] = memory.total.value;
  out["parts_bytes"] = Json::object();
  for (const auto& [part, bytes] : memory.parts) out["parts_bytes"][to_string(part)] = bytes.value;
  return out;
}

RankMemory read_memory(const Cursor& at) {
  Fields fields(at);
  RankMemory out;
  out.rank = whole(fields.required("rank"));
  out.total = fields.required("total_bytes").bytes();
  const Cursor parts = fields.required("parts_bytes");
  Fields bytes(parts);
  for (const auto& [key, value] : parts.value().items()) {
    const Cursor one = bytes.required(key);
    try {
      out.parts[memory_part(key)] = one.bytes();
    } catch (const std::invalid_argument& e) { one.fail(e.what()); }
  }
  fields.done();
  return out;
}

Json timeline_object(const Timeline& timeline) {
  Json out;
  out["ranks"] = timeline.ranks;
  out["stage_of_rank"] = timeline.stage_of_rank;
  out["steps"] = Json::array();
  for (const StepTime& step : timeline.steps) {
    out["steps"].push_back(Json{{"step", step.step}, {"start_s", step.start.value}, {"end_s", step.end.value}});
  }
  out["memory"] = Json::array();
  for (const RankMemory& memory : timeline.memory) out["memory"].push_back(memory_json(memory));
  out["columns"] = kColumns;
  out["spans"] = Json::array();
  for (const Span& s : timeline.spans) {
    out["spans"].push_back(Json::array({to_string(s.action.kind), s.rank, s.step, s.action.stage, s.action.microbatch,
                                        s.action.peer, s.start.value, s.end.value}));
  }
  return out;
}

Timeline read_timeline(const Cursor& at) {
  Fields fields(at);
  Timeline out;
  out.ranks = to_int(fields.required("ranks").integer(1, kMost));
  const Cursor stages = fields.required("stage_of_rank");
  out.stage_of_rank = stages.list(whole);
  if (out.stage_of_rank.size() != to_index(out.ranks)) {
    stages.fail(std::to_string(out.stage_of_rank.size()) + " entries for " + std::to_string(out.ranks) + " ranks");
  }
  out.steps = fields.required("steps").list([](const Cursor& c) {
    Fields step(c);
    StepTime s{whole(step.required("step")), Seconds(step.required("start_s").number()),
               Seconds(step.required("end_s").number())};
    step.done();
    if (s.end < s.start) c.fail("the step ends before it starts");
    return s;
  });
  const Cursor memory = fields.required("memory");
  out.memory = memory.list(read_memory);
  const Cursor columns = fields.required("columns");
  if (columns.value() != Json(kColumns)) columns.fail_type(Json(kColumns).dump());
  const Cursor spans = fields.required("spans");
  out.spans = spans.list(read_span);
  const auto check_rank = [&](int rank, const Cursor& place) {
    if (rank >= out.ranks) {
      place.fail("rank " + std::to_string(rank) + " does not exist, the timeline has 0.." +
                 std::to_string(out.ranks - 1));
    }
  };
  for (std::size_t i = 0; i < out.spans.size(); ++i) check_rank(out.spans[i].rank, spans.at(i));
  for (std::size_t i = 0; i < out.memory.size(); ++i) check_rank(out.memory[i].rank, memory.at(i));
  fields.done();
  return out;
}

double number(Seconds time) { return time.value; }
std::int64_t number(Bytes bytes) { return bytes.value; }
void read_figure(const Cursor& at, Seconds& out) { out = at.seconds(); }
void read_figure(const Cursor& at, Bytes& out) { out = at.bytes(); }

template <class T>
Json range_json(const Range<T>& range) {
  return Json{{"low", number(range.low)}, {"high", number(range.high)}, {"source", to_string(range.source)}};
}

template <class T>
void read_range(const Cursor& at, Range<T>& out) {
  Fields fields(at);
  read_figure(fields.required("low"), out.low);
  read_figure(fields.required("high"), out.high);
  const Cursor source = fields.required("source");
  try {
    out.source = figure_source(source.text());
  } catch (const std::invalid_argument& e) { source.fail(e.what()); }
  fields.done();
}

/// Calls visit(key, range) for each range of a stage.
template <class Ranges, class Visit>
void for_each_range(Ranges& ranges, Visit visit) {
  visit("forward_s", ranges.forward);
  visit("backward_s", ranges.backward);
  visit("compute_s", ranges.compute);
  visit("update_s", ranges.update);
  visit("reduce_s", ranges.reduce);
  visit("exposed_transfer_s", ranges.exposed_transfer);
  visit("bubble_s", ranges.bubble);
  visit("memory_bytes", ranges.memory);
}

StagePrediction read_stage(const Cursor& at) {
  Fields fields(at);
  StagePrediction out;
  out.stage = whole(fields.required("stage"));
  out.replicas = to_int(fields.required("replicas").integer(1, kMost));
  out.forward = fields.required("forward_s").seconds();
  out.backward = fields.required("backward_s").seconds();
  out.compute = fields.required("compute_s").seconds();
  out.update = fields.required("update_s").seconds();
  out.reduce = fields.required("reduce_s").seconds();
  out.exposed_transfer = fields.required("exposed_transfer_s").seconds();
  out.bubble = fields.required("bubble_s").seconds();
  out.in_flight = whole(fields.required("in_flight_microbatches"));
  out.memory = read_memory(fields.required("memory"));
  out.fits = fields.required("fits").boolean();
  if (const auto v = fields.optional("ranges")) {
    Fields ranges(*v);
    for_each_range(out.ranges.emplace(),
                   [&](const char* key, auto& range) { read_range(ranges.required(key), range); });
    ranges.done();
    out.memory_bound = out.ranges->memory.high;
  }
  fields.done();
  return out;
}

ScalePoint read_scale_point(const Cursor& at) {
  Fields fields(at);
  ScalePoint out;
  out.copies = to_int(fields.required("copies").integer(1, kMost));
  out.devices = to_int(fields.required("devices").integer(1, kMost));
  out.microbatches = to_int(fields.required("microbatches").integer(1, kMost));
  out.iteration = fields.required("iteration_s").seconds();
  out.low = fields.required("iteration_low_s").seconds();
  out.high = fields.required("iteration_high_s").seconds();
  if (const auto v = fields.optional("samples_per_s")) out.samples_per_s = v->not_negative();
  out.efficiency = fields.required("efficiency").not_negative();
  out.efficiency_low = fields.required("efficiency_low").not_negative();
  out.efficiency_high = fields.required("efficiency_high").not_negative();
  out.fits = fields.required("fits").boolean();
  fields.done();
  return out;
}

MemoryOverTime read_memory_over_time(const Cursor& at) {
  Fields fields(at);
  MemoryOverTime out;
  out.rank = whole(fields.required("rank"));
  out.moments = fields.required("moments").list([](const Cursor& cursor) {
    Fields moment(cursor);
    MemoryMoment read{moment.required("from_s").seconds(), moment.required("bytes").bytes()};
    moment.done();
    return read;
  });
  fields.done();
  return out;
}

}  // namespace

std::string prediction_json(const Prediction& prediction) {
  Json out = document("stagecraft.prediction", kPredictionVersion);
  out["iteration_s"] = prediction.iteration.value;
  if (prediction.low) out["iteration_low_s"] = prediction.low->value;
  if (prediction.high) out["iteration_high_s"] = prediction.high->value;
  if (!prediction.interval.empty()) out["interval"] = prediction.interval;
  if (!prediction.calibration.empty()) out["calibration"] = prediction.calibration;
  if (prediction.samples_per_s) out["samples_per_s"] = *prediction.samples_per_s;
  put_rates(out, prediction.rates);
  out["bubble"] = prediction.bubble;
  if (prediction.devices > 0) out["devices"] = prediction.devices;
  if (!prediction.unused_devices.empty()) out["unused_devices"] = prediction.unused_devices;
  if (!prediction.idle_devices.empty()) out["idle_devices"] = prediction.idle_devices;
  out["stages"] = Json::array();
  for (const StagePrediction& stage : prediction.stages) {
    Json s;
    s["stage"] = stage.stage;
    s["replicas"] = stage.replicas;
    s["forward_s"] = stage.forward.value;
    s["backward_s"] = stage.backward.value;
    s["compute_s"] = stage.compute.value;
    s["update_s"] = stage.update.value;
    s["reduce_s"] = stage.reduce.value;
    s["exposed_transfer_s"] = stage.exposed_transfer.value;
    s["bubble_s"] = stage.bubble.value;
    s["in_flight_microbatches"] = stage.in_flight;
    s["memory"] = memory_json(stage.memory);
    s["fits"] = stage.fits;
    if (stage.ranges) {
      Json& ranges = s["ranges"] = Json::object();
      for_each_range(*stage.ranges, [&](const char* key, const auto& range) { ranges[key] = range_json(range); });
    }
    out["stages"].push_back(s);
  }
  if (prediction.yardstick) out["yardstick"] = yardstick_json(*prediction.yardstick);
  if (!prediction.other_device.empty()) out["other_device"] = prediction.other_device;
  if (!prediction.backward_parts.empty()) out["backward_parts"] = prediction.backward_parts;
  if (!prediction.channel.empty()) out["channel"] = prediction.channel;
  if (!prediction.changes.empty()) out["changes"] = prediction.changes;
  if (prediction.reckoned_microbatches > 0) out["extrapolated_microbatches"] = prediction.reckoned_microbatches;
  if (!prediction.message_processing.empty()) out["message_processing"] = prediction.message_processing;
  for (const ScalePoint& point : prediction.scaling) {
    Json entry{{"copies", point.copies},
               {"devices", point.devices},
               {"microbatches", point.microbatches},
               {"iteration_s", point.iteration.value},
               {"iteration_low_s", point.low.value},
               {"iteration_high_s", point.high.value}};
    if (point.samples_per_s) entry["samples_per_s"] = *point.samples_per_s;
    entry["efficiency"] = point.efficiency;
    entry["efficiency_low"] = point.efficiency_low;
    entry["efficiency_high"] = point.efficiency_high;
    entry["fits"] = point.fits;
    out["scaling"].push_back(std::move(entry));
  }
  for (const MemoryOverTime& course : prediction.memory_over_time) {
    Json moments = Json::array();
    for (const MemoryMoment& moment : course.moments)
      moments.push_back(Json{{"from_s", moment.from.value}, {"bytes", moment.bytes.value}});
    out["memory_over_time"].push_back(Json{{"rank", course.rank}, {"moments", std::move(moments)}});
  }
  if (prediction.provenance != Provenance{}) out["provenance"] = provenance_json(prediction.provenance);
  out["timeline"] = timeline_object(prediction.timeline);
  return dump(out);
}

Prediction parse_prediction(const std::string& text, const std::string& file) {
  const Json json = parse_document(text, file);
  Fields fields(Cursor(json, file));
  check_header(fields, "stagecraft.prediction", kPredictionVersion);
  Prediction out;
  out.iteration = fields.required("iteration_s").seconds();
  if (const auto v = fields.optional("iteration_low_s")) out.low = v->seconds();
  if (const auto v = fields.optional("iteration_high_s")) out.high = v->seconds();
  if (const auto v = fields.optional("interval")) out.interval = v->text();
  if (const auto v = fields.optional("calibration")) out.calibration = v->text();
  if (const auto v = fields.optional("samples_per_s")) out.samples_per_s = v->not_negative();
  out.rates = take_rates(fields);
  out.bubble = fields.required("bubble").number();
  if (const auto v = fields.optional("devices")) out.devices = to_int(v->integer(1, kMost));
  if (const auto v = fields.optional("unused_devices")) out.unused_devices = v->list(whole);
  if (const auto v = fields.optional("idle_devices")) out.idle_devices = v->list(whole);
  out.stages = fields.required("stages").list(read_stage);
  if (const auto v = fields.optional("yardstick")) out.yardstick = read_yardstick(*v);
  if (const auto v = fields.optional("other_device")) out.other_device = v->text();
  if (const auto v = fields.optional("backward_parts")) out.backward_parts = v->text();
  if (const auto v = fields.optional("channel")) out.channel = v->text();
  if (const auto v = fields.optional("changes")) out.changes = v->list([](const Cursor& c) { return c.text(); });
  if (const auto v = fields.optional("extrapolated_microbatches"))
    out.reckoned_microbatches = to_int(v->integer(0, kMost));
  if (const auto v = fields.optional("message_processing")) out.message_processing = v->text();
  if (const auto v = fields.optional("scaling")) out.scaling = v->list(read_scale_point);
  if (const auto v = fields.optional("provenance")) out.provenance = read_provenance(*v);
  if (const auto v = fields.optional("memory_over_time")) out.memory_over_time = v->list(read_memory_over_time);
  out.timeline = read_timeline(fields.required("timeline"));
  fields.done();
  return out;
}

std::string measurement_json(const Measurement& measurement) {
  Json out = document("stagecraft.timeline", kTimelineVersion);
  out["model"] = measurement.model;
  out["schedule"] = measurement.schedule;
  out["microbatches"] = measurement.microbatches;
  if (measurement.microbatch_samples) out["microbatch_samples"] = *measurement.microbatch_samples;
  out["losses"] = measurement.losses;
  out["ended"] = measurement.ended;
  out["kept_spans"] =
      Json{{"first", measurement.kept.first}, {"last", measurement.kept.last}, {"every", measurement.kept.every}};
  out["timeline"] = timeline_object(measurement.timeline);
  if (!measurement.channel.empty()) out["channel"] = measurement.channel;
  if (measurement.conditions != Conditions{}) out["conditions"] = conditions_json(measurement.conditions);
  if (measurement.provenance != Provenance{}) out["provenance"] = provenance_json(measurement.provenance);
  return dump(out);
}

Measurement parse_measurement(const std::string& text, const std::string& file) {
  const Json json = parse_document(text, file);
  Fields fields(Cursor(json, file));
  check_header(fields, "stagecraft.timeline", kTimelineVersion);
  Measurement out;
  out.model = fields.required("model").text();
  out.schedule = fields.required("schedule").text();
  out.microbatches = to_int(fields.required("microbatches").integer(1, kMost));
  if (const auto v = fields.optional("microbatch_samples"))
    out.microbatch_samples = v->integer(1, std::int64_t{1} << 53);
  out.losses = fields.required("losses").list(read_loss);
  // Version 1 has the spans of all steps and was written at the end.
  if (const auto v = fields.optional("ended")) out.ended = v->boolean();
  if (const auto v = fields.optional("kept_spans")) {
    Fields kept(*v);
    out.kept.first = whole(kept.required("first"));
    out.kept.last = whole(kept.required("last"));
    out.kept.every = to_int(kept.required("every").integer(1, kMost));
    kept.done();
  }
  out.timeline = read_timeline(fields.required("timeline"));
  if (const auto v = fields.optional("channel")) out.channel = v->text();
  if (const auto v = fields.optional("conditions")) out.conditions = read_conditions(*v);
  if (const auto v = fields.optional("provenance")) out.provenance = read_provenance(*v);
  fields.done();
  return out;
}

Prediction read_prediction(const std::string& path) { return parse_prediction(read_text(path), path); }
Measurement read_measurement(const std::string& path) { return parse_measurement(read_text(path), path); }

}  // namespace stagecraft::format

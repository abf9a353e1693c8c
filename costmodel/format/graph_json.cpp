#include "costmodel/format/graph_json.h"
#include "costmodel/format/cursor.h"
#include "costmodel/format/files/files.h"
#include "costmodel/index.h"
#include "costmodel/schedule.h"

namespace stagecraft::format {
namespace {

constexpr const char* kFormat = "stagecraft.graph";
constexpr int kVersion = 12;
constexpr std::int64_t kMany = std::int64_t{1} << 53;

Timing read_timing(const Cursor& at) {
  Fields fields(at);
  Timing out;
  out.median = fields.required("median_s").seconds();
  if (const auto v = fields.optional("spread_s")) out.spread = v->seconds();
  out.count = fields.required("count").integer(0, kMany);
  if (const auto v = fields.optional("log_spread")) out.log_spread = v->not_negative();
  fields.done();
  return out;
}

Json timing_json(const Timing& timing) {
  Json out;
  out["median_s"] = timing.median.value;
  if (timing.spread) out["spread_s"] = timing.spread->value;
  out["count"] = timing.count;
  if (timing.log_spread) out["log_spread"] = *timing.log_spread;
  return out;
}

Output read_output(const Cursor& at) {
  Fields fields(at);
  Output out;
  out.bytes = fields.required("activation_bytes").bytes();
  if (const auto v = fields.optional("shape")) {
    out.shape = v->list([](const Cursor& c) { return c.integer(0, kMany); });
  }
  if (const auto v = fields.optional("dtype")) out.dtype = v->text();
  if (const auto v = fields.optional("requires_grad")) out.requires_grad = v->boolean();
  if (const auto v = fields.optional("saved")) out.saved = v->boolean();
  fields.done();
  return out;
}

Json output_json(const Output& output) {
  Json out;
  out["activation_bytes"] = output.bytes.value;
  if (!output.shape.empty() || !output.dtype.empty()) out["shape"] = output.shape;
  if (!output.dtype.empty()) out["dtype"] = output.dtype;
  if (!output.requires_grad) out["requires_grad"] = false;
  if (output.saved) out["saved"] = *output.saved;
  return out;
}

LayerShare read_share(const Cursor& at) {
  Fields fields(at);
  LayerShare out;
  out.busy_ns = fields.required("busy_ns").integer(0, kMany);
  out.share_ns = fields.required("share_ns").integer(0, kMany);
  out.activities = fields.required("activities").integer(0, kMany);
  if (const auto v = fields.optional("isolated")) out.isolated = read_timing(*v);
  fields.done();
  return out;
}

Json share_json(const LayerShare& share) {
  Json out;
  out["busy_ns"] = share.busy_ns;
  out["share_ns"] = share.share_ns;
  out["activities"] = share.activities;
  if (share.isolated) out["isolated"] = timing_json(*share.isolated);
  return out;
}

/// The integers of a quality, by key.
using Count = std::pair<const char*, std::int64_t ProfileQuality::*>;
constexpr Count kCounts[] = {
    {"steps", &ProfileQuality::steps},
    {"watched_ns", &ProfileQuality::watched_ns},
    {"data_wait_ns", &ProfileQuality::data_wait_ns},
    {"unattributed_ns", &ProfileQuality::unattributed_ns},
    {"work", &ProfileQuality::work},
    {"work_attributed", &ProfileQuality::work_attributed},
    {"work_ns", &ProfileQuality::work_ns},
    {"work_attributed_ns", &ProfileQuality::work_attributed_ns},
    {"dropped", &ProfileQuality::dropped},
    {"bad_timestamps", &ProfileQuality::bad_timestamps},
    {"disagreements", &ProfileQuality::disagreements},
    {"host_wait_ns", &ProfileQuality::host_wait_ns},
    {"kernel_wait_ns", &ProfileQuality::kernel_wait_ns},
};

ProfileQuality read_quality(const Cursor& at) {
  Fields fields(at);
  ProfileQuality out;
  out.clock = fields.required("clock").text();
  out.trusted = fields.required("trusted").boolean();
  out.reasons = fields.required("reasons").list([](const Cursor& c) { return c.text(); });
  out.watched = read_timing(fields.required("watched"));
  out.debiased = fields.required("debiased").boolean();
  for (const auto& [key, member] : kCounts) out.*member = fields.required(key).integer(0, kMany);
  out.summed_peak_bytes = fields.required("summed_peak_bytes").bytes();
  out.allocator_peak_bytes = fields.required("allocator_peak_bytes").bytes();
  fields.done();
  return out;
}

Json quality_json(const ProfileQuality& quality) {
  Json out;
  out["clock"] = quality.clock;
  out["trusted"] = quality.trusted;
  out["reasons"] = quality.reasons;
  out["watched"] = timing_json(quality.watched);
  out["debiased"] = quality.debiased;
  for (const auto& [key, member] : kCounts) out[key] = quality.*member;
  out["summed_peak_bytes"] = quality.summed_peak_bytes.value;
  out["allocator_peak_bytes"] = quality.allocator_peak_bytes.value;
  return out;
}

Estimate read_estimate(const Cursor& at) {
  Fields fields(at);
  Estimate out;
  if (const auto v = fields.optional("from_device")) out.from = v->text();
  if (const auto v = fields.optional("from_math")) out.from_math = v->text();
  out.math = fields.required("math").text();
  out.peak = FlopsPerSecond(fields.required("peak_flops_per_s").not_negative());
  out.bandwidth = BytesPerSecond(fields.required("memory_bandwidth_bytes_per_s").not_negative());
  out.time_per_operator = fields.required("operator_s").seconds();
  fields.done();
  return out;
}

Json estimate_json(const Estimate& estimate) {
  Json out;
  if (!estimate.from.empty()) out["from_device"] = estimate.from;
  if (!estimate.from_math.empty()) out["from_math"] = estimate.from_math;
  out["math"] = estimate.math;
  out["peak_flops_per_s"] = estimate.peak.value;
  out["memory_bandwidth_bytes_per_s"] = estimate.bandwidth.value;
  out["operator_s"] = estimate.time_per_operator.value;
  return out;
}

BackwardParts read_parts(const Cursor& at) {
  Fields fields(at);
  BackwardParts out;
  out.inputs = read_timing(fields.required("input_gradient"));
  out.weights = read_timing(fields.required("weight_gradient"));
  if (const auto v = fields.optional("separable")) out.separable = v->boolean();
  fields.done();
  return out;
}

Json parts_json(const BackwardParts& parts) {
  Json out;
  out["input_gradient"] = timing_json(parts.inputs);
  out["weight_gradient"] = timing_json(parts.weights);
  if (!parts.separable) out["separable"] = false;
  return out;
}

Work read_work(const Cursor& at) {
  Fields fields(at);
  Work out;
  out.flops = Flops(static_cast<double>(fields.required("flops").integer(0, kMany)));
  out.moved = fields.required("moved_bytes").bytes();
  out.operators = fields.required("operators").integer(0, kMany);
  fields.done();
  return out;
}

Json work_json(const Work& work) {
  Json out;
  out["flops"] = static_cast<std::int64_t>(work.flops.value);
  out["moved_bytes"] = work.moved.value;
  out["operators"] = work.operators;
  return out;
}

double read_factor(const Cursor& at) {
  if (at.number() < 1) at.fail_type("a factor of at least 1");
  return at.number();
}

StateTensor read_state_tensor(const Cursor& at) {
  Fields fields(at);
  StateTensor out = state_tensor_in(fields);
  fields.done();
  return out;
}

Layer read_layer(const Cursor& at) {
  Fields fields(at);
  Layer out;
  out.id = fields.required("id").text();
  out.name = fields.required("name").text();
  out.kind = fields.required("kind").text();
  out.forward = read_timing(fields.required("forward"));
  out.backward = read_timing(fields.required("backward"));
  if (const auto v = fields.optional("backward_parts")) out.backward_parts = read_parts(*v);
  if (const auto v = fields.optional("accumulation")) out.accumulation = read_timing(*v);
  if (const auto v = fields.optional("update")) out.update = read_timing(*v);
  if (const auto v = fields.optional("loading")) out.loading = read_timing(*v);
  out.outputs = fields.required("outputs").list(read_output);
  out.parameter_bytes = fields.required("parameter_bytes").bytes();
  if (const auto v = fields.optional("frozen_bytes")) out.frozen_bytes = v->bytes();
  if (const auto v = fields.optional("written_bytes")) out.written_bytes = v->bytes();
  if (const auto v = fields.optional("replicable")) out.replicable = v->boolean();
  if (const auto v = fields.optional("parameters")) out.parameters = v->integer(0, kMany);
  if (const auto v = fields.optional("tied")) {
    out.tied = v->list([](const Cursor& c) {
      Fields tied(c);
      TiedParameter parameter{tied.required("name").text(), tied.required("parameter_bytes").bytes()};
      tied.done();
      return parameter;
    });
  }
  if (const auto v = fields.optional("saved_bytes")) out.saved_bytes = v->bytes();
  if (const auto v = fields.optional("workspace_bytes")) out.workspace_bytes = v->bytes();
  if (const auto v = fields.optional("gradient_bytes")) out.gradient_bytes = v->bytes();
  if (const auto v = fields.optional("saved_for_backward_bytes")) out.saved_for_backward_bytes = v->bytes();
  if (const auto v = fields.optional("forward_work")) out.forward_work = read_work(*v);
  if (const auto v = fields.optional("backward_work")) out.backward_work = read_work(*v);
  if (const auto v = fields.optional("forward_share")) out.forward_share = read_share(*v);
  if (const auto v = fields.optional("backward_share")) out.backward_share = read_share(*v);
  if (const auto v = fields.optional("update_share")) out.update_share = read_share(*v);
  if (const auto v = fields.optional("stage")) out.stage = to_int(v->integer(0, 1 << 20));
  if (const auto v = fields.optional("parameter_tensors")) out.parameter_tensors = v->list(read_state_tensor);
  if (const auto v = fields.optional("exchanged_buffers")) out.exchanged_buffers = v->list(read_state_tensor);
  fields.done();
  return out;
}

Json layer_json(const Layer& layer) {
  Json out;
  out["id"] = layer.id;
  out["name"] = layer.name;
  out["kind"] = layer.kind;
  out["forward"] = timing_json(layer.forward);
  out["backward"] = timing_json(layer.backward);
  if (layer.backward_parts) out["backward_parts"] = parts_json(*layer.backward_parts);
  if (layer.accumulation) out["accumulation"] = timing_json(*layer.accumulation);
  if (layer.update) out["update"] = timing_json(*layer.update);
  if (layer.loading) out["loading"] = timing_json(*layer.loading);
  out["outputs"] = Json::array();
  for (const Output& output : layer.outputs) out["outputs"].push_back(output_json(output));
  out["parameter_bytes"] = layer.parameter_bytes.value;
  if (layer.frozen_bytes > Bytes(0)) out["frozen_bytes"] = layer.frozen_bytes.value;
  if (layer.written_bytes > Bytes(0)) out["written_bytes"] = layer.written_bytes.value;
  if (!layer.replicable) out["replicable"] = false;
  if (layer.parameters) out["parameters"] = *layer.parameters;
  for (const TiedParameter& tied : layer.tied) {
    out["tied"].push_back(Json{{"name", tied.name}, {"parameter_bytes", tied.bytes.value}});
  }
  if (layer.saved_bytes) out["saved_bytes"] = layer.saved_bytes->value;
  if (layer.workspace_bytes) out["workspace_bytes"] = layer.workspace_bytes->value;
  if (layer.gradient_bytes) out["gradient_bytes"] = layer.gradient_bytes->value;
  if (layer.saved_for_backward_bytes) out["saved_for_backward_bytes"] = layer.saved_for_backward_bytes->value;
  if (layer.forward_work) out["forward_work"] = work_json(*layer.forward_work);
  if (layer.backward_work) out["backward_work"] = work_json(*layer.backward_work);
  if (layer.forward_share) out["forward_share"] = share_json(*layer.forward_share);
  if (layer.backward_share) out["backward_share"] = share_json(*layer.backward_share);
  if (layer.update_share) out["update_share"] = share_json(*layer.update_share);
  if (layer.stage) out["stage"] = *layer.stage;
  for (const StateTensor& tensor : layer.parameter_tensors)
    out["parameter_tensors"].push_back(state_tensor_json(tensor));
  for (const StateTensor& tensor : layer.exchanged_buffers)
    out["exchanged_buffers"].push_back(state_tensor_json(tensor));
  return out;
}

}  // namespace

Graph parse_graph(const std::string& text, const std::string& file) {
  const Json json = parse_document(text, file);
  const Cursor root(json, file);
  Fields fields(root);
  check_header(fields, kFormat, kVersion);
  Graph out;
  out.name = fields.required("name").text();
  if (const auto v = fields.optional("options")) out.options = read_text_map(*v);
  if (const auto v = fields.optional("microbatch_samples")) out.microbatch_samples = v->integer(1, kMany);
  if (const auto v = fields.optional("dtype")) out.dtype = v->text();
  if (const auto v = fields.optional("allow_tf32")) out.allow_tf32 = v->boolean();
  if (const auto v = fields.optional("optimizer")) out.optimizer = v->text();
  if (const auto v = fields.optional("optimizer_state_values")) out.optimizer_state_values = v->integer(0, 16);
  if (const auto v = fields.optional("whole_batch_loss")) out.whole_batch_loss = v->boolean();
  if (const auto v = fields.optional("library_bytes")) out.library_bytes = v->bytes();
  if (const auto v = fields.optional("threads")) out.threads = v->integer(0, 1 << 20);
  if (const auto v = fields.optional("iteration")) out.iteration = read_timing(*v);
  if (const auto v = fields.optional("device")) {
    Fields device(*v);
    if (const auto name = device.optional("name")) out.device.name = name->text();
    if (const auto kind = device.optional("kind")) out.device.kind = read_device_kind(*kind);
    if (const auto count = device.optional("host_processors")) out.device.host_processors = read_processors(*count);
    device.done();
  }
  if (const auto v = fields.optional("slowdown")) out.slowdown = v->list(read_factor);
  if (const auto v = fields.optional("in_flight_slowdown")) {
    Fields slowdown(*v);
    out.in_flight_slowdown = InFlightSlowdown{to_int(slowdown.required("microbatches").integer(2, kMostMicrobatches)),
                                              read_factor(slowdown.required("factor"))};
    slowdown.done();
  }
  if (const auto v = fields.optional("quality")) out.quality = read_quality(*v);
  if (const auto v = fields.optional("estimate")) out.estimate = read_estimate(*v);
  const Cursor layers = fields.required("layers");
  out.layers = layers.list(read_layer);
  std::map<std::string, int> index;
  for (std::size_t i = 0; i < out.layers.size(); ++i) {
    if (!index.emplace(out.layers[i].id, to_int(i)).second) {
      layers.at(i).fail("id \"" + out.layers[i].id + "\" appears twice");
    }
  }
  out.edges = fields.required("edges").list([&](const Cursor& c) {
    Fields edge(c);
    const auto layer = [&](const char* key) {
      const Cursor at = edge.required(key);
      const auto it = index.find(at.text());
      if (it == index.end()) at.fail("layer \"" + at.text() + "\" does not exist, ids are in /layers");
      return it->second;
    };
    Edge e;
    e.source = layer("source");
    e.destination = layer("destination");
    if (const auto v = edge.optional("output")) e.output = to_int(v->integer(0, 1 << 20));
    edge.done();
    return e;
  });
  if (const auto v = fields.optional("conditions")) out.conditions = read_conditions(*v);
  if (const auto v = fields.optional("provenance")) out.provenance = read_provenance(*v);
  fields.done();
  return validated(root, std::move(out));
}

std::string graph_json(const Graph& graph) {
  Json out = document(kFormat, kVersion);
  out["name"] = graph.name;
  if (!graph.options.empty()) out["options"] = graph.options;
  if (graph.microbatch_samples) out["microbatch_samples"] = *graph.microbatch_samples;
  if (!graph.dtype.empty()) out["dtype"] = graph.dtype;
  if (graph.allow_tf32) out["allow_tf32"] = *graph.allow_tf32;
  if (!graph.optimizer.empty()) out["optimizer"] = graph.optimizer;
  if (graph.optimizer_state_values > 0) out["optimizer_state_values"] = graph.optimizer_state_values;
  if (graph.whole_batch_loss) out["whole_batch_loss"] = true;
  if (graph.library_bytes > Bytes(0)) out["library_bytes"] = graph.library_bytes.value;
  if (graph.threads > 0) out["threads"] = graph.threads;
  if (graph.iteration) out["iteration"] = timing_json(*graph.iteration);
  if (graph.device != MeasuredDevice{}) {
    Json& device = out["device"] = Json::object();
    if (!graph.device.name.empty()) device["name"] = graph.device.name;
    if (graph.device.kind != DeviceKind::Unknown) device["kind"] = device_kind_word(graph.device.kind);
    if (graph.device.host_processors > 0) device["host_processors"] = graph.device.host_processors;
  }
  if (!graph.slowdown.empty()) out["slowdown"] = graph.slowdown;
  if (graph.in_flight_slowdown)
    out["in_flight_slowdown"] =
        Json{{"microbatches", graph.in_flight_slowdown->microbatches}, {"factor", graph.in_flight_slowdown->factor}};
  if (graph.quality) out["quality"] = quality_json(*graph.quality);
  if (graph.estimate) out["estimate"] = estimate_json(*graph.estimate);
  out["layers"] = Json::array();
  for (const Layer& layer : graph.layers) out["layers"].push_back(layer_json(layer));
  out["edges"] = Json::array();
  for (const Edge& edge : graph.edges) {
    Json e;
    e["source"] = graph.layers[to_index(edge.source)].id;
    e["destination"] = graph.layers[to_index(edge.destination)].id;
    if (edge.output) e["output"] = *edge.output;
    out["edges"].push_back(e);
  }
  if (graph.conditions != Conditions{}) out["conditions"] = conditions_json(graph.conditions);
  if (graph.provenance != Provenance{}) out["provenance"] = provenance_json(graph.provenance);
  return dump(out);
}

Graph read_graph(const std::string& path) { return parse_graph(read_text(path), path); }

}  // namespace stagecraft::format

#include "costmodel/format/plan_json.h"
#include "costmodel/format/actions_row.h"
#include "costmodel/format/cursor.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/throughput_json.h"
#include "costmodel/index.h"

namespace stagecraft::format {
namespace {

constexpr const char* kFormat = "stagecraft.plan";
constexpr int kVersion = 9;
constexpr std::int64_t kMany = std::int64_t{1} << 53;
constexpr int kMostDevices = 1 << 24;

int whole(const Cursor& at) { return to_int(at.integer(0, kMostDevices)); }

PlanTensor read_plan_tensor(const Cursor& at) {
  Fields fields(at);
  PlanTensor out;
  out.layer = fields.required("layer").text();
  out.tensor = state_tensor_in(fields);
  fields.done();
  return out;
}

Json plan_tensors_json(const std::vector<PlanTensor>& tensors) {
  Json out = Json::array();
  for (const PlanTensor& tensor : tensors) {
    Json& json = out.emplace_back(state_tensor_json(tensor.tensor));
    json["layer"] = tensor.layer;
  }
  return out;
}

Stage read_stage(const Cursor& at) {
  Fields fields(at);
  Stage out;
  out.layers = fields.required("layers").list([](const Cursor& c) { return c.text(); });
  out.devices = fields.required("devices").list(whole);
  if (const auto v = fields.optional("recompute")) out.recompute = v->boolean();
  if (const auto v = fields.optional("recompute_every")) {
    out.recompute_every = to_int(v->integer(1, kMostDevices));
    if (!out.recompute) v->fail("has no effect without \"recompute\": true");
  }
  if (const auto v = fields.optional("parameters")) out.parameters = v->list(read_plan_tensor);
  if (const auto v = fields.optional("exchanged_buffers")) out.exchanged_buffers = v->list(read_plan_tensor);
  fields.done();
  return out;
}

BoundaryTensor read_tensor(const Cursor& at) {
  Fields fields(at);
  BoundaryTensor out;
  out.layer = fields.required("layer").text();
  if (const auto v = fields.optional("output")) out.output = whole(*v);
  out.bytes = fields.required("activation_bytes").bytes();
  if (const auto v = fields.optional("shape")) out.shape = v->list([](const Cursor& c) { return c.integer(0, kMany); });
  if (const auto v = fields.optional("dtype")) out.dtype = v->text();
  out.gradient = fields.required("gradient").boolean();
  fields.done();
  return out;
}

Boundary read_boundary(const Cursor& at) {
  Fields fields(at);
  Boundary out;
  out.source = whole(fields.required("source"));
  out.destination = whole(fields.required("destination"));
  out.tensors = fields.required("tensors").list(read_tensor);
  fields.done();
  return out;
}

TiedLayers read_tied(const Cursor& at) {
  Fields fields(at);
  TiedLayers out;
  out.parameter = fields.required("parameter").text();
  out.layers = fields.required("layers").list([](const Cursor& c) { return c.text(); });
  fields.done();
  return out;
}

std::vector<Action> read_row(const Cursor& at) {
  try {
    return parse_actions_row(at.text());
  } catch (const std::invalid_argument& e) { at.fail(e.what()); }
}

Json boundary_json(const Boundary& boundary) {
  Json out;
  out["source"] = boundary.source;
  out["destination"] = boundary.destination;
  out["tensors"] = Json::array();
  for (const BoundaryTensor& tensor : boundary.tensors) {
    Json t;
    t["layer"] = tensor.layer;
    if (tensor.output) t["output"] = *tensor.output;
    t["activation_bytes"] = tensor.bytes.value;
    if (!tensor.shape.empty() || !tensor.dtype.empty()) t["shape"] = tensor.shape;
    if (!tensor.dtype.empty()) t["dtype"] = tensor.dtype;
    t["gradient"] = tensor.gradient;
    out["tensors"].push_back(t);
  }
  return out;
}

}  // namespace

Plan parse_plan(const std::string& text, const std::string& file) {
  const Json json = parse_document(text, file);
  const Cursor root(json, file);
  Fields fields(root);
  check_header(fields, kFormat, kVersion);
  Plan out;
  out.model = fields.required("model").text();
  if (const auto v = fields.optional("options")) out.options = read_text_map(*v);
  if (const auto v = fields.optional("microbatch_samples")) out.microbatch_samples = v->integer(1, kMany);
  if (const auto v = fields.optional("dtype")) out.dtype = v->text();
  if (const auto v = fields.optional("allow_tf32")) out.allow_tf32 = v->boolean();
  if (const auto v = fields.optional("optimizer")) out.optimizer = v->text();
  out.microbatches = to_int(fields.required("microbatches").integer(1, kMostMicrobatches));
  out.schedule = fields.required("schedule").text();
  if (const auto v = fields.optional("chunks")) out.chunks = to_int(v->integer(1, 1 << 20));
  if (const auto v = fields.optional("strategy")) out.strategy = v->text();
  if (const auto v = fields.optional("steady_state_s")) out.steady_state = v->seconds();
  if (const auto v = fields.optional("iteration_s")) out.iteration = v->seconds();
  if (const auto v = fields.optional("sample_work")) out.sample_work = read_sample_work(*v);
  if (const auto v = fields.optional("lower_bound_s")) out.lower_bound = v->seconds();
  out.stages = fields.required("stages").list(read_stage);
  out.boundaries = fields.required("boundaries").list(read_boundary);
  if (const auto v = fields.optional("tied")) out.tied = v->list(read_tied);
  if (const auto v = fields.optional("warmups")) {
    out.warmups = v->list(whole);
  } else {
    std::vector<int> replicas;
    for (const Stage& stage : out.stages) replicas.push_back(std::max<int>(1, to_int(stage.devices.size())));
    out.warmups = warmup_counts(replicas);
  }
  if (const auto v = fields.optional("gradient_bucket_bytes"))
    out.gradient_bucket_bytes = Bytes(v->integer(1, Cursor::kMostBytes));
  if (const auto v = fields.optional("actions")) out.listed = v->list(read_row);
  if (const auto v = fields.optional("provenance")) out.provenance = read_provenance(*v);
  fields.done();
  return validated(root, std::move(out));
}

std::string plan_json(const Plan& plan) {
  Json out = document(kFormat, kVersion);
  out["model"] = plan.model;
  if (!plan.options.empty()) out["options"] = plan.options;
  if (plan.microbatch_samples) out["microbatch_samples"] = *plan.microbatch_samples;
  if (!plan.dtype.empty()) out["dtype"] = plan.dtype;
  if (plan.allow_tf32) out["allow_tf32"] = *plan.allow_tf32;
  if (!plan.optimizer.empty()) out["optimizer"] = plan.optimizer;
  out["microbatches"] = plan.microbatches;
  out["schedule"] = plan.schedule;
  if (plan.chunks > 1) out["chunks"] = plan.chunks;
  if (!plan.strategy.empty()) out["strategy"] = plan.strategy;
  if (plan.steady_state) out["steady_state_s"] = plan.steady_state->value;
  if (plan.iteration) out["iteration_s"] = plan.iteration->value;
  if (plan.sample_work != SampleWork{}) out["sample_work"] = sample_work_json(plan.sample_work);
  if (plan.lower_bound) out["lower_bound_s"] = plan.lower_bound->value;
  out["stages"] = Json::array();
  for (const Stage& stage : plan.stages) {
    Json s;
    s["layers"] = stage.layers;
    s["devices"] = stage.devices;
    if (stage.recompute) s["recompute"] = true;
    if (stage.recompute_every > 0) s["recompute_every"] = stage.recompute_every;
    if (!stage.parameters.empty()) s["parameters"] = plan_tensors_json(stage.parameters);
    if (!stage.exchanged_buffers.empty()) s["exchanged_buffers"] = plan_tensors_json(stage.exchanged_buffers);
    out["stages"].push_back(s);
  }
  out["boundaries"] = Json::array();
  for (const Boundary& boundary : plan.boundaries) out["boundaries"].push_back(boundary_json(boundary));
  for (const TiedLayers& tied : plan.tied)
    out["tied"].push_back(Json{{"parameter", tied.parameter}, {"layers", tied.layers}});
  out["warmups"] = plan.warmups;
  if (plan.gradient_bucket_bytes) out["gradient_bucket_bytes"] = plan.gradient_bucket_bytes->value;
  if (!plan.listed.empty()) {
    out["actions"] = Json::array();
    for (const auto& list : plan.listed) out["actions"].push_back(actions_row(list));
  }
  if (plan.provenance != Provenance{}) out["provenance"] = provenance_json(plan.provenance);
  return dump(out);
}

Plan read_plan(const std::string& path) { return parse_plan(read_text(path), path); }

}  // namespace stagecraft::format

#include "costmodel/format/results/plan_list_json.h"

#include <algorithm>

#include "costmodel/format/cursor.h"
#include "costmodel/index.h"

namespace stagecraft::format {
namespace {

constexpr int kVersion = 4;
constexpr int kMost = 1 << 24;

Json parts_json(const StepParts& parts, bool explained) {
  Json out;
  out["compute_s"] = parts.compute.value;
  if (explained) out["host_s"] = parts.host.value;
  out["update_s"] = parts.update.value;
  out["reduce_s"] = parts.reduce.value;
  out["exposed_transfer_s"] = parts.exposed_transfer.value;
  out["bubble_s"] = parts.bubble.value;
  return out;
}

Json listed_json(const ListedPlan& plan, int rank) {
  Json out;
  out["rank"] = rank;
  out["origin"] = plan.origin;
  if (!plan.file.empty()) out["file"] = plan.file;
  out["step_s"] = plan.step.value;
  if (plan.samples_per_s) out["samples_per_s"] = *plan.samples_per_s;
  out["devices"] = plan.device_count;
  out["memory_bytes"] = plan.memory.value;
  out["device_seconds"] = plan.device_time.value;
  if (plan.price) out["price"] = *plan.price;
  out["chunks"] = plan.chunks;
  out["recomputed_stages"] = plan.recomputed;
  out["stages"] = Json::array();
  for (std::size_t s = 0; s < plan.replicas.size(); ++s) {
    out["stages"].push_back(
        Json{{"first_layer", plan.first[s]}, {"replicas", plan.replicas[s]}, {"devices", plan.devices[s]}});
  }
  if (plan.parts) out["parts"] = parts_json(*plan.parts, plan.explained);
  return out;
}

int count(const Cursor& at, int least = 1) { return to_int(at.integer(least, kMost)); }

std::string one_of(const Cursor& at, const std::string& what, const std::vector<std::string>& known) {
  std::string out = at.text();
  if (std::find(known.begin(), known.end(), out) == known.end()) at.fail(unknown_name(what, out, known));
  return out;
}

void read_parts(const Cursor& at, ListedPlan& out) {
  Fields fields(at);
  StepParts& parts = out.parts.emplace();
  parts.compute = fields.required("compute_s").seconds();
  if (const auto host = fields.optional("host_s")) {
    parts.host = host->seconds();
    out.explained = true;
  }
  parts.update = fields.required("update_s").seconds();
  parts.reduce = fields.required("reduce_s").seconds();
  parts.exposed_transfer = fields.required("exposed_transfer_s").seconds();
  parts.bubble = fields.required("bubble_s").seconds();
  fields.done();
}

ListedPlan read_listed(const Cursor& at) {
  Fields fields(at);
  ListedPlan out;
  (void)count(fields.required("rank"));
  out.origin = fields.required("origin").text();
  if (const auto file = fields.optional("file")) out.file = file->text();
  out.step = fields.required("step_s").seconds();
  if (const auto samples = fields.optional("samples_per_s")) out.samples_per_s = samples->not_negative();
  out.device_count = count(fields.required("devices"));
  out.memory = fields.required("memory_bytes").bytes();
  out.device_time = fields.required("device_seconds").seconds();
  if (const auto price = fields.optional("price")) out.price = price->not_negative();
  out.chunks = count(fields.required("chunks"));
  out.recomputed = count(fields.required("recomputed_stages"), 0);
  const Cursor stages = fields.required("stages");
  if (stages.elements() == 0) stages.fail_type("one stage or more");
  for (std::size_t s = 0; s < stages.elements(); ++s) {
    Fields stage(stages.at(s));
    out.first.push_back(stage.required("first_layer").text());
    out.replicas.push_back(count(stage.required("replicas")));
    out.devices.push_back(stage.required("devices").text());
    stage.done();
  }
  if (const auto parts = fields.optional("parts")) read_parts(*parts, out);
  fields.done();
  return out;
}

Relaxation read_relaxation(const Cursor& at) {
  Fields fields(at);
  Relaxation out;
  out.change = fields.required("change").text();
  if (const auto step = fields.optional("step_s")) out.step = step->seconds();
  out.better = fields.required("better").boolean();
  fields.done();
  return out;
}

ListedSetting read_setting(const Cursor& at) {
  Fields fields(at);
  ListedSetting out;
  if (const auto v = fields.optional("microbatch_samples")) out.microbatch_samples = v->integer(1, kMost);
  if (const auto v = fields.optional("times")) out.times = v->text();
  out.microbatches = count(fields.required("microbatches"));
  out.schedule = fields.required("schedule").text();
  out.recompute = fields.required("recompute").boolean();
  if (const auto v = fields.optional("recompute_every")) out.recompute_every = count(*v, 0);
  if (const auto v = fields.optional("gradient_bucket_bytes"))
    out.gradient_bucket_bytes = Bytes(v->integer(1, Cursor::kMostBytes));
  out.outcome =
      one_of(fields.required("outcome"), "outcome", {"best", "not better", "does not fit", "no plan", "open"});
  if (const auto v = fields.optional("step_s")) out.step = v->seconds();
  if (const auto v = fields.optional("replicas")) out.replicas = v->list([](const Cursor& c) { return count(c); });
  if (const auto v = fields.optional("chunks")) out.chunks = count(*v);
  if (const auto v = fields.optional("memory_bytes")) out.memory = v->bytes();
  if (const auto v = fields.optional("lower_bound_s")) out.lower_bound = v->seconds();
  fields.done();
  return out;
}

std::pair<std::string, int> read_skipped(const Cursor& at) {
  Fields fields(at);
  std::string reason = fields.required("reason").text();
  const int candidates = count(fields.required("count"));
  fields.done();
  return {std::move(reason), candidates};
}

Json setting_json(const ListedSetting& setting) {
  Json out;
  if (setting.microbatch_samples) out["microbatch_samples"] = *setting.microbatch_samples;
  if (!setting.times.empty()) out["times"] = setting.times;
  out["microbatches"] = setting.microbatches;
  out["schedule"] = setting.schedule;
  out["recompute"] = setting.recompute;
  if (setting.recompute) out["recompute_every"] = setting.recompute_every;
  if (setting.gradient_bucket_bytes) out["gradient_bucket_bytes"] = setting.gradient_bucket_bytes->value;
  out["outcome"] = setting.outcome;
  if (setting.step) {
    out["step_s"] = setting.step->value;
    out["replicas"] = setting.replicas;
    out["chunks"] = setting.chunks;
  }
  if (setting.memory) out["memory_bytes"] = setting.memory->value;
  if (setting.lower_bound) out["lower_bound_s"] = setting.lower_bound->value;
  return out;
}

}  // namespace

std::string plan_list_json(const PlanList& list) {
  Json out = document("stagecraft.plans", kVersion);
  out["model"] = list.model;
  out["list"] = list.list;
  out["objective"] = list.objective;
  if (list.min_samples_per_s) out["min_samples_per_s"] = *list.min_samples_per_s;
  if (list.price_per_device_hour) out["price_per_device_hour"] = *list.price_per_device_hour;
  out["schedule"] = list.schedule;
  out["microbatches"] = list.microbatches;
  if (list.memory_limit) out["memory_limit_bytes"] = list.memory_limit->value;
  if (list.lower_bound) out["lower_bound_s"] = list.lower_bound->value;
  if (list.proven) out["proven"] = *list.proven;
  out["considered"] = list.considered;
  out["plans"] = Json::array();
  int rank = 0;
  for (const ListedPlan& plan : list.plans) out["plans"].push_back(listed_json(plan, ++rank));
  if (!list.relaxations.empty()) {
    out["relaxations"] = Json::array();
    for (const Relaxation& relaxation : list.relaxations) {
      Json one{{"change", relaxation.change}};
      if (relaxation.step) one["step_s"] = relaxation.step->value;
      one["better"] = relaxation.better;
      out["relaxations"].push_back(std::move(one));
    }
  }
  if (!list.settings.empty()) {
    out["settings"] = Json::array();
    for (const ListedSetting& setting : list.settings) out["settings"].push_back(setting_json(setting));
  }
  out["skipped"] = Json::array();
  for (const auto& [reason, count] : list.skipped) out["skipped"].push_back(Json{{"reason", reason}, {"count", count}});
  return dump(out);
}

PlanList parse_plan_list(const std::string& text, const std::string& file) {
  const Json json = parse_document(text, file);
  Fields fields(Cursor(json, file));
  check_header(fields, "stagecraft.plans", kVersion);
  PlanList out;
  out.model = fields.required("model").text();
  out.list = one_of(fields.required("list"), "list", {"top", "front", "settings"});
  out.objective = one_of(fields.required("objective"), "objective", {"time", "cost", "memory"});
  if (const auto v = fields.optional("min_samples_per_s")) out.min_samples_per_s = v->positive();
  if (const auto v = fields.optional("price_per_device_hour")) out.price_per_device_hour = v->positive();
  out.schedule = fields.required("schedule").text();
  out.microbatches = count(fields.required("microbatches"));
  if (const auto v = fields.optional("memory_limit_bytes")) out.memory_limit = v->bytes();
  if (const auto v = fields.optional("lower_bound_s")) out.lower_bound = v->seconds();
  if (const auto v = fields.optional("proven")) out.proven = count(*v, 0);
  out.considered = count(fields.required("considered"), 0);
  const Cursor plans = fields.required("plans");
  out.plans = plans.list(read_listed);
  if (out.plans.empty()) plans.fail_type("one plan or more");
  if (const auto v = fields.optional("relaxations")) out.relaxations = v->list(read_relaxation);
  if (const auto v = fields.optional("settings")) out.settings = v->list(read_setting);
  out.skipped = fields.required("skipped").list(read_skipped);
  fields.done();
  return out;
}

}  // namespace stagecraft::format

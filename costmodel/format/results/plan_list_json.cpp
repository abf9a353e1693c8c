#include "costmodel/format/results/plan_list_json.h"

#include "costmodel/format/cursor.h"

namespace stagecraft::format {
namespace {

constexpr int kVersion = 1;

Json parts_json(const StepParts& parts) {
  Json out;
  out["compute_s"] = parts.compute.value;
  out["host_s"] = parts.host.value;
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
  if (plan.parts) out["parts"] = parts_json(*plan.parts);
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
  if (list.lower_bound) out["lower_bound_s"] = list.lower_bound->value;
  out["considered"] = list.considered;
  out["plans"] = Json::array();
  int rank = 0;
  for (const ListedPlan& plan : list.plans) out["plans"].push_back(listed_json(plan, ++rank));
  if (!list.relaxations.empty()) {
    out["relaxations"] = Json::array();
    for (const Relaxation& each : list.relaxations) {
      Json one{{"change", each.change}};
      if (each.step) one["step_s"] = each.step->value;
      one["better"] = each.better;
      out["relaxations"].push_back(std::move(one));
    }
  }
  out["skipped"] = Json::array();
  for (const auto& [reason, count] : list.skipped) out["skipped"].push_back(Json{{"reason", reason}, {"count", count}});
  return dump(out);
}

}  // namespace stagecraft::format

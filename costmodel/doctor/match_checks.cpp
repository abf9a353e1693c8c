#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <stdexcept>
#include <variant>

#include "costmodel/bound_plan.h"
#include "costmodel/conditions.h"
#include "costmodel/doctor/doctor.h"
#include "costmodel/index.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::doctor {
namespace {

constexpr double kMostError = 0.05;  ///< of a plan's own step
constexpr double kMostDrift = 0.1;   ///< between documents that are used together

int largest_device(const Plan& plan) {
  int out = -1;
  for (const Stage& stage : plan.stages) {
    for (const int device : stage.devices) out = std::max(out, device);
  }
  return out;
}

int used_devices(const Plan& plan) {
  std::set<int> out;
  for (const Stage& stage : plan.stages) out.insert(stage.devices.begin(), stage.devices.end());
  return to_int(out.size());
}

void find_missing_devices(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& [file, plan] : documents.plans) {
    const int largest = largest_device(plan);
    const auto has_it = [&](const FromFile<Topology>& topology) { return largest < device_count(topology.value); };
    if (documents.topologies.empty() || std::ranges::any_of(documents.topologies, has_it)) continue;
    const auto& [topology_file, topology] = documents.topologies.front();
    report(file, "/stages",
           fmt::format("device {} does not exist, {} has 0..{}: the plan is for another cluster", largest,
                       topology_file, device_count(topology) - 1));
  }
}

/// A layer that only one of the two has, with what it means; absent if the layers are the same.
std::optional<std::string> layer_difference(const Plan& plan, const FromFile<Graph>& graph) {
  std::set<std::string> of_graph;
  for (const Layer& layer : graph.value.layers) {
    if (!is_input(layer)) of_graph.insert(layer.id);
  }
  for (const Stage& stage : plan.stages) {
    for (const std::string& id : stage.layers) {
      if (of_graph.erase(id) == 0) return fmt::format("layer \"{}\" is not in {}", id, graph.file);
    }
  }
  if (of_graph.empty()) return std::nullopt;
  return fmt::format("layer \"{}\" of {} is in no stage", *of_graph.begin(), graph.file);
}

void find_other_models(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& [file, plan] : documents.plans) {
    std::optional<std::string> first;
    bool fits = documents.graphs.empty();
    for (const auto& graph : documents.graphs) {
      const std::optional<std::string> difference = layer_difference(plan, graph);
      fits = fits || !difference;
      if (!first) first = difference;
    }
    if (!fits) report(file, "/stages", *first + ": the plan is of another model");
  }
}

/// The step that these documents give the plan; absent if they do not fit together.
std::optional<Seconds> predicted_step(const Plan& plan, const Graph& graph, const Topology& topology) {
  if (!has_times(graph)) return std::nullopt;
  try {
    const auto result = predict(graph, topology, BoundPlan(plan));
    if (const auto* prediction = std::get_if<Prediction>(&result)) return prediction->iteration;
  } catch (const std::invalid_argument&) {}  // other checks say what is wrong
  return std::nullopt;
}

void find_other_predictions(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& [file, plan] : documents.plans) {
    if (!plan.iteration || !(*plan.iteration > Seconds(0))) continue;
    std::optional<Seconds> nearest;
    const auto distance = [&](Seconds step) { return std::abs(step / *plan.iteration - 1); };
    for (const auto& graph : documents.graphs) {
      for (const auto& topology : documents.topologies) {
        const std::optional<Seconds> step = predicted_step(plan, graph.value, topology.value);
        if (step && (!nearest || distance(*step) < distance(*nearest))) nearest = step;
      }
    }
    if (!nearest || distance(*nearest) <= kMostError) continue;
    report(
        file, "/iteration_s",
        fmt::format(
            "the plan's step is {}, but graph and topology give {}: the plan was made from other documents; plan again",
            format_seconds(*plan.iteration), format_seconds(*nearest)));
  }
}

void find_unused_devices(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& [file, plan] : documents.plans) {
    const int used = used_devices(plan);
    const auto uses_half = [&](const FromFile<Topology>& topology) { return 2 * used >= device_count(topology.value); };
    if (documents.topologies.empty() || std::ranges::any_of(documents.topologies, uses_half)) continue;
    const auto& [topology_file, topology] = documents.topologies.front();
    report(file, "/stages",
           fmt::format("{} of the {} devices of {} are used: the plan may be for a smaller cluster", used,
                       device_count(topology), topology_file));
  }
}

/// The topology with only devices of one type, for each of its types; `device` first, then Topology::others in order.
std::vector<Topology> by_type(const Topology& topology) {
  std::vector<Topology> out(1, topology);
  out.front().others.clear();
  for (const DeviceRange& range : topology.others) {
    out.push_back(out.front());
    out.back().device = range.device;
  }
  return out;
}

void find_other_devices(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& [file, graph] : documents.graphs) {
    std::vector<std::string> first;
    bool fits = documents.topologies.empty();
    for (const auto& topology : documents.topologies) {
      for (const Topology& of_type : by_type(topology.value)) {
        const std::vector<std::string> differences = device_differences(graph, of_type);
        fits = fits || differences.empty();
        if (first.empty()) first = differences;
      }
    }
    for (const std::string& difference : first) {
      if (!fits) report(file, "/device", difference);
    }
  }
}

void find_missing_profiles(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  if (documents.graphs.empty()) return;
  for (const auto& [file, topology] : documents.topologies) {
    const std::vector<Topology> types = by_type(topology);
    for (std::size_t i = 1; i < types.size(); ++i) {
      const auto is_of = [&](const FromFile<Graph>& graph) {
        return device_differences(graph.value, types[i]).empty();
      };
      if (std::ranges::any_of(documents.graphs, is_of)) continue;
      report(file, fmt::format("/other_devices/{}", i - 1),
             fmt::format("no graph was measured on \"{}\": predict and plan need one, with --graph-for",
                         types[i].device.name));
    }
  }
}

void find_drift(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  std::vector<FromFile<Yardstick>> yardsticks;
  const auto add = [&](const auto& all) {
    for (const auto& [file, value] : all) {
      if (value.conditions.yardstick) yardsticks.push_back({file, *value.conditions.yardstick});
    }
  };
  add(documents.graphs);
  add(documents.topologies);
  add(documents.measurements);
  for (std::size_t i = 1; i < yardsticks.size(); ++i) {
    const auto result = drift_between(yardsticks.front().value, yardsticks[i].value);
    const auto* drift = std::get_if<Drift>(&result);
    if (!drift || std::abs(std::log(drift->factor)) <= std::log1p(kMostDrift)) continue;
    report(yardsticks[i].file, "/conditions/yardstick",
           fmt::format("the device was {} than for {}: measure both in one session", drift_text(*drift),
                       yardsticks.front().file));
  }
}

void find_other_runs(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& [file, measurement] : documents.measurements) {
    const auto is_of = [&](const FromFile<Plan>& plan) {
      return plan.value.model == measurement.model && plan.value.schedule == measurement.schedule &&
             plan.value.microbatches == measurement.microbatches;
    };
    if (documents.plans.empty() || std::ranges::any_of(documents.plans, is_of)) continue;
    const auto text = [](const std::string& model, const std::string& schedule, int microbatches) {
      return fmt::format("\"{}\", {}, {} microbatches", model, schedule, microbatches);
    };
    const auto& [plan_file, plan] = documents.plans.front();
    report(file, "",
           fmt::format("the run was of {}, {} is of {}",
                       text(measurement.model, measurement.schedule, measurement.microbatches), plan_file,
                       text(plan.model, plan.schedule, plan.microbatches)));
  }
}

}  // namespace

std::vector<DoctorCheck> match_checks() {
  using enum Severity;
  return {
      {"SC301", Error, "a plan with devices that the topology does not have", find_missing_devices},
      {"SC302", Error, "a plan whose layers are not those of the graph", find_other_models},
      {"SC303", Warning, "a plan that was made from another graph or topology", find_other_predictions},
      {"SC304", Warning, "a plan that uses less than half of the topology's devices", find_unused_devices},
      {"SC305", Warning, "a graph measured on a device other than the topology's", find_other_devices},
      {"SC306", Warning, "documents between which the device's speed changed", find_drift},
      {"SC307", Warning, "a run of another plan", find_other_runs},
      {"SC308", Warning, "a type of devices on which no graph was measured", find_missing_profiles},
  };
}

}  // namespace stagecraft::doctor

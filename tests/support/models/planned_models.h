#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "costmodel/plan.h"
#include "executor/data/data_source.h"
#include "executor/intake/layer_sources.h"
#include "profiler/profile.h"
#include "tests/support/chains.h"

namespace stagecraft::testing {

/// A model with its graph, from a minimal profile: shapes are right, times are meaningless.
struct PlannedModel {
  model::Model model;
  Graph graph;
  std::unique_ptr<data::DataSource> data;
};

inline PlannedModel planned_model(model::Model model, std::int64_t microbatch_samples,
                                  at::ScalarType compute = at::kFloat, const StateTypes& types = {}) {
  PlannedModel out;
  out.model = std::move(model);
  out.data = data::make_data_source("synthetic", out.model, 3);
  profiler::ProfileOptions options;
  options.microbatch_samples = microbatch_samples;
  options.placement.compute = compute;
  options.placement.types = options.optimizer.types = types;
  options.warmup = 0;
  options.rule.fewest = options.rule.least = 1;
  options.rule.most_seconds = 0;
  out.graph = profiler::profile_model(out.model, *out.data, options).graph;
  return out;
}

inline PlannedModel planned_model(const std::string& name, const std::map<std::string, std::string>& set,
                                  std::int64_t microbatch_samples, at::ScalarType compute = at::kFloat,
                                  const StateTypes& types = {}) {
  return planned_model(intake::build_model(name, set), microbatch_samples, compute, types);
}

/// The plan that cuts the model's layers, in order, before each layer number in `cuts`; with `chunks` stages on a rank.
inline Plan cut_plan(const PlannedModel& planned, const std::vector<int>& cuts, const std::vector<int>& replicas,
                     const std::string& schedule, int microbatches, int chunks = 1) {
  Partition partition;
  partition.replicas = replicas;
  const int inputs = static_cast<int>(planned.model.inputs.size());
  for (int i = 0; i < static_cast<int>(planned.graph.layers.size()); ++i) {
    int stage = i < inputs ? -1 : 0;
    for (const int cut : cuts) stage += i - inputs >= cut ? 1 : 0;
    partition.stage_of_layer.push_back(stage);
  }
  int devices = 0;
  for (const int r : replicas) devices += r;
  PlanSettings settings;
  settings.microbatches = microbatches;
  settings.schedule = schedule;
  settings.chunks = chunks;
  return make_plan(planned.graph, flat_topology(devices), partition, settings);
}

/// Where to cut `layers` layers into `stages` parts of about the same length.
inline std::vector<int> even_cuts(int layers, int stages) {
  std::vector<int> out;
  for (int s = 1; s < stages; ++s) out.push_back(s * layers / stages);
  return out;
}

}  // namespace stagecraft::testing

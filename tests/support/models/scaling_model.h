#pragma once

#include <ATen/ops/full.h>

#include <optional>
#include <string>
#include <vector>

#include "costmodel/plan.h"
#include "executor/data/data_source.h"
#include "executor/model/model.h"

namespace stagecraft::testing {

/// A model whose numbers can be derived by hand: layer "first" returns h = a x, layer "loss" returns b h, for one
/// sample of one value. The gradients are b x for a, a x for b and b for h.
inline model::Model scaling_model(double a = 2, double b = 3) {
  const auto weight = [](const std::string& name, double value) {
    model::ParameterSpec out{.name = name, .shape = {1}};
    out.load = [value] { return at::full({1}, value, at::kFloat); };
    return out;
  };
  model::Model model;
  model.name = "scaling";
  const model::ValueRef x = model::append(model, model::ModelInput{"x", "float32", {1}});
  const model::ValueRef h =
      model::append(model, {.name = "first",
                            .kind = "Scale",
                            .inputs = {x},
                            .parameters = {weight("a", a)},
                            .forward = [](const model::LayerCall& call) -> std::vector<at::Tensor> {
                              return {call.inputs[0].mul(call.parameters[0])};
                            }});
  model::append(model, {.name = "loss",
                        .kind = "Scale",
                        .inputs = {h},
                        .parameters = {weight("b", b)},
                        .forward = [](const model::LayerCall& call) -> std::vector<at::Tensor> {
                          return {call.inputs[0].mul(call.parameters[0]).mean()};
                        }});
  return model;
}

/// Returns x = 10 step + microbatch + 1.
class CountedData : public data::DataSource {
 public:
  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int, std::int64_t samples,
                                std::span<const int>) const override {
    return {at::full({samples, 1}, static_cast<double>(10 * step + microbatch + 1), at::kFloat)};
  }
};

/// A plan for scaling_model with replicas.size() stages, one or two.
inline Plan scaling_plan(const std::string& schedule, int microbatches, const std::vector<int>& replicas) {
  Plan plan;
  plan.model = "scaling";
  plan.microbatch_samples = 1;
  plan.microbatches = microbatches;
  plan.schedule = schedule;
  plan.warmups = warmup_counts(replicas);
  int device = 0;
  for (const int count : replicas) {
    Stage& stage = plan.stages.emplace_back();
    for (int i = 0; i < count; ++i) stage.devices.push_back(device++);
  }
  plan.stages.front().layers = {"first"};
  plan.stages.back().layers.push_back("loss");
  if (replicas.size() == 2) plan.boundaries = {{0, 1, {{"first", 0, Bytes(4), {1, 1}, "float32", true}}}};
  return plan;
}

/// The tensor with h or its gradient for one microbatch.
inline at::Tensor crossing(double value) { return at::full({1, 1}, value, at::kFloat); }

}  // namespace stagecraft::testing

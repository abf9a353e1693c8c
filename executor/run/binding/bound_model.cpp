#include "executor/run/binding/bound_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/slice.h"
#include "executor/channel/control_tags.h"
#include "executor/device/dtype.h"
#include "executor/model/model.h"
#include "executor/run/binding/loss_shares.h"
#include "executor/stage/moving_statistics.h"

namespace stagecraft::run {
namespace {

using Holders = std::map<std::string, std::set<std::string>>;  // tied parameter -> its layers

Holders tied_of_model(const model::Model& model) {
  Holders out;
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters) {
      if (parameter.trainable) out[parameter.name].insert(layer.name);
    }
  }
  std::erase_if(out, [](const auto& entry) { return entry.second.size() < 2; });
  return out;
}

/// Checks that gradients are summed over exactly the layers that share a parameter.
void check_tied(const BoundPlan& plan, const model::Model& model) {
  if (!plan.schedule().trains) return;
  Holders planned;
  for (const TiedLayers& tied : plan.plan().tied) planned[tied.parameter] = {tied.layers.begin(), tied.layers.end()};
  const Holders holders = tied_of_model(model);
  for (const auto& [parameter, layers] : holders) {
    const auto it = planned.find(parameter);
    if (it != planned.end() && it->second == layers) continue;
    throw std::invalid_argument(
        fmt::format("layers \"{}\" of model \"{}\" share parameter \"{}\", which the plan does not list as tied; "
                    "profile and plan the model again",
                    fmt::join(layers, "\", \""), model.name, parameter));
  }
  for (const auto& [parameter, layers] : planned) {
    if (holders.contains(parameter)) continue;
    throw std::invalid_argument(
        fmt::format("the plan lists parameter \"{}\" as tied, but model \"{}\" does not have it in two layers; profile "
                    "and plan the model again",
                    parameter, model.name));
  }
}

std::string text_of(const StateTensor& tensor) {
  return fmt::format("\"{}\" ({} [{}])", tensor.name, tensor.dtype, fmt::join(tensor.shape, ", "));
}

/// Checks that a stage's layers have the parameters and buffers that the plan lists. The evaluation of a model may be a
/// program of its own, which writes no buffers.
void check_tensors(const BoundModel& bound) {
  if (!bound.plan.schedule().trains || !lists_parameters(bound.plan.plan())) return;
  for (int s = 0; s < bound.plan.stages(); ++s) {
    const Stage& stage = bound.plan.plan().stages[to_index(s)];
    std::map<std::string, std::vector<StateTensor>> listed;  // by layer
    for (const auto* list : {&stage.parameters, &stage.exchanged_buffers}) {
      for (const PlanTensor& tensor : *list) listed[tensor.layer].push_back(tensor.tensor);
    }
    for (const int index : bound.layers[to_index(s)]) {
      const model::LayerSpec& layer = bound.model.layers[to_index(index)];
      std::vector<StateTensor> tensors = model::parameter_tensors(layer, bound.plan.plan().types.parameters);
      for (StateTensor& buffer : model::exchanged_buffers(layer)) tensors.push_back(std::move(buffer));
      const auto [found, expected] = std::ranges::mismatch(tensors, listed[layer.name]);
      if (found == tensors.end() && expected == listed[layer.name].end()) continue;
      throw InputError(
          ErrorKind::OtherModel,
          fmt::format("layer \"{}\" of model \"{}\" has {}, the plan lists {}; profile and plan the model again",
                      layer.name, bound.model.name, found == tensors.end() ? "nothing more" : text_of(*found),
                      expected == listed[layer.name].end() ? "nothing more" : text_of(*expected)));
    }
  }
}

/// The parameters of a stage's layers, of `value` bytes a value, and their buffers if `buffers`.
std::vector<HeldParameter> held_by(const model::Model& model, const std::vector<int>& layers, Bytes value,
                                   bool buffers) {
  std::vector<HeldParameter> out;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const model::ParameterSpec& parameter : model.layers[to_index(layers[i])].parameters) {
      const Bytes size =
          parameter.trainable ? value : Bytes(static_cast<std::int64_t>(c10::elementSize(parameter.dtype)));
      if (parameter.trainable || buffers) out.push_back({parameter.name, i, element_count(parameter.shape) * size});
    }
  }
  return out;
}

std::optional<StatisticsExchange> statistics_of(const BoundModel& bound, int stage) {
  const BoundPlan& plan = bound.plan;
  if (plan.asynchronous() || !plan.schedule().trains || plan.replicas(stage) < 2) return std::nullopt;
  const std::int64_t values = stage::moving_values(bound.model, bound.layers[to_index(stage)]);
  return values > 0 ? std::optional(StatisticsExchange{plan.ranks_of(stage), values}) : std::nullopt;
}

void check_buffers(const BoundModel& bound) {
  // Replicas of an asynchronous schedule keep separate buffers, an evaluation does not write any.
  if (bound.plan.asynchronous() || !bound.plan.schedule().trains) return;
  for (int stage = 0; stage < bound.plan.stages(); ++stage) {
    if (bound.plan.replicas(stage) < 2) continue;
    for (const int index : bound.layers[to_index(stage)]) {
      const model::LayerSpec& layer = bound.model.layers[to_index(index)];
      const model::ParameterSpec* buffer = model::written_buffer(layer);
      if (buffer == nullptr) continue;
      throw std::invalid_argument(
          fmt::format("layer \"{}\" writes \"{}\" in its forward in a way that replicas cannot replay; plan stage {} "
                      "without replicas",
                      layer.name, buffer->name, stage));
    }
  }
}

void check_loss(const BoundPlan& plan, const model::Model& model) {
  if (!updates_by_several(plan.plan())) return;
  const bool across = model.loss_kind == model::LossKind::Across;
  if (!across && !(plan.asynchronous() && has_loss_shares(model))) return;
  throw InputError(
      ErrorKind::UnsupportedModel,
      fmt::format(
          "{}: {}, so an update from several microbatches is not that of the whole batch; plan one microbatch for "
          "each{}, or export the model with --loss-of-microbatches",
          model.name,
          across ? "the loss of a batch does not follow from those of its microbatches (it compares samples, or "
                   "adds means over different things)"
                 : "the loss is a sum or a weighted mean, and the schedule is asynchronous",
          across ? "" : " or a synchronous schedule"));
}

}  // namespace

BoundModel bind_model(const BoundPlan& plan, const model::Model& model) {
  BoundModel out{plan, model, model::layers_of_stages(plan.plan(), model), {}, {}, {}, {}};
  if (plan.tags() > channel::Channel::kControlTag) {
    throw std::invalid_argument("the plan has " + std::to_string(plan.tags()) +
                                " tensor edges, but a channel has fewer tags");
  }
  if (plan.plan().microbatch_samples) model::check_samples(model, *plan.plan().microbatch_samples);
  check_loss(plan, model);
  check_buffers(out);
  check_tied(plan, model);
  check_tensors(out);
  const Bytes value = value_bytes(plan.plan().types.parameters);
  HeldParameters all;
  for (const std::vector<int>& layers : out.layers) {
    out.parameters.push_back(held_by(model, layers, value, /*buffers=*/false));
    all.push_back(held_by(model, layers, value, /*buffers=*/true));
  }
  out.sums = gradient_sums(plan, out.parameters);
  out.homes = parameter_homes(plan, out.parameters, out.sums);
  out.homes.merge(parameter_homes(plan, all, {}));
  for (int s = 0; s < plan.stages(); ++s) out.statistics.push_back(statistics_of(out, s));
  return out;
}

stage::ComputePlace compute_place(const Plan& plan, c10::Device device) {
  const at::ScalarType compute = device::compute_type(plan.dtype);
  validate(plan.types, device::dtype_name(compute));
  return {device, compute, plan.types};
}

stage::OptimizerOptions with_types(stage::OptimizerOptions options, const Plan& plan) {
  options.types = plan.types;
  return options;
}

int loss_stage(const BoundModel& bound) {
  const int last = to_int(bound.model.layers.size()) - 1;
  const auto holds = [last](const std::vector<int>& layers) { return std::ranges::find(layers, last) != layers.end(); };
  return to_int(std::ranges::find_if(bound.layers, holds) - bound.layers.begin());
}

ValueRange owned_range(const ParameterHome& home, int rank) {
  const auto found = std::ranges::find(home.parts, rank, &OwnedRange::rank);
  return found == home.parts.end() ? ValueRange{} : found->values;
}

std::vector<TiedHolders> tied_of_rank(const BoundPlan& plan, int rank) {
  std::vector<TiedHolders> out;
  std::ranges::copy_if(plan.tied(), std::back_inserter(out),
                       [&](const TiedHolders& tied) { return std::ranges::binary_search(tied.ranks, rank); });
  return out;
}

}  // namespace stagecraft::run

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/index.h"
#include "costmodel/plan.h"

// What plan.h declares of a plan together with its graph: making it, and checking that both belong together.

namespace stagecraft {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }
/// For a plan and a graph or topology that do not belong together.
[[noreturn]] void refuse_match(const std::string& what) { throw InputError(ErrorKind::OtherModel, what); }

std::string stage_text(int stage) { return "stage " + std::to_string(stage); }

/// Replicas of an asynchronous schedule keep separate buffers.
void check_replicas(const Plan& plan, const Graph& graph) {
  if (std::ranges::all_of(graph.layers, &Layer::replicable)) return;
  const ScheduleEntry schedule = schedule_of(plan);
  if (!schedule.trains || schedule.weights != Weights::Flushed) return;
  const LayersById layers(graph);
  for (const Stage& stage : plan.stages) {
    if (stage.devices.size() < 2) continue;
    for (const std::string& id : stage.layers) {
      if (graph.layers[to_index(layers.index(id))].replicable) continue;
      refuse("layer \"" + id +
             "\" writes a buffer in its forward in a way that replicas cannot replay; plan its stage without replicas");
    }
  }
}

/// A loss that compares samples is only exact in an update from one microbatch.
void check_loss(const Graph& graph, bool by_several) {
  if (graph.whole_batch_loss && by_several)
    refuse(
        "the loss of a batch does not follow from those of its microbatches (it compares samples, or adds means over "
        "different things), so an update from several is not that of the whole batch; plan one microbatch for each, "
        "or export the model with --loss-of-microbatches and profile it again");
}

/// Boundaries that the graph's edges make, given each layer's stage (-1: an input).
std::vector<Boundary> boundaries_of(const Graph& graph, const std::vector<int>& stage_of_layer) {
  std::vector<int> position(graph.layers.size());
  const std::vector<int> order = topological_order(graph);
  for (std::size_t i = 0; i < order.size(); ++i) position[to_index(order[i])] = to_int(i);

  // (position of the layer, output, layer) -> later stages that read it.
  std::map<std::tuple<int, int, int>, std::set<int>> readers;
  for (const Edge& edge : graph.edges) {
    const int from = stage_of_layer[to_index(edge.source)];
    const int to = stage_of_layer[to_index(edge.destination)];
    if (from < 0 || from == to) continue;
    if (from > to) {
      refuse("layer \"" + graph.layers[to_index(edge.destination)].id + "\" in " + stage_text(to) + " reads layer \"" +
             graph.layers[to_index(edge.source)].id + "\" in the later " + stage_text(from) +
             ", data must flow to the same or a later stage");
    }
    readers[{position[to_index(edge.source)], edge.output.value_or(-1), edge.source}].insert(to);
  }
  std::map<std::pair<int, int>, std::vector<std::tuple<int, int, int>>> crossing;  // by source and destination stage
  for (const auto& [value, stages] : readers) {
    int from = stage_of_layer[to_index(std::get<2>(value))];
    for (const int to : stages) crossing[{std::exchange(from, to), to}].push_back(value);
  }
  std::vector<Boundary> out;
  for (const auto& [stages, values] : crossing) {
    Boundary boundary{stages.first, stages.second, {}};
    for (const auto& [at, output, index] : values) {
      const Layer& layer = graph.layers[to_index(index)];
      BoundaryTensor tensor{layer.id, {}, activation_bytes(layer), {}, "", true};
      if (output >= 0) {
        const Output& o = layer.outputs[to_index(output)];
        tensor = {layer.id, output, o.bytes, o.shape, o.dtype, o.requires_grad};
      }
      boundary.tensors.push_back(std::move(tensor));
    }
    out.push_back(std::move(boundary));
  }
  return out;
}

/// Tied parameters of the graph's layers, given the stages' layers.
std::vector<TiedLayers> tied_of(const Graph& graph, const std::vector<Stage>& stages) {
  std::unordered_map<std::string, const Layer*> tied;
  for (const Layer& layer : graph.layers) {
    if (!layer.tied.empty()) tied.emplace(layer.id, &layer);
  }
  if (tied.empty()) return {};
  std::map<std::string, std::vector<std::string>> holders;
  for (const Stage& stage : stages) {
    for (const std::string& id : stage.layers) {
      const auto layer = tied.find(id);
      if (layer == tied.end()) continue;
      for (const TiedParameter& parameter : layer->second->tied) {
        std::vector<std::string>& ids = holders[parameter.name];
        if (ids.empty() || ids.back() != id) ids.push_back(id);
      }
    }
  }
  std::vector<TiedLayers> out;
  for (auto& [parameter, layers] : holders) {
    if (layers.size() > 1) out.push_back({parameter, std::move(layers)});
  }
  return out;
}

/// Adds the parameters and buffers of a layer to what its stage lists.
void list_tensors(const Layer& layer, Stage& stage) {
  for (const StateTensor& tensor : layer.parameter_tensors) stage.parameters.push_back({layer.id, tensor});
  for (const StateTensor& tensor : layer.exchanged_buffers) stage.exchanged_buffers.push_back({layer.id, tensor});
}

/// Checks that the stages list the graph's parameters and buffers, if both name any.
void check_tensors(const Plan& plan, const Graph& graph) {
  if (!lists_parameters(plan) || !names_parameters(graph)) return;
  const std::vector<std::vector<const Layer*>> layers = layers_of_stages(graph, plan);
  for (std::size_t s = 0; s < layers.size(); ++s) {
    Stage wanted;
    for (const Layer* layer : layers[s]) list_tensors(*layer, wanted);
    for (std::vector<PlanTensor> Stage::* const list : {&Stage::parameters, &Stage::exchanged_buffers}) {
      const std::vector<PlanTensor>& found = plan.stages[s].*list;
      const std::vector<PlanTensor>& right = wanted.*list;
      const auto [at, expected] = std::ranges::mismatch(found, right);
      if (at == found.end() && expected == right.end()) continue;
      const auto text = [](const PlanTensor& t) { return "\"" + t.tensor.name + "\" of layer \"" + t.layer + "\""; };
      refuse_match(stage_text(to_int(s)) + ": the plan lists " + (at == found.end() ? "nothing" : text(*at)) +
                   " where the graph has " + (expected == right.end() ? "nothing" : text(*expected)) +
                   (at != found.end() && expected != right.end() && text(*at) == text(*expected)
                        ? " of another shape or dtype"
                        : "") +
                   "; plan this graph again");
    }
  }
}

/// Checks that the plan's tied parameters are those of the graph. Without them gradients would not be summed.
void check_tied(const Plan& plan, const Graph& graph) {
  const std::vector<TiedLayers> wanted = tied_of(graph, plan.stages);
  if (plan.tied == wanted) return;
  const std::string again = "; plan this graph again";
  for (const TiedLayers& tied : wanted) {
    if (std::find(plan.tied.begin(), plan.tied.end(), tied) != plan.tied.end()) continue;
    // Plans of format version 3 and older have none.
    refuse_match("the plan does not list the graph's " + tied_text(tied) + again);
  }
  for (const TiedLayers& tied : plan.tied) {
    if (std::find(wanted.begin(), wanted.end(), tied) != wanted.end()) continue;
    refuse_match("the plan lists a " + tied_text(tied) + ", the graph does not" + again);
  }
  refuse_match("the plan does not list tied parameters in the order of their names" + again);
}

/// The index of a layer of the plan: one that the graph lacks means that they do not belong together.
int planned_layer_index(const LayersById& layers, const std::string& id, const Plan& plan, const Graph& graph) {
  try {
    return layers.index(id);
  } catch (const InputError& e) {
    if (plan.model == graph.name) refuse_match(e.what());
    refuse_match("the plan is for model \"" + plan.model + "\", the graph is of \"" + graph.name +
                 "\", which has no layer \"" + id + "\"");
  }
}

/// Known names for a message about a wrong one: all if few, else the first ones and how many more.
std::vector<std::string> told(const std::vector<std::string>& layers) {
  constexpr std::size_t kMost = 60;
  std::vector<std::string> out(layers.begin(), layers.begin() + static_cast<long>(std::min(layers.size(), kMost)));
  if (layers.size() > kMost) out.push_back("and " + std::to_string(layers.size() - kMost) + " more");
  return out;
}

}  // namespace

std::vector<int> layer_list(const Graph& graph) {
  std::vector<int> layers;
  for (const int index : topological_order(graph)) {
    if (!is_input(graph.layers[to_index(index)])) layers.push_back(index);
  }
  return layers;
}

std::vector<std::string> layer_ids(const Graph& graph) {
  std::vector<std::string> out;
  for (const int index : layer_list(graph)) out.push_back(graph.layers[to_index(index)].id);
  return out;
}

std::vector<int> bounds_at(const std::vector<std::string>& layers, const std::vector<std::string>& names) {
  std::vector<int> bounds{0};
  for (std::size_t n = 0; n < names.size(); ++n) {
    const std::string& name = names[n];
    auto it = std::find(layers.begin(), layers.end(), name);
    if (it == layers.end()) {
      it =
          std::find_if(layers.begin(), layers.end(), [&](const std::string& id) { return id.starts_with(name + "."); });
    }
    if (it == layers.end() || name.empty())
      throw InputError(ErrorKind::UnknownName, unknown_name("layer", name, told(layers)));
    const int at = to_int(it - layers.begin());
    if (at == 0) {
      throw std::invalid_argument("\"" + name + "\" begins the first stage; give the first layers of " +
                                  "the later stages");
    }
    if (at <= bounds.back()) {
      throw std::invalid_argument("\"" + name + "\" does not come after \"" + names[n - 1] +
                                  "\" in the list of layers; give them in order");
    }
    bounds.push_back(at);
  }
  bounds.push_back(to_int(layers.size()));
  return bounds;
}

Partition partition_of_bounds(const Graph& graph, const std::vector<int>& bounds) {
  const std::vector<int> layers = layer_list(graph);
  const int count = to_int(layers.size());
  if (bounds.size() < 2 || bounds.front() != 0 || bounds.back() != count) {
    throw std::invalid_argument("bounds must increase from 0 to " + std::to_string(count) + ", the number of layers");
  }
  const auto level = std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>());
  if (level != bounds.end()) {
    throw std::invalid_argument("bound " + std::to_string(level[1]) + " follows " + std::to_string(level[0]) +
                                ", a stage has at least one layer");
  }
  Partition out;
  out.stage_of_layer.assign(graph.layers.size(), -1);
  out.replicas.assign(bounds.size() - 1, 1);
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s) {
    for (int i = bounds[s]; i < bounds[s + 1]; ++i) { out.stage_of_layer[to_index(layers[to_index(i)])] = to_int(s); }
  }
  return out;
}

std::vector<std::vector<const Layer*>> layers_of_stages(const Graph& graph, const Plan& plan) {
  const LayersById by_id(graph);
  std::vector<std::vector<const Layer*>> out;
  for (const Stage& stage : plan.stages) {
    std::vector<const Layer*>& layers = out.emplace_back();
    for (const std::string& id : stage.layers) layers.push_back(&graph.layers[to_index(by_id.index(id))]);
  }
  return out;
}

Plan make_plan(const Graph& graph, const Topology& topology, const Partition& partition, const PlanSettings& settings) {
  if (partition.stage_of_layer.size() != graph.layers.size()) {
    refuse("the partition has " + std::to_string(partition.stage_of_layer.size()) + " layers, the graph has " +
           std::to_string(graph.layers.size()) + " layers");
  }
  if (partition.replicas.empty()) refuse("the partition has no stages");
  Plan plan;
  plan.model = graph.name;
  plan.options = graph.options;
  plan.microbatch_samples = graph.microbatch_samples;
  plan.dtype = graph.dtype;
  plan.types = graph.types;
  plan.allow_tf32 = graph.allow_tf32;
  plan.optimizer = graph.optimizer;
  plan.microbatches = settings.microbatches;
  plan.schedule = settings.schedule;
  plan.chunks = settings.chunks;
  plan.strategy = settings.strategy;
  plan.sharding = settings.sharding;
  plan.provenance = {};

  check_chunks(to_int(partition.replicas.size()), settings.chunks);
  const int positions = to_int(partition.replicas.size()) / settings.chunks;
  const Placement placement = placement_of(settings);
  int next_device = 0;
  for (const int replicas : partition.replicas) {
    if (replicas < 1) {
      refuse(stage_text(to_int(plan.stages.size())) + " has " + std::to_string(replicas) +
             " replicas, must be at least 1");
    }
    Stage stage;
    stage.recompute = settings.recompute;
    stage.recompute_every = settings.recompute_every;
    const int position = position_of(to_int(plan.stages.size()), positions, placement);
    if (to_int(plan.stages.size()) == position) {
      for (int r = 0; r < replicas; ++r) stage.devices.push_back(next_device++);
    } else {
      stage.devices = plan.stages[to_index(position)].devices;
      if (replicas != to_int(stage.devices.size())) {
        refuse(stage_text(to_int(plan.stages.size())) + " has " + std::to_string(replicas) +
               " replicas, but is on the devices of " + stage_text(position) + ", which has " +
               std::to_string(stage.devices.size()));
      }
    }
    plan.stages.push_back(std::move(stage));
  }
  if (next_device > device_count(topology)) {
    refuse("the stages need " + std::to_string(next_device) + " devices, topology \"" + topology.name + "\" has " +
           std::to_string(device_count(topology)));
  }
  for (const int layer : topological_order(graph)) {
    const int stage = partition.stage_of_layer[to_index(layer)];
    const std::string& id = graph.layers[to_index(layer)].id;
    if (is_input(graph.layers[to_index(layer)])) {
      if (stage != -1) refuse("input layer \"" + id + "\" is assigned to " + stage_text(stage) + ", inputs have none");
      continue;
    }
    if (stage < 0 || stage >= to_int(plan.stages.size())) {
      refuse("layer \"" + id + "\" is assigned to " + stage_text(stage) + ", there are 0.." +
             std::to_string(plan.stages.size() - 1));
    }
    plan.stages[to_index(stage)].layers.push_back(id);
  }
  plan.boundaries = boundaries_of(graph, partition.stage_of_layer);
  plan.tied = tied_of(graph, plan.stages);
  plan.warmups = warmup_counts(partition.replicas);
  plan.listed = settings.listed;
  plan.gradient_bucket_bytes = settings.gradient_bucket_bytes;
  validate(plan);
  check_replicas(plan, graph);
  check_loss(graph, updates_by_several(plan));
  return plan;
}

void list_parameters(const Graph& graph, Plan& plan) {
  const bool named = names_parameters(graph);
  const std::vector<std::vector<const Layer*>> layers = layers_of_stages(graph, plan);
  for (std::size_t s = 0; s < layers.size(); ++s) {
    Stage& stage = plan.stages[s];
    stage.parameters.clear();
    stage.exchanged_buffers.clear();
    for (const Layer* layer : layers[s]) {
      if (named) list_tensors(*layer, stage);
    }
  }
}

void check_loss(const Graph& graph, const PlanSettings& settings) {
  const ScheduleEntry schedule = schedule_by_name(settings.schedule);
  check_loss(graph, schedule.trains && schedule.weights != Weights::Newest && settings.microbatches > 1);
}

void check_fits(const Plan& plan, const Graph& graph, const Topology& topology) {
  const LayersById layers(graph);
  std::vector<int> stage_of_layer(graph.layers.size(), -1);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const std::string& id : plan.stages[s].layers) {
      stage_of_layer[to_index(planned_layer_index(layers, id, plan, graph))] = to_int(s);
    }
    for (const int device : plan.stages[s].devices) {
      if (device >= device_count(topology)) {
        refuse_match(stage_text(to_int(s)) + ": device " + std::to_string(device) + " does not exist, topology \"" +
                     topology.name + "\" has 0.." + std::to_string(device_count(topology) - 1));
      }
    }
  }
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    const Layer& layer = graph.layers[i];
    if (is_input(layer) && stage_of_layer[i] >= 0)
      refuse_match("input layer \"" + layer.id + "\" is in a stage, inputs have none");
    if (!is_input(layer) && stage_of_layer[i] < 0) refuse_match("layer \"" + layer.id + "\" is not in any stage");
  }
  if (boundaries_of(graph, stage_of_layer) != plan.boundaries) {
    refuse_match("the boundaries do not match the graph's edges; plan this graph again");
  }
  check_tied(plan, graph);
  check_tensors(plan, graph);
  check_replicas(plan, graph);
  check_loss(graph, updates_by_several(plan));
  // Plans of format version 2 and older have no dtype.
  if (!plan.dtype.empty() && !graph.dtype.empty() && plan.dtype != graph.dtype)
    refuse_match("the plan computes in " + plan.dtype + ", the graph was measured in " + graph.dtype);
  const auto check_type = [](const char* what, StateType planned, StateType measured) {
    if (planned != measured)
      refuse_match(std::string("the plan's ") + what + " are " + to_string(planned) + ", the graph's are " +
                   to_string(measured));
  };
  check_type("parameters", plan.types.parameters, graph.types.parameters);
  check_type("gradients", plan.types.gradients, graph.types.gradients);
  check_type("moments", plan.types.moments, graph.types.moments);
  if (plan.allow_tf32 && graph.allow_tf32 && plan.allow_tf32 != graph.allow_tf32) {
    refuse_match(*plan.allow_tf32 ? "the plan allows TF32, the graph was measured without it"
                                  : "the plan does not allow TF32, the graph was measured with it");
  }
  if (plan.microbatch_samples != graph.microbatch_samples) {
    const auto text = [](const std::optional<std::int64_t>& samples, const std::string& some, const std::string& none) {
      return samples ? some + " " + std::to_string(*samples) + " samples" : none;
    };
    refuse_match(
        text(plan.microbatch_samples, "the plan is for microbatches of", "the plan does not give its microbatch") +
        ", " + text(graph.microbatch_samples, "the graph was measured with", "the graph does not give its own"));
  }
}

void validate(const Plan& plan, const Graph& graph, const Topology& topology) {
  validate(plan);
  check_fits(plan, graph, topology);
}

}  // namespace stagecraft

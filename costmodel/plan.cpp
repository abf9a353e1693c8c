#include "costmodel/plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/layers_by_id.h"

namespace stagecraft {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }
/// For a plan and a graph or topology that do not belong together.
[[noreturn]] void refuse_match(const std::string& what) { throw InputError(ErrorKind::OtherModel, what); }

constexpr const char* kListed = "listed";

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

/// "tied parameter "weight" of a, b".
std::string tied_text(const TiedLayers& tied) {
  std::string out = "tied parameter \"" + tied.parameter + "\" of layers ";
  for (const std::string& layer : tied.layers) out += (layer == tied.layers.front() ? "\"" : ", \"") + layer + "\"";
  return out;
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

}  // namespace

bool has_gradient(const Boundary& boundary) {
  return std::any_of(boundary.tensors.begin(), boundary.tensors.end(),
                     [](const BoundaryTensor& t) { return t.gradient; });
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

void check_chunks(int stages, int chunks) {
  if (chunks < 1) refuse(std::to_string(chunks) + " chunks per device, must be at least 1");
  if (stages % chunks == 0) return;
  const int less = stages / chunks * chunks;
  refuse(std::to_string(stages) + (stages == 1 ? " stage" : " stages") + " cannot be divided into " +
         std::to_string(chunks) + " chunks per device, " + (less > 0 ? std::to_string(less) + " or " : "") +
         std::to_string(less + chunks) + " can");
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
  plan.allow_tf32 = graph.allow_tf32;
  plan.optimizer = graph.optimizer;
  plan.microbatches = settings.microbatches;
  plan.schedule = settings.schedule;
  plan.chunks = settings.chunks;
  plan.strategy = settings.strategy;
  plan.provenance = {};

  check_chunks(to_int(partition.replicas.size()), settings.chunks);
  const std::size_t positions = partition.replicas.size() / to_index(settings.chunks);
  int next_device = 0;
  for (const int replicas : partition.replicas) {
    if (replicas < 1) {
      refuse(stage_text(to_int(plan.stages.size())) + " has " + std::to_string(replicas) +
             " replicas, must be at least 1");
    }
    Stage stage;
    stage.recompute = settings.recompute;
    stage.recompute_every = settings.recompute_every;
    if (plan.stages.size() < positions) {
      for (int r = 0; r < replicas; ++r) stage.devices.push_back(next_device++);
    } else {
      stage.devices = plan.stages[plan.stages.size() - positions].devices;
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

namespace {

/// Checks that the plan's ranks can run the listed actions; verify checks that none is missing.
void validate_listed(const Plan& plan) {
  const int stages = to_int(plan.stages.size());
  const int positions = stages / plan.chunks;
  std::vector<int> first_rank;                        // by position
  std::vector<std::pair<int, int>> position_replica;  // by rank
  for (int p = 0; p < positions; ++p) {
    first_rank.push_back(to_int(position_replica.size()));
    for (std::size_t r = 0; r < plan.stages[to_index(p)].devices.size(); ++r)
      position_replica.emplace_back(p, to_int(r));
  }
  if (plan.listed.size() != position_replica.size()) {
    refuse("the schedule lists " + std::to_string(plan.listed.size()) + " ranks, the plan has " +
           std::to_string(position_replica.size()));
  }
  for (std::size_t rank = 0; rank < plan.listed.size(); ++rank) {
    const auto [position, own_replica] = position_replica[rank];
    for (const Action& action : plan.listed[rank]) {
      const std::string where = "rank " + std::to_string(rank) + ": listed action " + action_text(action);
      if (action.stage < 0 || action.stage >= stages || position_of(action.stage, positions) != position)
        refuse(where + ": the rank does not have that stage");
      if (action.kind == ActionKind::Update) refuse(where + ": lists do not contain updates; they follow the list");
      if (action.kind == ActionKind::Reduce) continue;
      const int replicas = to_int(plan.stages[to_index(action.stage)].devices.size());
      if (action.microbatch < 0 || action.microbatch >= plan.microbatches) {
        refuse(where + ": microbatches are 0.." + std::to_string(plan.microbatches - 1));
      }
      const int replica = replica_of(action.microbatch, replicas);
      if (replica != own_replica)
        refuse(where + " belongs to rank " + std::to_string(first_rank[to_index(position)] + replica));
      if (action.peer >= stages) refuse(where + ": stages are 0.." + std::to_string(stages - 1));
    }
  }
}

void validate_tied(const Plan& plan) {
  if (plan.tied.empty()) return;
  std::unordered_map<std::string, int> position;
  for (const Stage& stage : plan.stages) {
    for (const std::string& layer : stage.layers) position.emplace(layer, to_int(position.size()));
  }
  std::set<std::string> names;
  for (const TiedLayers& tied : plan.tied) {
    const std::string where = "tied parameter \"" + tied.parameter + "\"";
    if (!names.insert(tied.parameter).second) refuse(where + " is listed twice");
    if (tied.layers.size() < 2)
      refuse(where + " has " + std::to_string(tied.layers.size()) + " layers, must be at least 2");
    int last = -1;
    for (const std::string& layer : tied.layers) {
      const auto it = position.find(layer);
      if (it == position.end()) refuse(where + ": layer \"" + layer + "\" is not in any stage");
      if (it->second <= last) refuse(where + ": layer \"" + layer + "\" is not in the plan's order, or appears twice");
      last = it->second;
    }
  }
}

/// Checks what a plan lists of its parameters, once its layers and tied parameters are known to be valid.
void validate_tensors(const Plan& plan) {
  std::map<std::string, std::vector<std::string>> holders;  // layers of each parameter
  std::map<std::string, const StateTensor*> known;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    const std::set<std::string> layers(stage.layers.begin(), stage.layers.end());
    for (const auto* list : {&stage.parameters, &stage.exchanged_buffers}) {
      std::set<std::pair<std::string, std::string>> seen;
      for (const auto& [layer, tensor] : *list) {
        const std::string where = stage_text(to_int(s)) +
                                  (list == &stage.parameters ? ": parameter \"" : ": buffer \"") + tensor.name +
                                  "\" of layer \"" + layer + "\"";
        if (!layers.contains(layer)) refuse(where + ": the stage does not have the layer");
        if (!seen.emplace(layer, tensor.name).second) refuse(where + " is listed twice");
        check_tensor(tensor, where);
        if (list != &stage.parameters) continue;
        holders[tensor.name].push_back(layer);
        const auto [other, fresh] = known.emplace(tensor.name, &tensor);
        if (!fresh && *other->second != tensor) refuse(where + " has another shape or dtype than in another layer");
      }
    }
  }
  if (!lists_parameters(plan)) return;
  for (const TiedLayers& tied : plan.tied) {
    const auto found = holders.find(tied.parameter);
    if (found == holders.end() || !std::ranges::is_permutation(found->second, tied.layers))
      refuse(tied_text(tied) + ": the stages list it for " +
             (found == holders.end() ? "none" : joined_words(found->second, "and")));
    holders.erase(found);
  }
  for (const auto& [parameter, layers] : holders) {
    if (layers.size() > 1)
      refuse("layers " + joined_words(layers, "and") + " share parameter \"" + parameter +
             "\", which the plan does not list as tied");
  }
}

}  // namespace

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

bool lists_parameters(const Plan& plan) {
  return std::ranges::any_of(plan.stages, [](const Stage& stage) { return !stage.parameters.empty(); });
}

ScheduleEntry schedule_of(const Plan& plan) {
  ScheduleEntry out = schedule_by_name(plan.schedule);
  if (plan.schedule != kListed) return out;
  out.trains = false;
  for (const auto& list : plan.listed) {
    for (const Action& action : list) {
      out.trains = out.trains || action.kind == ActionKind::Backward;
      out.splits_backward = out.splits_backward || action.kind == ActionKind::WeightGradient;
    }
  }
  return out;
}

void check_loss(const Graph& graph, const PlanSettings& settings) {
  const ScheduleEntry schedule = schedule_by_name(settings.schedule);
  check_loss(graph, schedule.trains && schedule.weights != Weights::Newest && settings.microbatches > 1);
}

bool updates_by_several(const Plan& plan) {
  const ScheduleEntry schedule = schedule_of(plan);
  if (!schedule.trains) return false;
  const bool replicated = std::ranges::any_of(plan.stages, [](const Stage& stage) { return stage.devices.size() > 1; });
  return schedule.weights == Weights::Newest ? replicated : plan.microbatches > 1;
}

void validate(const Plan& plan) {
  const int stages = to_int(plan.stages.size());
  if (stages == 0) refuse("the plan has no stages");
  if (plan.gradient_bucket_bytes && *plan.gradient_bucket_bytes < Bytes(1)) {
    refuse("gradient buckets hold " + std::to_string(plan.gradient_bucket_bytes->value) + " bytes, must be at least 1");
  }
  std::unordered_map<std::string, int> stage_of;
  std::map<int, int> stage_of_device;
  check_shape(schedule_by_name(plan.schedule), pipeline_shape(plan));
  const int positions = stages / plan.chunks;
  for (int s = 0; s < stages; ++s) {
    const Stage& stage = plan.stages[to_index(s)];
    if (stage.layers.empty()) refuse(stage_text(s) + " has no layers");
    if (stage.devices.empty()) refuse(stage_text(s) + " has no devices");
    if (stage.recompute_every < 0) {
      refuse(stage_text(s) + " recomputes every " + std::to_string(stage.recompute_every) +
             " layers, must be at least 0");
    }
    if (stage.recompute_every > 0 && !stage.recompute) {
      refuse(stage_text(s) + " recomputes nothing, so recompute_every " + std::to_string(stage.recompute_every) +
             " has no effect");
    }
    for (const std::string& layer : stage.layers) {
      const auto [it, fresh] = stage_of.emplace(layer, s);
      if (!fresh) refuse("layer \"" + layer + "\" is in " + stage_text(it->second) + " and in " + stage_text(s));
    }
    std::set<int> devices_of_stage;
    for (const int device : stage.devices) {
      if (device < 0) refuse(stage_text(s) + ": device " + std::to_string(device) + " does not exist");
      if (!devices_of_stage.insert(device).second)
        refuse(stage_text(s) + ": device " + std::to_string(device) + " appears twice");
      const auto [it, fresh] = stage_of_device.emplace(device, s);
      if (!fresh && (plan.chunks <= 1 || position_of(it->second, positions) != position_of(s, positions))) {
        refuse("device " + std::to_string(device) + " is in " + stage_text(it->second) + " and in " + stage_text(s));
      }
    }
  }
  for (int s = positions; s < stages; ++s) {
    const int first = position_of(s, positions);
    if (plan.stages[to_index(s)].devices != plan.stages[to_index(first)].devices) {
      refuse(stage_text(s) + " must be on the devices of " + stage_text(first) +
             ", because both are chunks of the same position");
    }
  }
  if (to_int(plan.warmups.size()) != stages) {
    refuse("the plan has " + std::to_string(plan.warmups.size()) + " warm-up counts for " + std::to_string(stages) +
           " stages");
  }
  for (int s = 0; s < stages; ++s) {
    const int warmup = plan.warmups[to_index(s)];
    if (warmup < 0) refuse(stage_text(s) + ": the warm-up count " + std::to_string(warmup) + " is negative");
  }
  if (plan.schedule == kListed) {
    validate_listed(plan);
  } else if (!plan.listed.empty()) {
    refuse("actions are only valid with schedule \"" + std::string(kListed) + "\", found \"" + plan.schedule + "\"");
  }
  std::set<std::tuple<int, std::string, int>> received;  // by a stage: layer and output
  for (const Boundary& boundary : plan.boundaries) {
    for (const BoundaryTensor& tensor : boundary.tensors)
      received.emplace(boundary.destination, tensor.layer, tensor.output.value_or(-1));
  }
  std::set<std::pair<int, int>> pairs;
  for (const Boundary& boundary : plan.boundaries) {
    const std::string where =
        "boundary " + std::to_string(boundary.source) + " to " + std::to_string(boundary.destination);
    if (boundary.source < 0 || boundary.destination >= stages)
      refuse(where + ": stages are 0.." + std::to_string(stages - 1));
    if (boundary.source >= boundary.destination) refuse(where + ": data must flow to a later stage");
    if (!pairs.insert({boundary.source, boundary.destination}).second) refuse(where + " appears twice");
    if (boundary.tensors.empty()) refuse(where + " has no tensors");
    std::set<std::pair<std::string, int>> seen;
    for (const BoundaryTensor& tensor : boundary.tensors) {
      const auto it = stage_of.find(tensor.layer);
      const bool made = it != stage_of.end() && it->second == boundary.source;
      if (!made && !received.contains({boundary.source, tensor.layer, tensor.output.value_or(-1)})) {
        refuse(where + ": layer \"" + tensor.layer + "\" is not in " + stage_text(boundary.source) +
               ", nor does that stage receive its output");
      }
      if (!seen.insert({tensor.layer, tensor.output.value_or(-1)}).second) {
        refuse(where + ": a tensor of layer \"" + tensor.layer + "\" appears twice");
      }
    }
  }
  validate_tied(plan);
  validate_tensors(plan);
}

namespace {

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

/// Checks that a valid plan fits graph and topology.
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

}  // namespace

void validate(const Plan& plan, const Graph& graph, const Topology& topology) {
  validate(plan);
  check_fits(plan, graph, topology);
}

void validate(const BoundPlan& plan, const Graph& graph, const Topology& topology) {
  check_fits(plan.plan(), graph, topology);
}

PipelineShape pipeline_shape(const Plan& plan) {
  PipelineShape shape;
  shape.stages = to_int(plan.stages.size());
  shape.microbatches = plan.microbatches;
  shape.chunks = plan.chunks;
  for (const Stage& stage : plan.stages) shape.replicas.push_back(to_int(stage.devices.size()));
  shape.warmups = plan.warmups;
  shape.listed = plan.listed;
  return shape;
}

}  // namespace stagecraft

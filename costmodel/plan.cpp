#include "costmodel/plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

constexpr const char* kListed = "listed";

std::string stage_text(int stage) { return "stage " + std::to_string(stage); }

}  // namespace

std::string tied_text(const TiedLayers& tied) {
  std::string out = "tied parameter \"" + tied.parameter + "\" of layers ";
  for (const std::string& layer : tied.layers) out += (layer == tied.layers.front() ? "\"" : ", \"") + layer + "\"";
  return out;
}

namespace {

constexpr std::array<const char*, 4> kShardings{"none", "optimizer", "gradients", "parameters"};

}  // namespace

const char* to_string(StateSharding sharding) { return kShardings[static_cast<std::size_t>(sharding)]; }

StateSharding state_sharding(const std::string& word) {
  const auto* const found = std::ranges::find(kShardings, word);
  if (found != kShardings.end()) return static_cast<StateSharding>(found - kShardings.begin());
  throw InputError(ErrorKind::UnknownName, unknown_name("sharding", word, {kShardings.begin(), kShardings.end()}));
}

bool allows_sharding(const ScheduleEntry& schedule) { return schedule.weights == Weights::Flushed; }

void check_sharding(StateSharding sharding, const ScheduleEntry& schedule) {
  if (sharding == StateSharding::None || allows_sharding(schedule)) return;
  throw InputError(ErrorKind::ScheduleMismatch,
                   "schedule \"" + schedule.name + "\" updates while other steps are in progress, so replicas cannot " +
                       "divide the state of training; synchronous schedules such as 1f1b can");
}

bool has_gradient(const Boundary& boundary) {
  return std::any_of(boundary.tensors.begin(), boundary.tensors.end(),
                     [](const BoundaryTensor& t) { return t.gradient; });
}

void check_chunks(int stages, int chunks) {
  if (chunks < 1) refuse(std::to_string(chunks) + " chunks per device, must be at least 1");
  if (stages % chunks == 0) return;
  const int less = stages / chunks * chunks;
  refuse(std::to_string(stages) + (stages == 1 ? " stage" : " stages") + " cannot be divided into " +
         std::to_string(chunks) + " chunks per device, " + (less > 0 ? std::to_string(less) + " or " : "") +
         std::to_string(less + chunks) + " can");
}

namespace {

/// Checks that the plan's ranks can run the listed actions; verify checks that none is missing.
void validate_listed(const Plan& plan) {
  const int stages = to_int(plan.stages.size());
  const int positions = stages / plan.chunks;
  const Placement placement = placement_of(plan.listed);
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
      if (action.stage < 0 || action.stage >= stages || position_of(action.stage, positions, placement) != position)
        refuse(where + ": the rank does not have that stage");
      if (action.kind == ActionKind::Update) refuse(where + ": lists do not contain updates; they follow the list");
      if (is_residence(action.kind)) refuse(where + ": lists do not contain it; it follows from the plan's sharding");
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
        check_parameter(tensor, plan.types, where);
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

bool lists_parameters(const Plan& plan) {
  return std::ranges::any_of(plan.stages, [](const Stage& stage) { return !stage.parameters.empty(); });
}

ScheduleEntry schedule_of(const Plan& plan) {
  ScheduleEntry out = schedule_by_name(plan.schedule);
  if (plan.schedule != kListed) return out;
  out.trains = false;
  out.placement = placement_of(plan.listed);
  for (const auto& list : plan.listed) {
    for (const Action& action : list) {
      out.trains = out.trains || action.kind == ActionKind::Backward;
      out.splits_backward = out.splits_backward || action.kind == ActionKind::WeightGradient;
    }
  }
  return out;
}

Placement placement_of(const PlanSettings& settings) {
  return settings.listed.empty() ? schedule_by_name(settings.schedule).placement : placement_of(settings.listed);
}

bool updates_by_several(const Plan& plan) {
  const ScheduleEntry schedule = schedule_of(plan);
  if (!schedule.trains) return false;
  const bool replicated = std::ranges::any_of(plan.stages, [](const Stage& stage) { return stage.devices.size() > 1; });
  return schedule.weights == Weights::Newest ? replicated : plan.microbatches > 1;
}

namespace {

/// With StateSharding::Parameters, the replicas of a stage gather them together, so that all need them equally often.
void check_shares(const Plan& plan) {
  if (plan.sharding != StateSharding::Parameters) return;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const int replicas = to_int(plan.stages[s].devices.size());
    if (replicas < 2 || plan.microbatches % replicas == 0) continue;
    refuse("stage " + std::to_string(s) + " has " + std::to_string(replicas) + " replicas for " +
           std::to_string(plan.microbatches) +
           " microbatches; replicas that share their parameters need equally many microbatches: take a multiple of " +
           std::to_string(replicas));
  }
}

}  // namespace

void validate(const Plan& plan) {
  const int stages = to_int(plan.stages.size());
  if (stages == 0) refuse("the plan has no stages");
  if (plan.gradient_bucket_bytes && *plan.gradient_bucket_bytes < Bytes(1)) {
    refuse("gradient buckets hold " + std::to_string(plan.gradient_bucket_bytes->value) + " bytes, must be at least 1");
  }
  check_sharding(plan.sharding, schedule_by_name(plan.schedule));
  check_shares(plan);
  validate(plan.types, plan.dtype);
  std::unordered_map<std::string, int> stage_of;
  std::map<int, int> stage_of_device;
  check_shape(schedule_by_name(plan.schedule), pipeline_shape(plan));
  const int positions = stages / plan.chunks;
  const auto position = [positions, placement = schedule_of(plan).placement](int stage) {
    return position_of(stage, positions, placement);
  };
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
      if (!fresh && (plan.chunks <= 1 || position(it->second) != position(s))) {
        refuse("device " + std::to_string(device) + " is in " + stage_text(it->second) + " and in " + stage_text(s));
      }
    }
  }
  for (int s = positions; s < stages; ++s) {
    const int first = position(s);
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

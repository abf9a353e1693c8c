#include "partitioner/objective/profiles.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "partitioner/objective/dapple_solver.h"
#include "partitioner/objective/load_problem.h"
#include "partitioner/objective/piper_solver.h"
#include "partitioner/strategies/pipedream.h"

namespace stagecraft::partitioner {
namespace {

using format::ObjectiveAnswer;
using format::ObjectiveStage;

constexpr const char* kMaxLoad = "max-load";
constexpr const char* kPiper = "piper";
constexpr const char* kDapple = "dapple";
constexpr const char* kFlush = "flush";
constexpr const char* kGpipe = "gpipe";
constexpr const char* kPipedream = "pipedream-parity";

void take_effort(ObjectiveAnswer& answer, const SearchEffort& effort) {
  answer.nodes = effort.nodes;
  answer.downsets = static_cast<std::int64_t>(effort.downsets);
  answer.pairs = static_cast<std::int64_t>(effort.pairs);
  answer.stopped = effort.stopped;
}

std::variant<ObjectiveAnswer, Infeasible> answer_of(const LoadProblem& problem, const LoadObjective& objective,
                                                    const SearchLimits& limits, ObjectiveAnswer answer, bool memory) {
  auto result = solve(problem, objective, limits);
  if (auto* infeasible = std::get_if<Infeasible>(&result)) return std::move(*infeasible);
  const auto& found = std::get<LoadAnswer>(result);
  answer.value = found.value;
  answer.lower_bound = found.lower_bound;
  take_effort(answer, found.effort);
  for (const LoadStage& stage : found.stages) {
    ObjectiveStage& made = answer.stages.emplace_back();
    for (const int node : stage.nodes) {
      const auto& members = problem.nodes[to_index(node)].members;
      made.layers.insert(made.layers.end(), members.begin(), members.end());
    }
    made.device = stage.on_cpu ? "cpu" : "accelerator";
    made.replicas = stage.devices;
    made.time = stage.time;
    if (memory && !stage.on_cpu) made.memory_bytes = stage.bytes.value;
  }
  return answer;
}

std::variant<ObjectiveAnswer, Infeasible> answer_of(const interchange::Piper& problem, Seconds time_unit,
                                                    const SearchLimits& limits, ObjectiveAnswer answer, bool by_name) {
  auto result = solve(problem, time_unit, limits);
  if (auto* infeasible = std::get_if<Infeasible>(&result)) return std::move(*infeasible);
  const auto& found = std::get<PiperAnswer>(result);
  answer.value = found.value;
  answer.lower_bound = found.lower_bound;
  answer.unit = "seconds per sample of the slowest stage";
  take_effort(answer, found.effort);
  for (const PiperStage& stage : found.stages) {
    ObjectiveStage& made = answer.stages.emplace_back();
    for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
      const interchange::PiperNode& node = problem.nodes[to_index(stage.nodes[i])];
      made.layers.push_back(by_name ? node.name : std::to_string(node.id));
      ++made.modes[stage.modes[i]];
    }
    made.replicas = stage.replicas;
    made.tensor_devices = stage.tensor_devices;
    made.time = stage.time;
    made.memory_bytes = stage.bytes.value;
  }
  answer.notes.emplace_back(
      "modes of a stage are chosen by Piper's rule, which may overshoot; the bound is for its rule");
  return answer;
}

std::variant<ObjectiveAnswer, Infeasible> dapple_answer(const Graph& graph, int devices, BytesPerSecond bandwidth,
                                                        const ObjectiveOptions& options, ObjectiveAnswer answer) {
  auto result =
      solve(dapple_problems(graph, devices, bandwidth, options.microbatches, options.memory_limit), options.limits);
  if (auto* infeasible = std::get_if<Infeasible>(&result)) return std::move(*infeasible);
  const auto& found = std::get<DappleAnswer>(result);
  answer.unit = "seconds per step of " + std::to_string(options.microbatches) + " microbatches";
  answer.value = found.value;
  answer.lower_bound = found.lower_bound;
  take_effort(answer, found.effort);
  for (const DappleStage& stage : found.stages) {
    ObjectiveStage& made = answer.stages.emplace_back();
    for (const int layer : stage.nodes) made.layers.push_back(graph.layers[to_index(layer)].id);
    made.replicas = stage.devices;
    made.time = stage.time;
    if (options.memory_limit) made.memory_bytes = stage.bytes.value;
  }
  answer.notes.emplace_back("a stage's devices divide each microbatch among them; its time is that of their part");
  answer.notes.emplace_back("for the layers as lists in two depth-first orders, and no more stages than microbatches");
  return answer;
}

std::variant<ObjectiveAnswer, Infeasible> pipedream_answer(const Graph& graph, const Topology& topology,
                                                           const ObjectiveOptions& options, ObjectiveAnswer answer) {
  PipedreamOptions pipedream = options.pipedream;
  if (options.memory_limit) {
    pipedream.use_memory_constraint = true;
    pipedream.memory_limit = *options.memory_limit;
  }
  auto result = pipedream_candidate(graph, topology, pipedream);
  if (auto* infeasible = std::get_if<Infeasible>(&result)) return std::move(*infeasible);
  const auto& found = std::get<Candidate>(result);
  answer.unit = "seconds per minibatch of the slowest stage";
  answer.value = answer.lower_bound = found.steady_state.value_or(Seconds(0));
  answer.nodes = to_int(graph.layers.size());
  answer.stages.resize(found.partition.replicas.size());
  for (std::size_t s = 0; s < answer.stages.size(); ++s) answer.stages[s].replicas = found.partition.replicas[s];
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    const int stage = found.partition.stage_of_layer[i];
    if (stage < 0) continue;
    answer.stages[to_index(stage)].layers.push_back(graph.layers[i].id);
    answer.stages[to_index(stage)].time += graph.layers[i].forward.median + graph.layers[i].backward.median;
  }
  answer.notes.emplace_back("times of stages are their layers' alone, on one device");
  answer.notes.emplace_back("exact among the down-sets that grow from the first source, as in PipeDream's planner");
  if (!pipedream.activation_compression_ratio)
    answer.notes.emplace_back("transfers are free without --activation-compression-ratio, as in PipeDream's planner");
  return answer;
}

}  // namespace

const std::vector<ObjectiveProfile>& objective_profiles() {
  static const std::vector<ObjectiveProfile> table{
      {kDapple,
       "step of DAPPLE's planner: microbatches divided among a stage's devices, transfers, sums of gradients partly "
       "hidden",
       ""},
      {kFlush,
       "sum of the stages' times + (microbatches - 1) slowest stage, as in Alpa; one device per stage, transfers free",
       ""},
      {kGpipe, "(microbatches + stages - 1) slowest stage, as in GPipe; one device per stage, transfers free", "",
       "gpipe"},
      {kMaxLoad, "slowest device of dnn-partitioning: work, and each tensor that crosses its border once",
       "dnn-partitioning"},
      {kPipedream, "slowest stage by PipeDream's published optimizer", ""},
      {kPiper, "time per sample of Piper: replicas, tensor-parallel devices and recomputation, if the input has them",
       "piper"},
  };
  return table;
}

const ObjectiveProfile& objective_profile(const std::string& name) {
  std::vector<std::string> known;
  for (const ObjectiveProfile& profile : objective_profiles()) {
    if (profile.name == name) return profile;
    known.push_back(profile.name);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("objective profile", name, known));
}

std::variant<ObjectiveAnswer, Infeasible> answer_objective(const std::string& profile, const Graph& graph,
                                                           const Topology& topology, const ObjectiveOptions& options) {
  ObjectiveAnswer answer;
  answer.profile = objective_profile(profile).name;
  answer.source = graph.name;
  if (profile == kPipedream) return pipedream_answer(graph, topology, options, std::move(answer));
  if (std::ranges::all_of(graph.layers, is_input)) return Infeasible{"the graph has no layers besides its inputs"};
  const int devices = device_count(topology);
  std::optional<BytesPerSecond> slowest;
  for (const Level& level : topology.levels) {
    if (level.count > 1 && (!slowest || level.link.bandwidth < *slowest)) slowest = level.link.bandwidth;
  }
  const std::optional<Bytes> limit = options.memory_limit;
  if (profile == kPiper) {
    const auto problem =
        piper_problem(graph, devices, slowest.value_or(BytesPerSecond(1e9)), options.microbatches, limit);
    return answer_of(problem, Seconds(1), options.limits, std::move(answer), true);
  }
  if (profile == kDapple)
    return dapple_answer(graph, devices, slowest.value_or(BytesPerSecond(1e9)), options, std::move(answer));
  LoadObjective objective;
  objective.microbatches = options.microbatches;
  if (profile == kMaxLoad) {
    answer.unit = "seconds per microbatch of the slowest device";
    answer.notes.emplace_back(
        "an output that crosses a border takes its bytes over the slowest link twice, for the "
        "activation and its gradient");
    return answer_of(load_problem(graph, devices, slowest, 2, limit), objective, options.limits, std::move(answer),
                     true);
  }
  objective.combination = profile == kFlush ? Combination::FlushSum : Combination::FlushEven;
  answer.unit = "seconds per step of " + std::to_string(options.microbatches) + " microbatches";
  return answer_of(load_problem(graph, devices, std::nullopt, 0, limit), objective, options.limits, std::move(answer),
                   limit.has_value());
}

std::variant<ObjectiveAnswer, Infeasible> answer_objective(const interchange::DnnPartitioning& problem,
                                                           interchange::Units units, const ObjectiveOptions& options) {
  ObjectiveAnswer answer;
  answer.profile = kMaxLoad;
  answer.unit = "seconds per sample of the slowest device";
  answer.notes.push_back(interchange::transfer_unit(problem, units).reason);
  LoadProblem load = load_problem(problem, units);
  if (options.devices) load.accelerators = *options.devices;
  return answer_of(load, {}, options.limits, std::move(answer), true);
}

std::variant<ObjectiveAnswer, Infeasible> answer_objective(const interchange::Piper& problem, interchange::Units units,
                                                           const ObjectiveOptions& options) {
  ObjectiveAnswer answer;
  answer.profile = kPiper;
  const interchange::PiperTimeUnit unit = interchange::piper_time_unit(problem, units);
  answer.notes.push_back(unit.reason);
  interchange::Piper changed = problem;
  if (options.devices) changed.devices = *options.devices;
  return answer_of(changed, Seconds(unit.s), options.limits, std::move(answer), false);
}

}  // namespace stagecraft::partitioner

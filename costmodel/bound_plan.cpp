#include "costmodel/bound_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "costmodel/index.h"

namespace stagecraft {
namespace {

/// Steps after which replicas of different counts return to their start together, if few enough to replay.
constexpr int kLongestCycle = 60;

/// With StateSharding::Parameters, for each entry of a rank's list of computations, what comes before it: the rank
/// frees stages that it does not need soon, and gathers those that it does. Last, what comes after the list.
std::vector<std::vector<Action>> residences(const std::vector<Action>& computing,
                                            const std::function<bool(int stage)>& gathers) {
  static_assert(kWholeStages == 2);
  std::vector<std::vector<Action>> out(computing.size() + 1);
  const auto stage_at = [&](std::size_t i) { return computing[i].stage; };
  // By entry: the first from it on that computes a stage that is gathered, and the first after that with another stage.
  std::vector<std::size_t> first(computing.size() + 1, computing.size());
  std::vector<std::size_t> other = first;
  for (std::size_t i = computing.size(); i-- > 0;) {
    const std::size_t next = first[i + 1];
    first[i] = next;
    other[i] = other[i + 1];
    if (!is_compute(computing[i].kind) || !gathers(stage_at(i))) continue;
    first[i] = i;
    if (next < computing.size() && stage_at(next) != stage_at(i)) other[i] = next;
  }
  std::vector<int> whole;
  for (std::size_t i = 0; i < computing.size(); ++i) {
    std::vector<int> soon;
    for (const std::size_t entry : {first[i], other[i]}) {
      if (entry < computing.size()) soon.push_back(stage_at(entry));
    }
    std::erase_if(whole, [&](int stage) {
      if (std::ranges::find(soon, stage) != soon.end()) return false;
      out[i].push_back({ActionKind::Free, stage, -1, -1});
      return true;
    });
    for (const int stage : soon) {
      if (std::ranges::find(whole, stage) != whole.end()) continue;
      whole.push_back(stage);
      out[i].push_back({ActionKind::Gather, stage, -1, -1});
    }
  }
  for (const int stage : whole) out.back().push_back({ActionKind::Free, stage, -1, -1});
  return out;
}

/// The last computation of each stage in a list.
std::map<int, std::size_t> last_of_stages(const std::vector<Action>& computing) {
  std::map<int, std::size_t> out;
  for (std::size_t i = 0; i < computing.size(); ++i) {
    if (is_compute(computing[i].kind)) out[computing[i].stage] = i;
  }
  return out;
}

}  // namespace

std::vector<int> first_ranks(const std::vector<int>& replicas, int positions, Placement placement) {
  std::vector<int> out(replicas.size());
  int next = 0;
  for (int s = 0; s < to_int(out.size()); ++s) {
    if (s >= positions) {
      out[to_index(s)] = out[to_index(position_of(s, positions, placement))];
      continue;
    }
    out[to_index(s)] = next;
    next += replicas[to_index(s)];
  }
  return out;
}

std::vector<std::vector<Action>> compute_lists(const ScheduleEntry& schedule, const PipelineShape& shape) {
  std::vector<std::vector<Action>> out;
  for (int position = 0; position < shape.stages / shape.chunks; ++position) {
    for (int replica = 0; replica < shape.replicas[to_index(position)]; ++replica)
      out.push_back(schedule.compute_actions(shape, position, replica));
  }
  return out;
}

std::vector<int> separate_reduce_groups(int stages) {
  std::vector<int> out(to_index(stages));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

void join_reduce_groups(std::vector<int>& groups, const std::set<int>& holders) {
  for (const int stage : holders) {
    const int one = groups[to_index(stage)];
    const int other = groups[to_index(*holders.begin())];
    std::ranges::replace(groups, std::max(one, other), std::min(one, other));
  }
}

BoundPlan::BoundPlan(Plan plan) : plan_(std::move(plan)) {
  validate(plan_);
  schedule_ = schedule_of(plan_);
  for (const Stage& stage : plan_.stages) {
    for (const std::string& layer : stage.layers) stage_of_.emplace(layer, to_int(replicas_.size()));
    replicas_.push_back(to_int(stage.devices.size()));
  }
  bind_ranks();
  bind_boundaries();
  bind_tied();
}

void BoundPlan::bind_ranks() {
  first_rank_ = first_ranks(replicas_, positions(), schedule_.placement);
  for (int position = 0; position < positions(); ++position) {
    const std::vector<int>& devices = plan_.stages[to_index(position)].devices;
    for (std::size_t r = 0; r < devices.size(); ++r) {
      ranks_.push_back(
          {devices[r], to_int(r), stagecraft::stages_at(position, stages(), positions(), schedule_.placement)});
    }
  }
}

void BoundPlan::bind_boundaries() {
  incoming_.resize(plan_.stages.size());
  outgoing_.resize(plan_.stages.size());
  inputs_.resize(plan_.stages.size());
  outputs_.resize(plan_.stages.size());
  for (const Boundary& boundary : plan_.boundaries) {
    const int number = to_int(ends_.size());
    incoming_[to_index(boundary.destination)].push_back(number);
    outgoing_[to_index(boundary.source)].push_back(number);
    ends_.push_back({boundary.source, boundary.destination, stagecraft::has_gradient(boundary)});
    const auto pass = [&](int from, int to, bool gradient) {
      outputs_[to_index(from)][gradient ? 1 : 0].push_back({number, to, gradient});
      inputs_[to_index(to)][gradient ? 1 : 0].push_back({number, from, gradient});
    };
    pass(boundary.source, boundary.destination, false);
    if (ends_.back().gradient) pass(boundary.destination, boundary.source, true);
    first_tag_.push_back(tags_);
    tags_ += 2 * to_int(boundary.tensors.size());
  }
}

void BoundPlan::bind_tied() {
  reduce_groups_ = separate_reduce_groups(stages());
  shared_.resize(plan_.stages.size());
  for (const TiedLayers& parameter : plan_.tied) {
    std::set<int> held_by;
    for (const std::string& layer : parameter.layers) held_by.insert(stage_of_.at(layer));
    std::set<int> members;
    for (const int stage : held_by) {
      const std::vector<int> replicas = ranks_of(stage);
      members.insert(replicas.begin(), replicas.end());
    }
    for (const int stage : held_by) {
      if (held_by.size() > 1 || members.size() > 1) shared_[to_index(stage)].push_back(to_int(tied_.size()));
    }
    join_reduce_groups(reduce_groups_, held_by);
    tied_.push_back({parameter.parameter,
                     to_int(tied_.size()),
                     {held_by.begin(), held_by.end()},
                     {members.begin(), members.end()}});
  }
}

bool BoundPlan::gathers(int stage) const {
  return plan_.sharding == StateSharding::Parameters && schedule_.trains && replicas(stage) > 1;
}

bool BoundPlan::reduces_early(int stage) const {
  // Of several stages on a rank, replicas with unequal shares may end the backwards in different orders.
  const bool same_order = plan_.chunks == 1 || plan_.microbatches % replicas(stage) == 0;
  return plan_.sharding >= StateSharding::Gradients && schedule_.trains && replicas(stage) > 1 && same_order &&
         shared_[to_index(stage)].empty();
}

PipelineShape BoundPlan::shape(int steps) const {
  PipelineShape out = pipeline_shape(plan_);
  out.steps = steps;
  return out;
}

std::vector<int> BoundPlan::devices_of(const std::vector<int>& ranks) const {
  std::vector<int> out;
  for (const int rank : ranks) out.push_back(ranks_[to_index(rank)].device);
  std::ranges::sort(out);
  return out;
}

std::optional<int> BoundPlan::stage_of(const std::string& layer) const {
  const auto it = stage_of_.find(layer);
  return it == stage_of_.end() ? std::nullopt : std::optional(it->second);
}

std::vector<int> BoundPlan::microbatches_of(int stage, int rank, int count, int first) const {
  std::vector<int> out;
  for (int m = first; m < first + count; ++m) {
    if (runner(stage, m) == rank) out.push_back(m);
  }
  return out;
}

std::vector<int> BoundPlan::ranks_of(int stage) const {
  std::vector<int> out(to_index(replicas(stage)));
  std::iota(out.begin(), out.end(), first_rank(stage));
  return out;
}

std::vector<std::vector<Action>> BoundPlan::action_lists(int steps, int prefetch) const {
  if (steps < 1) throw std::invalid_argument("action lists of " + std::to_string(steps) + " steps, must be at least 1");
  if (steps > 1 && !asynchronous()) {
    throw std::invalid_argument("schedule \"" + plan_.schedule + "\" replays the lists of 1 step, found " +
                                std::to_string(steps));
  }
  const PipelineShape shape = this->shape(steps);

  const bool placed = std::any_of(plan_.listed.begin(), plan_.listed.end(), [](const auto& list) {
    return std::any_of(list.begin(), list.end(), [](const Action& action) { return action.peer >= 0; });
  });

  std::vector<std::vector<Action>> out;
  for (const std::vector<Action>& computing : compute_lists(schedule_, shape)) {
    const int rank = to_int(out.size());
    const std::vector<int>& stages_of_rank = ranks_[to_index(rank)].stages;

    // Receives by directed edge (kind, peer rank, stage, peer stage) in the order of their consumers; each is posted
    // before the consumer that is `prefetch` - 1 receives earlier on its edge.
    std::map<std::tuple<ActionKind, int, int, int>, std::vector<std::size_t>> consumers;
    std::vector<std::vector<Action>> posted(computing.size());
    for (std::size_t i = 0; i < computing.size() && !placed; ++i) {
      for (const Passage& input : inputs(computing[i])) {
        if (!is_message(computing[i], input)) continue;
        const Action receive = receive_of(computing[i], input);
        auto& edge = consumers[{receive.kind, runner(receive.peer, receive.microbatch), receive.stage, receive.peer}];
        edge.push_back(i);
        const std::size_t back = std::min(edge.size(), to_index(std::max(prefetch, 1)));
        posted[edge[edge.size() - back]].push_back(receive);
      }
    }

    std::vector<std::vector<Action>> moved;
    std::map<int, std::size_t> last;
    const auto gathers_any = [&](int stage) { return gathers(stage); };
    if (std::ranges::any_of(stages_of_rank, gathers_any)) moved = residences(computing, gathers_any);
    if (plan_.sharding >= StateSharding::Gradients &&
        std::ranges::find(computing, ActionKind::Reduce, &Action::kind) == computing.end())
      last = last_of_stages(computing);

    std::vector<Action> list;
    for (std::size_t i = 0; i < computing.size(); ++i) {
      if (!moved.empty()) list.insert(list.end(), moved[i].begin(), moved[i].end());
      list.insert(list.end(), posted[i].begin(), posted[i].end());
      const Action& action = computing[i];
      if (action.kind == ActionKind::Update && reduces(action.stage))
        list.push_back({ActionKind::Reduce, action.stage, -1, -1});
      if (action.kind == ActionKind::Reduce && !reduces(action.stage)) continue;
      list.push_back(action);
      for (const Passage& output : outputs(action)) {
        if (!placed && is_message(action, output)) list.push_back(send_of(action, output));
      }
      if (!last.empty() && is_compute(action.kind) && last.at(action.stage) == i && reduces_early(action.stage))
        list.push_back({ActionKind::Reduce, action.stage, -1, -1});
    }
    if (!moved.empty()) list.insert(list.end(), moved.back().begin(), moved.back().end());
    if (schedule_.trains && !asynchronous()) {
      for (const int s : stages_of_rank) {
        const Action reduce{ActionKind::Reduce, s, -1, -1};
        if (reduces(s) && std::find(list.begin(), list.end(), reduce) == list.end()) list.push_back(reduce);
      }
      for (const int s : stages_of_rank) list.push_back({ActionKind::Update, s, -1, -1});
    }
    out.push_back(std::move(list));
  }
  return out;
}

StepWindow BoundPlan::step_window() const {
  if (!asynchronous()) return {};
  int in_flight = 1;
  int cycle = 1;
  for (int s = 0; s < stages(); ++s) {
    in_flight = std::max(in_flight, (plan_.warmups[to_index(s)] + 1) * replicas(s));
    cycle = std::min(std::lcm(cycle, replicas(s)), kLongestCycle);
  }
  const int fill = (in_flight + plan_.microbatches - 1) / plan_.microbatches;
  StepWindow out;
  out.first = 2 * fill + 1;
  out.last = out.first + 4 * (cycle / std::gcd(cycle, plan_.microbatches));
  out.steps = out.last + fill + 2;
  return out;
}

void validate(const BoundPlan& plan, const Graph& graph, const Topology& topology) {
  check_fits(plan.plan(), graph, topology);
}

std::optional<FarReader> far_reader(const BoundPlan& plan) {
  for (const Boundary& boundary : plan.plan().boundaries) {
    for (const BoundaryTensor& tensor : boundary.tensors) {
      const int from = plan.stage_of(tensor.layer).value_or(boundary.source);
      if (boundary.destination > from + 1) return FarReader{tensor.layer, from, boundary.destination};
    }
  }
  return std::nullopt;
}

}  // namespace stagecraft

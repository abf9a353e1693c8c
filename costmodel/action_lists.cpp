#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <tuple>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"

namespace stagecraft {
namespace {

/// Steps after which replicas of different counts return to their start together, if few enough to replay.
constexpr int kLongestCycle = 60;

std::vector<std::vector<Action>> lists_of(const BoundPlan& bound, const std::vector<bool>& reduces, int steps,
                                          int prefetch) {
  const Plan& plan = bound.plan();
  const ScheduleEntry& schedule = bound.schedule();
  if (steps < 1) throw std::invalid_argument("action lists of " + std::to_string(steps) + " steps, must be at least 1");
  if (steps > 1 && !bound.asynchronous()) {
    throw std::invalid_argument("schedule \"" + plan.schedule + "\" replays the lists of 1 step, found " +
                                std::to_string(steps));
  }
  const PipelineShape shape = bound.shape(steps);
  const auto source = [&](int boundary) { return plan.boundaries[to_index(boundary)].source; };
  const auto destination = [&](int boundary) { return plan.boundaries[to_index(boundary)].destination; };

  const bool placed = std::any_of(plan.listed.begin(), plan.listed.end(), [](const auto& list) {
    return std::any_of(list.begin(), list.end(), [](const Action& action) { return action.peer >= 0; });
  });

  std::vector<std::vector<Action>> out;
  for (int position = 0; position < bound.positions(); ++position) {
    for (int replica = 0; replica < bound.replicas(position); ++replica) {
      const int rank = to_int(out.size());
      const std::vector<Action> computing = schedule.compute_actions(shape, position, replica);

      // Receives by directed edge (kind, peer rank, stage, peer stage) in the order of their consumers; each is posted
      // before the consumer that is `prefetch` - 1 receives earlier on its edge.
      std::map<std::tuple<ActionKind, int, int, int>, std::vector<std::size_t>> consumers;
      std::vector<std::vector<Action>> posted(computing.size());
      const auto receive = [&](ActionKind kind, const Action& consumer, int peer_stage, std::size_t at) {
        const int peer = bound.runner(peer_stage, consumer.microbatch);
        if (peer == rank) return;
        auto& edge = consumers[{kind, peer, consumer.stage, peer_stage}];
        edge.push_back(at);
        const std::size_t back = std::min(edge.size(), to_index(std::max(prefetch, 1)));
        posted[edge[edge.size() - back]].push_back({kind, consumer.stage, consumer.microbatch, peer_stage});
      };
      for (std::size_t i = 0; i < computing.size() && !placed; ++i) {
        const Action& action = computing[i];
        if (action.kind == ActionKind::Forward) {
          for (const int b : bound.incoming(action.stage)) receive(ActionKind::ReceiveActivation, action, source(b), i);
        } else if (action.kind == ActionKind::Backward) {
          for (const int b : bound.outgoing(action.stage)) {
            if (bound.has_gradient(b)) receive(ActionKind::ReceiveGradient, action, destination(b), i);
          }
        }
      }

      std::vector<Action> list;
      for (std::size_t i = 0; i < computing.size(); ++i) {
        list.insert(list.end(), posted[i].begin(), posted[i].end());
        const Action& action = computing[i];
        if (action.kind == ActionKind::Update && reduces[to_index(action.stage)])
          list.push_back({ActionKind::Reduce, action.stage, -1, -1});
        if (action.kind == ActionKind::Reduce && !reduces[to_index(action.stage)]) continue;
        list.push_back(action);
        if (placed) continue;
        if (action.kind == ActionKind::Forward) {
          for (const int b : bound.outgoing(action.stage)) {
            if (bound.runner(destination(b), action.microbatch) == rank) continue;
            list.push_back({ActionKind::SendActivation, action.stage, action.microbatch, destination(b)});
          }
        } else if (action.kind == ActionKind::Backward) {
          for (const int b : bound.incoming(action.stage)) {
            if (!bound.has_gradient(b) || bound.runner(source(b), action.microbatch) == rank) continue;
            list.push_back({ActionKind::SendGradient, action.stage, action.microbatch, source(b)});
          }
        }
      }
      if (schedule.trains && !bound.asynchronous()) {
        for (int s = position; s < shape.stages; s += bound.positions()) {
          const Action reduce{ActionKind::Reduce, s, -1, -1};
          if (reduces[to_index(s)] && std::find(list.begin(), list.end(), reduce) == list.end()) list.push_back(reduce);
        }
        for (int s = position; s < shape.stages; s += bound.positions())
          list.push_back({ActionKind::Update, s, -1, -1});
      }
      out.push_back(std::move(list));
    }
  }
  return out;
}

}  // namespace

std::vector<std::vector<Action>> BoundPlan::action_lists(int steps, int prefetch) const {
  return lists_of(*this, reduces_, steps, prefetch);
}

std::vector<std::vector<Action>> action_lists(const Plan& plan, int prefetch, const std::vector<int>& tied_stages,
                                              int steps) {
  const BoundPlan bound(plan);
  std::vector<bool> reduces;
  for (int s = 0; s < bound.stages(); ++s)
    reduces.push_back(bound.replicas(s) > 1 || std::ranges::find(tied_stages, s) != tied_stages.end());
  return lists_of(bound, reduces, steps, prefetch);
}

StepWindow step_window(const Plan& plan) {
  if (schedule_by_name(plan.schedule).weights == Weights::Flushed) return {};
  int held = 1;
  int cycle = 1;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const int replicas = to_int(plan.stages[s].devices.size());
    held = std::max(held, (plan.warmups[s] + 1) * replicas);
    cycle = std::min(std::lcm(cycle, replicas), kLongestCycle);
  }
  const int fill = (held + plan.microbatches - 1) / plan.microbatches;
  StepWindow out;
  out.first = 2 * fill + 1;
  out.last = out.first + 4 * (cycle / std::gcd(cycle, plan.microbatches));
  out.steps = out.last + fill + 2;
  return out;
}

}  // namespace stagecraft

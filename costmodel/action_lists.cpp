#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <tuple>

#include "costmodel/plan.h"

namespace stagecraft {
namespace {

/// Steps in which replicas of different counts come round together, where those are not too many to replay.
constexpr int kLongestCycle = 60;

/// Stages that receive from / send to each stage, with whether gradients come back.
struct Neighbours {
  std::vector<std::vector<const Boundary*>> before;
  std::vector<std::vector<const Boundary*>> after;
};

Neighbours neighbours(const Plan& plan) {
  Neighbours out{std::vector<std::vector<const Boundary*>>(plan.stages.size()),
                 std::vector<std::vector<const Boundary*>>(plan.stages.size())};
  for (const Boundary& boundary : plan.boundaries) {
    out.before[static_cast<std::size_t>(boundary.destination)].push_back(&boundary);
    out.after[static_cast<std::size_t>(boundary.source)].push_back(&boundary);
  }
  return out;
}

}  // namespace

std::vector<std::vector<Action>> action_lists(const Plan& plan, int prefetch, const std::vector<int>& tied_stages,
                                              int steps) {
  const ScheduleEntry schedule = schedule_of(plan);
  if (steps < 1)
    throw std::invalid_argument("action lists of " + std::to_string(steps) + " steps, at least 1 is wanted");
  if (steps > 1 && schedule.weights == Weights::Flushed) {
    throw std::invalid_argument("schedule \"" + plan.schedule + "\" replays the lists of 1 step, found " +
                                std::to_string(steps));
  }
  PipelineShape shape = pipeline_shape(plan);
  shape.steps = steps;
  const auto reduces = [&](int stage) {
    return shape.replicas[static_cast<std::size_t>(stage)] > 1 ||
           std::find(tied_stages.begin(), tied_stages.end(), stage) != tied_stages.end();
  };
  const Neighbours joined = neighbours(plan);
  const int positions = shape.stages / shape.chunks;
  std::vector<int> first_rank(plan.stages.size());
  for (int s = 0; s < shape.stages; ++s) first_rank[static_cast<std::size_t>(s)] = rank_of(plan, s, 0);
  const auto runner = [&](int stage, int microbatch) {
    return first_rank[static_cast<std::size_t>(stage)] + microbatch % shape.replicas[static_cast<std::size_t>(stage)];
  };

  const bool placed = std::any_of(plan.listed.begin(), plan.listed.end(), [](const auto& list) {
    return std::any_of(list.begin(), list.end(), [](const Action& action) { return action.peer >= 0; });
  });

  std::vector<std::vector<Action>> out;
  for (int position = 0; position < positions; ++position) {
    for (int replica = 0; replica < shape.replicas[static_cast<std::size_t>(position)]; ++replica) {
      const int rank = static_cast<int>(out.size());
      const std::vector<Action> computing = schedule.compute_actions(shape, position, replica);

      // Receives by directed edge (kind, peer rank, stage, peer stage) in the order of their consumers; each is posted
      // before the consumer that stands `prefetch` - 1 receives earlier on its edge.
      std::map<std::tuple<ActionKind, int, int, int>, std::vector<std::size_t>> consumers;
      std::vector<std::vector<Action>> posted(computing.size());
      const auto receive = [&](ActionKind kind, const Action& consumer, int peer_stage, std::size_t at) {
        const int peer = runner(peer_stage, consumer.microbatch);
        if (peer == rank) return;
        auto& edge = consumers[{kind, peer, consumer.stage, peer_stage}];
        edge.push_back(at);
        const std::size_t back = std::min(edge.size(), static_cast<std::size_t>(std::max(prefetch, 1)));
        posted[edge[edge.size() - back]].push_back({kind, consumer.stage, consumer.microbatch, peer_stage});
      };
      for (std::size_t i = 0; i < computing.size() && !placed; ++i) {
        const Action& action = computing[i];
        if (action.kind == ActionKind::Forward) {
          for (const Boundary* b : joined.before[static_cast<std::size_t>(action.stage)]) {
            receive(ActionKind::ReceiveActivation, action, b->source, i);
          }
        } else if (action.kind == ActionKind::Backward) {
          for (const Boundary* b : joined.after[static_cast<std::size_t>(action.stage)]) {
            if (has_gradient(*b)) receive(ActionKind::ReceiveGradient, action, b->destination, i);
          }
        }
      }

      std::vector<Action> list;
      for (std::size_t i = 0; i < computing.size(); ++i) {
        list.insert(list.end(), posted[i].begin(), posted[i].end());
        const Action& action = computing[i];
        if (action.kind == ActionKind::Update && reduces(action.stage))
          list.push_back({ActionKind::Reduce, action.stage, -1, -1});
        if (action.kind == ActionKind::Reduce && !reduces(action.stage)) continue;
        list.push_back(action);
        if (placed) continue;
        if (action.kind == ActionKind::Forward) {
          for (const Boundary* b : joined.after[static_cast<std::size_t>(action.stage)]) {
            if (runner(b->destination, action.microbatch) == rank) continue;
            list.push_back({ActionKind::SendActivation, action.stage, action.microbatch, b->destination});
          }
        } else if (action.kind == ActionKind::Backward) {
          for (const Boundary* b : joined.before[static_cast<std::size_t>(action.stage)]) {
            if (!has_gradient(*b) || runner(b->source, action.microbatch) == rank) continue;
            list.push_back({ActionKind::SendGradient, action.stage, action.microbatch, b->source});
          }
        }
      }
      if (schedule.trains && schedule.weights == Weights::Flushed) {
        for (int s = position; s < shape.stages; s += positions) {
          const Action reduce{ActionKind::Reduce, s, -1, -1};
          if (reduces(s) && std::find(list.begin(), list.end(), reduce) == list.end()) list.push_back(reduce);
        }
        for (int s = position; s < shape.stages; s += positions) list.push_back({ActionKind::Update, s, -1, -1});
      }
      out.push_back(std::move(list));
    }
  }
  return out;
}

StepWindow step_window(const Plan& plan) {
  if (schedule_by_name(plan.schedule).weights == Weights::Flushed) return {};
  int held = 1;
  int cycle = 1;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const int replicas = static_cast<int>(plan.stages[s].devices.size());
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

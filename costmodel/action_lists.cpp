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

}  // namespace

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

    std::vector<Action> list;
    for (std::size_t i = 0; i < computing.size(); ++i) {
      list.insert(list.end(), posted[i].begin(), posted[i].end());
      const Action& action = computing[i];
      if (action.kind == ActionKind::Update && reduces(action.stage))
        list.push_back({ActionKind::Reduce, action.stage, -1, -1});
      if (action.kind == ActionKind::Reduce && !reduces(action.stage)) continue;
      list.push_back(action);
      if (placed) continue;
      for (const Passage& output : outputs(action)) {
        if (is_message(action, output)) list.push_back(send_of(action, output));
      }
    }
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

}  // namespace stagecraft

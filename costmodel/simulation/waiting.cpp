#include "costmodel/simulation/waiting.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

namespace stagecraft::simulation {

void Lanes::set_cost(Lane& lane) const {
  lane.cost = costs_(input_.transfer(lane.boundary, lane.gradient, lane.from, lane.to), lane.to);
}

Lanes::Lanes(const SimulationInput& input) : input_(input), costs_(input.hosts, input.mode) {
  const BoundPlan& plan = input.plan;
  const int microbatches = plan.plan().microbatches * input.steps;
  for (int b = 0; b < to_int(plan.plan().boundaries.size()); ++b) {
    const auto [source, destination, with_gradient] = plan.ends(b);
    const int length = std::min(std::lcm(plan.replicas(source), plan.replicas(destination)), microbatches);
    cycles_.push_back({count(), length});
    for (int i = 0; i < length; ++i) {
      for (const bool gradient : {false, true}) {
        Lane& lane = lanes_.emplace_back();
        lane.boundary = b;
        lane.gradient = gradient;
        lane.from = plan.runner(gradient ? destination : source, i);
        lane.to = plan.runner(gradient ? source : destination, i);
        if (gradient && !with_gradient) continue;
        const std::size_t messages = to_index((microbatches - i + length - 1) / length);
        lane.sent.reserve(messages);
        lane.posted.reserve(messages);
      }
    }
  }
}

void Lanes::refuse(const Action& message) {
  throw std::invalid_argument("there is no boundary between stage " + std::to_string(message.stage) + " and stage " +
                              std::to_string(message.peer));
}

namespace {

constexpr Seconds kNobody(-std::numeric_limits<double>::infinity());

}  // namespace

ReduceGroups::ReduceGroups(const SimulationInput& input)
    : input_(input), groups_(input.stages.size()), latest_(input.stages.size(), kNobody) {
  std::vector<std::size_t> last_rank(groups_.size(), input.lists.size());
  for (std::size_t rank = 0; rank < input.lists.size(); ++rank) {
    for (const Action& action : input.lists[rank]) {
      if (action.kind != ActionKind::Reduce) continue;
      const std::size_t group = to_index(group_of(action.stage));
      if (last_rank[group] == rank) continue;
      last_rank[group] = rank;
      groups_[group].members.emplace_back();
    }
  }
}

bool ReduceGroups::is_last(int rank, std::size_t entry) const {
  if (input_.plan.plan().chunks == 1) return true;
  const std::vector<Action>& list = input_.lists[to_index(rank)];
  const int group = group_of(list[entry].stage);
  return std::none_of(list.begin() + static_cast<std::ptrdiff_t>(entry) + 1, list.end(), [&](const Action& later) {
    return later.kind == ActionKind::Reduce && group_of(later.stage) == group;
  });
}

std::span<const ReduceGroups::Member> ReduceGroups::join(const Member& member) {
  Group& group = groups_[to_index(group_of(member.stage))];
  group.members[group.come++] = member;
  if (group.come < group.members.size()) return {};
  group.come = 0;
  return group.members;
}

/// A stage reduces its buckets one at a time, each as soon as all replicas of the stage have that bucket.
Seconds ReduceGroups::buckets_left(std::span<const Member> members, Seconds now) {
  for (const Member& member : members) {
    Seconds& latest = latest_[to_index(member.stage)];
    latest = std::max(latest, member.since);
  }
  Seconds left;
  for (const Member& member : members) {
    Seconds& latest = latest_[to_index(member.stage)];
    if (latest == kNobody) continue;  // its stage is done
    Seconds end;
    for (const ReduceBucket& bucket : input_.stages[to_index(member.stage)].buckets)
      end = std::max(end, latest - bucket.before_end) + bucket.time;
    left = std::max(left, end - now);
    latest = kNobody;
  }
  return left;
}

Seconds ReduceGroups::time(std::span<const Member> members, Seconds now) {
  Seconds reduce;
  Seconds tied;
  for (const Member& member : members) {
    const int group = group_of(member.stage);
    Seconds of_rank;
    for (const int stage : input_.plan.ranks()[to_index(member.rank)].stages) {
      if (group_of(stage) != group) continue;
      of_rank += input_.stages[to_index(stage)].reduce;
      tied = std::max(tied, input_.stages[to_index(stage)].tied);
    }
    reduce = std::max(reduce, of_rank);
  }
  return reduce + tied + buckets_left(members, now);
}

Gathers::Gathers(const std::vector<std::vector<Action>>& lists) {
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    for (const Action& action : lists[rank]) {
      const std::size_t stage = to_index(action.stage);
      if (stage >= members_.size()) members_.resize(stage + 1);
      if (action.kind != ActionKind::Gather) continue;
      if (members_[stage].empty() || members_[stage].back() != to_int(rank)) members_[stage].push_back(to_int(rank));
    }
  }
  for (const std::vector<int>& members : members_) begun_.emplace_back(members.size());
  ended_.resize(members_.size());
  queues_.resize(lists.size());
}

int Gathers::begun(int rank, int stage) const {
  const std::vector<int>& members = members_[to_index(stage)];
  const auto found = std::ranges::lower_bound(members, rank);
  return found == members.end() || *found != rank ? 0 : begun_[to_index(stage)][to_index(found - members.begin())];
}

std::optional<int> Gathers::begin(int rank, int stage) {
  const std::vector<int>& members = members_[to_index(stage)];
  std::vector<int>& begun = begun_[to_index(stage)];
  const int before = std::ranges::min(begun);
  ++begun[to_index(std::ranges::lower_bound(members, rank) - members.begin())];
  if (std::ranges::min(begun) == before) return std::nullopt;
  queue(stage).push_back(stage);
  return queue(stage).size() == 1 ? std::optional(stage) : std::nullopt;
}

std::optional<int> Gathers::end(int stage) {
  ++ended_[to_index(stage)];
  std::deque<int>& waiting = queue(stage);
  waiting.pop_front();
  return waiting.empty() ? std::nullopt : std::optional(waiting.front());
}

bool Gathers::is_whole(int rank, int stage) const { return begun(rank, stage) <= ended_[to_index(stage)]; }

int Gathers::missing(int rank, int stage) const {
  for (const int member : members_[to_index(stage)]) {
    if (begun(member, stage) < begun(rank, stage)) return member;
  }
  return -1;
}

void Gathers::append_state(std::vector<std::int64_t>& out) const {
  for (std::size_t stage = 0; stage < begun_.size(); ++stage) {
    for (const int begun : begun_[stage]) out.push_back(begun - ended_[stage]);
  }
  for (const std::deque<int>& waiting : queues_) out.insert(out.end(), waiting.begin(), waiting.end());
}

}  // namespace stagecraft::simulation

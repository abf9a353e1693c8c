#include "costmodel/bound_plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "costmodel/index.h"

namespace stagecraft {

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
  for (int position = 0; position < positions(); ++position) {
    first_rank_.push_back(to_int(ranks_.size()));
    const std::vector<int>& devices = plan_.stages[to_index(position)].devices;
    for (std::size_t r = 0; r < devices.size(); ++r) {
      RankRole role{devices[r], to_int(r), {}};
      for (int s = position; s < stages(); s += positions()) role.stages.push_back(s);
      ranks_.push_back(std::move(role));
    }
  }
  for (int s = positions(); s < stages(); ++s) first_rank_.push_back(first_rank(position_of(s)));
}

void BoundPlan::bind_boundaries() {
  incoming_.resize(plan_.stages.size());
  outgoing_.resize(plan_.stages.size());
  for (const Boundary& boundary : plan_.boundaries) {
    const int number = to_int(ends_.size());
    incoming_[to_index(boundary.destination)].push_back(number);
    outgoing_[to_index(boundary.source)].push_back(number);
    ends_.push_back({boundary.source, boundary.destination, stagecraft::has_gradient(boundary)});
    first_tag_.push_back(tags_);
    tags_ += 2 * to_int(boundary.tensors.size());
  }
}

void BoundPlan::bind_tied() {
  reduce_groups_.resize(plan_.stages.size());
  std::iota(reduce_groups_.begin(), reduce_groups_.end(), 0);
  shared_.resize(plan_.stages.size());
  for (const TiedLayers& parameter : plan_.tied) {
    std::set<int> held_by;
    for (const std::string& layer : parameter.layers) held_by.insert(stage_of_.at(layer));
    std::set<int> members;
    for (const int stage : held_by) {
      const std::vector<int> replicas = ranks_of(stage);
      members.insert(replicas.begin(), replicas.end());
      if (held_by.size() > 1) shared_[to_index(stage)].push_back(to_int(tied_.size()));
      const int one = reduce_groups_[to_index(stage)];
      const int other = reduce_groups_[to_index(*held_by.begin())];
      std::ranges::replace(reduce_groups_, std::max(one, other), std::min(one, other));
    }
    tied_.push_back({parameter.parameter,
                     to_int(tied_.size()),
                     {held_by.begin(), held_by.end()},
                     {members.begin(), members.end()}});
  }
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

#include "executor/run/planned_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "costmodel/errors.h"
#include "executor/channel/control_tags.h"
#include "executor/device/dtype.h"

namespace stagecraft {

std::vector<std::vector<int>> layers_of_stages(const Plan& plan, const Model& model) {
  std::unordered_map<std::string, int> index;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    index[model.layers[i].name] = static_cast<int>(i);
    names.push_back(model.layers[i].name);
  }
  std::vector<std::vector<int>> out;
  std::size_t count = 0;
  for (const Stage& stage : plan.stages) {
    std::vector<int> layers;
    for (const std::string& id : stage.layers) {
      const auto it = index.find(id);
      if (it == index.end()) {
        const auto merged = model.merged.find(id);
        throw std::invalid_argument("model \"" + model.name + "\": " +
                                    (merged == model.merged.end()
                                         ? unknown_name("layer", id, names)
                                         : "layer \"" + id + "\" " + merged->second));
      }
      layers.push_back(it->second);
    }
    std::sort(layers.begin(), layers.end());
    count += layers.size();
    out.push_back(std::move(layers));
  }
  if (count != model.layers.size()) {
    std::set<std::string> planned;
    for (const Stage& stage : plan.stages) planned.insert(stage.layers.begin(), stage.layers.end());
    for (const std::string& name : names) {
      if (!planned.contains(name)) {
        throw std::invalid_argument("layer \"" + name + "\" of model \"" + model.name +
                                    "\" stands in no stage of the plan");
      }
    }
  }
  for (const Boundary& boundary : plan.boundaries) {
    for (const BoundaryTensor& tensor : boundary.tensors) {
      if (!tensor.output || tensor.dtype.empty()) {
        throw std::invalid_argument("the plan does not say shape and type of what layer \"" + tensor.layer +
                                    "\" sends; plan from a graph that stagecraft profile wrote");
      }
    }
  }
  return out;
}

void check_samples(const Model& model, std::int64_t samples) {
  const std::int64_t least = model.least_samples, most = model.most_samples;
  if (samples >= least && samples <= most) return;
  if (least == most) {
    throw std::invalid_argument(
        fmt::format("{} was exported for {} samples a microbatch, found {}; export it with a dynamic batch or "
                    "plan with microbatches of {}",
                    model.name, least, samples, least));
  }
  const std::string bounds = most == std::numeric_limits<std::int64_t>::max() ? fmt::format("{} or more", least)
                                                                              : fmt::format("{} to {}", least, most);
  throw std::invalid_argument(
      fmt::format("{} was exported for {} samples a microbatch, found {}", model.name, bounds, samples));
}

void check_fits(const Plan& plan, const Model& model, const std::vector<std::vector<int>>& layers) {
  if (plan.microbatch_samples) check_samples(model, *plan.microbatch_samples);
  // An asynchronous schedule's replicas keep buffers of their own, an evaluation writes none.
  if (const ScheduleEntry schedule = schedule_of(plan); schedule.weights != Weights::Flushed || !schedule.trains) return;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    if (plan.stages[s].devices.size() < 2) continue;
    for (const int index : layers[s]) {
      const LayerSpec& layer = model.layers[static_cast<std::size_t>(index)];
      const auto buffer =
          std::ranges::find_if(layer.parameters, [](const auto& each) { return !each.trainable && each.written; });
      if (buffer == layer.parameters.end()) continue;
      throw std::invalid_argument(
          fmt::format("layer \"{}\" writes its buffer \"{}\" in a way that replicas cannot replay; plan stage {} "
                      "without replicas",
                      layer.name, buffer->name, s));
    }
  }
}

std::map<std::string, std::vector<int>> tied_parameters(const Model& model,
                                                        const std::vector<std::vector<int>>& layers) {
  std::map<std::string, std::vector<int>> holders;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    for (const int layer : layers[s]) {
      for (const ParameterSpec& parameter : model.layers[static_cast<std::size_t>(layer)].parameters) {
        auto& stages = holders[parameter.name];
        if (parameter.trainable && (stages.empty() || stages.back() != static_cast<int>(s)))
          stages.push_back(static_cast<int>(s));
      }
    }
  }
  std::erase_if(holders, [](const auto& entry) { return entry.second.size() < 2; });
  return holders;
}

std::vector<int> replica_ranks(const Plan& plan, int stage) {
  std::vector<int> out;
  for (int r = 0; r < static_cast<int>(plan.stages[static_cast<std::size_t>(stage)].devices.size()); ++r)
    out.push_back(rank_of(plan, stage, r));
  return out;
}

std::vector<TiedGradient> tied_of_rank(const Plan& plan, const Model& model,
                                       const std::vector<std::vector<int>>& layers,
                                       const std::map<std::string, std::vector<int>>& tied, int rank) {
  const RankRole role = ranks(plan).at(static_cast<std::size_t>(rank));
  struct Holders {
    int layers = 0;
    int stage = 0;
    std::vector<std::int64_t> shape;
  };
  std::map<std::string, Holders> held;  // by this rank
  for (const int stage : role.stages) {
    for (const int layer : layers[static_cast<std::size_t>(stage)]) {
      for (const ParameterSpec& parameter : model.layers[static_cast<std::size_t>(layer)].parameters) {
        if (!parameter.trainable) continue;
        auto [it, fresh] = held.emplace(parameter.name, Holders{0, stage, parameter.shape});
        ++it->second.layers;
      }
    }
  }
  std::vector<TiedGradient> out;
  for (const auto& [name, own] : held) {
    const auto it = tied.find(name);
    if (own.layers < 2 && it == tied.end()) continue;
    TiedGradient parameter{name, own.shape, {}, 0};
    std::set<int> members;
    for (const int stage : it == tied.end() ? std::vector<int>{own.stage} : it->second) {
      const std::vector<int> replicas = replica_ranks(plan, stage);
      members.insert(replicas.begin(), replicas.end());
    }
    parameter.ranks.assign(members.begin(), members.end());
    // Every holder numbers the name alike: its place among all tied names, or among those of the one stage.
    parameter.tag = it == tied.end() ? kOwnTiesTag + static_cast<int>(out.size())
                                     : kTiesTag + static_cast<int>(std::distance(tied.begin(), it));
    out.push_back(std::move(parameter));
  }
  return out;
}

std::vector<std::vector<Action>> planned_actions(const Plan& plan, const std::map<std::string, std::vector<int>>& tied,
                                                 int steps) {
  constexpr int kMicrobatchesAhead = 2;
  std::set<int> stages;
  for (const auto& [name, holders] : tied) stages.insert(holders.begin(), holders.end());
  return action_lists(plan, kMicrobatchesAhead, {stages.begin(), stages.end()}, steps);
}

std::vector<int> tied_groups(const Plan& plan, const std::map<std::string, std::vector<int>>& tied) {
  std::vector<int> group(plan.stages.size());
  std::iota(group.begin(), group.end(), 0);
  for (const auto& [name, holders] : tied) {
    for (const int stage : holders) {
      const int from = group[static_cast<std::size_t>(stage)];
      const int to = group[static_cast<std::size_t>(holders.front())];
      std::ranges::replace(group, from, to);
    }
  }
  return group;
}

}  // namespace stagecraft

#include "costmodel/gradient_sums.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

#include "costmodel/index.h"

namespace stagecraft {
namespace {

std::string name_of(const HeldParameter& parameter, const std::string& layer) {
  return parameter.name.empty() ? "the parameters of layer \"" + layer + "\""
                                : "parameter \"" + std::string(parameter.name) + "\"";
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> words;
  for (const int rank : ranks) words.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + joined_words(words, "and");
}

/// Where a gradient of `stage` is not summed over exactly its holders once.
std::optional<std::string> wrong_holders(const BoundPlan& plan, int stage, const HeldParameters& held,
                                         const std::vector<GradientSum>& sums,
                                         const std::map<std::string, ParameterHome>& homes) {
  const std::vector<HeldParameter>& parameters = held[to_index(stage)];
  std::set<std::string_view> seen;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const HeldParameter& parameter = parameters[i];
    if (!parameter.name.empty() && !seen.insert(parameter.name).second) continue;  // the same in another layer
    const std::string where = "stage " + std::to_string(stage) + ": the gradient of " +
                              name_of(parameter, plan.plan().stages[to_index(stage)].layers[parameter.layer]) + " is ";
    const std::vector<int> wanted =
        parameter.name.empty() ? plan.ranks_of(stage) : homes.at(std::string(parameter.name)).holders;
    const auto is_it = [&](std::size_t place) {
      return place == i || (!parameter.name.empty() && parameters[place].name == parameter.name);
    };
    int count = 0;
    for (const GradientSum& sum : sums) {
      if (std::ranges::none_of(sum.parameters, is_it)) continue;
      ++count;
      if (sum.ranks != wanted) {
        return where + "summed over " + ranks_text(sum.ranks) + ", but " + ranks_text(wanted) +
               (wanted.size() == 1 ? " holds" : " hold") + " it";
      }
      Bytes updated;
      for (const Bytes part : sum.parts) updated += part;
      if (!sum.parts.empty() && (updated != sum.bytes || sum.parts.size() != sum.ranks.size()))
        return where + "in a sum whose parts do not cover it: they have " + std::to_string(updated.value) + " of " +
               std::to_string(sum.bytes.value) + " bytes";
    }
    if (count > 1) return where + "summed twice";
    if (count == 0 && wanted.size() > 1 && parameter.bytes > Bytes(0))
      return where + "not summed, but " + ranks_text(wanted) + " hold it";
  }
  return std::nullopt;
}

/// Sums are begun together by their ranks: one that is not the next on all of them is in another order on some.
std::optional<std::string> wrong_order(const BoundPlan& plan, const GradientSums& sums,
                                       const std::vector<std::vector<Action>>& lists) {
  std::vector<std::vector<const GradientSum*>> queues;  // by rank
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    std::vector<const GradientSum*>& queue = queues.emplace_back();
    for (const auto& at : sums_by_entry(plan, sums, to_int(rank), lists[rank]))
      queue.insert(queue.end(), at.begin(), at.end());
  }
  // The stages of a shared parameter have equal sums for it.
  const auto same = [](const GradientSum& a, const GradientSum& b) {
    return &a == &b || (a.tied && a.tied == b.tied && a.ranks == b.ranks);
  };
  std::vector<std::size_t> next(queues.size());
  std::vector<int> waiting;
  for (std::size_t rank = 0; rank < queues.size(); ++rank) waiting.push_back(to_int(rank));
  while (!waiting.empty()) {
    const std::size_t rank = to_index(waiting.back());
    waiting.pop_back();
    while (next[rank] < queues[rank].size()) {
      const GradientSum& sum = *queues[rank][next[rank]];
      const bool all = std::ranges::all_of(sum.ranks, [&](int r) {
        return next[to_index(r)] < queues[to_index(r)].size() && same(*queues[to_index(r)][next[to_index(r)]], sum);
      });
      if (!all) break;
      for (const int member : sum.ranks) {
        ++next[to_index(member)];
        if (to_index(member) != rank) waiting.push_back(member);
      }
    }
  }
  for (std::size_t rank = 0; rank < queues.size(); ++rank) {
    if (next[rank] == queues[rank].size()) continue;
    const GradientSum& sum = *queues[rank][next[rank]];
    return ranks_text(sum.ranks) + " do not sum gradients in one order: rank " + std::to_string(rank) +
           " begins its sum " + std::to_string(next[rank] + 1) + " over them while others begin another";
  }
  return std::nullopt;
}

}  // namespace

HeldParameters held_parameters(const Graph& graph, const Plan& plan) {
  HeldParameters out;
  for (const std::vector<const Layer*>& layers : layers_of_stages(graph, plan)) {
    std::vector<HeldParameter>& held = out.emplace_back();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const Layer& layer = *layers[i];
      for (const StateTensor& tensor : layer.parameter_tensors) held.push_back({tensor.name, i, tensor_bytes(tensor)});
      if (!layer.parameter_tensors.empty()) continue;
      if (const Bytes rest = untied_bytes(layer); rest > Bytes(0)) held.push_back({"", i, rest});
      for (const TiedParameter& tied : layer.tied) held.push_back({tied.name, i, tied.bytes});
    }
  }
  return out;
}

std::optional<HeldParameters> held_parameters(const Plan& plan) {
  if (!lists_parameters(plan)) return std::nullopt;
  HeldParameters out;
  for (const Stage& stage : plan.stages) {
    std::unordered_map<std::string, std::size_t> place;
    for (const std::string& layer : stage.layers) place.emplace(layer, place.size());
    std::vector<HeldParameter>& held = out.emplace_back();
    for (const PlanTensor& parameter : stage.parameters)
      held.push_back({parameter.tensor.name, place.at(parameter.layer), tensor_bytes(parameter.tensor)});
  }
  return out;
}

std::vector<std::int64_t> parameter_values(const GradientSum& sum, const std::vector<HeldParameter>& held) {
  std::vector<std::int64_t> out;
  for (const std::size_t place : sum.parameters)
    out.push_back(held[place].bytes.value / value_bytes(sum.types.parameters).value);
  return out;
}

std::vector<std::int64_t> part_values(const GradientSum& sum) {
  std::vector<std::int64_t> out;
  for (const Bytes part : sum.parts) out.push_back(part.value / value_bytes(sum.types.gradients).value);
  return out;
}

std::int64_t gradient_values(const GradientSum& sum) {
  return sum.bytes.value / value_bytes(sum.types.gradients).value;
}

Bytes gathered_bytes(const GradientSum& sum) { return parameter_bytes(sum.types, sum.bytes); }

namespace {

/// Adds what each member of a sum of `stage` updates to the homes of the named parameters that live there.
void add_owners(int stage, const GradientSum& sum, const std::vector<HeldParameter>& held,
                std::map<std::string, ParameterHome>& homes) {
  const std::vector<std::int64_t> values = parameter_values(sum, held);
  const std::vector<std::int64_t> parts = part_values(sum);
  for (std::size_t member = 0; member < parts.size(); ++member) {
    const std::vector<ValueRange> owned = owned_ranges(values, parts, member);
    for (std::size_t i = 0; i < owned.size(); ++i) {
      const auto home = homes.find(std::string(held[sum.parameters[i]].name));
      if (owned[i].count > 0 && home != homes.end() && home->second.stage == stage)
        home->second.parts.push_back({sum.ranks[member], owned[i]});
    }
  }
}

}  // namespace

std::map<std::string, ParameterHome> parameter_homes(const BoundPlan& plan, const HeldParameters& held,
                                                     const GradientSums& sums) {
  std::map<std::string_view, std::set<int>> stages;
  for (int s = 0; s < plan.stages(); ++s) {
    for (const HeldParameter& parameter : held[to_index(s)]) {
      if (!parameter.name.empty()) stages[parameter.name].insert(s);
    }
  }
  std::map<std::string, ParameterHome> out;
  for (const auto& [name, holding] : stages) {
    std::set<int> ranks;
    for (const int s : holding) {
      const std::vector<int> replicas = plan.ranks_of(s);
      ranks.insert(replicas.begin(), replicas.end());
    }
    const int first = *holding.begin();
    out[std::string(name)] = {first, plan.first_rank(first), {ranks.begin(), ranks.end()}, {}};
  }
  for (std::size_t s = 0; s < sums.size(); ++s) {
    for (const GradientSum& sum : sums[s]) add_owners(to_int(s), sum, held[s], out);
  }
  return out;
}

namespace {

/// The cut nearest to `at` among those that owned_values allows.
std::int64_t nearest_cut(std::span<const std::int64_t> values, std::int64_t at) {
  std::int64_t begin = 0;
  for (const std::int64_t count : values) {
    const std::int64_t end = begin + count;
    if (at <= end) {
      const std::int64_t block = begin + (at - begin) / kOwnedBlock * kOwnedBlock;
      const std::int64_t next = std::min(block + kOwnedBlock, end);
      return at - block <= next - at ? block : next;
    }
    begin = end;
  }
  return begin;
}

}  // namespace

std::vector<std::int64_t> owned_values(std::span<const std::int64_t> values, std::size_t members) {
  const std::int64_t all = std::accumulate(values.begin(), values.end(), std::int64_t{0});
  std::vector<std::int64_t> out;
  std::int64_t before = 0;
  for (std::size_t member = 1; member <= members; ++member) {
    // As chunk_begin of the channels, in two steps that do not overflow.
    const auto n = static_cast<std::int64_t>(members);
    const auto m = static_cast<std::int64_t>(member);
    const std::int64_t cut = member == members ? all : nearest_cut(values, all / n * m + all % n * m / n);
    out.push_back(cut - before);
    before = cut;
  }
  return out;
}

std::vector<ValueRange> owned_ranges(std::span<const std::int64_t> values, std::span<const std::int64_t> owned,
                                     std::size_t place) {
  const std::int64_t first = std::accumulate(owned.begin(), owned.begin() + to_int(place), std::int64_t{0});
  const std::int64_t last = first + owned[place];
  std::vector<ValueRange> out;
  std::int64_t begin = 0;
  for (const std::int64_t count : values) {
    const std::int64_t from = std::clamp(first - begin, std::int64_t{0}, count);
    out.push_back({from, std::clamp(last - begin, std::int64_t{0}, count) - from});
    begin += count;
  }
  return out;
}

Bytes updated_bytes(const std::vector<GradientSum>& sums, int rank, Bytes bytes) {
  for (const GradientSum& sum : sums) {
    if (!sum.parts.empty())
      bytes += parameter_bytes(sum.types,
                               sum.parts[to_index(std::ranges::find(sum.ranks, rank) - sum.ranks.begin())] - sum.bytes);
  }
  return bytes;
}

Bytes most_updated_bytes(const std::vector<GradientSum>& sums, const std::vector<int>& ranks, Bytes bytes) {
  Bytes out;
  for (const int rank : ranks) out = std::max(out, updated_bytes(sums, rank, bytes));
  return out;
}

GradientSums gradient_sums(const BoundPlan& plan, const HeldParameters& held) {
  std::optional<Bytes> full;
  if (!plan.asynchronous()) full = plan.plan().gradient_bucket_bytes;
  const StateTypes& types = plan.plan().types;
  GradientSums out(to_index(plan.stages()));
  for (int s = 0; s < plan.stages(); ++s) {
    const std::vector<HeldParameter>& parameters = held[to_index(s)];
    std::vector<GradientSum>& sums = out[to_index(s)];
    std::map<std::string_view, GradientSum> shared;
    for (const int tied : plan.shared(s)) {
      const TiedHolders& holders = plan.tied()[to_index(tied)];
      shared[holders.parameter] = {holders.ranks, Bytes(0), tied, {}, 0};
    }
    std::vector<std::size_t> own;
    std::vector<Bytes> bytes;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto tied = shared.find(parameters[i].name);
      if (tied == shared.end()) {
        own.push_back(i);
        bytes.push_back(gradient_bytes(types, parameters[i].bytes));
      } else if (tied->second.parameters.empty()) {
        tied->second.bytes = gradient_bytes(types, parameters[i].bytes);
        tied->second.layer = parameters[i].layer;
        tied->second.parameters = {i};
      }
    }
    if (plan.replicas(s) > 1) {
      std::vector<FilledBucket> buckets = fill_buckets(bytes, full);
      if (buckets.empty() && (!full || !own.empty())) buckets.push_back({});
      std::size_t end = own.size();
      for (const FilledBucket& bucket : buckets) {
        // Parameters without values that are left over travel with the last bucket.
        const std::size_t begin = &bucket == &buckets.back() ? 0 : bucket.first;
        GradientSum sum{
            plan.ranks_of(s), bucket.bytes, {}, {own.begin() + to_int(begin), own.begin() + to_int(end)}, 0};
        if (bucket.first < own.size()) sum.layer = parameters[own[bucket.first]].layer;
        sums.push_back(std::move(sum));
        end = begin;
      }
    }
    for (const int tied : plan.shared(s)) {
      GradientSum& sum = shared.at(plan.tied()[to_index(tied)].parameter);
      if (sum.bytes > Bytes(0)) sums.push_back(std::move(sum));
    }
    for (GradientSum& sum : sums) sum.types = types;
    if (plan.plan().sharding == StateSharding::None || !plan.schedule().trains) continue;
    for (GradientSum& sum : sums) {
      for (const std::int64_t values : owned_values(parameter_values(sum, parameters), sum.ranks.size()))
        sum.parts.push_back(values * value_bytes(types.gradients));
    }
  }
  return out;
}

GradientSums gradient_sums(const Graph& graph, const BoundPlan& plan) {
  return gradient_sums(plan, held_parameters(graph, plan.plan()));
}

std::vector<std::vector<const GradientSum*>> sums_by_entry(const BoundPlan& plan, const GradientSums& sums, int rank,
                                                           const std::vector<Action>& list) {
  std::vector<std::vector<const GradientSum*>> out(list.size());
  std::map<int, const GradientSum*> shared;
  for (const int stage : plan.ranks()[to_index(rank)].stages) {
    for (const GradientSum& sum : sums[to_index(stage)]) {
      if (sum.tied) shared.emplace(*sum.tied, &sum);
    }
  }
  std::size_t last = list.size();
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].kind != ActionKind::Reduce) continue;
    last = i;
    for (const GradientSum& sum : sums[to_index(list[i].stage)]) {
      if (!sum.tied || plan.asynchronous()) out[i].push_back(&sum);
    }
  }
  if (last == list.size() || plan.asynchronous()) return out;
  for (const auto& [tied, sum] : shared) out[last].push_back(sum);
  return out;
}

std::optional<std::string> wrong_sum(const BoundPlan& plan, const HeldParameters& held, const GradientSums& sums,
                                     const std::vector<std::vector<Action>>& lists) {
  const std::map<std::string, ParameterHome> homes = parameter_homes(plan, held, sums);
  for (int s = 0; s < plan.stages(); ++s) {
    if (auto wrong = wrong_holders(plan, s, held, sums[to_index(s)], homes)) return wrong;
  }
  return wrong_order(plan, sums, lists);
}

std::vector<Bytes> untied_parameters(const Layer& layer) {
  if (layer.parameter_tensors.empty()) return {untied_bytes(layer)};
  std::vector<Bytes> out;
  for (const StateTensor& tensor : layer.parameter_tensors) {
    if (std::ranges::find(layer.tied, tensor.name, &TiedParameter::name) == layer.tied.end())
      out.push_back(tensor_bytes(tensor));
  }
  return out;
}

Bytes untied_bytes(const Layer& layer) {
  Bytes out = layer.parameter_bytes;
  for (const TiedParameter& tied : layer.tied) out -= tied.bytes;
  return out;
}

std::vector<FilledBucket> fill_buckets(std::span<const Bytes> gradients, std::optional<Bytes> full) {
  std::vector<FilledBucket> out;
  Bytes bytes;
  for (std::size_t i = gradients.size(); i-- > 0;) {
    bytes += gradients[i];
    if (bytes == Bytes(0) || ((!full || bytes < *full) && i > 0)) continue;
    out.push_back({bytes, i});
    bytes = Bytes(0);
  }
  return out;
}

}  // namespace stagecraft

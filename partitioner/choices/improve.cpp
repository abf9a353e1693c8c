#include "partitioner/choices/improve.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/index.h"
#include "partitioner/candidate.h"
#include "partitioner/search/placement.h"
#include "partitioner/search/search_tuning.h"

namespace stagecraft::partitioner {
namespace {

class Improvement {
 public:
  Improvement(const std::string& origin, const Graph& graph, const Topology& topology, const CostModel& costs,
              const Constraints& constraints, const ImproveOptions& options)
      : origin_(origin),
        graph_(graph),
        topology_(topology),
        costs_(costs),
        constraints_(constraints),
        options_(options),
        list_(layer_list_of(graph)),
        devices_(device_count(topology)) {}

  RankedPlan run(const Candidate& start) {
    const ToldSearch told(costs_.progress, "improving");
    told.ends_after(options_.time);
    candidate_ = start;
    if (candidate_.recomputation.empty()) {
      const PlanSettings& settings = constraints_.plan;
      candidate_.recomputation.assign(to_index(stages()), {settings.recompute, settings.recompute_every});
    }
    best_ = predicted_plan(origin_, graph_, topology_, start, costs_, constraints_);
    key_ = key_of(best_);
    tell();
    bool changed = true;
    while (changed && !is_late()) {
      changed = false;
      if (options_.layers) changed = move_layers() || changed;
      if (replicas_are_free()) changed = move_replicas() || changed;
      if (options_.layers && stages_are_free()) changed = join_and_cut() || changed;
      if (options_.recomputation) changed = change_recomputation() || changed;
      changed = place() || changed;
    }
    best_.prediction.timeline.spans.clear();
    return std::move(best_);
  }

 private:
  using Recomputations = std::vector<StageRecomputation>;  ///< of each stage
  using Key = std::tuple<bool, bool, std::vector<double>>;

  static std::vector<int> layer_list_of(const Graph& graph) {
    std::vector<int> out;
    for (std::size_t i = 0; i < graph.layers.size(); ++i) {
      if (!is_input(graph.layers[i])) out.push_back(to_int(i));
    }
    return out;
  }

  [[nodiscard]] Key key_of(const RankedPlan& ranked) const {
    // What does not fit is as good as it is small.
    const Objective objective = ranked.fits ? options_.goal.objective : Objective::Memory;
    return {!ranked.fits, !meets(ranked, options_.goal), rank_key(merits(ranked), objective)};
  }
  /// Reports the step of the best plan as progress, if steps are what becomes better.
  void tell() const {
    if (costs_.progress != nullptr && best_.fits && options_.goal.objective == Objective::Time)
      costs_.progress->found(best_.prediction.iteration);
  }
  [[nodiscard]] bool is_late() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count() > options_.time.value;
  }
  [[nodiscard]] bool replicas_are_free() const {
    return constraints_.replicas.empty() && candidate_.chunks == 1 && constraints_.plan.listed.empty();
  }
  [[nodiscard]] bool stages_are_free() const {
    return !constraints_.stages && constraints_.replicas.empty() && candidate_.chunks == 1 &&
           constraints_.plan.listed.empty();
  }
  [[nodiscard]] int stages() const { return to_int(candidate_.partition.replicas.size()); }
  [[nodiscard]] int devices_used() const {
    return std::accumulate(candidate_.partition.replicas.begin(), candidate_.partition.replicas.end(), 0);
  }

  /// Takes the candidate if its plan is better. `recomputation`: empty: as now.
  bool try_one(Partition partition, std::vector<std::vector<int>> devices, Recomputations recomputation = {}) {
    if (recomputation.empty()) recomputation = candidate_.recomputation;
    if (is_late() || !honours(partition, options_.hand)) return false;
    if (candidate_.chunks == 1 && std::accumulate(partition.replicas.begin(), partition.replicas.end(), 0) > devices_)
      return false;
    if (!tried_.emplace(partition.stage_of_layer, partition.replicas, devices, recomputation).second) return false;
    try {
      Candidate candidate = given_candidate(graph_, std::move(partition), std::move(devices), {}, {},
                                            microbatches_of_a_step(constraints_.plan), candidate_.chunks,
                                            placement_of(constraints_.plan));
      candidate.recomputation = std::move(recomputation);
      RankedPlan ranked = predicted_plan(origin_, graph_, topology_, candidate, costs_, constraints_);
      Key key = key_of(ranked);
      if (key >= key_) return false;
      best_ = std::move(ranked);
      key_ = std::move(key);
      candidate_ = std::move(candidate);
      tell();
      return true;
    } catch (const std::invalid_argument&) {  // not enough devices, or the schedule cannot run it
      return false;
    } catch (const std::runtime_error&) {  // its lists deadlock
      return false;
    }
  }

  bool move_layers() {
    bool out = false;
    const std::vector<std::vector<int>> units = units_of_layers();
    for (const bool later : {true, false}) {
      for (std::size_t i = 0; i < units.size(); ++i) {
        const std::vector<int>& unit = units[later ? units.size() - 1 - i : i];
        Partition next = candidate_.partition;
        const int from = next.stage_of_layer[to_index(unit.front())];
        const int to = from + (later ? 1 : -1);
        if (to < 0 || to >= stages()) continue;
        for (const int layer : unit) next.stage_of_layer[to_index(layer)] = to;
        const auto is_backward = [&](const Edge& edge) {
          return next.stage_of_layer[to_index(edge.source)] > next.stage_of_layer[to_index(edge.destination)];
        };
        if (std::ranges::find(next.stage_of_layer, from) == next.stage_of_layer.end()) continue;
        if (std::ranges::any_of(graph_.edges, is_backward)) continue;
        out = try_one(std::move(next), candidate_.devices) || out;
      }
    }
    return out;
  }

  /// The groups of layers that move together: the groups that the user keeps together, and each other layer alone.
  [[nodiscard]] std::vector<std::vector<int>> units_of_layers() const {
    std::vector<std::vector<int>> out = options_.hand.together;
    for (const int layer : list_) {
      const auto has = [&](const std::vector<int>& group) { return std::ranges::binary_search(group, layer); };
      if (std::ranges::none_of(options_.hand.together, has)) out.push_back({layer});
    }
    std::ranges::sort(out);
    return out;
  }

  /// Numbers of replicas to try instead of `before`: one more and less, and the next ones with which the busiest
  /// replica has fewer or more microbatches.
  [[nodiscard]] std::vector<int> other_counts(int before) const {
    std::set<int> out{before + 1};
    if (before > 1) out.insert({before - 1, before / 2});
    out.insert(2 * before);
    if (const auto microbatches = microbatches_of_a_step(constraints_.plan)) {
      const int most = (*microbatches + before - 1) / before;
      if (most > 1) out.insert((*microbatches + most - 2) / (most - 1));
      out.insert((*microbatches + most) / (most + 1));
    }
    out.erase(before);
    out.erase(0);
    return {out.begin(), out.end()};
  }

  bool move_replicas() {
    bool out = false;
    for (int s = 0; s < stages(); ++s) {
      for (const int count : other_counts(candidate_.partition.replicas[to_index(s)])) {
        Partition next = candidate_.partition;
        next.replicas[to_index(s)] = count;
        out = try_one(std::move(next), {}) || out;
      }
      for (int other = 0; other < stages(); ++other) {
        if (other == s || (stages() > SearchTuning::kEveryPair && std::abs(other - s) > 1)) continue;
        Partition next = candidate_.partition;
        if (--next.replicas[to_index(s)] < 1) continue;
        ++next.replicas[to_index(other)];
        out = try_one(std::move(next), {}) || out;
      }
    }
    Partition more = candidate_.partition;
    for (int& replicas : more.replicas) ++replicas;
    out = try_one(std::move(more), {}) || out;
    Partition twice = candidate_.partition;
    for (int& replicas : twice.replicas) replicas *= 2;
    return try_one(std::move(twice), {}) || out;
  }

  bool join_and_cut() {
    bool out = false;
    for (int s = 0; s + 1 < stages(); ++s) {
      Partition next = candidate_.partition;
      for (int& stage : next.stage_of_layer) stage -= stage > s ? 1 : 0;
      const int sum = next.replicas[to_index(s)] + next.replicas[to_index(s) + 1];
      next.replicas.erase(next.replicas.begin() + s);
      Recomputations recomputation = candidate_.recomputation;
      recomputation.erase(recomputation.begin() + s + 1);
      bool joined = false;
      for (const int replicas : {sum, 1}) {
        next.replicas[to_index(s)] = replicas;
        joined = try_one(next, {}, recomputation) || joined;
      }
      out = joined || out;
    }
    for (int s = 0; s < stages(); ++s) {
      std::vector<int> layers;  // in topological order
      for (const int layer : order()) {
        if (candidate_.partition.stage_of_layer[to_index(layer)] == s) layers.push_back(layer);
      }
      const int every = std::max(1, to_int(layers.size()) / SearchTuning::kMostImprovedCuts);
      for (int cut = 1; cut < to_int(layers.size()); cut += every) {
        Partition next = candidate_.partition;
        for (int& stage : next.stage_of_layer) stage += stage > s ? 1 : 0;
        for (std::size_t i = to_index(cut); i < layers.size(); ++i) next.stage_of_layer[to_index(layers[i])] = s + 1;
        const int before = next.replicas[to_index(s)];
        const int free = devices_ - devices_used();
        if (before == 1 && free < 1) continue;
        next.replicas[to_index(s)] = before == 1 ? 1 : before - before / 2;
        next.replicas.insert(next.replicas.begin() + s + 1, before == 1 ? 1 : before / 2);
        Recomputations recomputation = candidate_.recomputation;
        recomputation.insert(recomputation.begin() + s, recomputation[to_index(s)]);
        if (try_one(std::move(next), {}, std::move(recomputation))) {
          out = true;
          break;
        }
      }
    }
    return out;
  }

  /// Lets each stage recompute in another way, then all in the same.
  bool change_recomputation() {
    const bool trains = !constraints_.plan.listed.empty() || schedule_by_name(constraints_.plan.schedule).trains;
    if (!trains) return false;
    bool out = false;
    for (const StageRecomputation other : {StageRecomputation{}, {true, 0}, {true, 1}}) {
      for (std::size_t s = 0; s < candidate_.recomputation.size(); ++s) {
        Recomputations next = candidate_.recomputation;
        next[s] = other;
        out = try_one(candidate_.partition, candidate_.devices, std::move(next)) || out;
      }
      out = try_one(candidate_.partition, candidate_.devices, Recomputations(candidate_.recomputation.size(), other)) ||
            out;
    }
    return out;
  }

  /// Layers in topological order: the plan's stages have it.
  [[nodiscard]] std::vector<int> order() const {
    const LayersById layers(graph_);
    std::vector<int> out;
    for (const Stage& stage : best_.plan.stages) {
      for (const std::string& id : stage.layers) out.push_back(layers.index(id));
    }
    return out;
  }

  bool place() {
    if (topology_.levels.size() < 2 || !constraints_.plan.listed.empty()) return false;
    bool out = try_one(candidate_.partition, {});
    for (auto& devices :
         placements(topology_, candidate_.partition.replicas, candidate_.chunks, placement_of(constraints_.plan)))
      out = try_one(candidate_.partition, std::move(devices)) || out;
    return out;
  }

  const std::string& origin_;
  const Graph& graph_;
  const Topology& topology_;
  const CostModel& costs_;
  const Constraints& constraints_;
  const ImproveOptions& options_;
  const std::vector<int> list_;
  const int devices_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  Candidate candidate_;
  RankedPlan best_;
  Key key_;
  std::set<std::tuple<std::vector<int>, std::vector<int>, std::vector<std::vector<int>>, Recomputations>> tried_;
};

}  // namespace

RankedPlan improved_plan(const std::string& origin, const Graph& graph, const Topology& topology,
                         const CostModel& costs, const Constraints& constraints, const Candidate& start,
                         const ImproveOptions& options) {
  return Improvement(origin, graph, topology, costs, constraints, options).run(start);
}

}  // namespace stagecraft::partitioner

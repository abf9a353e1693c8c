#include "partitioner/strategies/equal_drafts.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"
#include "costmodel/text/units_text.h"
#include "partitioner/candidate.h"
#include "partitioner/search/equal_shares.h"
#include "partitioner/search/placement.h"
#include "partitioner/search/predicted_plans.h"
#include "partitioner/search/search_tuning.h"

namespace stagecraft::partitioner {
namespace {

std::string origin_of(const EqualShape& shape) {
  std::string out = std::string(kEqualShares) + ", " + count_text(shape.stages, "stage");
  if (shape.replicas > 1) out += " of " + count_text(shape.replicas, "replica");
  if (shape.chunks > 1) out += ", " + std::to_string(shape.chunks) + " per device";
  return out;
}

/// The shapes that a request allows, with EqualShares of its graph.
class EqualShapes {
 public:
  EqualShapes(const Graph& graph, const Topology& topology, const Constraints& constraints)
      : constraints_(constraints), costs_(graph, topology, constraints.plan), shares_(costs_) {
    if (const auto limit = memory_limit(topology, constraints)) countable_ = costs_.countable(*limit);
  }

  /// All shapes that may fit, by their estimated steps.
  [[nodiscard]] std::vector<std::pair<Seconds, EqualShape>> by_estimate() const {
    std::vector<std::pair<Seconds, EqualShape>> out;
    for (const EqualShape& shape : shapes()) {
      if (const auto step = shares_.estimate(shape, {countable_})) out.emplace_back(*step, shape);
    }
    std::ranges::stable_sort(out, {}, [](const auto& entry) { return entry.first; });
    return out;
  }

  /// A split whose largest stage holds the least.
  [[nodiscard]] std::optional<std::pair<EqualShape, Split>> smallest() {
    std::vector<EqualShape> all = shapes();
    // More stages mostly need less memory per device.
    std::ranges::stable_sort(all, std::ranges::greater(), &EqualShape::stages);
    const auto fitting = [&](Bytes limit) {
      return std::ranges::find_if(all, [&](const EqualShape& shape) { return shares_.is_possible(shape, {limit}); });
    };
    Bytes low;
    Bytes high(std::int64_t{1} << 62);
    auto best = fitting(high);
    if (best == all.end()) return std::nullopt;
    while (high > low + Bytes(low.value / SearchTuning::kMemorySteps + 1)) {
      const bool is_far = high.value / SearchTuning::kMostRatio > low.value;
      const Bytes middle(is_far ? std::max<std::int64_t>(1, high.value / SearchTuning::kMostRatio)
                                : low.value + (high - low).value / 2);
      const auto found = fitting(middle);
      if (found == all.end()) {
        low = middle;
      } else {
        best = found;
        high = middle;
      }
      if (high <= Bytes(1)) break;
    }
    std::vector<Split> splits = shares_.splits(*best, {high});
    if (splits.empty()) return std::nullopt;
    return std::pair(*best, std::move(splits.front()));
  }

  [[nodiscard]] const PipelineCosts& costs() const { return costs_; }
  [[nodiscard]] const EqualShares& shares() const { return shares_; }
  [[nodiscard]] std::optional<Bytes> countable() const { return countable_; }

 private:
  [[nodiscard]] std::vector<EqualShape> shapes() const {
    std::vector<EqualShape> out;
    const std::vector<int>& given = constraints_.replicas;
    if (std::ranges::any_of(given, [&](int replicas) { return replicas != given.front(); })) return out;
    for (const int chunks : chunk_counts(constraints_)) {
      for (const int positions : position_counts(chunks)) {
        for (const int replicas : replica_counts(positions)) {
          const int stages = positions * chunks;
          if (costs_.can_run({{}, std::vector(to_index(stages), replicas), chunks}))
            out.push_back({stages, replicas, chunks});
        }
      }
    }
    return out;
  }

  [[nodiscard]] std::vector<int> position_counts(int chunks) const {
    const int devices = costs_.devices();
    const int most = std::min(devices, costs_.dag().nodes / chunks);
    std::set<int> out;
    for (int count = 1; count <= most; ++count) {
      if (count <= SearchTuning::kEveryStageCount || devices % count == 0) out.insert(count);
    }
    for (int count = SearchTuning::kEveryStageCount; count <= most; count *= 2) out.insert(count);
    const int stages =
        constraints_.replicas.empty() ? constraints_.stages.value_or(0) : to_int(constraints_.replicas.size());
    std::erase_if(out, [&](int count) {
      return (stages > 0 && count * chunks != stages) ||
             // On a single device, nothing can overlap.
             (chunks > 1 && !constraints_.chunks && count == 1);
    });
    return {out.begin(), out.end()};
  }

  [[nodiscard]] std::vector<int> replica_counts(int positions) const {
    if (!constraints_.replicas.empty()) return {constraints_.replicas.front()};
    const int microbatches = costs_.microbatches();
    const int most =
        std::min(costs_.devices() / positions, microbatches_of_a_step(constraints_.plan).value_or(costs_.devices()));
    std::set<int> out{most};
    std::size_t even = 0;
    std::size_t powers = 0;
    for (int count = most; count >= 1; --count) {
      if (microbatches % count == 0 && even++ < SearchTuning::kMostOfAKind) out.insert(count);
      if ((count & (count - 1)) == 0 && powers++ < SearchTuning::kMostOfAKind) out.insert(count);
    }
    return {out.begin(), out.end()};
  }

  const Constraints& constraints_;
  PipelineCosts costs_;
  std::optional<Bytes> countable_;  ///< PipelineCosts::countable of the memory limit
  EqualShares shares_;
};

/// What is added to the bound of memory of stages that do not fit.
enum class Correction { Stages, Messages, Largest };

using BoundedSplits = std::vector<std::pair<Seconds, Split>>;

class EqualDrafts {
 public:
  EqualDrafts(const Graph& graph, const Topology& topology, const CostModel& model, const Constraints& constraints,
              const std::function<bool()>& stop)
      : graph_(graph),
        topology_(topology),
        model_(model),
        constraints_(constraints),
        limit_(memory_limit(topology, constraints)),
        shapes_(graph, topology, constraints),
        stop_(stop) {}

  std::vector<EqualDraft> run() {
    const PipelineCosts& costs = shapes_.costs();
    auto shapes = shapes_.by_estimate();
    const std::size_t most =
        costs.dag().nodes > SearchTuning::kManyShapeNodes ? SearchTuning::kMostShapes / 2 : SearchTuning::kMostShapes;
    // An engineer tries numbers of stages that divide the devices.
    const auto uses_all_devices = [&](const auto& entry) {
      const EqualShape& shape = entry.second;
      return shape.stages / shape.chunks * shape.replicas == costs.devices();
    };
    const auto rest = shapes.begin() + static_cast<std::ptrdiff_t>(std::min(most, shapes.size()));
    const auto others = std::stable_partition(rest, shapes.end(), uses_all_devices);
    for (auto it = shapes.begin(); it != others; ++it) add(it->second);
    for (auto it = others; it != shapes.end() && out_.empty(); ++it) add(it->second);
    return std::move(out_);
  }

 private:
  [[nodiscard]] static std::size_t most_splits(const EqualShape& shape) {
    return shape.chunks > 1 ? SearchTuning::kMostSplitsOfChunks : SearchTuning::kMostSplitsOfShape;
  }

  /// The placements of a split besides devices in order.
  [[nodiscard]] std::vector<StageDevices> placements_of(const Split& split) const {
    if (topology_.levels.size() < 2 || !constraints_.plan.listed.empty()) return {};
    return placements(topology_, split.replicas, split.chunks, shapes_.costs().schedule().placement);
  }

  /// The bytes by which the devices of each stage exceed the limit; empty if the schedule cannot run the split, whose
  /// stages may share parameters.
  [[nodiscard]] std::vector<Bytes> excess(const Split& split) const {
    const auto memory = memory_of_split(graph_, topology_, model_, shapes_.costs(), constraints_, split);
    if (!memory) return {};
    const auto position = [&](std::size_t s) { return to_index(shapes_.costs().position_of(split, to_int(s))); };
    std::vector<Bytes> of_position(to_index(positions_of(split)), Bytes(0) - *limit_);
    for (std::size_t s = 0; s < memory->stages.size(); ++s) of_position[position(s)] += memory->stages[s].bound;
    std::vector<Bytes> out;
    for (std::size_t s = 0; s < memory->stages.size(); ++s) out.push_back(of_position[position(s)]);
    return out;
  }

  /// The splits of a shape that fit, the smallest bounds first. If none fits, `least` is the excess of the split with
  /// the smallest one.
  [[nodiscard]] BoundedSplits splits_of(const EqualShape& shape, const EqualShares::MemoryRule& memory,
                                        std::vector<Bytes>& least) const {
    BoundedSplits out;
    least.clear();
    for (Split& split : shapes_.shares().splits(shape, memory)) {
      if (stop_()) break;
      if (limit_) {
        std::vector<Bytes> more = excess(split);
        if (more.empty()) continue;
        const bool fits = *std::ranges::max_element(more) <= Bytes(0);
        if (least.empty() || *std::ranges::max_element(more) < *std::ranges::max_element(least))
          least = std::move(more);
        if (!fits) continue;
      }
      std::optional<Seconds> bound = shapes_.costs().lower_bound(split);
      if (!bound) continue;
      for (const auto& devices : placements_of(split))
        bound = std::min(*bound, shapes_.costs().lower_bound(split, devices).value_or(*bound));
      out.emplace_back(*bound, std::move(split));
    }
    std::ranges::stable_sort(out, {}, [](const auto& entry) { return entry.first; });
    if (out.size() > most_splits(shape)) out.resize(most_splits(shape));
    return out;
  }

  /// The same by the bound of memory. Plans may need more than the bound, so the search repeats with the excess of each
  /// stage added to its bound, first for the bound alone, then for the bound with all messages, and at last with the
  /// excess of the largest stage added to all. What then fits may be more than plans need, so less is tried too.
  [[nodiscard]] BoundedSplits splits_of(const EqualShape& shape) const {
    BoundedSplits best;
    std::vector<Bytes> least;
    for (const Correction correction : {Correction::Stages, Correction::Messages, Correction::Largest}) {
      EqualShares::MemoryRule memory{shapes_.countable(), correction == Correction::Messages};
      std::vector<Bytes> failed;
      const auto take = [&](const BoundedSplits& out) {
        for (const auto& entry : out) {
          if (std::ranges::find(best, entry.second, &std::pair<Seconds, Split>::second) == best.end())
            best.push_back(entry);
        }
        std::ranges::stable_sort(best, {}, [](const auto& entry) { return entry.first; });
        if (best.size() > most_splits(shape)) best.resize(most_splits(shape));
      };
      for (int tries = 0; tries < SearchTuning::kMemoryTries; ++tries) {
        BoundedSplits out = splits_of(shape, memory, least);
        if (!out.empty()) {
          take(out);
          if (correction == Correction::Stages && tries == 0) return best;
          for (int halving = 0; halving < SearchTuning::kMemoryHalvings && !failed.empty(); ++halving) {
            EqualShares::MemoryRule middle = memory;
            for (std::size_t s = 0; s < failed.size(); ++s)
              middle.besides[s] = Bytes((failed[s].value + memory.besides[s].value) / 2);
            out = splits_of(shape, middle, least);
            (out.empty() ? failed : memory.besides) = middle.besides;
            take(out);
          }
          break;
        }
        if (least.empty()) break;
        memory.besides.resize(least.size());
        failed = memory.besides;
        const Bytes largest = *std::ranges::max_element(least);
        for (std::size_t s = 0; s < least.size(); ++s) {
          const Bytes more = correction == Correction::Largest ? largest : std::max(least[s], Bytes(0)) * (1 << tries);
          memory.besides[s] += Bytes(more.value / shape.chunks);
        }
      }
    }
    return best;
  }

  void add(const EqualShape& shape) {
    if (stop_()) return;
    const std::string origin = origin_of(shape);
    for (const auto& [bound, split] : splits_of(shape)) {
      Candidate candidate = candidate_of_split(graph_, shapes_.costs(), constraints_, split);
      out_.push_back({origin, candidate});
      for (auto& devices : placements_of(split)) {
        candidate.devices = std::move(devices);
        out_.push_back({origin + ", placed", candidate});
      }
    }
  }

  const Graph& graph_;
  const Topology& topology_;
  const CostModel& model_;
  const Constraints& constraints_;
  std::optional<Bytes> limit_;
  EqualShapes shapes_;
  const std::function<bool()>& stop_;
  std::vector<EqualDraft> out_;
};

}  // namespace

std::vector<EqualDraft> equal_drafts(const Graph& graph, const Topology& topology, const CostModel& costs,
                                     const Constraints& constraints, const std::function<bool()>& stop) {
  if (!constraints.plan.listed.empty()) return {};
  return EqualDrafts(graph, topology, costs, constraints, stop).run();
}

std::optional<EqualDraft> smallest_equal_draft(const Graph& graph, const Topology& topology,
                                               const Constraints& constraints) {
  if (!constraints.plan.listed.empty()) return std::nullopt;
  EqualShapes shapes(graph, topology, constraints);
  const auto found = shapes.smallest();
  if (!found) return std::nullopt;
  return EqualDraft{origin_of(found->first), candidate_of_split(graph, shapes.costs(), constraints, found->second)};
}

std::optional<Seconds> estimated_step(const Graph& graph, const Topology& topology, const Constraints& constraints) {
  if (!constraints.plan.listed.empty()) return std::nullopt;
  const auto shapes = EqualShapes(graph, topology, constraints).by_estimate();
  return shapes.empty() ? std::nullopt : std::optional(shapes.front().first);
}

}  // namespace stagecraft::partitioner

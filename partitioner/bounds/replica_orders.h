#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "partitioner/bounds/order_bound.h"
#include "partitioner/bounds/path_cuts.h"
#include "partitioner/bounds/path_stages.h"
#include "partitioner/costs/pipeline_costs.h"

namespace stagecraft::partitioner {

/// Tries all sequences of replica counts, stage by stage, where PathBound found a chain of stages that seems to keep
/// within a step T. PathBound merges all stages before a cut whatever their replica counts, and so combines the short
/// wait for a stage with many replicas with the short reduce of stages with few. This class merges only stages with the
/// same sequence. A sequence that keeps within T by coarse cuts is tried with ever finer cuts, and at last by
/// OrderBound.
class ReplicaOrders {
 public:
  using Prefix = PathStages::Prefix;
  using Suffix = PathStages::Suffix;
  /// The best Suffix of a coarse cut on at most so many devices; null if no stages after the cut keep within the step.
  using After = std::function<const Suffix*(std::size_t cut, int devices)>;

  /// All arguments must outlive it.
  ReplicaOrders(const PipelineCosts& costs, const PathCuts& cuts, const PathStages& stages);

  /// True if every split is proved to take longer than stages.time(). Absent if `stop` ended the proof.
  [[nodiscard]] std::optional<bool> refutes(const After& after, const std::function<bool()>& stop);

  /// See PathBound.
  [[nodiscard]] std::vector<Split> splits(std::size_t most) const { return bound_.splits(most); }

 private:
  /// One stage of a sequence, with or without a node of the path.
  struct Element {
    const PathStages::Replicas* replicas = nullptr;
    bool on_path = true;
  };
  enum class Found { None, Some, Stopped };

  [[nodiscard]] Found go_on(int used);
  [[nodiscard]] Found keeps();
  template <class Visit>
  void each_end(const std::vector<PathCut>& cuts, std::size_t begin, const Element& element, Visit&& visit);
  [[nodiscard]] std::vector<Prefix> extended(const std::vector<PathCut>& cuts, const std::vector<Prefix>& front,
                                             const Element& element, const std::vector<const Suffix*>& later);
  [[nodiscard]] bool go_back(const std::vector<PathCut>& cuts, const std::vector<std::vector<Prefix>>& fronts,
                             std::vector<std::vector<Suffix>>& backs);

  const PathCuts& cuts_;
  const PathStages& stages_;
  OrderBound bound_;

  // Of the latest question.
  const After* after_ = nullptr;
  const std::function<bool()>* stop_ = nullptr;
  bool stopped_ = false;
  std::uint64_t asked_ = 0;
  int tried_ = 0;
  std::vector<Element> order_;
  std::vector<std::vector<Prefix>> fronts_;  ///< by stage of order_, and the coarse cut before it
};

}  // namespace stagecraft::partitioner

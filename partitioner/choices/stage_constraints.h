#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/plan.h"

namespace stagecraft::partitioner {

/// The user's constraints on the stages.
struct StageConstraints {
  std::vector<std::pair<int, int>> pins;   ///< layer index and its stage
  std::vector<std::vector<int>> together;  ///< layer indices that share a stage, ascending; with every layer between
  [[nodiscard]] bool is_empty() const { return pins.empty() && together.empty(); }
};

/// Reads "LAYER=STAGE" and "FIRST..LAST". A layer is an id or a module's path, which means all of its layers;
/// FIRST..LAST means the layers from FIRST to LAST in the order of layer_list, and those on paths between them. Throws
/// std::invalid_argument, beginning with the option, for another form, an unknown layer, a range that is not in order,
/// and for pins that contradict each other, an edge or a range.
[[nodiscard]] StageConstraints stage_constraints(const Graph& graph, const std::vector<std::string>& pins,
                                                 const std::vector<std::string>& no_cuts);

/// Whether the stages satisfy the user's constraints.
[[nodiscard]] bool honours(const Partition& partition, const StageConstraints& hand);

/// A partition that satisfies the user's constraints by moving few layers: pinned layers to their stages, layers that
/// share a stage to the one that most of them have, and other layers so that every edge goes forward. Absent if a stage
/// would be empty or a pin names a stage that does not exist.
[[nodiscard]] std::optional<Partition> with_stage_constraints(const Graph& graph, Partition partition,
                                                              const StageConstraints& hand);

}  // namespace stagecraft::partitioner

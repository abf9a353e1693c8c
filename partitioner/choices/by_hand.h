#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/plan.h"

namespace stagecraft::partitioner {

/// What a user says about the stages.
struct ByHand {
  std::vector<std::pair<int, int>> pins;   ///< layer index and its stage
  std::vector<std::vector<int>> together;  ///< layer indices that share a stage, ascending; with every layer between
  [[nodiscard]] bool is_empty() const { return pins.empty() && together.empty(); }
};

/// Reads "LAYER=STAGE" and "FIRST..LAST". A layer is an id or a module's path, which means all of its layers;
/// FIRST..LAST means the layers from FIRST to LAST in the order of layer_list, and those on paths between them. Throws
/// std::invalid_argument, beginning with the option, for another form, an unknown layer, a range that is not in order,
/// and for pins that contradict each other, an edge or a range.
[[nodiscard]] ByHand by_hand(const Graph& graph, const std::vector<std::string>& pins,
                             const std::vector<std::string>& no_cuts);

/// Whether the stages are as the user says.
[[nodiscard]] bool honours(const Partition& partition, const ByHand& hand);

/// The partition with the fewest layers moved that this finds: pinned layers in their stages, layers that share one in
/// that of most of them, what comes before not later and what comes after not earlier. Absent if a stage would be empty
/// or a pin names a stage that is not there.
[[nodiscard]] std::optional<Partition> with_hand(const Graph& graph, Partition partition, const ByHand& hand);

/// The layers of the plan's stages.
[[nodiscard]] Partition partition_of(const Graph& graph, const Plan& plan);

}  // namespace stagecraft::partitioner

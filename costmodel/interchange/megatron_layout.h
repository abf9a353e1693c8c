#pragma once

#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/graph.h"
#include "costmodel/plan.h"

namespace stagecraft::interchange {

// The text of Megatron-LM's --pipeline-model-parallel-layout (PipelineParallelLayerLayout.parse_str_to_list): the
// stages from first to last with '|' between them, each a run of letters:
//   E  the embedding        t  a decoder layer        m  a multi-token prediction layer
//   L  the loss, with the final norm and the output layer before it
// "t*3" is "ttt", "(tt|)*29" is "tt|" 29 times, parentheses do not nest, commas are ignored. Stage s is on pipeline
// rank s mod the --pipeline-model-parallel-size.

/// The letters of each stage, with repetitions expanded: {"Ettt", "tt", "L"}. Throws FormatError "FILE: character N:
/// found, expected" for text outside the grammar, a count outside 1..65536, more than 65536 letters and stages, an
/// empty stage, an E that is not the single first letter, an L that is not the single last one, and an m before a t.
[[nodiscard]] std::vector<std::string> parse_megatron_layout(const std::string& text, const std::string& file);
/// The text of these stages, with *COUNT for three and more repetitions; without a trailing line end.
[[nodiscard]] std::string megatron_layout_text(const std::vector<std::string>& stages);

/// The consecutive layers of one letter.
struct LayoutUnit {
  char letter = 't';
  std::string name;  ///< of the block, "h.3"; "the embedding", "the loss" for those
  int begin = 0;     ///< positions in the list, [begin, end)
  int end = 0;
  friend bool operator==(const LayoutUnit&, const LayoutUnit&) = default;
};

/// The units of a list of layers by their ids: the layers CONTAINER.N and CONTAINER.N.* are a block, where CONTAINER
/// contains most of the layers; those before it are the embedding, those after it the loss, except blocks of a
/// container called mtp or nextn, which are m. Throws std::invalid_argument naming the layer that is none of these: no
/// numbered blocks, a layer before them whose id does not name an embedding, one after them whose id does not name a
/// norm, an output layer or a loss, and one between two blocks.
[[nodiscard]] std::vector<LayoutUnit> layout_units(const std::vector<std::string>& ids);

/// The letters of the plan's stages. Throws std::invalid_argument as layout_units does, and for a unit that two stages
/// share or unequal numbers of replicas.
[[nodiscard]] std::vector<std::string> megatron_layout(const BoundPlan& bound);

/// Partition of `graph` by the letters of each stage, one replica each. Throws std::invalid_argument if the number of a
/// letter differs from the graph's.
[[nodiscard]] Partition megatron_partition(const std::vector<std::string>& stages, const Graph& graph);

}  // namespace stagecraft::interchange

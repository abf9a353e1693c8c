#pragma once

#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/plan.h"

namespace stagecraft {

// The text of Megatron-LM's --pipeline-model-parallel-layout (PipelineParallelLayerLayout.parse_str_to_list): the
// stages from first to last with '|' between them, each a run of letters:
//   E  the embedding        t  a decoder layer        m  a multi-token prediction layer
//   L  the loss, with the final norm and the output layer before it
// "t*3" is "ttt", "(tt|)*29" is "tt|" 29 times, parentheses do not nest, commas say nothing. Stage s stands on pipeline
// rank s mod the --pipeline-model-parallel-size.

/// The letters of each stage, repetitions written out: {"Ettt", "tt", "L"}. Throws FormatError "FILE: character N:
/// found, wanted" for what the grammar has not, a count outside 1..65536, more than 65536 letters and stages, a stage
/// with nothing in it, an E that is not the one first letter, an L that is not the one last, and an m before a t.
[[nodiscard]] std::vector<std::string> parse_megatron_layout(const std::string& text, const std::string& file);
/// The text of such stages, with repetitions of three and more as such; ends without a line end.
[[nodiscard]] std::string megatron_layout_text(const std::vector<std::string>& stages);

/// What one letter stands for: layers that follow each other in a list of layers.
struct LayoutUnit {
  char letter = 't';
  std::string name;  ///< of the block, "h.3"; "the embedding", "the loss" for those
  int begin = 0;     ///< positions in the list, [begin, end)
  int end = 0;
  friend bool operator==(const LayoutUnit&, const LayoutUnit&) = default;
};

/// The units of a list of layers by their ids: the layers CONTAINER.N and CONTAINER.N.* are a block, where CONTAINER is
/// what most of the layers stand under; those before are the embedding, those behind the loss, but blocks of a
/// container called mtp or nextn, which are m. Throws std::invalid_argument naming the layer that is none of these: no
/// numbered blocks, a layer before them whose id does not speak of an embedding, one behind them whose id does not
/// speak of a norm, an output layer or a loss, and one between two blocks.
[[nodiscard]] std::vector<LayoutUnit> layout_units(const std::vector<std::string>& ids);

/// The letters of the plan's stages. Throws std::invalid_argument as layout_units does, and for a unit that two stages
/// share and unequal numbers of replicas.
[[nodiscard]] std::vector<std::string> megatron_layout(const Plan& plan);

/// Partition of `graph` whose stages hold what the letters say, one replica each. Throws std::invalid_argument for
/// another number of a letter than the graph's layers give.
[[nodiscard]] Partition megatron_partition(const std::vector<std::string>& stages, const Graph& graph);

}  // namespace stagecraft

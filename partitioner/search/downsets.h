#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/index.h"
#include "costmodel/units.h"

namespace stagecraft::partitioner {

/// The down-sets of a graph between which PipeDream cuts, as a table sorted so that a set comes after all its subsets.
/// Set 0 is empty, the last one holds every node; costs are those of all members together.
/// Nodes are the graph's layers without inputs and without sinks called __getitem__, in topological order. Sets are
/// those grown from the first source in file order by adding a consumer of a member with all the consumer's ancestors;
/// with one source these are all down-sets.
struct Downsets {
  std::vector<int> layer_of_node;
  int words = 0;                       ///< 64-bit words of one set
  std::vector<std::uint64_t> members;  ///< node v of set s: bit v mod 64 of word s * words + v / 64
  std::vector<Seconds> compute;        ///< forward + backward, ascending
  std::vector<Bytes> activation;
  std::vector<Bytes> parameter;
  /// Bytes that a cut after the set sends, by PipeDream's rule: outputs of the maximal members, and of every ancestor
  /// of a maximal member m that has a consumer which is neither m nor an ancestor of m.
  std::vector<Bytes> boundary;

  /// Number of sets, including the empty one.
  [[nodiscard]] int count() const { return to_int(compute.size()); }
  /// True if set `outer` has every member of set `inner`.
  [[nodiscard]] bool contains(int outer, int inner) const {
    const std::uint64_t* o = members.data() + to_index(outer) * to_index(words);
    const std::uint64_t* i = members.data() + to_index(inner) * to_index(words);
    for (int w = 0; w < words; ++w) {
      if (i[w] & ~o[w]) return false;
    }
    return true;
  }
  [[nodiscard]] bool has(int set, int node) const {
    const auto at = to_index(set) * to_index(words) + to_index(node / 64);
    return members[at] >> (node % 64) & 1;
  }
};

/// The down-sets of `graph`; Infeasible if there are more than `most`, or if the graph has only inputs.
/// Source: PipeDream (SOSP 2019), its published optimizer.
[[nodiscard]] std::variant<Downsets, Infeasible> pipedream_downsets(const Graph& graph, int most);

}  // namespace stagecraft::partitioner

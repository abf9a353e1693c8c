#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/graph.h"

namespace stagecraft::interchange {

// The inputs of msr-fiddle/dnn-partitioning (Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph
// Operators, NeurIPS 2020): a graph of layers or operators, and the devices to place them on. Times are milliseconds,
// sizes are bytes. Those are double, not Bytes, because the format has floating-point numbers, which need not be whole.

/// How to read numbers whose unit is not the one that their format states.
enum class Units {
  Published,  ///< as they are in the file
  Fixed,      ///< in the unit that the rest of the file implies
};

/// "published" or "fixed". Throws std::invalid_argument with both.
[[nodiscard]] Units units_by_name(const std::string& name);

/// A node and the tensor that it sends. Fields as in the file; `backward` nodes are in training inputs only.
struct PlacementNode {
  std::int64_t id = 0;
  std::string name;  ///< empty if the file has none
  bool on_accelerator = true;
  double cpu_ms = 0;
  double accelerator_ms = 0;
  bool backward = false;
  std::optional<std::int64_t> color;   ///< nodes of one colour share a device
  double bytes = 0;                    ///< on an accelerator
  double transfer = 0;                 ///< cost of its output between an accelerator and the host, in the file's unit
  std::optional<double> output_bytes;  ///< of that output, if the file has it
};

/// Both are indices into DnnPartitioning::nodes.
struct PlacementEdge {
  int source = 0;
  int destination = 0;
};

struct DnnPartitioning {
  double memory_limit = 0;  ///< bytes of one accelerator
  int accelerators = 0;
  int cpus = 0;
  std::vector<PlacementNode> nodes;
  std::vector<PlacementEdge> edges;
};

/// Reads an input. Keys that the format does not define are ignored: published inputs have debug information there.
/// Throws FormatError "FILE: POINTER: found, expected" for text that is not JSON, a missing key, a number out of range,
/// an id that appears twice or does not exist, edges of one node whose costs differ by more than 1e-6, an edge from a
/// backward to a forward node, a cycle, and no nodes.
[[nodiscard]] DnnPartitioning parse_dnn_partitioning(const std::string& text, const std::string& file);

/// Milliseconds in one unit of PlacementNode::transfer, and why.
struct TransferUnit {
  double ms = 1;
  std::string reason;  ///< one line, human-readable
};

/// The published unit is 1 ms. The fixed one is 1000 ms if most outputs of known size took as many seconds at 2 GiB/s
/// as their cost says: published layer graphs have costs in seconds but latencies in milliseconds.
[[nodiscard]] TransferUnit transfer_unit(const DnnPartitioning& input, Units units);

/// Nodes that no contiguous placement separates.
struct Colocation {
  std::vector<int> group_of_node;          ///< in [0, groups)
  int groups = 0;                          ///< in the order of their first nodes in the file
  std::vector<std::pair<int, int>> edges;  ///< between groups: the first before the second; acyclic, sorted
};

/// The groups: nodes of one colour, forward and backward, and groups on a cycle. The order between groups is that of
/// edges between forward nodes; a group without forward nodes is ordered by its backward edges, reversed.
[[nodiscard]] Colocation colocation(const DnnPartitioning& input);

/// A graph with a layer for each group of colocation(). Accelerator times only; forward and backward are those of the
/// group's nodes. A layer has an output for each forward node that another group reads, of the size in the file, or of
/// the bytes that 2 GiB/s transfers in the time that it costs. Node sizes are in saved_bytes, because the file does not
/// distinguish parameters. Whatever a graph has no field for (devices, memory limit, times on a CPU) is in the
/// provenance's notes.
[[nodiscard]] Graph dnn_partitioning_graph(const DnnPartitioning& input, Units units);

}  // namespace stagecraft::interchange

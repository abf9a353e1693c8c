#pragma once

#include <map>
#include <set>
#include <string>

#include "costmodel/format/cursor.h"

// For the readers and writers of torch.export's JSON only.

namespace stagecraft {

/// torch.export puts what runs under torch.no_grad, torch.enable_grad or torch.autocast into a graph of its own, inside
/// one node of the graph around it. Here the nodes of such blocks stand among the others, and each says in its
/// metadata, under this key, which blocks it is in, outermost first: {"node", "target", "inputs", "graph"}, of which
/// "inputs" are the arguments before the graph.
constexpr const char* kBlocksKey = "stagecraft_blocks";

/// A program that read_exported_program takes, with the nodes of its blocks in the outermost graph. A node "relu" of
/// block "linear_3" is called "linear_3.relu", its value "linear_3_relu"; what a block gives is called as outside it. A
/// block whose operands do not fit its graph stays as it is, and so does torch.cond.
[[nodiscard]] Json flattened_blocks(Json program);

/// The reverse, for some nodes of a flattened program in their order: neighbours of one block are one node again, whose
/// graph has what they read from outside as inputs, and as outputs those of their values that a later node reads or
/// that are in `wanted`. `graph`, which has the nodes' values in its tables, gets the nodes; its tables keep the values
/// of the outermost graph.
void restore_blocks(Json& graph, const Json& nodes, const std::set<std::string>& wanted);

/// Names of values -> what is read in their place: {"as_tensor": {"name": "x"}}, {"as_sym_int": {"as_name": "n"}}, or a
/// literal, {"as_int": 3}.
using ReplacedValues = std::map<std::string, Json>;

/// Replaces what `argument` of a node reads. Graphs in it have names of their own.
void replace_values(Json& argument, const ReplacedValues& values);

}  // namespace stagecraft

#pragma once

#include <map>
#include <set>
#include <string>

#include "costmodel/format/cursor.h"

// Only for the readers and writers of torch.export's JSON.

namespace stagecraft::intake {

/// torch.export puts code under torch.no_grad, torch.enable_grad or torch.autocast into a separate graph, inside one
/// node of the outer graph. Here the nodes of such blocks are among the others, and each lists in its metadata, under
/// this key, the blocks that it is in, outermost first: {"node", "target", "inputs", "graph"}, where "inputs" are the
/// arguments before the graph.
constexpr const char* kBlocksKey = "stagecraft_blocks";

/// A program for read_exported_program, with the nodes of its blocks moved to the outermost graph. A node "relu" of
/// block "linear_3" is named "linear_3.relu", its value "linear_3_relu"; a block's results keep their outer names. A
/// block whose operands do not fit its graph is unchanged, and so is torch.cond.
[[nodiscard]] format::Json flattened_blocks(format::Json program);

/// The reverse, for some nodes of a flattened program in order: adjacent nodes of one block become one node again,
/// whose graph takes as inputs what they read from outside, and as outputs those of their values that a later node
/// reads or that are in `wanted`. The nodes are added to `graph`, whose tables contain their values; its tables keep
/// the values of the outermost graph.
void restore_blocks(format::Json& graph, const format::Json& nodes, const std::set<std::string>& wanted);

/// Names of values -> their replacements: {"as_tensor": {"name": "x"}}, {"as_sym_int": {"as_name": "n"}}, or a literal,
/// {"as_int": 3}.
using ReplacedValues = std::map<std::string, format::Json>;

/// Replaces the values that `argument` of a node reads. Inner graphs have separate names.
void replace_values(format::Json& argument, const ReplacedValues& values);

}  // namespace stagecraft::intake

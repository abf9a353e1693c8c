#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>

#include "executor/intake/graph/calls/operator_call.h"
#include "executor/intake/graph/program_graph.h"

namespace stagecraft::intake {

/// The block of a node. Throws FormatError that begins with `place` for arguments of other kinds.
[[nodiscard]] GraphBlock graph_block(const ProgramBlock& block, const std::string& place);

/// Computes as in a block, on the calling thread, while it exists. A block of autocast with cached casts waits for such
/// blocks of other threads: LibTorch has one cast cache for all threads.
class BlockScope {
 public:
  BlockScope(const GraphBlock& block, c10::DeviceType device);
  ~BlockScope();
  BlockScope(const BlockScope&) = delete;
  BlockScope& operator=(const BlockScope&) = delete;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Whether the node's parameters are cast once for all nodes of its block.
[[nodiscard]] bool keeps_casts(const GraphNode& node);

/// facts_of and make_call for operators that contain graphs: cond, and blocks that could not be flattened or are inside
/// one.
[[nodiscard]] NodeFacts higher_order_facts(const ProgramGraph& graph, const ProgramNode& node,
                                           const std::string& place);
[[nodiscard]] NodeCall higher_order_call(const ProgramGraph& graph, const ProgramNode& node, const std::string& place,
                                         const std::function<int(int)>& slot);

}  // namespace stagecraft::intake

#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "executor/intake/graph/operator_graph.h"

namespace stagecraft::intake {

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

}  // namespace stagecraft::intake

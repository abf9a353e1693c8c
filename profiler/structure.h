#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "executor/model/model.h"
#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::profiler {

struct StructureOptions {
  stage::OptimizerOptions optimizer;
  std::uint64_t seed = 0;
  stage::ComputePlace placement;
  bool count_work = true;
  bool run = false;  ///< run the model, instead of computing shapes without memory
  /// Called before each layer's forward with what is done; empty: not called.
  std::function<void(const char* what, int layer)> progress = {};
};

struct Structure {
  Graph graph;
  std::string ran;  ///< why the model had to run, in one line; empty: it did not, or had to by StructureOptions::run
};

/// Layers, shapes and bytes of a microbatch of `samples`, the operations and bytes moved of its forward and backward,
/// and what autograd keeps between them; no times. `batch` holds the inputs that layers read (inputs_read). On a
/// processor nothing is computed and parameters take no memory, so that the model may be larger than this machine; on
/// other devices, or with an operator that needs values or has no kernel without memory, the model runs once.
[[nodiscard]] Structure structure_of(const model::Model& model, const std::vector<at::Tensor>& batch,
                                     std::int64_t samples, const StructureOptions& options);

}  // namespace stagecraft::profiler

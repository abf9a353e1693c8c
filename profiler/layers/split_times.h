#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "executor/model/model.h"
#include "executor/stage/stage_program.h"
#include "profiler/subject/statistics.h"

namespace stagecraft::profiler {

/// The backward of a layer that runs alone, whole and in the executor's two parts.
struct SplitTime {
  Timing whole;
  Timing inputs;
  Timing weights;         ///< right after the inputs
  Timing late;            ///< of the weights, after the cache was overwritten
  bool separable = true;  ///< BackwardParts::separable; if not, `inputs` is all of it
  friend bool operator==(const SplitTime&, const SplitTime&) = default;
};

/// Times of each layer of `model`, whole and split in turn, under the conditions of isolated_times, whose arguments
/// these are. On CPUs too, the cache is overwritten before SplitTime::late. Absent for a layer without trainable
/// parameters, or without a gradient to send to another layer: there is nothing to split.
[[nodiscard]] std::vector<std::optional<SplitTime>> split_times(
    const model::Model& model, const std::vector<at::Tensor>& batch,
    const std::vector<std::vector<at::Tensor>>& outputs, std::uint64_t seed, stage::Placement placement, Bytes cache,
    const StoppingRule& rule, const std::function<void(const std::string&)>& progress = {});

/// The parts of a layer's backward that takes `backward` in a step: those of `alone`, scaled by one factor, so that its
/// whole would take `backward`. A layer alone finds its data in caches that other layers empty in a step; the factor
/// assumes that this costs both parts alike. The part of the weights takes at least `alone.late`: in a run, it comes
/// after the inputs' parts of the whole stage.
[[nodiscard]] BackwardParts backward_parts(const Timing& backward, const SplitTime& alone);

/// The parts of a backward with nothing to split: all of it is for the weights if the layer sends no gradient to other
/// layers, else for the inputs.
[[nodiscard]] BackwardParts backward_parts(const Timing& backward, bool sends_gradient);

}  // namespace stagecraft::profiler

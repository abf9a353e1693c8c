#pragma once

#include <functional>
#include <string>
#include <vector>

#include "executor/model/model.h"
#include "executor/stage/stage_program.h"
#include "profiler/statistics.h"

namespace stagecraft {

/// One layer by itself.
struct IsolatedTime {
  Timing forward;
  Timing backward;
  friend bool operator==(const IsolatedTime&, const IsolatedTime&) = default;
};

/// Runs each layer of `model` alone, again and again, on what it gets in an iteration over `batch`; `outputs` are all
/// layers' outputs there. On a GPU the runs are launched behind a closed gate, so that no launch is waited for, and its
/// second-level cache of `cache` bytes is overwritten between them. Each layer has `rule.most_seconds`.
[[nodiscard]] std::vector<IsolatedTime> isolated_times(const Model& model, const std::vector<at::Tensor>& batch,
                                                       const std::vector<std::vector<at::Tensor>>& outputs,
                                                       std::uint64_t seed, Placement placement, Bytes cache,
                                                       const StoppingRule& rule,
                                                       const std::function<void(const std::string&)>& progress = {});

}  // namespace stagecraft

#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "executor/model/model.h"
#include "profiler/profile_options.h"
#include "profiler/slowdown.h"

namespace stagecraft::profiler {

/// options.concurrent ranks that are processes, as those of a run are. Each is started by `command`, whose first word
/// is the path of a program; it must call serve_iterations on its standard input and output, and is killed at the end.
/// Returns once all have built their model. `options` must outlive it. This and ConcurrentRanks::time throw DeviceError
/// if a process cannot be started or ends.
[[nodiscard]] std::unique_ptr<ConcurrentRanks> ranks_as_processes(const std::vector<std::string>& command,
                                                                  const ProfileOptions& options);

/// Runs iterations of `model` over `batch` for ranks_as_processes at the other ends of `in` and `out`, until `in` is
/// closed. Both carry doubles. In: a positive number n, "warm up for at most about n seconds"; then 0, "iterate until
/// the next number comes". Out: -1 when it has built the
/// model, and for each pair of numbers -1 when it is warm, the seconds of each iteration, at least one, and -1 at the
/// end.
void serve_iterations(const model::Model& model, const std::vector<at::Tensor>& batch, const ProfileOptions& options,
                      int in, int out);

}  // namespace stagecraft::profiler

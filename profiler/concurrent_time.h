#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "costmodel/units.h"
#include "executor/model/model.h"
#include "profiler/profile.h"

namespace stagecraft::profiler {

/// Time of an iteration, from the seconds of all iterations of each rank. The median; if ranks share processors, the
/// number of ranks divided by the sum of their rates: a rank that has a processor to itself gives more and shorter
/// iterations than those that share one, and only rates add up to what the processors do.
[[nodiscard]] Seconds time_together(const std::vector<std::vector<double>>& samples, bool share_processors);

/// Time of an iteration (time_together) of `model` over `batch` while `count` threads run it at the same time, each
/// with its own copy and `options.threads` intra-op threads. After a warm-up of at most about half of `seconds`, all
/// threads iterate until the first one has 5 samples and an eighth of options.rule.most_seconds is over, or until that
/// rule's time or `seconds` is up; the first thread gives at least one sample. `seconds` is approximate: running
/// iterations finish.
[[nodiscard]] Seconds concurrent_time(const model::Model& model, const std::vector<at::Tensor>& batch,
                                      const ProfileOptions& options, int count, double seconds);

}  // namespace stagecraft::profiler

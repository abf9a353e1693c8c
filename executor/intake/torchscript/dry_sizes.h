#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "executor/intake/graph/tensor_meta.h"

namespace stagecraft {

/// The name of the batch size in what follows from dry runs.
inline const std::string kBatch = "batch";

/// Numbers of samples for which a model was run to see how sizes depend on them. Two of them are equal, with other
/// data: what differs between those depends on the data.
struct DryRuns {
  std::vector<std::int64_t> samples;
};

/// a * batch + c that gives `found` (one for each run), or nothing.
[[nodiscard]] std::optional<SizeExpression> affine(const DryRuns& runs, std::span<const std::int64_t> found);

/// What is the same of the tensors that the runs gave, sizes as affine says; nothing if type or number of axes differ,
/// one is undefined or sparse, or a size or stride is not affine.
[[nodiscard]] std::optional<TensorMeta> meta_of(const DryRuns& runs, std::span<const at::Tensor> found);

}  // namespace stagecraft

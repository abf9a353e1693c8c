#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "executor/intake/graph/tensor_meta.h"

namespace stagecraft::intake {

/// The name of the batch size in results of dry runs.
inline const std::string kBatch = "batch";

/// Numbers of samples with which a model was run to see how sizes depend on them. Two are equal, with different data:
/// what differs between these depends on the data.
struct DryRuns {
  std::vector<std::int64_t> samples;
};

/// a * batch + c that equals `found` (one per run); absent if there is none.
[[nodiscard]] std::optional<SizeExpression> affine(const DryRuns& runs, std::span<const std::int64_t> found);

/// The common description of the runs' tensors, with sizes from affine; absent if type or number of axes differ, one is
/// undefined or sparse, or a size or stride is not affine.
[[nodiscard]] std::optional<TensorMeta> meta_of(const DryRuns& runs, std::span<const at::Tensor> found);

}  // namespace stagecraft::intake

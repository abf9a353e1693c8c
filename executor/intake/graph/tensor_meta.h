#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <vector>

#include "executor/intake/graph/size_expression.h"

namespace stagecraft::intake {

/// The file's description of a tensor.
struct TensorMeta {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<SizeExpression> sizes;
  std::vector<SizeExpression> strides;
  SizeExpression storage_offset;
  c10::Device device{c10::kCPU};
  bool requires_grad = false;
};

}  // namespace stagecraft::intake

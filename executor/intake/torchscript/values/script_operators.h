#pragma once

#include <string>

namespace stagecraft::intake {

/// Operators of TorchScript by name, such as "aten::size". These return facts about a tensor that do not depend on its
/// values.
[[nodiscard]] bool tells_of_shape(const std::string& name);
/// These compute a * batch + c from such numbers.
[[nodiscard]] bool keeps_affine(const std::string& name);
/// In a trace, sizes are tensors that pass through these.
[[nodiscard]] bool computes_traced_size(const std::string& name);
/// These change more than tensors.
[[nodiscard]] bool has_side_effects(const std::string& name);
/// Without namespace: the result contains values of the first argument.
[[nodiscard]] bool moves_numbers(const std::string& name);

}  // namespace stagecraft::intake

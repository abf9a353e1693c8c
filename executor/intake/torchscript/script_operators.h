#pragma once

#include <string>

namespace stagecraft {

/// Operators of TorchScript by name, as "aten::size". They tell of a tensor what does not depend on its numbers.
[[nodiscard]] bool tells_of_shape(const std::string& name);
/// They give a * batch + c of such numbers.
[[nodiscard]] bool keeps_affine(const std::string& name);
/// Sizes of a trace are tensors that go through these.
[[nodiscard]] bool computes_traced_size(const std::string& name);
/// They change more than tensors.
[[nodiscard]] bool has_side_effects(const std::string& name);
/// Without its namespace: their result holds some of the numbers of their first argument.
[[nodiscard]] bool moves_numbers(const std::string& name);

}  // namespace stagecraft

#pragma once

#include <string>

#include "executor/model/model.h"

namespace stagecraft {

/// Reads what one sample of input `name` is: "float32[3,224,224]", "int64[]"; then ":batch_axis=1" where the samples do
/// not stand in the first axis, ":batch_axis=none" where one tensor serves all samples. Throws std::invalid_argument
/// that quotes the text, with the form that is wanted.
[[nodiscard]] ModelInput parse_model_input(const std::string& name, const std::string& text);

}  // namespace stagecraft

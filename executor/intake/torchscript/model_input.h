#pragma once

#include <string>

#include "executor/model/model.h"

namespace stagecraft::intake {

/// Reads the description of one sample of input `name`: "float32[3,224,224]", "int64[]"; then ":batch_axis=1" if the
/// batch axis is not the first, ":batch_axis=none" if one tensor serves all samples. Throws std::invalid_argument with
/// the text and the expected form.
[[nodiscard]] model::ModelInput parse_model_input(const std::string& name, const std::string& text);

}  // namespace stagecraft::intake

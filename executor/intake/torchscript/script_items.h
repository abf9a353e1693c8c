#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "executor/intake/torchscript/script_value.h"

namespace stagecraft {

/// What operator `name`, which has `results` results, gives where that follows from the list or tuple that is its first
/// argument (its length, an item, a part, a longer one; `append` changes the list), or from what is None; nothing where
/// it must run. `place` begins errors. Throws FormatError for an index outside the list and for another number of items
/// than results.
[[nodiscard]] std::optional<std::vector<ScriptValue>> on_items(const std::string& name,
                                                               const std::vector<ScriptValue>& arguments,
                                                               std::size_t results, const std::string& place);

}  // namespace stagecraft

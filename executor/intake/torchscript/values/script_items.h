#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "executor/intake/torchscript/values/script_value.h"

namespace stagecraft::intake {

/// The results of operator `name`, which has `results` results, if they follow from the list or tuple that is its first
/// argument (its length, an item, a slice, an extended list; `append` changes the list) or from what is None; absent if
/// it must run. `place` begins errors. Throws FormatError for an index outside the list and if the number of items is
/// not that of the results.
[[nodiscard]] std::optional<std::vector<ScriptValue>> on_items(const std::string& name,
                                                               const std::vector<ScriptValue>& arguments,
                                                               std::size_t results, const std::string& place);

}  // namespace stagecraft::intake

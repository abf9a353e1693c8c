#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stagecraft {

/// True for what can stand as a variable in Python: ASCII letters, digits and "_", no digit first, no keyword.
[[nodiscard]] bool is_python_name(std::string_view text);

/// `text` as a Python string literal in ASCII: whatever is no letter, digit, space or harmless sign is escaped by its
/// byte, so that no text can end the literal.
[[nodiscard]] std::string python_string(std::string_view text);

/// One name for each id, in its order, all different and all Python names. "node" with digits stays; any other id is
/// "layer_" and the id, "_" for whatever is no ASCII letter or digit, with "_2", "_3", ... behind it where two would be
/// equal. So no id gives a keyword or an attribute of torch.nn.Module.
[[nodiscard]] std::vector<std::string> python_names(const std::vector<std::string>& ids);

/// `parts` with ", " between them.
[[nodiscard]] std::string joined(const std::vector<std::string>& parts);

/// A Python tuple of `parts`, also of one or none: "(a,)", "()".
[[nodiscard]] std::string python_tuple(const std::vector<std::string>& parts);

/// What a function returns that gives `parts`: the value itself if there is one, else a tuple.
[[nodiscard]] std::string python_result(const std::vector<std::string>& parts);

}  // namespace stagecraft

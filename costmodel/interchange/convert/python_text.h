#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stagecraft::interchange {

/// True for a valid variable name in Python: ASCII letters, digits and "_", not starting with a digit, not a keyword.
[[nodiscard]] bool is_python_name(std::string_view text);

/// `text` as a Python string literal in ASCII: everything but letters, digits, spaces and harmless characters is
/// escaped byte by byte, so that no text can end the literal.
[[nodiscard]] std::string python_string(std::string_view text);

/// One name for each id, in its order, all different and all Python names. "node" with digits stays; any other id is
/// "layer_" and the id, with "_" for everything but ASCII letters and digits, and "_2", "_3", ... appended where two
/// would be equal. So no id becomes a keyword or an attribute of torch.nn.Module.
[[nodiscard]] std::vector<std::string> python_names(const std::vector<std::string>& ids);

/// `parts` joined with ", ".
[[nodiscard]] std::string joined(const std::vector<std::string>& parts);

/// A Python tuple of `parts`, including one or none: "(a,)", "()".
[[nodiscard]] std::string python_tuple(const std::vector<std::string>& parts);

/// The return value of a function that returns `parts`: the value itself if there is one, else a tuple.
[[nodiscard]] std::string python_result(const std::vector<std::string>& parts);

}  // namespace stagecraft::interchange

#pragma once

#include <string_view>

#include "executor/intake/graph/size_expression.h"

namespace stagecraft::intake {

/// Reads what torch.export writes: `Mul(Integer(8), Symbol('s77', positive=True, integer=True))`, nested at most 64
/// deep, with at most 10000 parts. Supports Integer, Symbol, Add, Mul, FloorDiv, Mod, PythonMod, Min, Max, Pow, and the
/// constants that SymPy writes by name (Zero, One, NegativeOne). Throws std::invalid_argument with the text, the
/// position of the error and the known names.
[[nodiscard]] SizeExpression parse_size_expression(std::string_view text);

}  // namespace stagecraft::intake

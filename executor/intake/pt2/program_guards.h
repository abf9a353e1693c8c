#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "costmodel/format/cursor.h"
#include "executor/intake/pt2/exported_program.h"

// Only for exported_program.cpp: the sizes for which a program is valid.

namespace stagecraft::intake {

/// Smallest and largest value of each symbol. A range of a multiple of a symbol ("2*s77") narrows the range of the
/// symbol. Throws FormatError for other expressions and for empty ranges.
[[nodiscard]] std::map<std::string, std::pair<std::int64_t, std::int64_t>> read_ranges(const format::Cursor& at);

/// Throws FormatError quoting the first guard, a line of Python, that input sizes within program.ranges do not imply,
/// or for which that is too hard to decide: with several symbols, or one with millions of values.
void check_guards(const format::Cursor& at, const ExportedProgram& program);

}  // namespace stagecraft::intake

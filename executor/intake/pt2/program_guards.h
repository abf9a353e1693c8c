#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "costmodel/format/cursor.h"
#include "executor/intake/pt2/exported_program.h"

// For exported_program.cpp only: for which sizes a program is right.

namespace stagecraft {

/// Least and most value of each symbol. A range of a multiple of a symbol ("2*s77") narrows the symbol's own. Throws
/// FormatError for other expressions and for empty ranges.
[[nodiscard]] std::map<std::string, std::pair<std::int64_t, std::int64_t>> read_ranges(const Cursor& at);

/// Throws FormatError quoting the first guard, a line of Python, that sizes of the inputs within program.ranges do not
/// imply, or that may be implied but is too hard to tell: of several symbols, or of one with millions of values.
void check_guards(const Cursor& at, const ExportedProgram& program);

}  // namespace stagecraft

#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft::files {

/// The contents of a NumPy file (.npy): values in C order, little-endian, from byte `begin` to the file's end.
struct NpyHeader {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;
  friend bool operator==(const NpyHeader&, const NpyHeader&) = default;
};

/// Largest header in bytes, including its preamble.
inline constexpr std::int64_t kMostNpyHeader = std::int64_t{1} << 16;

/// The header of a file of `bytes` bytes that begins with `text` (all of it, or at least kMostNpyHeader bytes), of
/// format version 1, 2 or 3. Throws FormatError that begins with `file` for anything else, for Fortran order of two or
/// more axes, for types other than f2 f4 f8 i1 i2 i4 i8 u1 b1 and for values that do not end where the file does.
/// Source: numpy.lib.format. The dictionary is parsed, not evaluated.
[[nodiscard]] NpyHeader parse_npy_header(const std::string& text, std::int64_t bytes, const std::string& file);

}  // namespace stagecraft::files

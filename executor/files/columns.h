#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft::files {

/// A column of numbers, or of lists of numbers, from Parquet or Arrow files.
struct NumberColumn {
  at::Tensor values;                ///< the numbers of all rows, one row after the other; one axis
  std::int64_t rows = 0;            ///< of all files
  std::vector<std::int64_t> shape;  ///< of a row: empty for a number, {4, 2} for a list of 4 lists of 2 numbers
  std::string uneven;               ///< which rows differ in their shape; empty if none do
};

/// Whether `path` ends in .parquet, .arrow or .feather, or is a folder with such files.
[[nodiscard]] bool has_columns(const std::string& path);
/// `path` itself, or the files with columns in the folder `path`, sorted by name.
[[nodiscard]] std::vector<std::string> column_files(const std::string& path);

/// The names of the columns of the first file. Throws as read_columns does.
[[nodiscard]] std::vector<std::string> column_names(const std::string& path);
/// These columns of column_files(path), whose rows follow each other. Parquet, Arrow's IPC files (Feather version 2)
/// and streams are told apart by their contents. A column of one uncompressed chunk stays in the mapped file; others
/// are copied. uint16, uint32 and uint64 become int32, int64 and int64. Throws FormatError that names file and column
/// for an unreadable or damaged file, a column that does not exist (listing those that do), or has another type, nulls
/// or numbers above 2^63 - 1; InputError with why_no_columns() in a build without Arrow.
[[nodiscard]] std::vector<NumberColumn> read_columns(const std::string& path, const std::vector<std::string>& names);

/// Why this build cannot read columns; empty if it can.
[[nodiscard]] std::string why_no_columns();

/// What libstagecraft_columns.so brings. It is loaded when a program first reads columns: Arrow's libraries are 50 MB,
/// and a program also runs where they are missing.
class ColumnReader {
 public:
  ColumnReader() = default;
  ColumnReader(const ColumnReader&) = delete;
  ColumnReader& operator=(const ColumnReader&) = delete;
  virtual ~ColumnReader() = default;

  /// As column_names(), of one file.
  [[nodiscard]] virtual std::vector<std::string> names(const std::string& file) const = 0;
  /// As read_columns(), whose files these are.
  [[nodiscard]] virtual std::vector<NumberColumn> read(const std::vector<std::string>& files,
                                                       const std::vector<std::string>& names) const = 0;
};

/// The library's only function and its name.
using FindColumnReader = const ColumnReader* (*)();
inline constexpr const char* kFindColumnReader = "stagecraft_find_column_reader";

}  // namespace stagecraft::files

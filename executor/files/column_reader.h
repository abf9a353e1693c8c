#pragma once

#include <string>
#include <vector>

#include "executor/files/columns.h"

namespace stagecraft::files {

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

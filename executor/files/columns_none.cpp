#include "costmodel/errors.h"
#include "executor/files/columns.h"

namespace stagecraft::files {

std::string why_no_columns() {
  return "this build reads neither Parquet nor Arrow files: run scripts/setup, or configure with "
         "-DSTAGECRAFT_WITH_ARROW=ON, which needs pyarrow";
}

std::vector<std::string> column_names(const std::string& path) {
  throw InputError(ErrorKind::NotInBuild, path + ": " + why_no_columns());
}

std::vector<NumberColumn> read_columns(const std::string& path, const std::vector<std::string>& /*names*/) {
  throw InputError(ErrorKind::NotInBuild, path + ": " + why_no_columns());
}

}  // namespace stagecraft::files

#include <algorithm>
#include <array>
#include <filesystem>

#include "executor/files/columns.h"

namespace stagecraft::files {
namespace {

namespace fs = std::filesystem;

constexpr std::array kEndings{".parquet", ".arrow", ".feather"};

bool ends_like_columns(const fs::path& path) {
  return std::ranges::find(kEndings, path.extension().string()) != kEndings.end();
}

}  // namespace

std::vector<std::string> column_files(const std::string& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<std::string> out;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (ends_like_columns(entry.path()) && !entry.is_directory()) out.push_back(entry.path().string());
  }
  std::ranges::sort(out);
  return out;
}

bool has_columns(const std::string& path) {
  return fs::is_directory(path) ? !column_files(path).empty() : ends_like_columns(path);
}

}  // namespace stagecraft::files

#include "executor/files/columns.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "costmodel/errors.h"

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

namespace {

/// Beside the folder of the programs, where they are built as well as where they are installed.
fs::path library_path() {
  return fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib/stagecraft/libstagecraft_columns.so";
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw InputError(ErrorKind::NotInBuild, path + ": " + why);
}

/// Loads it. Throws InputError that begins with `path`.
const ColumnReader& load_reader(const std::string& path) {
  if (const std::string why = why_no_columns(); !why.empty()) refuse(path, why);
  // Never unloaded: tensors keep its memory.
  void* const library = ::dlopen(library_path().c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const find = library == nullptr ? nullptr : ::dlsym(library, kFindColumnReader);
  if (find == nullptr) {
    const char* const why = ::dlerror();
    refuse(path, std::string("cannot load what reads Parquet and Arrow files, run scripts/setup: ") +
                     (why != nullptr ? why : library_path().c_str()));
  }
  return *reinterpret_cast<FindColumnReader>(find)();
}

const ColumnReader& reader(const std::string& path) {
  static const ColumnReader& loaded = load_reader(path);
  return loaded;
}

}  // namespace

std::string why_no_columns() {
  if (fs::exists(library_path())) return "";
  return "this build reads neither Parquet nor Arrow files: run scripts/setup, or configure with "
         "-DSTAGECRAFT_WITH_ARROW=ON, which needs pyarrow";
}

std::vector<std::string> column_names(const std::string& path) {
  return reader(path).names(column_files(path).front());
}

std::vector<NumberColumn> read_columns(const std::string& path, const std::vector<std::string>& names) {
  return reader(path).read(column_files(path), names);
}

}  // namespace stagecraft::files

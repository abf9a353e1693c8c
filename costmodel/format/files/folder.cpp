#include "costmodel/format/files/folder.h"

#include <unistd.h>

#include <filesystem>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"

namespace stagecraft::format {
namespace {

namespace fs = std::filesystem;

/// Throws unless the folder at `path` may be replaced.
void check_replaceable(const fs::path& path, const MayDelete& may_delete) {
  const fs::file_status status = fs::symlink_status(path);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status)) throw FormatError(ErrorKind::CannotWrite, path.string() + ": is not a directory");
  if (fs::is_empty(path)) return;
  if (!may_delete)
    throw FormatError(ErrorKind::WouldOverwrite,
                      path.string() + ": is a directory that is not empty, expected an empty one or none");
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (name == "__pycache__" && !entry.is_symlink() && entry.is_directory()) continue;
    if (entry.is_symlink() || !entry.is_regular_file() || !may_delete(name, read_text(entry.path().string()))) {
      throw FormatError(ErrorKind::WouldOverwrite,
                        path.string() + ": holds \"" + name + "\", which stagecraft did not write; not replaced");
    }
  }
}

/// `path` without redundant parts ("./", a last "/").
fs::path target_of(const std::string& path) {
  fs::path target = fs::path(path).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // "folder/"
  if (target.empty() || target.filename() == "." || target.filename() == "..") {
    throw FormatError(ErrorKind::CannotWrite, path + ": expected the name of a directory");
  }
  return target;
}

}  // namespace

void check_can_write_folder(const std::string& path, const MayDelete& may_delete) {
  const fs::path target = target_of(path);
  check_can_write_in(target.has_parent_path() ? target.parent_path().string() : ".");
  try {
    check_replaceable(target, may_delete);
  } catch (const fs::filesystem_error& e) {
    throw FormatError(ErrorKind::CannotWrite, path + ": cannot write: " + e.code().message());
  }
}

void write_folder(const std::string& path, const std::map<std::string, std::string>& files, const MayDelete& may_delete,
                  const std::map<std::string, WriteFile>& large) {
  const fs::path target = target_of(path);
  const std::string process = std::to_string(::getpid());
  const fs::path temporary = target.string() + ".partial." + process;
  const fs::path old = target.string() + ".old." + process;
  try {
    check_replaceable(target, may_delete);
    if (target.has_parent_path()) fs::create_directories(target.parent_path());
    fs::create_directory(temporary);
    for (const auto& [name, text] : files) write_text((temporary / name).string(), text);
    for (const auto& [name, write] : large) write((temporary / name).string());
    const bool replaces = fs::exists(target);
    if (replaces) fs::rename(target, old);
    std::error_code error;
    fs::rename(temporary, target, error);
    if (error) {
      if (replaces) fs::rename(old, target);
      throw fs::filesystem_error("rename", target, error);
    }
    fs::remove_all(old);
  } catch (const fs::filesystem_error& e) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw FormatError(ErrorKind::CannotWrite, path + ": cannot write: " + e.code().message());
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
}

}  // namespace stagecraft::format

#pragma once

#include <functional>
#include <map>
#include <string>

namespace stagecraft::format {

/// Whether a file of this name and text may be deleted.
using MayDelete = std::function<bool(const std::string& name, const std::string& text)>;

/// Makes a file at a path; throws if it cannot.
using WriteFile = std::function<void(const std::string& path)>;

/// Writes `files` (name -> text), and `large` ones that write themselves, into a folder at `path`: to a temporary
/// folder next to it, then renamed, so that nobody sees half of it; makes missing parent folders. An empty folder is
/// replaced. A folder that is not empty is replaced only if `may_delete` is given and true for every file in it; its
/// `__pycache__` is deleted too. Throws FormatError with the path and what is there or the system's reason; the old
/// content is then unchanged.
void write_folder(const std::string& path, const std::map<std::string, std::string>& files,
                  const MayDelete& may_delete = {}, const std::map<std::string, WriteFile>& large = {});

/// Throws as write_folder(path, ..., may_delete) would before it writes the first file, and changes nothing: a check
/// before long work.
void check_can_write_folder(const std::string& path, const MayDelete& may_delete = {});

}  // namespace stagecraft::format

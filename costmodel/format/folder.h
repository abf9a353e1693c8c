#pragma once

#include <functional>
#include <map>
#include <string>

namespace stagecraft {

/// Whether a file of this name and text may be deleted.
using MayDelete = std::function<bool(const std::string& name, const std::string& text)>;

/// Makes a file at a path; throws if it cannot.
using WriteFile = std::function<void(const std::string& path)>;

/// Puts `files` (name -> text), and `large` ones that write themselves, into a folder at `path`, written beside it and
/// then renamed, so that nobody sees half of it; folders above it are made where they are missing. An empty folder is
/// replaced. One that holds something is replaced only if `may_delete` is given and says yes to every file in it;
/// `__pycache__` in it goes too. Throws FormatError with the path and what stands there or the system's reason; what
/// was there then stands unchanged.
void write_folder(const std::string& path, const std::map<std::string, std::string>& files,
                  const MayDelete& may_delete = {}, const std::map<std::string, WriteFile>& large = {});

/// Throws as write_folder(path, ..., may_delete) would before it writes the first file, and changes nothing: for the
/// start of work whose result goes there.
void check_can_write_folder(const std::string& path, const MayDelete& may_delete = {});

}  // namespace stagecraft

#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace stagecraft::format {

/// The kind of a file by its beginning: the "format" of one of our documents ("stagecraft.plan"), or the name of one of
/// the other texts that we write ("Chrome trace", "SVG picture", "schedule CSV", ...). Empty for anything else.
[[nodiscard]] std::string text_kind(const std::string& head);

/// The text_kind of a regular file; empty if it cannot be read.
[[nodiscard]] std::string file_kind(const std::string& path);

/// A file that a program will write.
struct OutputFile {
  std::string path;  ///< "" or "-": none
  std::string kind;  ///< as text_kind names it; "" if not known yet: the file's content is then not checked
};

/// Call before the work that writes these outputs. Throws FormatError with the path and the reason, and leaves no file
/// behind, if a file cannot be written (check_can_write), two outputs are one file, or, unless `force`, one
/// - is the same file as one of `inputs`, under this or another name; "-" is standard input;
/// - exists, is not empty and is of another kind.
/// Pipes and devices are never refused.
void check_outputs(const std::vector<std::string>& inputs, const std::vector<OutputFile>& outputs, bool force);

/// The same for files of these names in a folder, which may not exist yet, nor its parents.
void check_outputs_in(const std::string& folder, const std::vector<std::string>& inputs,
                      const std::vector<OutputFile>& files, bool force);

/// Throws FormatError with the path and the reason unless `path` is a folder in which files can be made, or such a
/// folder and its parents can be made. Leaves nothing behind.
void check_can_write_in(const std::string& path);

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

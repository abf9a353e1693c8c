#pragma once

#include <string>
#include <vector>

namespace stagecraft {

/// What a file holds by its beginning: the "format" of one of our documents ("stagecraft.plan"), or the words for one
/// of the other texts that we write ("Chrome trace", "SVG picture", "schedule CSV", ...). Empty for anything else.
[[nodiscard]] std::string text_kind(const std::string& head);

/// A file that a program will write.
struct OutputFile {
  std::string path;  ///< "" or "-": none
  std::string kind;  ///< as text_kind names it; "" before it is known, and the file's content is not looked at then
};

/// To be called before the work whose results go there. Throws FormatError with the path and the reason, and leaves
/// nothing behind, if a file cannot be written (check_can_write), two outputs are one file, or, unless `force`, one
/// - is the same file as one of `inputs`, under this or another name; "-" is standard input;
/// - exists, is not empty and holds something of another kind.
/// Pipes and devices are never refused.
void check_outputs(const std::vector<std::string>& inputs, const std::vector<OutputFile>& outputs, bool force);

/// The same for files of these names in a folder, which may have to be made with the folders above it.
void check_outputs_in(const std::string& folder, const std::vector<std::string>& inputs,
                      const std::vector<OutputFile>& files, bool force);

/// Throws FormatError with the path and the reason unless a folder is at `path` in which files can be made, or can be
/// made there with the folders above it. Leaves nothing behind.
void check_can_write_in(const std::string& path);

}  // namespace stagecraft

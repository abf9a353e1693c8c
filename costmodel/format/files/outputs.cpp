#include "costmodel/format/files/outputs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/index.h"

namespace stagecraft::format {
namespace {

/// The first bytes of a file, which identify it.
constexpr std::size_t kHeadBytes = 4096;

/// Kinds by the beginning of a text. ECMAScript, where ^ matches only the text's beginning.
const std::vector<std::pair<std::regex, const char*>>& kinds() {
  static const std::vector<std::pair<std::regex, const char*>> table = [] {
    std::vector<std::pair<std::regex, const char*>> out;
    for (const auto& [begins, kind] : std::initializer_list<std::pair<const char*, const char*>>{
             {R"(\{"displayTimeUnit": ?"[mn]s", ?"otherData": ?\{"title")", "Chrome trace"},
             {R"(step,microbatch,phase,layer,kind,)", "table of activities"},
             {R"(\{\s*"module_to_stage_map")", "PipeDream configuration"},
             {R"(\S+ -- .* -- forward_compute_time=)", "PipeDream profile"},
             {R"(\{\s*"parts")", "list of DeepSpeed's parts"},
             {R"("""DeepSpeed's PipelineModule with the stages of a stagecraft plan)", "DeepSpeed module"},
             {R"(#![^\n]*\n"""Trains a model in the stages of a stagecraft plan)",
              "torch.distributed.pipelining program"},
             {R"(,*\(?\d+(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B|REDUCE_GRAD|UNSHARD|RESHARD)\d*[,;\n])", "schedule CSV"},
             {R"([EtmL*()|,0-9]*t[EtmL*()|,0-9]*\s*$)", "Megatron-LM layout"},
             {R"(\{"step":\d+,("epoch":[^,]*,)?"loss":)", "file of metrics"},
             {R"(rank \d+=\S+ slot=\d)", "rank file"},
             {R"([A-Za-z0-9][A-Za-z0-9._:@-]* slots=\d+\n)", "host list"},
             {R"(digraph layers \{)", "Graphviz picture"},
             {R"((<\?xml[^>]*>\s*)?(<!DOCTYPE svg[^>]*>\s*)?(<!--[^>]*-->\s*)*<svg[ >])", "SVG picture"},
             {R"(\x89PNG\r\n\x1a\n)", "PNG picture"},
             {R"(<!DOCTYPE html>\s*<html [^>]*class="stagecraft-report")", "HTML report"},
             {R"(\{("\d+":\[|\}))", "list of Chakra groups"},
         })
      out.emplace_back(std::regex(std::string("^") + begins), kind);
    return out;
  }();
  return table;
}

std::string head_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string head(kHeadBytes, '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(to_index(in.gcount()));
  return head;
}

/// What is at a path; if nothing, the folder that would contain it and its name.
struct OutputPlace {
  bool regular = false;
  dev_t device = 0;
  ino_t inode = 0;
  std::string name;
  friend bool operator==(const OutputPlace&, const OutputPlace&) = default;
};

OutputPlace place_of(const std::string& path) {
  struct stat status{};
  const int found = path == "-" ? ::fstat(STDIN_FILENO, &status) : ::stat(path.c_str(), &status);
  if (found == 0) return {S_ISREG(status.st_mode), status.st_dev, status.st_ino, ""};
  const std::filesystem::path whole(path);
  const std::string folder = whole.parent_path().empty() ? "." : whole.parent_path().string();
  if (::stat(folder.c_str(), &status) != 0) return {};
  return {false, status.st_dev, status.st_ino, whole.filename().string()};
}

const char* kRemedy = "; use another name, or --force";

}  // namespace

std::string text_kind(const std::string& head) {
  static const std::regex document(R"re("format":\s*"(stagecraft\.[a-z0-9]+)")re");
  std::smatch match;
  const std::string begin = head.substr(0, kHeadBytes);
  const std::size_t first = begin.find_first_not_of(" \t\r\n");
  if (first != begin.npos && begin[first] == '{' && std::regex_search(begin, match, document)) return match[1];
  // Chakra's files begin with a message of a few bytes whose first field is the version.
  if (begin.size() > 3 && begin[1] == '\x0a' &&
      begin.compare(2, 6,
                    "\x05"
                    "0.0.4") == 0)
    return "Chakra trace";
  // Safetensors begin with the header's length, below 2^32 in eight bytes, then the header.
  if (begin.size() > 10 && begin.compare(4, 6, std::string("\0\0\0\0{\"", 6)) == 0) return "safetensors file";
  for (const auto& [begins, kind] : kinds()) {
    if (std::regex_search(begin, begins, std::regex_constants::match_continuous)) return kind;
  }
  return "";
}

std::string file_kind(const std::string& path) { return place_of(path).regular ? text_kind(head_of(path)) : ""; }

void check_outputs(const std::vector<std::string>& inputs, const std::vector<OutputFile>& outputs, bool force) {
  std::vector<std::pair<OutputPlace, std::string>> read;
  for (const std::string& input : inputs) {
    if (!input.empty()) read.emplace_back(place_of(input), input);
  }
  std::vector<OutputPlace> written;
  for (const auto& [path, kind] : outputs) {
    if (path.empty() || path == "-") continue;
    check_can_write(path);
    const OutputPlace place = place_of(path);
    if (!place.regular && place.name.empty()) continue;
    if (std::find(written.begin(), written.end(), place) != written.end())
      throw FormatError(ErrorKind::WouldOverwrite, path + ": is named for two outputs; use different files");
    written.push_back(place);
    if (force || !place.regular) continue;
    for (const auto& [source, name] : read) {
      if (source == place) {
        throw FormatError(ErrorKind::WouldOverwrite, path + ": is also an input" +
                                                         (name == path  ? ""
                                                          : name == "-" ? ", as standard input"
                                                                        : ", as " + name) +
                                                         ", so it is not replaced" + kRemedy);
      }
    }
    if (kind.empty()) continue;
    const std::string head = head_of(path);
    if (head.empty()) continue;
    const std::string found = text_kind(head);
    if (found == kind) continue;
    throw FormatError(ErrorKind::WouldOverwrite,
                      path + ": holds " + (found.empty() ? "something that stagecraft did not write" : "a " + found) +
                          ", so no " + kind + " replaces it" + kRemedy);
  }
}

void check_outputs_in(const std::string& folder, const std::vector<std::string>& inputs,
                      const std::vector<OutputFile>& files, bool force) {
  check_can_write_in(folder);
  if (!std::filesystem::exists(folder)) return;
  std::vector<OutputFile> outputs = files;
  for (OutputFile& output : outputs) output.path = (std::filesystem::path(folder) / output.path).string();
  check_outputs(inputs, outputs, force);
}

void check_can_write_in(const std::string& path) {
  std::filesystem::path at = std::filesystem::absolute(path).lexically_normal();
  if (!at.has_filename()) at = at.parent_path();  // "folder/"
  struct stat status{};
  while (::stat(at.c_str(), &status) != 0) {
    if (errno != ENOENT || at == at.parent_path())
      throw FormatError(ErrorKind::CannotWrite, path + ": cannot write: " + std::strerror(errno));
    at = at.parent_path();
  }
  if (!S_ISDIR(status.st_mode)) throw FormatError(ErrorKind::CannotWrite, path + ": is a file, expected a directory");
  if (::access(at.c_str(), W_OK | X_OK) != 0)
    throw FormatError(ErrorKind::CannotWrite, path + ": cannot write: " + std::strerror(errno));
}

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

#include "executor/intake/torchscript/loading/torchscript_archive.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "costmodel/errors.h"

namespace stagecraft::intake {
namespace {

constexpr std::uint64_t kMostCodeBytes = std::uint64_t{1} << 26;
constexpr std::uint64_t kMostInflatedBytes = std::uint64_t{1} << 28;  ///< of all compressed records together
constexpr std::uint64_t kMostPickleBytes = std::uint64_t{1} << 28;

/// The folder of all records, with its slash; empty if there is none.
std::string root_of(const files::ZipArchive& archive) {
  if (archive.records().empty()) return {};
  const std::string& first = archive.records().front().name;
  const std::size_t slash = first.find('/');
  return slash == std::string::npos ? std::string() : first.substr(0, slash + 1);
}

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

/// Whether `word` is in `code`, not followed by a letter.
bool uses(std::string_view code, std::string_view word) {
  for (std::size_t at = code.find(word); at != std::string_view::npos; at = code.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if (end == code.size() || !is_word(code[end])) return true;
  }
  return false;
}

/// What is forbidden in the code; empty if nothing is.
std::string fault_of_code(std::string_view code) {
  if (uses(code, "__setstate__")) return "defines __setstate__, which would run while the file is loaded";
  if (uses(code, "__torch__.torch.classes"))
    return "uses a class of a C++ library; only tensors and modules are allowed";
  static constexpr std::array kFiles{"torch.save",    "torch.from_file",    "torch.load",
                                     "ops.aten.save", "ops.aten.from_file", "ops.aten.load"};
  for (const char* file : kFiles) {
    if (uses(code, file)) return fmt::format("calls {}, which reads or writes files", file);
  }
  constexpr std::string_view kOps = "ops.";
  for (std::size_t at = code.find(kOps); at != std::string_view::npos; at = code.find(kOps, at + 1)) {
    if (at > 0 && (is_word(code[at - 1]) || code[at - 1] == '.')) continue;
    std::size_t end = at + kOps.size();
    while (end < code.size() && is_word(code[end])) ++end;
    const std::string_view space = code.substr(at + kOps.size(), end - at - kOps.size());
    if (space == "aten" || space == "prim" || end == code.size() || code[end] != '.') continue;
    return fmt::format("uses operators of \"{}\", which is a Python library; use PyTorch's own operators, \"aten\"",
                       space);
  }
  return {};
}

}  // namespace

std::string first_line(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \n\r\t");
  if (begin == std::string::npos) return "no reason given";
  std::string line = text.substr(begin, text.find('\n', begin) - begin);
  while (!line.empty() && (line.back() == '.' || line.back() == ':' || line.back() == ' ')) line.pop_back();
  return line;
}

bool is_torchscript_archive(const files::ZipArchive& archive) {
  const std::string root = root_of(archive);
  return !root.empty() && archive.find(root + "data.pkl") && archive.find(root + "constants.pkl") &&
         std::ranges::any_of(archive.records(),
                             [&](const files::ZipRecord& r) { return r.name.starts_with(root + "code/"); });
}

c10::intrusive_ptr<c10::ivalue::Object> load_torchscript(const files::ZipArchive& archive) {
  const std::string root = root_of(archive);
  std::uint64_t inflated = 0;
  for (const files::ZipRecord& record : archive.records()) {
    const auto fail = [&](const std::string& what) {
      throw FormatError(ErrorKind::UnsupportedModel,
                        fmt::format("{}: record \"{}\": {}", archive.path(), record.name, what));
    };
    if (!record.name.starts_with(root)) fail(fmt::format("is not under \"{}\" like the others", root));
    const bool code = record.name.starts_with(root + "code/");
    if (record.name.ends_with(".pkl") && record.bytes > kMostPickleBytes)
      fail(fmt::format("found {} bytes, expected at most {}", record.bytes, kMostPickleBytes));
    if (record.deflated) inflated += record.bytes;
    if (inflated > kMostInflatedBytes)
      fail(fmt::format("the compressed records hold more than {} bytes in total", kMostInflatedBytes));
    if (code && record.name.ends_with(".py")) {
      if (const std::string fault = fault_of_code(archive.read(record, kMostCodeBytes)); !fault.empty()) fail(fault);
    } else if (record.deflated) {
      (void)archive.read(record, kMostInflatedBytes);
    } else {
      (void)archive.map(record, /*check=*/true);
    }
  }
  const auto refuse = [&](const std::string& what) {
    return FormatError(archive.path() + ": LibTorch cannot load this TorchScript file: " + first_line(what));
  };
  try {
    // Debug files only contain positions in Python sources.
    return torch::jit::load(archive.path(), c10::Device(c10::kCPU), /*load_debug_files=*/false)._ivalue();
  } catch (const c10::Error& e) { throw refuse(e.what_without_backtrace()); } catch (const std::exception& e) {
    throw refuse(e.what());
  }
}

}  // namespace stagecraft::intake

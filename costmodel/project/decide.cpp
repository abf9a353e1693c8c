#include "costmodel/project/decide.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "costmodel/errors.h"
#include "costmodel/format/cursor.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/text/shell_line.h"
#include "costmodel/version.h"

namespace stagecraft::project {
namespace {

/// Of a file that may be too large to be read: its bytes and the time of its last change. A folder's own.
std::string data_hash(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return "";
  return fmt::format("{} bytes, changed at {}.{:09d}", status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

bool exists(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0;
}

/// The first difference between what was recorded and what is now; empty if there is none.
std::string difference(const format::StepRecord& then, const format::StepRecord& now) {
  if (!then.ended) return "it did not finish";
  if (then.version != now.version) return "it was run by version " + then.version;
  if (then.command != now.command) return "its command has changed";
  for (const auto& [path, hash] : now.inputs) {
    const auto before = then.inputs.find(path);
    if (before == then.inputs.end() || before->second != hash) return path + " has changed";
  }
  return then.inputs.size() == now.inputs.size() ? "" : "its inputs have changed";
}

/// A plan or prediction without its provenance, so that another command with the same result changes nothing; any other
/// text as it is.
std::string hashed_part(const std::string& text) {
  const std::string kind = format::text_kind(text);
  if (kind != "stagecraft.plan" && kind != "stagecraft.prediction") return text;
  format::Json document = format::Json::parse(text, nullptr, false);
  if (!document.is_object()) return text;
  document.erase("provenance");
  return document.dump();
}

}  // namespace

std::string file_hash(const std::string& path) {
  try {
    return format::text_hash(hashed_part(format::read_text(path)));
  } catch (const FormatError&) { return ""; }
}

format::StepRecord record_of(const ProjectStep& step) {
  format::StepRecord out;
  out.name = step.name;
  std::vector<std::string> words{step.name};
  std::ranges::copy_if(step.arguments, std::back_inserter(words), [&](const std::string& word) {
    return std::ranges::find(step.unhashed, word) == step.unhashed.end();
  });
  out.command = shell_line(words);
  out.version = version();
  out.ended = false;
  for (const std::string& path : step.inputs) out.inputs[path] = file_hash(path);
  for (const std::string& path : step.data) out.inputs[path] = data_hash(path);
  if (!step.training.empty()) {
    std::string all = shell_line(step.training) + "\n" + out.version + "\n";
    for (const auto& [path, hash] : out.inputs) {
      if (std::ranges::find(step.beside, path) == step.beside.end()) all += path + " " + hash + "\n";
    }
    out.training = format::StartedTraining{format::text_hash(all), step.length};
  }
  return out;
}

Decision decide(const ProjectStep& step, const format::StepRecord* recorded, bool again) {
  Decision out{true, again ? "asked for" : "not done yet", !step.training.empty()};
  if (recorded == nullptr) return out;
  const format::StepRecord now = record_of(step);
  if (!again) {
    std::string reason = difference(*recorded, now);
    const auto missing = std::ranges::find_if_not(step.outputs, exists);
    if (reason.empty() && missing != step.outputs.end()) reason = *missing + " is missing";
    if (reason.empty()) {
      out = {};
      for (const auto& [path, hash] : recorded->outputs) {
        if (file_hash(path) != hash) out.reason = path + " has changed since; it is kept";
      }
      return out;
    }
    out.reason = reason;
  }
  if (now.training && recorded->training && recorded->training->hash == now.training->hash) {
    const bool longer = now.training->length > recorded->training->length;
    out.new_training = recorded->ended && !longer;
  }
  return out;
}

}  // namespace stagecraft::project

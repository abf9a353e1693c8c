#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/format/document_schema.h"

namespace stagecraft::format {

/// The training that a step began, which it may continue.
struct StartedTraining {
  std::string hash;         ///< of everything that would make it a different training run
  std::int64_t length = 1;  ///< steps or epochs
  friend bool operator==(const StartedTraining&, const StartedTraining&) = default;
};

/// A step of a project: its command, inputs and outputs. Hashes are text_hash.
struct StepRecord {
  std::string name;
  std::string command;                         ///< as typed in a shell, without options that do not affect the result
  std::string version;                         ///< of the tools
  bool ended = true;                           ///< false: it began, and failed or was interrupted
  std::map<std::string, std::string> inputs;   ///< path -> hash
  std::map<std::string, std::string> outputs;  ///< path -> hash
  std::optional<StartedTraining> training = {};
  friend bool operator==(const StepRecord&, const StepRecord&) = default;
};

/// fnv1a as 16 hexadecimal digits.
[[nodiscard]] std::string text_hash(const std::string& text);

/// The document "stagecraft.steps", in which `stagecraft auto` keeps what it has done.
[[nodiscard]] std::string steps_json(const std::vector<StepRecord>& steps);
[[nodiscard]] DocumentSchema steps_schema();
/// The inverse. Throws FormatError as the readers of graph_json.h.
[[nodiscard]] std::vector<StepRecord> parse_steps(const std::string& text, const std::string& file);

}  // namespace stagecraft::format

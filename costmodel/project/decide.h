#pragma once

#include <string>
#include <vector>

#include "costmodel/format/results/steps_json.h"
#include "costmodel/project/steps.h"

namespace stagecraft::project {

/// What is done about a step.
struct Decision {
  bool todo = false;
  std::string reason = {};    ///< why it is done, or what is odd about skipping it; may be empty if it is skipped
  bool new_training = false;  ///< it trains from the beginning: a training that is there stays, under another name
};

/// The hash of a file's content; empty if it cannot be read.
[[nodiscard]] std::string file_hash(const std::string& path);

/// What is recorded of a step that begins now. A file that does not exist has the hash "". `run`: the program's path.
[[nodiscard]] format::StepRecord record_of(const Step& step);

/// What to do about a step, given what is recorded of it (null: nothing) and what lies in the folder. A step is skipped
/// if its command, the version of the tools and its inputs are as recorded and its outputs are there; a changed output
/// stays, and `reason` says so. `again`: it is done whatever is recorded. A training that was interrupted continues, as
/// does one that only became longer.
[[nodiscard]] Decision decide(const Step& step, const format::StepRecord* recorded, bool again);

}  // namespace stagecraft::project

#pragma once

#include <string>
#include <vector>

#include "costmodel/format/results/steps_json.h"
#include "costmodel/project/steps.h"

namespace stagecraft::project {

/// A decision about a step.
struct Decision {
  bool todo = false;
  std::string reason = {};    ///< why it runs, or a remark on skipping it; may be empty if it is skipped
  bool new_training = false;  ///< it trains from the beginning; an existing training is kept under another name
};

/// The hash of a file's content, of plans and predictions without their provenance; empty if it cannot be read.
[[nodiscard]] std::string file_hash(const std::string& path);

/// The record of a step that begins now. A file that does not exist has the hash "". `run`: the program's path.
[[nodiscard]] format::StepRecord record_of(const ProjectStep& step);

/// Decides about a step, given its record (null if there is none) and the files in the folder. A step is skipped if its
/// command, the version of the tools and its inputs are as recorded and its outputs exist; a changed output is kept,
/// and `reason` says so. `again`: run it even if it is up to date. An interrupted training continues, as does one that
/// only became longer.
[[nodiscard]] Decision decide(const ProjectStep& step, const format::StepRecord* recorded, bool again);

}  // namespace stagecraft::project

#pragma once

#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/format/results/steps_json.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/project/project.h"
#include "costmodel/project/steps.h"
#include "costmodel/timeline.h"

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

/// How to run a project's steps.
struct AutoOptions {
  std::string from = {};   ///< run this step and all later ones anyway, and no earlier one; empty: as needed
  std::string until = {};  ///< stop after this step; empty: run all
  bool dry_run = false;    ///< print the commands on standard output
  bool yes = false;        ///< do not ask before `run`
  std::string shown = {};  ///< how to continue, "stagecraft auto project.toml"
  /// The program of a verb; absent if it is not installed.
  std::function<std::optional<std::string>(const std::string& verb)> program = {};
  /// The command that calls a verb, as shown to the user.
  std::function<std::string(const std::string& verb)> call = {};
  FindExample find_example = {};
};

/// Runs the steps of a project in the current folder, or prints them. Returns the exit status: 0 if all succeeded; 75
/// if a run was interrupted and can continue; 128 + signal if interrupted elsewhere; else that of the failed step, or 1
/// if the user declines to run. Messages go to standard error, the closing summary to standard output. Throws
/// std::invalid_argument for a wrong name of a step or an example, FormatError for a state that cannot be read or
/// written, DeviceError if a program is missing.
[[nodiscard]] int do_steps(const Project& project, const AutoOptions& options);

/// The summary table of a project: step, samples per second, idle time of the devices and memory of the rank that needs
/// the most, predicted and, unless `measured` is null, measured.
[[nodiscard]] std::string summary_text(const Prediction& predicted, const Measurement* measured);

}  // namespace stagecraft::project

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/project/project.h"

namespace stagecraft::project {

/// The files that the steps write, relative to the project's folder.
struct Files {
  std::string folder;  ///< of all others
  std::string state, logs;
  std::string graph, estimated_graph, topology, plan, prediction, report, comparison;
  std::string run_folder;  ///< of one training: what follows
  std::string checkpoints, metrics, tensorboard, measured, evaluation;
};

[[nodiscard]] Files files_of(const Project& project);

/// One command of a project.
struct ProjectStep {
  std::string name;  ///< "profile"; also the verb
  std::vector<std::string> arguments;
  std::vector<std::string> inputs;    ///< files whose content it depends on
  std::vector<std::string> data;      ///< data files, too large to hash
  std::vector<std::string> outputs;   ///< files that it writes
  std::string standard_output;        ///< the file among `outputs` that takes its standard output; empty: none
  std::vector<std::string> unhashed;  ///< arguments that do not affect the result
  /// For `run`: the arguments that define the training, except its length; empty for others.
  std::vector<std::string> training;
  std::vector<std::string> beside;  ///< the `inputs` and `data` that do not affect the training
  std::int64_t length = 0;          ///< for `run`: steps or epochs
};

/// The path of the example topology NAME. Throws std::invalid_argument if there is none.
using FindExample = std::function<std::string(const std::string& name)>;

/// The steps of a project in their order: profile, links, estimate, plan, predict, run, evaluate, compare, report;
/// without those that it does not need. Throws std::invalid_argument if it names an example that does not exist.
[[nodiscard]] std::vector<ProjectStep> steps_of(const Project& project, const FindExample& find_example);

/// The files and folders that the data source `source` names: those of "tensors:FILE", "tensors:NAME=FILE,NAME=FILE",
/// "text:FILE", "tokens:FILE,column=NAME", "images:FOLDER,OPTION=VALUE" and "fashion-mnist:FOLDER", in their order;
/// none for a name alone.
[[nodiscard]] std::vector<std::string> data_files(const std::string& source);
/// Whether a model is a file, not the name of a built-in model: it has a dot or a slash.
[[nodiscard]] bool is_model_file(const std::string& model);

/// The names of all steps that a project can have, in their order.
[[nodiscard]] const std::vector<std::string>& step_names();

}  // namespace stagecraft::project

#pragma once

#include <string>
#include <vector>

#include "costmodel/project/project.h"

namespace stagecraft::project {

/// What a new project begins with.
struct NewProject {
  std::string model = {};                 ///< a built-in model, a model file, or a graph (.json)
  std::vector<std::string> options = {};  ///< "KEY=VALUE" of a built-in model
  std::string data = {};                  ///< empty: what fits the model
  std::string topology = {};              ///< as in the file; empty: this machine
  std::int64_t devices = 2;               ///< of this machine
  std::string estimate = {};              ///< a card, for a topology of GPUs that are not here
  std::string folder = "stagecraft-out";
};

/// A project that `stagecraft auto` can run unchanged. It trains on this machine; if the model is a graph or the
/// topology describes another machine, it ends with a prediction and a report instead. Throws std::invalid_argument for
/// an option without "=", options of a file, and an estimate for a graph or for this machine.
[[nodiscard]] Project new_project(const NewProject& wanted);

/// Names of the topologies that come with stagecraft, as in example:NAME, sorted; empty if they are not installed.
[[nodiscard]] std::vector<std::string> example_topologies();

/// The file of one of them. Throws InputError (UnknownName) listing them all if there is none of that name.
[[nodiscard]] std::string example_topology(const std::string& name);

}  // namespace stagecraft::project

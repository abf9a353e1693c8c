#pragma once

#include <string>
#include <vector>

namespace stagecraft::project {

/// Names of the topologies that come with stagecraft, as in example:NAME, sorted; empty if they are not installed.
[[nodiscard]] std::vector<std::string> example_topologies();

/// The file of one of them. Throws InputError (UnknownName) listing them all if there is none of that name.
[[nodiscard]] std::string example_topology(const std::string& name);

}  // namespace stagecraft::project

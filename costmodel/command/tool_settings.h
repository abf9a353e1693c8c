#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "costmodel/analysis/whatif.h"

// For the main functions of the tools that predict after changes: --set.

namespace stagecraft {

/// A table of all settings, for --help.
std::string settings_text();

/// Declares --set; settings_text belongs to the tool's help.
CLI::Option* add_set_option(CLI::App& app, std::vector<std::string>& changes);

/// The scenario after all changes. Throws InputError for one that is not valid, beginning with "--set".
Scenario with_settings(Scenario scenario, const std::vector<std::string>& changes);

}  // namespace stagecraft

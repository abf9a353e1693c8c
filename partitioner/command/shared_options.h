#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "partitioner/strategy.h"

// The options that stagecraft plan has with and without --objective-profile.

namespace stagecraft::partitioner {

/// Declares the strategy's own options; `values` must outlive the parsing. The help shows them under `title`.
void declare_options(CLI::App& app, const Strategy& strategy, const std::string& title, OptionValues& values);

/// The strategy that has the first of the given options; nullptr if none is given.
[[nodiscard]] const Strategy* owner_of_options(const OptionValues& given);

/// "PipeDream's and optimal's": the owners of all strategies that have options.
[[nodiscard]] std::string titles_of_options();

}  // namespace stagecraft::partitioner

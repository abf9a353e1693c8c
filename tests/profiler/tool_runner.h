#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/support/run_command.h"

namespace stagecraft::testing {

/// For tests of tools as a user runs them.
class ToolRunner : public ::testing::Test {
 protected:
  [[nodiscard]] std::string read(const std::string& name) const { return folder_.read(name); }
  /// Runs stagecraft-VERB with `arguments` and with `settings` ("NAME=VALUE ...") in its environment.
  [[nodiscard]] Outcome run(const std::string& verb, const std::string& arguments,
                            const std::string& settings = {}) const {
    return folder_.run(settings + " stagecraft-" + verb + " " + arguments);
  }

 private:
  CommandFolder folder_;
};

}  // namespace stagecraft::testing

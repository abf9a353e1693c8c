#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/run_command.h"

namespace stagecraft::testing {

/// For tests of stagecraft plan as a user runs it.
class PlanCommandTest : public ::testing::Test {
 protected:
  /// With the plan on stdout, unless the arguments say otherwise.
  [[nodiscard]] Outcome plan(const std::string& arguments) const {
    const bool says = (' ' + arguments).find(" -o ") != std::string::npos;
    return folder_.run("stagecraft-plan " + arguments + (says ? "" : " -o -"));
  }
  /// The command ends with this status and says this on stderr, and nothing on stdout.
  void refuses(const std::string& arguments, int status, const std::string& message) const {
    const Outcome o = plan(arguments);
    EXPECT_EQ(o.status, status) << arguments;
    EXPECT_EQ(o.out, "") << arguments;
    EXPECT_THAT(o.err, ::testing::HasSubstr(message)) << arguments;
  }

  CommandFolder folder_;
};

}  // namespace stagecraft::testing

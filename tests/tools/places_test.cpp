#include "tests/support/places.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

namespace stagecraft {
namespace {

/// A variable of the environment, with another value for as long as this lives; without one, it is unset.
class Variable {
 public:
  Variable(const char* name, std::optional<std::string> value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { set(before_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const std::optional<std::string>& value) const {
    if (value) {
      ::setenv(name_, value->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }
  const char* name_;
  std::optional<std::string> before_;
};

TEST(Places, AreThoseOfTheEnvironment) {
  const Variable programs("STAGECRAFT_BIN", "/carried/bin");
  const Variable sources("STAGECRAFT_SOURCE", "/carried");
  EXPECT_EQ(program_folder(), "/carried/bin");
  EXPECT_EQ(source_folder(), "/carried");
}

TEST(Places, AreElseTheFolderOfTheTestAndTheSourcesItWasBuiltFrom) {
  const Variable programs("STAGECRAFT_BIN", {});
  const Variable sources("STAGECRAFT_SOURCE", {});
  EXPECT_TRUE(std::filesystem::exists(program_folder() + "/tools_test"));
  EXPECT_TRUE(std::filesystem::exists(source_folder() + "/tests/tools/places_test.cpp"));
}

}  // namespace
}  // namespace stagecraft

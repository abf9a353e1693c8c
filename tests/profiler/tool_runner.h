#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "costmodel/format/files/files.h"
#include "tests/support/places.h"

namespace stagecraft {

struct ToolResult {
  int status = -1;
  std::string out;
  std::string err;
};

/// Runs a tool as a user would, in a temporary folder that is removed after the test.
class ToolRunner : public testing::Test {
 protected:
  ToolRunner() : folder_(std::filesystem::temp_directory_path() / ("stagecraft_tools_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~ToolRunner() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  [[nodiscard]] std::string read(const std::string& name) const { return format::read_text((folder_ / name).string()); }
  /// Runs stagecraft-VERB with `arguments` and with `settings` ("NAME=VALUE ...") in its environment.
  [[nodiscard]] ToolResult run(const std::string& verb, const std::string& arguments,
                               const std::string& settings = {}) const {
    const std::string command = "cd '" + folder_.string() + "' && " + settings + " '" + program_folder() +
                                "/stagecraft-" + verb + "' " + arguments + " > out.txt 2> err.txt";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read("out.txt"), read("err.txt")};
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace stagecraft

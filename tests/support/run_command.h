#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "costmodel/format/files/files.h"
#include "tests/support/places.h"

// Runs tools as a user would: in a temporary folder, through a shell.

namespace stagecraft::testing {

/// The result of a command.
struct Outcome {
  int status = -1;  ///< exit status; 128 + signal if it was killed
  std::string out;
  std::string err;
};

/// A folder that exists as long as this object, and commands that run in it with this build's tools first in PATH.
class CommandFolder {
 public:
  CommandFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "stagecraft_test_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~CommandFolder() { std::filesystem::remove_all(path_); }
  CommandFolder(const CommandFolder&) = delete;
  CommandFolder& operator=(const CommandFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const std::string& text) const {
    format::write_text((path_ / name).string(), text);
  }
  [[nodiscard]] std::string read(const std::string& name) const { return format::read_text((path_ / name).string()); }

  [[nodiscard]] Outcome run(const std::string& command) const {
    write("command.sh", command + "\n");
    const std::string line = "cd '" + path_.string() + "' && PATH='" + program_folder() +
                             "':\"$PATH\" bash command.sh" + " > out.txt 2> err.txt < /dev/null";
    const int status = std::system(line.c_str());
    return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), read("out.txt"), read("err.txt")};
  }

 private:
  std::filesystem::path path_;
};

}  // namespace stagecraft::testing

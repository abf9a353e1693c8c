#pragma once

#include <optional>
#include <string>
#include <vector>

namespace stagecraft::project {

/// Holds back SIGINT, SIGTERM and SIGHUP while it exists; run_process hands them on to its program.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  /// The number of one that arrived and that nobody took; absent: none.
  [[nodiscard]] std::optional<int> taken() const;
};

struct Ended {
  int status = 0;                  ///< exit status; 128 + signal if it was killed
  std::optional<int> signal = {};  ///< that was handed on to it
  std::string output;              ///< its standard output, if that was captured
};

/// Runs `program` with `arguments` (without its own name) until it ends. What it prints goes to our standard error and
/// to the file `log`, which is replaced and begins with `headline`; with `capture`, its standard output goes to our
/// standard output and into Ended::output too. If our standard error is a terminal, so is the program's, and its log
/// has the last state of each line that was rewritten. The program ends with SIGTERM if this process dies. Needs
/// HeldSignals. Throws DeviceError if the program cannot be started and FormatError if the log cannot be written.
[[nodiscard]] Ended run_process(const std::string& program, const std::vector<std::string>& arguments,
                                const std::string& log, const std::string& headline, bool capture);

/// Runs a program to its end with our standard streams and returns its exit status, 128 + signal if it was killed.
/// `words` begin with its name, which is looked for on PATH. Throws DeviceError "OTHERWISE (reason)" if it cannot be
/// started.
[[nodiscard]] int run_program(std::vector<std::string> words, const std::string& otherwise);

}  // namespace stagecraft::project

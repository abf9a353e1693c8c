#pragma once

#include <optional>
#include <string>
#include <vector>

namespace stagecraft::project {

/// Blocks SIGINT, SIGTERM and SIGHUP during its lifetime; run_process forwards them to its program.
class DeferredSignals {
 public:
  DeferredSignals();
  ~DeferredSignals();
  DeferredSignals(const DeferredSignals&) = delete;
  DeferredSignals& operator=(const DeferredSignals&) = delete;
  /// A signal that arrived and was not forwarded; absent if there is none.
  [[nodiscard]] std::optional<int> taken() const;
};

struct Ended {
  int status = 0;                  ///< exit status; 128 + signal if it was killed
  std::optional<int> signal = {};  ///< that was forwarded to it
  std::string output;              ///< its standard output, if that was captured
};

/// Runs `program` with `arguments` (without its own name) until it ends. What it prints goes to our standard error and
/// to the file `log`, which is replaced and begins with `headline`; with `capture`, its standard output goes to our
/// standard output and into Ended::output too. If our standard error is a terminal, so is the program's, and its log
/// has the last state of each line that was rewritten. The program ends with SIGTERM if this process dies. Needs
/// DeferredSignals. Throws DeviceError if the program cannot be started and FormatError if the log cannot be written.
[[nodiscard]] Ended run_process(const std::string& program, const std::vector<std::string>& arguments,
                                const std::string& log, const std::string& headline, bool capture);

/// Runs a program to its end with our standard streams and returns its exit status, 128 + signal if it was killed.
/// `words` begin with its name, which is looked up on PATH. Throws DeviceError "OTHERWISE (reason)" if it cannot be
/// started.
[[nodiscard]] int run_program(std::vector<std::string> words, const std::string& otherwise);

}  // namespace stagecraft::project

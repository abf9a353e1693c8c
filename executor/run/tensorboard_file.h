#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>

#include "costmodel/format/results/metrics_json.h"

namespace stagecraft::run {

/// An event file for TensorBoard. Each record has been passed to the operating system when `add` returns.
class TensorBoardFile {
 public:
  /// Creates a file with a new name in `folder`, and the folder if there is none. If the run continues after step
  /// `resumed`, TensorBoard forgets later steps in the folder's other files. `now` gives seconds since 1970. Throws
  /// FormatError with the path and the system's reason.
  TensorBoardFile(const std::string& folder, std::int64_t resumed, std::function<double()> now);
  /// Throws FormatError with the path and the system's reason.
  void add(const format::StepMetrics& metrics);

 private:
  void write(const std::string& bytes);

  std::function<double()> now_;
  std::string path_;
  std::ofstream file_;
};

}  // namespace stagecraft::run

#pragma once

#include <string>

#include "costmodel/format/results/metrics_json.h"

namespace stagecraft::run {

/// A file of lines as format::metrics_line writes them. Each line has been passed to the operating system when `add`
/// returns, so it survives the end of the process.
class MetricsFile {
 public:
  /// Creates or empties the file, or with `append` continues it: after a line that was cut off, on a new one. Throws
  /// FormatError with the path and the system's reason.
  MetricsFile(const std::string& path, bool append);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  /// Throws FormatError with the path and the system's reason.
  void add(const format::StepMetrics& metrics);

 private:
  void write(const std::string& text) const;

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace stagecraft::run

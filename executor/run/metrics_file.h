#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "costmodel/units.h"

namespace stagecraft::run {

/// A line of a metrics file.
struct StepMetrics {
  std::int64_t step = 0;                     ///< steps done, this one included
  std::optional<double> epoch = {};          ///< samples seen / samples in the data, if the data has a length
  double loss = 0;                           ///< of the step
  std::optional<double> learning_rate = {};  ///< of the step
  Seconds step_time;                         ///< mean since the previous line
  std::int64_t step_samples = 0;
  std::optional<double> gradient_norm = {};
  std::optional<double> loss_scale = {};
};

/// The kind of such files, as check_outputs names it.
inline constexpr const char* kMetricsKind = "file of metrics";

/// A JSON object on one line: {"step":12,"epoch":0.5,"loss":2.1,...}, with the shortest digits that give the same
/// number; null for one that is infinite or NaN, no key for one that is absent.
[[nodiscard]] std::string metrics_line(const StepMetrics& metrics);

/// A file of such lines. Each one is with the system when `add` returns, so that it survives the end of the process.
class MetricsFile {
 public:
  /// Creates or empties the file, or with `append` continues it: after a line that was cut off, on a new one. Throws
  /// FormatError with the path and the system's reason.
  MetricsFile(const std::string& path, bool append);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  /// Throws FormatError with the path and the system's reason.
  void add(const StepMetrics& metrics);

 private:
  void write(const std::string& text) const;

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace stagecraft::run

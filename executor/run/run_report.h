#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "costmodel/bound_plan.h"
#include "costmodel/format/results/evaluation_json.h"
#include "costmodel/text/progress.h"
#include "costmodel/timeline.h"
#include "executor/run/run.h"

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

/// "34.2 samples/s, 35061 tokens/s, 234 ms per step (predicted 230 ms, +2 %)" for a step of `samples` samples that took
/// `measured`. Tokens only if samples have them, parentheses only with a prediction; the difference is measured /
/// predicted - 1.
[[nodiscard]] std::string speed_text(std::int64_t samples, Seconds measured, std::optional<Seconds> predicted,
                                     const SampleWork& work = {});

/// How a run reports its progress.
struct ReportOptions {
  std::int64_t every = 0;  ///< steps between lines; 0: about ten in all, and at least one every ten seconds
  bool rate = false;       ///< whether lines have the learning rate
  std::optional<std::int64_t> epoch_samples = {};  ///< samples in the data
  std::string metrics = {};      ///< file of metrics, with a line every `every` steps, or for each; empty: none
  bool append = false;           ///< continue that file
  std::string tensorboard = {};  ///< folder for an event file with the same numbers at the same steps; empty: none
};

/// Reports steps as they end, and writes metrics files. On a terminal, the newest step is shown in a line that the next
/// one replaces. Lines that stay, on standard error: "step 12/50 loss 2.1034 812 samples/s, ..., 3 min 20 s left";
/// those and metrics give the loss of their step and the mean time of the steps since the last one. The time left
/// assumes the mean of all steps but the first two. Steps with a validation are always reported.
class StepReporter {
 public:
  explicit StepReporter(const Plan& plan, const ReportOptions& options = {});
  /// Throws FormatError as MetricsFile does, which the first line opens.
  void operator()(const Progress& progress);
  /// The line for `progress`, for a mean time of `step_time`.
  [[nodiscard]] std::string text(const Progress& progress, Seconds step_time) const;

 private:
  /// Mean of the steps since the last call.
  struct MeanTime {
    Seconds total;
    std::int64_t steps = 0;
    Seconds take();
  };
  [[nodiscard]] bool is_reported(const Progress& progress) const;
  void write(const Progress& progress);

  std::int64_t samples_;
  SampleWork work_;
  std::optional<Seconds> predicted_;
  ReportOptions options_;
  std::optional<MetricsFile> metrics_;
  std::optional<TensorBoardFile> tensorboard_;
  std::int64_t steps_ = 0;  // reported so far
  MeanTime reported_;
  MeanTime written_;
  MeanTime all_;  // without the first two
  ProgressLine line_;
};

/// Summary of a run: "loss 2.1034 to 1.7211 in 50 steps; 812 samples/s, ...", without the first two steps, and if
/// `work` counts operations, a line with those per second of the median step. The measurement must have at least one
/// step.
[[nodiscard]] std::string closing_text(const Measurement& measurement, std::optional<Seconds> predicted,
                                       const SampleWork& work = {});

/// Result of an evaluation: "loss 0.3421 over 59968 of 60000 samples; 32 left over, too few for a microbatch of 64".
/// `pass` is absent for endless data.
[[nodiscard]] std::string evaluation_text(const Evaluation& evaluation, std::int64_t microbatch_samples,
                                          const std::optional<WholePass>& pass);

/// Roles, one line per rank: "rank 0: device 0, stage 0, replica 0, 3 layers fc1 to fc2, 14 actions per step". `hosts`,
/// if not empty, names each rank's host: "rank 0: host red, device 0, ...".
[[nodiscard]] std::string roles_text(const BoundPlan& plan, const std::vector<std::string>& hosts = {});

}  // namespace stagecraft::run

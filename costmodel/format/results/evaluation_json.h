#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "costmodel/format/document_schema.h"
#include "costmodel/units.h"

namespace stagecraft::format {

/// How well a model does on data.
struct ModelEvaluation {
  double loss = 0;  ///< mean over the microbatches of the model's loss
  std::int64_t samples = 0;
  std::int64_t samples_left = 0;
  /// For a model whose forward computes one cross entropy of class scores and class indices: the number of predictions
  /// (one per label that is not ignored), and how many of them give the right class the highest score.
  std::optional<std::int64_t> predictions = {};
  std::int64_t correct = 0;
  /// exp of the mean cross entropy per prediction, if a sample has several and the cross entropy is a plain mean (no
  /// class weights, no label smoothing): the perplexity of a language model.
  std::optional<double> perplexity = {};
  Seconds time;  ///< of the whole pass
};

/// correct / predictions.
[[nodiscard]] std::optional<double> accuracy(const ModelEvaluation& evaluation);

/// What was evaluated, for the document.
struct EvaluationSubject {
  std::string model;
  std::string data;
  std::string weights;               ///< path of the checkpoint or file
  std::optional<std::int64_t> step;  ///< of the checkpoint
};

/// The document "stagecraft.evaluation".
[[nodiscard]] std::string evaluation_json(const ModelEvaluation& evaluation, const EvaluationSubject& subject);
[[nodiscard]] DocumentSchema evaluation_schema();

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
  std::optional<ModelEvaluation> validation = {};  ///< after the step
};

/// The kind of such files, as check_outputs names it.
inline constexpr const char* kMetricsKind = "file of metrics";

/// A JSON object on one line: {"step":12,"epoch":0.5,"loss":2.1,...}, with the shortest digits that give the same
/// number; null for one that is infinite or NaN, no key for one that is absent.
[[nodiscard]] std::string metrics_line(const StepMetrics& metrics);

}  // namespace stagecraft::format

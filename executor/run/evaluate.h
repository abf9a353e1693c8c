#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "costmodel/units.h"
#include "executor/data/data_source.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::run {

/// What part of the data to evaluate, and in which pieces.
struct EvaluationPieces {
  std::int64_t microbatch_samples = 1;
  std::int64_t microbatches = 1;
  std::int64_t samples_left = 0;  ///< of the data, too few for a microbatch
};

/// Pieces of `microbatch` samples that cover the data, or its first `samples`. Throws std::invalid_argument for data
/// without an end if `samples` is absent, if the data has fewer, and if they do not fill one microbatch.
[[nodiscard]] EvaluationPieces evaluation_pieces(const data::DataSource& data, std::int64_t microbatch,
                                                 std::optional<std::int64_t> samples);

/// How well a model does on data.
struct ModelEvaluation {
  double loss = 0;  ///< mean over the microbatches of the model's loss
  std::int64_t samples = 0;
  std::int64_t samples_left = 0;
  /// Of a model whose forward computes one cross entropy of class scores against class numbers: how many predictions
  /// there are (one for each label that is not ignored), and in how many the right class has the highest score.
  std::optional<std::int64_t> predictions = {};
  std::int64_t correct = 0;
  /// exp of the mean cross entropy per prediction, if a sample has several and the cross entropy is a plain mean (no
  /// class weights, no label smoothing): that of a model of tokens.
  std::optional<double> perplexity = {};
  Seconds time;  ///< of the whole pass
};

/// correct / predictions.
[[nodiscard]] std::optional<double> accuracy(const ModelEvaluation& evaluation);

/// Runs `program`, which has all layers of a model, in evaluation mode over `pieces` of `data`. Changes no parameter
/// and no buffer. `seconds_now` is a clock; `progress`, if set, is called after each microbatch with the number done.
[[nodiscard]] ModelEvaluation evaluate(stage::StageProgram& program, const data::DataSource& data,
                                       const EvaluationPieces& pieces, const std::function<double()>& seconds_now,
                                       const std::function<void(std::int64_t)>& progress = {});

/// "loss 0.3421, accuracy 0.8731 (52358 of 59968), 59968 of 60000 samples, 32 left over, 812 samples/s".
[[nodiscard]] std::string evaluation_text(const ModelEvaluation& evaluation);

/// What was evaluated, for the document.
struct EvaluationSubject {
  std::string model;
  std::string data;
  std::string weights;               ///< path of the checkpoint or file
  std::optional<std::int64_t> step;  ///< of the checkpoint
};

/// The document "stagecraft.evaluation", described by costmodel/format/evaluation.schema.json.
[[nodiscard]] std::string evaluation_json(const ModelEvaluation& evaluation, const EvaluationSubject& subject);

}  // namespace stagecraft::run

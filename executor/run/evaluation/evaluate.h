#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "costmodel/format/results/evaluation_json.h"
#include "executor/data/data_source.h"
#include "executor/run/evaluation/prediction_watcher.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::run {

/// What part of the data to evaluate, and in which pieces.
struct EvaluationPieces {
  std::int64_t microbatch_samples = 1;
  std::int64_t microbatches = 1;
  std::int64_t samples_left = 0;  ///< of the data, too few for a microbatch
};

/// Pieces of `microbatch` samples that cover the data, or its first `samples`. Throws std::invalid_argument for endless
/// data if `samples` is absent, if the data has fewer, and if they do not fill one microbatch.
[[nodiscard]] EvaluationPieces evaluation_pieces(const data::DataSource& data, std::int64_t microbatch,
                                                 std::optional<std::int64_t> samples);

/// The largest divisor of `samples` from a quarter of `usual`, but at least `least`, to `usual`, so that none is left
/// over; all of them if they are fewer than `usual`; `usual` if there is none.
[[nodiscard]] std::int64_t even_microbatch(std::int64_t samples, std::int64_t usual, std::int64_t least);

/// Sets the fields of an evaluation that describe its predictions; `samples` must be set. No effect if there are none.
void set_predictions(format::ModelEvaluation& evaluation, const std::optional<Predictions>& found);

/// Runs `program`, which has all layers of `model`, in evaluation mode over `pieces` of `data`. Its loss is that of all
/// of them together, however large the pieces are (see model::LossKind), or the mean of their losses if it compares
/// samples. Changes no parameter and no buffer. `seconds_now` is a clock; `progress`, if set, is called after each
/// microbatch with the number done.
[[nodiscard]] format::ModelEvaluation evaluate(stage::StageProgram& program, const model::Model& model,
                                               const data::DataSource& data, const EvaluationPieces& pieces,
                                               const std::function<double()>& seconds_now,
                                               const std::function<void(std::int64_t)>& progress = {});

/// "loss 0.3421, accuracy 0.8731 (52358 of 59968), 59968 of 60000 samples, 32 left over, 812 samples/s".
[[nodiscard]] std::string evaluation_text(const format::ModelEvaluation& evaluation);

}  // namespace stagecraft::run

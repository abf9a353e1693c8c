#include "executor/run/evaluation/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "executor/run/binding/loss_shares.h"
#include "executor/run/evaluation/prediction_watcher.h"

namespace stagecraft::run {
EvaluationPieces evaluation_pieces(const data::DataSource& data, std::int64_t microbatch,
                                   std::optional<std::int64_t> samples) {
  const std::optional<std::int64_t> all = data.samples();
  if (!all && !samples) throw std::invalid_argument("the data is endless; give the number of samples with --samples");
  if (all && samples && *samples > *all)
    throw std::invalid_argument(fmt::format("the data has {} samples, fewer than {}", *all, *samples));
  const std::int64_t wanted = samples ? *samples : *all;
  if (wanted < microbatch)
    throw std::invalid_argument(fmt::format("{} samples do not fill one microbatch of {}", wanted, microbatch));
  return {microbatch, wanted / microbatch, wanted % microbatch};
}

std::int64_t even_microbatch(std::int64_t samples, std::int64_t usual, std::int64_t least) {
  const std::int64_t smallest = std::max(least, usual / 4 + (usual % 4 == 0 ? 0 : 1));
  for (std::int64_t size = std::min(samples, usual); size >= smallest; --size) {
    if (samples % size == 0) return size;
  }
  return samples < usual && samples >= std::max<std::int64_t>(least, 1) ? samples : usual;
}

void set_predictions(format::ModelEvaluation& evaluation, const std::optional<Predictions>& found) {
  if (!found || found->count == 0) return;
  evaluation.predictions = found->count;
  evaluation.correct = found->correct;
  evaluation.perplexity = perplexity(*found, evaluation.samples);
}

format::ModelEvaluation evaluate(stage::StageProgram& program, const model::Model& model, const data::DataSource& data,
                                 const EvaluationPieces& pieces, const std::function<double()>& seconds_now,
                                 const std::function<void(std::int64_t)>& progress) {
  program.evaluate();
  const double begin = seconds_now();
  format::ModelEvaluation out;
  std::optional<Predictions> all = Predictions{};
  PredictionWatcher watcher;
  JointLoss joint(model, data, pieces.microbatch_samples);
  for (std::int64_t m = 0; m < pieces.microbatches; ++m) {
    const stage::Flight flight = program.forward(
        {}, data.batch(m, 0, 1, pieces.microbatch_samples, program.data_inputs()), m, 0, /*keep_graph=*/false);
    joint.add(flight.loss.item<double>(), m, 0, 1);
    const auto found = watcher.take(1);
    if (!found) all.reset();
    if (all) add(*all, found->front());
    if (progress) progress(m + 1);
  }
  out.loss = joint.value();
  out.samples = pieces.microbatches * pieces.microbatch_samples;
  out.samples_left = pieces.samples_left;
  set_predictions(out, all);
  out.time = Seconds(seconds_now() - begin);
  return out;
}

std::string evaluation_text(const format::ModelEvaluation& evaluation) {
  std::string out = fmt::format("loss {:.6g}", evaluation.loss);
  if (const std::optional<double> share = accuracy(evaluation))
    out += fmt::format(", accuracy {:.4f} ({} of {})", *share, evaluation.correct, *evaluation.predictions);
  if (evaluation.perplexity) out += fmt::format(", perplexity {:.6g}", *evaluation.perplexity);
  const double rate = static_cast<double>(evaluation.samples) / evaluation.time.value;
  if (evaluation.samples_left > 0) {
    out += fmt::format(", {} of {} samples ({} left over, too few for a microbatch)", evaluation.samples,
                       evaluation.samples + evaluation.samples_left, evaluation.samples_left);
  } else {
    out += fmt::format(", {} samples", evaluation.samples);
  }
  return out + fmt::format(", {:.{}f} samples/s", rate, rate < 100 ? 1 : 0);
}

}  // namespace stagecraft::run

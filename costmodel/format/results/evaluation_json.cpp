#include "costmodel/format/results/evaluation_json.h"

#include <fmt/format.h>

#include <cmath>

#include "costmodel/format/description.h"

namespace stagecraft::format {
namespace {

struct WrittenEvaluation {
  ModelEvaluation result;
  EvaluationSubject subject;
};

/// Writes a number without a fraction as an integer.
template <class T>
Notation<T> shortest(const Notation<T>& notation) {
  const auto write = [notation](const T& value) {
    const double number = detail::to_number<double>(value);
    const bool whole = number == std::floor(number) && std::abs(number) < 1e16;
    return whole ? Json(static_cast<std::int64_t>(number)) : notation.write(value);
  };
  return {[notation](const Cursor& at) { return notation.read(at); }, write, notation.codec()->schema};
}

const Document<WrittenEvaluation>& evaluation_document() {
  using E = WrittenEvaluation;
  using M = ModelEvaluation;
  using S = EvaluationSubject;
  const auto result = &E::result;
  const auto subject = &E::subject;
  const auto count = integer(0, kMany);
  static const Document<E> document(
      {.name = "evaluation",
       .version = 1,
       .title = "Evaluation",
       .help = "How well a model does on data. Written by stagecraft evaluate --json."},
      {
          required("model", path(subject, &S::model), text(), "Name of the model."),
          required("data", path(subject, &S::data), text(), "Name of the data source."),
          required("weights", path(subject, &S::weights), text(), "Path of the checkpoint or of the file of weights."),
          optional("step", path(subject, &S::step), count,
                   "Steps of training before the checkpoint. Absent for a file of weights."),
          required("samples", path(result, &M::samples), count, "Evaluated samples."),
          required("samples_left", path(result, &M::samples_left), count,
                   "Samples left over, too few for a microbatch."),
          required("loss", path(result, &M::loss), shortest(number_or_null()),
                   "Mean loss over the microbatches; null if it is infinite or not a number."),
          shown<E, std::optional<double>>(
              "accuracy", [](const E& of) { return accuracy(of.result); }, shortest<double>(share()),
              "correct / predictions. Absent if the model does not compute one cross entropy against class numbers."),
          optional("correct", path(result, &M::correct), count,
                   "Predictions in which the right class has the highest score.")
              .only_if([](const E& of) { return of.result.predictions.has_value(); }),
          optional("predictions", path(result, &M::predictions), count, "Labels that are not ignored."),
          optional("perplexity", path(result, &M::perplexity), shortest(number_or_null()),
                   "exp of the mean cross entropy per prediction. Only if a sample has several predictions."),
          required("time_s", path(result, &M::time), shortest<Seconds>(not_negative()),
                   "Time of the whole pass in seconds."),
      });
  return document;
}

}  // namespace

std::optional<double> accuracy(const ModelEvaluation& evaluation) {
  if (!evaluation.predictions) return std::nullopt;
  return static_cast<double>(evaluation.correct) / static_cast<double>(*evaluation.predictions);
}

std::string evaluation_json(const ModelEvaluation& evaluation, const EvaluationSubject& subject) {
  return evaluation_document().text({evaluation, subject});
}
DocumentSchema evaluation_schema() { return evaluation_document().schema(); }

namespace {

std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

}  // namespace

std::string metrics_line(const StepMetrics& metrics) {
  std::string out = fmt::format(R"({{"step":{})", metrics.step);
  const auto add = [&out](const char* key, std::optional<double> value) {
    if (value) out += fmt::format(R"(,"{}":{})", key, number(*value));
  };
  add("epoch", metrics.epoch);
  add("loss", metrics.loss);
  add("learning_rate", metrics.learning_rate);
  add("step_s", metrics.step_time.value);
  add("samples_per_s", static_cast<double>(metrics.step_samples) / metrics.step_time.value);
  add("gradient_norm", metrics.gradient_norm);
  add("loss_scale", metrics.loss_scale);
  if (metrics.validation) {
    add("validation_loss", metrics.validation->loss);
    add("validation_accuracy", accuracy(*metrics.validation));
    add("validation_perplexity", metrics.validation->perplexity);
    add("validation_s", metrics.validation->time.value);
  }
  return out + "}\n";
}

}  // namespace stagecraft::format

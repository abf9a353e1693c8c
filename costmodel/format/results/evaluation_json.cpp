#include "costmodel/format/results/evaluation_json.h"

#include <fmt/format.h>

#include <cmath>

#include "costmodel/format/json_string.h"

namespace stagecraft::format {

std::optional<double> accuracy(const ModelEvaluation& evaluation) {
  if (!evaluation.predictions) return std::nullopt;
  return static_cast<double>(evaluation.correct) / static_cast<double>(*evaluation.predictions);
}

std::string evaluation_json(const ModelEvaluation& evaluation, const EvaluationSubject& subject) {
  const auto number = [](double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; };
  std::string out = "{\n  \"format\": \"stagecraft.evaluation\",\n  \"version\": 1";
  const auto add = [&out](const char* key, const std::string& value) {
    out += fmt::format(",\n  \"{}\": {}", key, value);
  };
  add("model", json_string(subject.model));
  add("data", json_string(subject.data));
  add("weights", json_string(subject.weights));
  if (subject.step) add("step", std::to_string(*subject.step));
  add("samples", std::to_string(evaluation.samples));
  add("samples_left", std::to_string(evaluation.samples_left));
  add("loss", number(evaluation.loss));
  if (const std::optional<double> share = accuracy(evaluation)) {
    add("accuracy", number(*share));
    add("correct", std::to_string(evaluation.correct));
    add("predictions", std::to_string(*evaluation.predictions));
  }
  if (evaluation.perplexity) add("perplexity", number(*evaluation.perplexity));
  add("time_s", number(evaluation.time.value));
  return out + "\n}\n";
}

}  // namespace stagecraft::format

#include "executor/run/evaluate.h"

#include <ATen/ops/argmax.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string_view>

namespace stagecraft::run {
namespace {

/// The predictions of one cross entropy.
struct Predictions {
  std::int64_t count = 0;
  std::int64_t correct = 0;
  double sum = 0;     ///< of the cross entropies
  bool plain = true;  ///< whether the result is their mean, so that `sum` is known
};

/// A call of aten::cross_entropy_loss(self, target, weight, reduction, ignore_index, label_smoothing) that runs. Its
/// arguments are only there when it begins.
struct CrossEntropyCall : at::ObserverContext {
  explicit CrossEntropyCall(c10::ArrayRef<const c10::IValue> inputs)
      : scores(inputs[0].toTensor()),
        target(inputs[1].toTensor()),
        ignored(inputs[4].toInt()),
        plain(inputs[3].toInt() == at::Reduction::Mean && inputs[5].toDouble() == 0 &&
              !(inputs[2].isTensor() && inputs[2].toTensor().defined())) {}

  at::Tensor scores;
  at::Tensor target;
  std::int64_t ignored;
  bool plain;  ///< the result is the mean of the cross entropies
};

/// The predictions of a call; absent if its targets are not class numbers.
std::optional<Predictions> predictions_of(const CrossEntropyCall& call, const c10::IValue& result) {
  if (at::isFloatingType(call.target.scalar_type())) return std::nullopt;
  const at::Tensor counted = call.target.ne(call.ignored);
  const at::Tensor right = call.scores.argmax(call.scores.dim() == 1 ? 0 : 1).eq(call.target).logical_and(counted);
  Predictions out{counted.sum().item<std::int64_t>(), right.sum().item<std::int64_t>(), 0, call.plain};
  if (out.plain && out.count > 0) out.sum = result.toTensor().item<double>() * static_cast<double>(out.count);
  return out;
}

/// Watches this thread's forwards for calls of the operator cross_entropy_loss, whichever file or block they are from.
class PredictionWatcher {
 public:
  PredictionWatcher()
      : callback_(at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end)
                                                 .scopes({at::RecordScope::FUNCTION})
                                                 .needsInputs(true)
                                                 .needsOutputs(true))) {
    current = this;
  }
  ~PredictionWatcher() {
    current = nullptr;
    at::removeCallback(callback_);
  }
  PredictionWatcher(const PredictionWatcher&) = delete;
  PredictionWatcher& operator=(const PredictionWatcher&) = delete;

  /// Adds the predictions since the last call, those of one forward, to `out`.
  void add_to(Predictions& out) {
    // With several losses, no one of them is the model's.
    known_ = known_ && calls_ == 1 && found_;
    if (known_) {
      out.count += found_->count;
      out.correct += found_->correct;
      out.sum += found_->sum;
      out.plain = out.plain && found_->plain;
    }
    calls_ = 0;
    found_.reset();
  }
  [[nodiscard]] bool known() const { return known_; }

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    if (std::string_view(function.name()) != "aten::cross_entropy_loss") return nullptr;
    return std::make_unique<CrossEntropyCall>(function.inputs());
  }
  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    if (context == nullptr || current == nullptr || function.outputs().size() != 1) return;
    ++current->calls_;
    current->found_ = predictions_of(static_cast<const CrossEntropyCall&>(*context), function.outputs()[0]);
  }

  static thread_local PredictionWatcher* current;  // a callback has no arguments of its own
  at::CallbackHandle callback_;
  int calls_ = 0;
  std::optional<Predictions> found_;
  bool known_ = true;
};
thread_local PredictionWatcher* PredictionWatcher::current = nullptr;

}  // namespace

EvaluationPieces evaluation_pieces(const data::DataSource& data, std::int64_t microbatch,
                                   std::optional<std::int64_t> samples) {
  const std::optional<std::int64_t> all = data.samples();
  if (!all && !samples) throw std::invalid_argument("the data have no end; say how many with --samples");
  if (all && samples && *samples > *all)
    throw std::invalid_argument(fmt::format("the data have {} samples, fewer than {}", *all, *samples));
  const std::int64_t wanted = samples ? *samples : *all;
  if (wanted < microbatch)
    throw std::invalid_argument(fmt::format("{} samples do not fill one microbatch of {}", wanted, microbatch));
  return {microbatch, wanted / microbatch, wanted % microbatch};
}

format::ModelEvaluation evaluate(stage::StageProgram& program, const data::DataSource& data,
                                 const EvaluationPieces& pieces, const std::function<double()>& seconds_now,
                                 const std::function<void(std::int64_t)>& progress) {
  program.evaluate();
  const double begin = seconds_now();
  format::ModelEvaluation out;
  Predictions all;
  PredictionWatcher watcher;
  double sum = 0;
  for (std::int64_t m = 0; m < pieces.microbatches; ++m) {
    const stage::Flight flight = program.forward(
        {}, data.batch(m, 0, 1, pieces.microbatch_samples, program.data_inputs()), m, 0, /*keep_graph=*/false);
    sum += flight.loss.item<double>();
    watcher.add_to(all);
    if (progress) progress(m + 1);
  }
  out.loss = sum / static_cast<double>(pieces.microbatches);
  out.samples = pieces.microbatches * pieces.microbatch_samples;
  out.samples_left = pieces.samples_left;
  if (watcher.known() && all.count > 0) {
    out.predictions = all.count;
    out.correct = all.correct;
    if (all.plain && all.count > out.samples) out.perplexity = std::exp(all.sum / static_cast<double>(all.count));
  }
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

#include "executor/run/evaluation/prediction_watcher.h"

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/argmax.h>
#include <ATen/record_function.h>

#include <cmath>
#include <memory>
#include <string_view>
#include <utility>

namespace stagecraft::run {
namespace {

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

thread_local std::vector<std::optional<Predictions>>* watched = nullptr;  // a callback has no arguments of its own

std::unique_ptr<at::ObserverContext> begin_call(const at::RecordFunction& function) {
  if (std::string_view(function.name()) != "aten::cross_entropy_loss") return nullptr;
  return std::make_unique<CrossEntropyCall>(function.inputs());
}

void end_call(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr || watched == nullptr || function.outputs().size() != 1) return;
  watched->push_back(predictions_of(static_cast<const CrossEntropyCall&>(*context), function.outputs()[0]));
}

}  // namespace

void add(Predictions& sum, const Predictions& other) {
  sum.count += other.count;
  sum.correct += other.correct;
  sum.sum += other.sum;
  sum.plain = sum.plain && other.plain;
}

std::optional<double> perplexity(const Predictions& predictions, std::int64_t samples) {
  if (!predictions.plain || predictions.count <= samples) return std::nullopt;
  return std::exp(predictions.sum / static_cast<double>(predictions.count));
}

PredictionWatcher::PredictionWatcher()
    : callback_(at::addThreadLocalCallback(at::RecordFunctionCallback(&begin_call, &end_call)
                                               .scopes({at::RecordScope::FUNCTION})
                                               .needsInputs(true)
                                               .needsOutputs(true))) {
  watched = &calls_;
}

PredictionWatcher::~PredictionWatcher() {
  watched = nullptr;
  at::removeCallback(callback_);
}

std::optional<std::vector<Predictions>> PredictionWatcher::take(std::size_t forwards) {
  const std::vector<std::optional<Predictions>> calls = std::exchange(calls_, {});
  if (calls.size() != forwards) return std::nullopt;
  std::vector<Predictions> out;
  for (const auto& call : calls) {
    if (!call) return std::nullopt;
    out.push_back(*call);
  }
  return out;
}

}  // namespace stagecraft::run

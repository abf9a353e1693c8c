#include "executor/run/evaluation.h"

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "costmodel/index.h"
#include "executor/channel/control_tags.h"
#include "executor/run/binding/loss_shares.h"

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

namespace {

/// The first `steps` steps of other data, again and again: data are loaded ahead, beyond the end of a pass.
class RepeatedPass : public data::DataSource {
 public:
  RepeatedPass(const data::DataSource& data, std::int64_t steps) : data_(data), steps_(steps) {}
  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    return data_.batch(step % steps_, microbatch, microbatches, samples, inputs);
  }

 private:
  const data::DataSource& data_;
  std::int64_t steps_;
};

using Tensors = std::unordered_map<std::string, at::Tensor>;

const at::Tensor& find(const Tensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  if (found != tensors.end()) return found->second;
  throw std::invalid_argument("the model has \"" + name + "\" in evaluation mode, but not in training");
}

WorkerOptions worker_options(std::uint64_t seed, c10::Device device, const std::function<double()>& now) {
  WorkerOptions out;
  out.seed = seed;
  out.now = now;
  out.device = device;
  return out;
}

/// Numbers before the losses in a rank's message.
constexpr std::size_t kHead = 5;

}  // namespace

Plan forward_plan(const BoundPlan& plan) {
  Plan out = plan.plan();
  out.schedule = "listed";
  out.sharding = StateSharding::None;
  out.listed = plan.action_lists();
  for (std::vector<Action>& list : out.listed)
    std::erase_if(list, [](const Action& action) { return action.kind != ActionKind::Forward; });
  for (Stage& stage : out.stages) {
    stage.recompute = false;
    stage.recompute_every = 0;
  }
  return out;
}

/// What this rank found in a pass.
struct TrainingValidation::Part {
  std::vector<double> losses;  // of microbatches_of(rank_)
  std::optional<Predictions> predictions = Predictions{};
};

TrainingValidation::TrainingValidation(const BoundModel& bound, const ValidationOptions& options, int rank,
                                       channel::Channel& channel, std::uint64_t seed, c10::Device device,
                                       const std::function<double()>& now)
    : plan_(forward_plan(bound.plan)),
      bound_(bind_model(plan_, *options.model)),
      every_(options.every),
      rank_(rank),
      channel_(channel),
      now_(now),
      pieces_(evaluation_pieces(*options.data, *plan_.plan().microbatch_samples, options.samples)),
      steps_((pieces_.microbatches + plan_.plan().microbatches - 1) / plan_.plan().microbatches),
      data_(std::make_unique<RepeatedPass>(*options.data, steps_)),
      worker_(std::make_unique<SynchronousWorker>(bound_, rank, channel, *data_, worker_options(seed, device, now))) {
  // A loss that is not finite is a result.
  worker_->on_nonfinite(stage::OnNonfinite::Warn, [](const std::string&) {});
  if (!device.is_cpu()) worker_->warm_up(*data_);
}

bool TrainingValidation::is_due(std::int64_t done, std::int64_t steps) const {
  return done == steps || (every_ > 0 && done % every_ == 0);
}

void TrainingValidation::follow(StageWorker& training) { follow(training, training.gather_averages()); }

void TrainingValidation::follow(StageWorker& training, const std::map<std::string, at::Tensor>& averages) {
  Tensors trained;
  training.visit_stages([&](int, stage::StageProgram& program, stage::Optimizer& optimizer) {
    const std::vector<stage::Parameter>& parameters = program.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& value = parameters[i].value;
      const auto gathered = averages.find(parameters[i].name);
      at::Tensor average = gathered != averages.end() ? gathered->second : optimizer.state(i).average;
      if (!average.defined() || average.sizes() != value.sizes()) average = value;
      trained.emplace(parameters[i].name, average);
    }
    for (const stage::Parameter& buffer : program.buffers()) trained.emplace(buffer.name, buffer.value);
  });
  const at::NoGradGuard no_graph;
  worker_->visit_stages([&](int, stage::StageProgram& program, stage::Optimizer& optimizer) {
    std::vector<at::Tensor> values;
    for (const stage::Parameter& parameter : program.parameters()) values.push_back(find(trained, parameter.name));
    program.bind(values);
    optimizer.rebind(std::move(values));
    for (const stage::Parameter& buffer : program.buffers()) at::Tensor(buffer.value).copy_(find(trained, buffer.name));
  });
}

std::vector<std::int64_t> TrainingValidation::microbatches_of(int rank) const {
  std::vector<std::int64_t> out;
  const int in_step = plan_.plan().microbatches;
  const std::vector<int> of_step = plan_.microbatches_of(loss_stage(bound_), rank, in_step);
  for (std::int64_t first = 0; first < pieces_.microbatches; first += in_step) {
    for (const int m : of_step) {
      if (first + m < pieces_.microbatches) out.push_back(first + m);
    }
  }
  return out;
}

void TrainingValidation::compute(Part& part) {
  const int stage = loss_stage(bound_);
  std::vector<int> order;  // of this rank's losses in a step
  for (const Action& action : worker_->actions()) {
    if (action.kind == ActionKind::Forward && action.stage == stage) order.push_back(action.microbatch);
  }
  const std::int64_t in_step = plan_.plan().microbatches;
  std::optional<PredictionWatcher> watcher;
  if (!order.empty()) watcher.emplace();
  for (std::int64_t k = 0; k < steps_; ++k, ++done_) {
    // The last step may reach beyond the end of the data.
    const auto counts = [&](int microbatch) { return k * in_step + microbatch < pieces_.microbatches; };
    worker_->compute(done_);
    worker_->update_step(done_);
    (void)worker_->take_spans();
    for (const auto& [microbatch, loss] : worker_->take_losses(done_)) {
      if (counts(microbatch)) part.losses.push_back(loss);
    }
    if (!watcher) continue;
    const auto found = watcher->take(order.size());
    if (!found) part.predictions.reset();
    for (std::size_t i = 0; part.predictions && i < order.size(); ++i) {
      if (counts(order[i])) add(*part.predictions, (*found)[i]);
    }
  }
}

std::vector<double> TrainingValidation::packed(const Part& part) const {
  const Predictions found = part.predictions.value_or(Predictions{});
  std::vector<double> out{part.predictions ? 1.0 : 0.0, found.plain ? 1.0 : 0.0, static_cast<double>(found.count),
                          static_cast<double>(found.correct), found.sum};
  out.insert(out.end(), part.losses.begin(), part.losses.end());
  return out;
}

format::ModelEvaluation TrainingValidation::gather(const Part& part) {
  std::vector<double> losses(to_index(pieces_.microbatches));
  std::optional<Predictions> all = Predictions{};
  for (const int source : plan_.ranks_of(loss_stage(bound_))) {
    const std::vector<std::int64_t> microbatches = microbatches_of(source);
    if (microbatches.empty()) continue;
    std::vector<double> values;
    if (source == rank_) {
      values = packed(part);
    } else {
      const auto count = static_cast<std::int64_t>(kHead + microbatches.size());
      const at::Tensor arrived = channel_.receive({{count}, at::kDouble}, source, channel::kValidationTag)->wait();
      values.assign(arrived.const_data_ptr<double>(), arrived.const_data_ptr<double>() + count);
    }
    if (values[0] == 0) all.reset();
    if (all) {
      add(*all,
          {static_cast<std::int64_t>(values[2]), static_cast<std::int64_t>(values[3]), values[4], values[1] == 1});
    }
    for (std::size_t i = 0; i < microbatches.size(); ++i) losses[to_index(microbatches[i])] = values[kHead + i];
  }
  format::ModelEvaluation out;
  const int in_step = plan_.plan().microbatches;
  JointLoss joint(bound_.model, *data_, pieces_.microbatch_samples);
  for (std::int64_t k = 0; k < pieces_.microbatches; ++k)
    joint.add(losses[to_index(k)], k / in_step, to_int(k % in_step), in_step);
  out.loss = joint.value();
  out.samples = pieces_.microbatches * pieces_.microbatch_samples;
  out.samples_left = pieces_.samples_left;
  set_predictions(out, all);
  return out;
}

std::optional<format::ModelEvaluation> TrainingValidation::run(StageWorker& training) {
  const double begin = now_();
  const std::map<std::string, at::Tensor> averages = training.gather_averages();
  training.gather_parameters();
  follow(training, averages);
  Part part;
  compute(part);
  training.free_parameters();
  if (!averages.empty()) follow(training, {});  // releases their memory
  std::optional<format::ModelEvaluation> out;
  if (rank_ == 0) {
    out = gather(part);
  } else if (!part.losses.empty()) {
    const std::vector<double> values = packed(part);
    at::Tensor message = at::empty({static_cast<std::int64_t>(values.size())}, at::kDouble);
    std::ranges::copy(values, message.data_ptr<double>());
    channel_.send(message, 0, channel::kValidationTag)->wait();
  }
  if (out) out->time = Seconds(now_() - begin);
  return out;
}

}  // namespace stagecraft::run

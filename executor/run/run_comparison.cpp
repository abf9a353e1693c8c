#include "executor/run/run_comparison.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/text/number.h"
#include "executor/device/autocast.h"
#include "executor/device/dtype.h"
#include "executor/device/machine/processor.h"
#include "executor/run/binding/loss_shares.h"
#include "executor/stage/gradients/norms.h"

namespace stagecraft::run {

Reference::Reference(const BoundModel& bound, const data::DataSource& data, const stage::OptimizerOptions& optimizer,
                     std::uint64_t seed, c10::Device device)
    : model_(bound.model),
      plan_(bound.plan.plan()),
      bound_(bound.plan),
      data_(data),
      options_(with_types(optimizer, plan_)),
      seed_(seed),
      device_(device),
      stage_of_layer_(bound.model.layers.size()) {
  const model::Model& model = bound.model;
  for (std::size_t s = 0; s < bound.layers.size(); ++s) {
    for (const int layer : bound.layers[s]) stage_of_layer_[to_index(layer)] = to_int(s);
  }
  std::vector<int> all(model.layers.size());
  std::iota(all.begin(), all.end(), 0);
  program_ = std::make_unique<stage::StageProgram>(model, std::move(all), std::vector<stage::ReceivedValue>{},
                                                   std::vector<model::ValueRef>{}, seed, compute_place(plan_, device));
  optimizer_ = stage::optimizer_of(options_, program_->parameters());
  const auto is_replicated = [this](int layer) { return bound_.replicas(stage_of_layer_[to_index(layer)]) > 1; };
  statistics_ = std::make_unique<stage::MovingStatistics>(model, *program_, is_replicated);
  const std::vector<stage::Parameter> state = program_->buffers();
  auto next = state.begin();
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    std::vector<at::Tensor>& of_layer = buffers_.emplace_back();
    for (const model::ParameterSpec& spec : model.layers[l].parameters) {
      if (spec.trainable) continue;
      of_layer.push_back(spec.constant ? model::initial_value(spec, seed).to(device) : (next++)->value);
      if (spec.decay && is_replicated(to_int(l))) replayed_.push_back(of_layer.back());
    }
  }
}

void Reference::record_statistics(std::int64_t step, int microbatch) {
  if (replayed_.empty()) return;
  std::vector<at::Tensor> before;
  for (const stage::Parameter& buffer : program_->buffers()) before.push_back(buffer.value.clone());
  statistics_->begin();
  (void)forward(step, microbatch);
  statistics_->end(microbatch);
  const at::NoGradGuard no_graph;
  auto kept = before.begin();
  for (const stage::Parameter& buffer : program_->buffers()) buffer.value.copy_(*kept++);
}

at::Tensor Reference::forward(std::int64_t step, int microbatch) {
  std::vector<std::vector<at::Tensor>> values;  // by layer
  const std::vector<stage::Parameter>& parameters = program_->leaves();
  std::size_t next_parameter = 0;
  std::vector<at::Tensor> data(model_.inputs.size());
  std::vector<at::Tensor> given =
      data_.batch(step, microbatch, plan_.microbatches, *plan_.microbatch_samples, program_->data_inputs());
  for (std::size_t i = 0; i < given.size(); ++i) data[to_index(program_->data_inputs()[i])] = given[i].to(device_);
  std::optional<device::AutocastScope> autocast;
  const at::ScalarType type = device::compute_type(plan_.dtype);
  if (type != at::kFloat) autocast.emplace(device_.type(), true, type);
  for (std::size_t l = 0; l < model_.layers.size(); ++l) {
    const model::LayerSpec& layer = model_.layers[l];
    std::vector<at::Tensor> inputs;
    for (const model::ValueRef& from : layer.inputs)
      inputs.push_back(from.layer < 0 ? data[to_index(from.input)]
                                      : values[to_index(from.layer)][to_index(from.output)]);
    std::vector<at::Tensor> own;
    for (const model::ParameterSpec& parameter : layer.parameters)
      if (parameter.trainable) own.push_back(stage::as_read(parameters[next_parameter++].value));
    model::LayerCall call;
    call.inputs = inputs;
    call.parameters = own;
    call.buffers = buffers_[l];
    call.seed = seed_;
    call.step = step;
    call.microbatch = microbatch;
    values.push_back(layer.forward(call));
  }
  return values.back().front();
}

void Reference::compute(std::int64_t step) {
  step_ = step;
  std::vector<stage::Parameter>& parameters = program_->leaves();
  const auto stage_of = [&](std::size_t i) { return stage_of_layer_[to_index(parameters[i].layer)]; };
  // Layers of one stage that share a parameter count as one holder.
  std::map<std::string, std::map<int, std::vector<std::size_t>>> holders;  // name -> stage -> parameters
  for (std::size_t i = 0; i < parameters.size(); ++i) holders[parameters[i].name][stage_of(i)].push_back(i);
  // One sum for each parameter and replica of its stage, under its first holder.
  std::vector<std::vector<at::Tensor>> sums(parameters.size());
  for (const auto& [name, by_stage] : holders) {
    for (const auto& [stage, copies_on_stage] : by_stage) {
      sums[copies_on_stage.front()].resize(to_index(bound_.replicas(stage)));
    }
  }
  const auto add = [](at::Tensor& sum, const at::Tensor& value) {
    if (value.defined()) sum = sum.defined() ? sum.add(value) : value.clone();
  };
  std::vector<at::Tensor> before;
  for (const at::Tensor& buffer : replayed_) before.push_back(buffer.clone());
  losses_.clear();
  const std::vector<double> shares = loss_shares(model_, data_, step, plan_.microbatches, *plan_.microbatch_samples);
  for (int m = 0; m < plan_.microbatches; ++m) {
    for (const stage::Parameter& parameter : parameters) parameter.value.mutable_grad() = at::Tensor();
    record_statistics(step, m);
    const at::Tensor loss = forward(step, m);
    const double share = shares[to_index(m)];
    losses_.push_back(share == 0 ? 0 : (share == 1 ? loss : loss.mul(share)).item<double>());
    if (loss.requires_grad() && share != 0)
      torch::autograd::backward({loss}, {at::full_like(loss, (scaler_ ? scaler_->scale() : 1) * share)});
    const at::NoGradGuard no_graph;
    for (const auto& [name, by_stage] : holders) {
      for (const auto& [stage, copies_on_stage] : by_stage) {
        at::Tensor uses;
        for (const std::size_t i : std::views::reverse(copies_on_stage)) add(uses, parameters[i].value.grad());
        add(sums[copies_on_stage.front()][to_index(bound_.replica_of(stage, m))], uses);
      }
    }
  }

  const at::NoGradGuard no_graph;
  for (std::size_t i = 0; i < replayed_.size(); ++i) replayed_[i].copy_(before[i]);
  // Holders of a tied parameter by rank: stage, then replica.
  gradients_.clear();
  for (const auto& [name, by_stage] : holders) {
    at::Tensor total;
    std::vector<std::size_t> copies;
    for (const auto& [stage, copies_on_stage] : by_stage) {
      for (const at::Tensor& sum : sums[copies_on_stage.front()]) add(total, sum);
      copies.insert(copies.end(), copies_on_stage.begin(), copies_on_stage.end());
    }
    for (const std::size_t i : copies) {
      const at::Tensor gradient = copies.size() > 1 && total.defined() ? total.clone() : total;
      gradients_[{parameters[i].layer, name}] = gradient;
      parameters[i].value.mutable_grad() = gradient;
    }
  }
}

void Reference::update() {
  statistics_->apply();
  const bool skipped = overflow();
  double divisor = plan_.microbatches * (scaler_ ? scaler_->scale() : 1);
  if (options_.clip_norm > 0)
    divisor *= stage::clip_divisor(stage::squared_norms(program_->parameters()), divisor, options_.clip_norm);
  if (scaler_) scaler_->update(skipped);
  if (!skipped) optimizer_->step(divisor, stage::rate_factor(options_.rate, step_) * rate_scale_);
}

at::Tensor Reference::gradient(int layer, const std::string& name) const {
  const auto it = gradients_.find({layer, name});
  return it == gradients_.end() ? at::Tensor() : it->second;
}

namespace {

template <typename T>
T read_number(const files::SafetensorsFile& file, const std::string& key) {
  const auto& metadata = file.header().metadata;
  const auto it = metadata.find(key);
  const std::string text = it == metadata.end() ? "" : it->second;
  const std::optional<T> value = number_in<T>(text);
  if (!value) {
    throw FormatError(
        fmt::format("{}: /__metadata__/{}: found \"{}\", expected a number, as stagecraft export-model --record writes",
                    file.path(), key, text));
  }
  return *value;
}

}  // namespace

TrainingRecord::TrainingRecord(const std::string& path) : file_(path) {
  const auto& metadata = file_.header().metadata;
  // Version 1 seeded a whole block of torch.autocast or torch.no_grad; version 2 its random operators, one by one.
  for (const auto& [key, wanted] :
       std::map<std::string, std::vector<std::string>>{{"format", {"stagecraft.record"}}, {"version", {"1", "2"}}}) {
    const auto it = metadata.find(key);
    if (it == metadata.end() || std::ranges::find(wanted, it->second) == wanted.end()) {
      throw FormatError(fmt::format("{}: /__metadata__/{}: found {}, expected \"{}\"", path, key,
                                    it == metadata.end() ? "nothing" : "\"" + it->second + "\"",
                                    fmt::join(wanted, "\" or \"")));
    }
  }
  steps_ = read_number<std::int64_t>(file_, "steps");
  microbatches_ = read_number<std::int64_t>(file_, "microbatches");
  samples_ = read_number<std::int64_t>(file_, "samples");
  learning_rate_ = read_number<double>(file_, "learning_rate");
  seed_ = read_number<std::uint64_t>(file_, "seed");
}

void TrainingRecord::check_fits(const Plan& plan, std::int64_t steps, const stage::OptimizerOptions& optimizer,
                                std::uint64_t seed) const {
  const bool plain = optimizer.name == "sgd" && optimizer.momentum == 0 && optimizer.weight_decay == 0 &&
                     optimizer.groups.empty() && optimizer.clip_norm == 0 && optimizer.rate.name == "constant" &&
                     optimizer.rate.warmup == 0;
  if (plan.microbatches == microbatches_ && plan.microbatch_samples == samples_ && steps == steps_ && plain &&
      optimizer.learning_rate == learning_rate_ && seed == seed_)
    return;
  throw std::invalid_argument(
      fmt::format("{} records {} steps of {} microbatches of {} samples with plain SGD; use a plan with the same "
                  "microbatches and --steps {} --learning-rate {} --seed {}",
                  file_.path(), steps_, microbatches_, samples_, steps_, learning_rate_, seed_));
}

std::string TrainingRecord::other_kernels(int threads) const {
  std::map<std::string, std::string> here = device::cpu_kernels();
  here["threads"] = std::to_string(threads);
  std::vector<std::string> differences;
  for (const auto& [key, value] : here) {
    const auto it = file_.header().metadata.find(key);
    if (it == file_.header().metadata.end()) {
      differences.push_back(fmt::format("does not state its {}; here it is \"{}\"", key, value));
    } else if (it->second != value) {
      differences.push_back(fmt::format("was made with {} \"{}\"; here it is \"{}\"", key, it->second, value));
    }
  }
  return differences.empty() ? "" : fmt::format("the record {}", fmt::join(differences, ", "));
}

void TrainingRecord::compare_gradients(std::int64_t step, const std::vector<stage::Parameter>& parameters,
                                       Check& check) const {
  std::vector<ComparedTensor> compared;
  for (const stage::Parameter& parameter : parameters) {
    const std::string name = fmt::format("gradient.{}/{}", step, parameter.name);
    const at::Tensor found = parameter.value.grad();
    const bool recorded = file_.header().tensors.contains(name);
    if (!recorded && !file_.header().tensors.contains("parameter/" + parameter.name)) {
      throw FormatError(fmt::format("{}: no parameter \"{}\"; record the same model", file_.path(), parameter.name));
    }
    compared.push_back({fmt::format("gradient of \"{}\" in step {}", parameter.name, step + 1), parameter.layer,
                        found.defined() ? found.cpu() : found, recorded ? file_.read(name) : at::Tensor()});
  }
  compare_tensors(compared, check);
}

void TrainingRecord::compare_losses(std::int64_t step, const stage::MicrobatchLosses& losses, Check& check) const {
  const at::Tensor all = file_.read("loss");
  for (const auto& [microbatch, found] : losses) {
    compare_loss(found, all.select(0, step).select(0, microbatch).item<double>(), check);
  }
}

void TrainingRecord::compare_end(const std::vector<stage::Parameter>& parameters,
                                 const std::vector<stage::Parameter>& buffers, Check& check) const {
  const auto compare = [&](const std::string& prefix, const std::vector<stage::Parameter>& all) {
    std::vector<ComparedTensor> compared;
    for (const stage::Parameter& parameter : all) {
      // Frozen parameters are buffers here.
      const std::string other = prefix == "buffer/" ? "parameter/" : "buffer/";
      const std::string name = file_.header().tensors.contains(prefix + parameter.name) ? prefix : other;
      compared.push_back({fmt::format("\"{}\" at the end", parameter.name), parameter.layer,
                          parameter.value.detach().cpu(), file_.read(name + parameter.name)});
    }
    compare_tensors(compared, check);
  };
  compare("parameter/", parameters);
  compare("buffer/", buffers);
}

RunComparison::RunComparison(const BoundModel& bound, const data::DataSource& data, const RunOptions& options) {
  const Plan& plan = bound.plan.plan();
  const bool compares = options.check || !options.expected.empty();
  if (compares && (!bound.plan.schedule().trains || bound.plan.asynchronous())) {
    throw std::invalid_argument("--check and --expect compare the gradients of a step; schedule \"" + plan.schedule +
                                "\" has none to compare");
  }
  if (options.check) reference_.emplace(bound, data, options.optimizer, options.seed, options.device);
  if (options.expected.empty()) return;
  record_.emplace(options.expected);
  record_->check_fits(plan, options.steps, options.optimizer, options.seed);
  check_.with = options.expected;
  check_.reasons = other_orders(bound);
  if (const std::string other = record_->other_kernels(options.threads); !other.empty()) {
    check_.reasons.push_back(other);
    check_.tolerance = kOtherKernelsTolerance;
    check_.other_kernels = true;
  }
}

void RunComparison::compare_step(std::int64_t step, const StageWorker& worker, const stage::MicrobatchLosses& losses) {
  if (record_) {
    record_->compare_gradients(step, worker.parameters(), check_);
    record_->compare_losses(step, losses, check_);
    return;
  }
  reference_->compute(step);
  if (!reference_->overflow()) compare_gradients(step, worker);
  for (const auto& [microbatch, loss] : losses) compare_loss(loss, reference_->losses()[to_index(microbatch)], check_);
  reference_->update();
}

void RunComparison::compare_gradients(std::int64_t step, const StageWorker& worker) {
  std::vector<ComparedTensor> compared;
  for (const stage::Parameter& parameter : worker.parameters()) {
    compared.push_back({fmt::format("gradient of \"{}\" in step {}", parameter.name, step + 1), parameter.layer,
                        parameter.value.grad(), reference_->gradient(parameter.layer, parameter.name)});
  }
  compare_tensors(compared, check_);
}

void RunComparison::compare_end(StageWorker& worker) {
  if (!record_) return;
  worker.gather_parameters();
  worker.visit_stages([&](int, stage::StageProgram& program, stage::Optimizer&) {
    record_->compare_end(program.parameters(), program.buffers(), check_);
  });
  worker.free_parameters();
}

}  // namespace stagecraft::run

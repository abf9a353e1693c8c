#include "executor/training_record.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <stdexcept>

#include "costmodel/errors.h"

namespace stagecraft {
namespace {

template <typename T>
T read_number(const SafetensorsFile& file, const std::string& key) {
  const auto& metadata = file.header().metadata;
  const auto it = metadata.find(key);
  const std::string text = it == metadata.end() ? "" : it->second;
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw FormatError(
        fmt::format("{}: /__metadata__/{}: found \"{}\", wanted a number, as stagecraft export-model "
                    "--record writes it",
                    file.path(), key, text));
  }
  return value;
}

}  // namespace

void compare_values(const at::Tensor& found, const at::Tensor& expected, Check& check) {
  const at::NoGradGuard no_graph;
  check.values += found.numel();
  if (found.numel() == 0) return;
  const bool real = found.is_floating_point();
  // Not a number equals nothing, so a run that diverges is told as different.
  check.different += found.numel() - found.eq(expected).sum().item<std::int64_t>();
  const at::Tensor a = real ? found : found.to(at::kDouble), b = real ? expected : expected.to(at::kDouble);
  const double scale = std::max(b.abs().max().item<double>(), 1e-30);
  const double error = a.sub(b).abs().max().item<double>() / scale;
  check.largest_error = std::isnan(error) ? error : std::max(check.largest_error, error);
}

TrainingRecord::TrainingRecord(const std::string& path) : file_(path) {
  const auto& metadata = file_.header().metadata;
  for (const auto& [key, wanted] :
       std::map<std::string, std::string>{{"format", "stagecraft.record"}, {"version", "1"}}) {
    const auto it = metadata.find(key);
    if (it == metadata.end() || it->second != wanted) {
      throw FormatError(fmt::format("{}: /__metadata__/{}: found {}, wanted \"{}\"", path, key,
                                    it == metadata.end() ? "nothing" : "\"" + it->second + "\"", wanted));
    }
  }
  steps_ = read_number<std::int64_t>(file_, "steps");
  microbatches_ = read_number<std::int64_t>(file_, "microbatches");
  samples_ = read_number<std::int64_t>(file_, "samples");
  learning_rate_ = read_number<double>(file_, "learning_rate");
  seed_ = read_number<std::uint64_t>(file_, "seed");
}

void TrainingRecord::check_fits(const Plan& plan, const RunOptions& options) const {
  const OptimizerOptions& own = options.optimizer;
  const bool plain = own.name == "sgd" && own.momentum == 0 && own.weight_decay == 0 && own.clip_norm == 0 &&
                     own.rate.name == "constant" && own.rate.warmup == 0;
  if (plan.microbatches == microbatches_ && plan.microbatch_samples == samples_ && options.steps == steps_ && plain &&
      own.learning_rate == learning_rate_ && options.seed == seed_)
    return;
  throw std::invalid_argument(
      fmt::format("{} records {} steps of {} microbatches of {} samples, by plain SGD; wanted are a plan of such "
                  "microbatches and --steps {} --learning-rate {} --seed {}",
                  file_.path(), steps_, microbatches_, samples_, steps_, learning_rate_, seed_));
}

void TrainingRecord::compare_gradients(std::int64_t step, const std::vector<Parameter>& parameters,
                                       Check& check) const {
  for (const Parameter& parameter : parameters) {
    const std::string name = fmt::format("gradient.{}/{}", step, parameter.name);
    const at::Tensor found = parameter.value.grad();
    const bool recorded = file_.header().tensors.contains(name);
    if (!recorded && !file_.header().tensors.contains("parameter/" + parameter.name)) {
      throw FormatError(
          fmt::format("{}: has no parameter \"{}\"; record the model that is run", file_.path(), parameter.name));
    }
    if (!recorded && !found.defined()) continue;
    const at::Tensor expected = recorded ? file_.read(name) : at::zeros_like(found);
    compare_values(found.defined() ? found.cpu() : at::zeros_like(expected), expected.to(at::kCPU), check);
  }
}

void TrainingRecord::compare_losses(std::int64_t step, const MicrobatchLosses& losses, Check& check) const {
  const at::Tensor all = file_.read("loss");
  for (const auto& [microbatch, found] : losses) {
    const auto expected = all.select(0, step).select(0, microbatch).item<double>();
    ++check.losses;
    if (found != expected) ++check.losses_different;
    const double error = std::abs(found - expected) / std::max(std::abs(expected), 1e-30);
    check.largest_loss_error = std::isnan(error) ? error : std::max(check.largest_loss_error, error);
  }
}

void TrainingRecord::compare_end(const std::vector<Parameter>& parameters, const std::vector<Parameter>& buffers,
                                 Check& check) const {
  const auto compare = [&](const std::string& prefix, const std::vector<Parameter>& all) {
    for (const Parameter& each : all) {
      // Frozen parameters are buffers here.
      const std::string other = prefix == "buffer/" ? "parameter/" : "buffer/";
      const std::string name = file_.header().tensors.contains(prefix + each.name) ? prefix : other;
      compare_values(each.value.detach().cpu(), file_.read(name + each.name), check);
    }
  };
  compare("parameter/", parameters);
  compare("buffer/", buffers);
}

}  // namespace stagecraft

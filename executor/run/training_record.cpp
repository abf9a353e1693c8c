#include "executor/run/training_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/text/number.h"
#include "executor/device/machine/processor.h"

namespace stagecraft::run {
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

}  // namespace stagecraft::run

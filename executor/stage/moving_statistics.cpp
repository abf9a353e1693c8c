#include "executor/stage/moving_statistics.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <stdexcept>

#include "costmodel/index.h"
#include "executor/channel/control_tags.h"
#include "executor/device/dtype.h"

namespace stagecraft::stage {

namespace {

/// Number of values that `value` takes in a record, which is float32 so that a channel can sum it. Other types are
/// stored byte by byte: each byte is an integer below 256, which float32 represents exactly.
std::int64_t record_values(std::int64_t values, at::ScalarType dtype) {
  return dtype == at::kFloat ? values : values * static_cast<std::int64_t>(c10::elementSize(dtype));
}

at::Tensor to_record(const at::Tensor& value) {
  const at::Tensor flat = value.flatten();
  return flat.scalar_type() == at::kFloat ? flat : flat.view(at::kByte).to(at::kFloat);
}

at::Tensor from_record(const at::Tensor& record, const at::Tensor& like) {
  const bool as_is = like.scalar_type() == at::kFloat;
  return (as_is ? record : record.to(at::kByte).view(like.scalar_type())).view(like.sizes());
}

const model::ParameterSpec& spec_of(const model::LayerSpec& layer, const std::string& name) {
  for (const model::ParameterSpec& spec : layer.parameters) {
    if (spec.name == name && !spec.trainable) return spec;
  }
  throw std::logic_error("a layer lacks a buffer of its program");
}

}  // namespace

std::int64_t moving_values(const model::Model& model, const std::vector<int>& layers) {
  std::int64_t out = 0;
  for (const int index : layers) {
    for (const model::ParameterSpec& buffer : model.layers[to_index(index)].parameters) {
      if (!buffer.trainable && buffer.decay) out += record_values(c10::multiply_integers(buffer.shape), buffer.dtype);
    }
  }
  return out;
}

MovingStatistics::MovingStatistics(const model::Model& model, const StageProgram& program,
                                   const std::function<bool(int)>& wanted) {
  for (const Parameter& buffer : program.buffers()) {
    const model::LayerSpec& layer = model.layers[to_index(buffer.layer)];
    const std::optional<double> decay = spec_of(layer, buffer.name).decay;
    if (!decay || !wanted(buffer.layer)) continue;
    const at::ScalarType dtype = buffer.value.scalar_type();
    if (dtype == at::kBool || (!at::isFloatingType(dtype) && *decay != 0 && *decay != 1)) {
      throw std::invalid_argument(
          fmt::format("layer \"{}\": buffer \"{}\" of {} decays by {}, which its type cannot represent", layer.name,
                      buffer.name, device::dtype_name(dtype), *decay));
    }
    // With a separate version counter: graphs save running statistics, whose values their backward never reads.
    running_.push_back({buffer.value.variable_data(), *decay});
    values_ += record_values(buffer.value.numel(), dtype);
  }
}

void MovingStatistics::begin() {
  kept_.clear();
  // A kernel that updates zeros leaves only the microbatch's part.
  for (const Running& running : running_) {
    kept_.push_back(running.value.clone());
    running.value.zero_();
  }
}

void MovingStatistics::end(int microbatch) {
  if (running_.empty()) return;
  std::vector<at::Tensor> parts;
  for (const Running& running : running_) parts.push_back(to_record(running.value));
  records_[microbatch] = at::cat(parts);
  for (std::size_t i = 0; i < running_.size(); ++i) running_[i].value.copy_(kept_[i]);
}

void MovingStatistics::exchange(channel::Channel& channel, const std::vector<int>& members, int microbatches) {
  if (running_.empty()) return;
  const at::NoGradGuard no_graph;
  // Zeros except in this member's rows: the sum over all members is exact.
  const auto options = at::TensorOptions(at::kFloat).device(running_.front().value.device());
  at::Tensor rows = at::zeros({microbatches, values_}, options);
  for (const auto& [microbatch, record] : records_) rows.select(0, microbatch).copy_(record);
  channel.start({.kind = Collective::AllReduce, .values = rows, .members = members, .tag = channel::kStatisticsTag})
      ->wait();
  for (int m = 0; m < microbatches; ++m) records_[m] = rows.select(0, m);
}

void MovingStatistics::apply() {
  const at::NoGradGuard no_graph;
  for (const auto& [microbatch, record] : records_) {
    std::int64_t first = 0;
    for (const Running& running : running_) {
      const at::Tensor& value = running.value;
      const std::int64_t count = record_values(value.numel(), value.scalar_type());
      const at::Tensor part = from_record(record.narrow(0, first, count), value);
      at::isFloatingType(value.scalar_type()) ? value.mul_(running.decay)
                                              : value.mul_(static_cast<std::int64_t>(running.decay));
      value.add_(part);
      first += count;
    }
  }
  records_.clear();
}

}  // namespace stagecraft::stage

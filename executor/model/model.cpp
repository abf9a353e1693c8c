#include "executor/model/model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "costmodel/fnv.h"
#include "costmodel/index.h"
#include "costmodel/slice.h"
#include "executor/device/dtype.h"
#include "executor/device/machine/program.h"

namespace stagecraft::model {
namespace {

/// Of those tensors of the layer besides its trained parameters that `counts`.
template <class Counts>
Bytes bytes_of(const LayerSpec& layer, Counts counts) {
  Bytes out;
  for (const ParameterSpec& parameter : layer.parameters) {
    if (parameter.trainable || !counts(parameter)) continue;
    out += Bytes(element_count(parameter.shape) * static_cast<std::int64_t>(c10::elementSize(parameter.dtype)));
  }
  return out;
}

/// The finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
std::uint64_t scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

at::Tensor made_value(const ParameterSpec& parameter, std::uint64_t seed) {
  if (parameter.load) return parameter.load();
  at::Tensor value = at::empty(parameter.shape, at::TensorOptions().dtype(parameter.dtype));
  const auto generator = [&] { return at::make_generator<at::CPUGeneratorImpl>(mix_seed(seed, parameter.name)); };
  switch (parameter.init) {
    case Init::Zeros:
      return value.zero_();
    case Init::Ones:
      return value.fill_(1);
    case Init::Uniform:
      return value.uniform_(-parameter.scale, parameter.scale, generator());
    case Init::Normal:
      return value.normal_(0, parameter.scale, generator());
  }
  return value;
}

}  // namespace

ParameterSpec uniform(std::string name, std::vector<std::int64_t> shape, double scale) {
  return {std::move(name), std::move(shape), Init::Uniform, scale, true};
}

ParameterSpec normal(std::string name, std::vector<std::int64_t> shape, double scale) {
  return {std::move(name), std::move(shape), Init::Normal, scale, true};
}

ParameterSpec ones(std::string name, std::vector<std::int64_t> shape) {
  return {std::move(name), std::move(shape), Init::Ones, 0, true};
}

ParameterSpec zeros(std::string name, std::vector<std::int64_t> shape) {
  return {std::move(name), std::move(shape), Init::Zeros, 0, true};
}

double fan_in_scale(std::int64_t fan_in) { return 1 / std::sqrt(static_cast<double>(fan_in)); }

ValueRef append(Model& model, LayerSpec layer) {
  model.layers.push_back(std::move(layer));
  return {.layer = to_int(model.layers.size()) - 1};
}

ValueRef append(Model& model, ModelInput input) {
  model.inputs.push_back(std::move(input));
  return {.input = to_int(model.inputs.size()) - 1};
}

at::Tensor initial_value(const ParameterSpec& parameter, std::uint64_t seed) {
  try {
    return made_value(parameter, seed);
  } catch (const c10::Error& e) { device::rethrow_at("parameter \"" + parameter.name + "\"", e); }
}

std::uint64_t mix_seed(std::uint64_t seed, const std::string& word, std::uint64_t a, std::uint64_t b) {
  std::uint64_t hash = fnv1a(word);
  for (const std::uint64_t part : {seed, a, b}) hash = scramble(hash ^ scramble(part));
  return hash;
}

std::int64_t parameter_count(const LayerSpec& layer) {
  std::int64_t count = 0;
  for (const ParameterSpec& parameter : layer.parameters)
    if (parameter.trainable) count += element_count(parameter.shape);
  return count;
}

Bytes frozen_bytes(const LayerSpec& layer) {
  return bytes_of(layer, [](const ParameterSpec&) { return true; });
}

Bytes written_bytes(const LayerSpec& layer) {
  return bytes_of(layer, [](const ParameterSpec& buffer) { return is_written(buffer); });
}

std::vector<StateTensor> parameter_tensors(const LayerSpec& layer) {
  std::vector<StateTensor> out;
  for (const ParameterSpec& parameter : layer.parameters) {
    if (parameter.trainable) out.push_back({parameter.name, parameter.shape, device::dtype_text(at::kFloat)});
  }
  return out;
}

std::vector<StateTensor> exchanged_buffers(const LayerSpec& layer) {
  std::vector<StateTensor> out;
  for (const ParameterSpec& buffer : layer.parameters) {
    const std::string dtype = device::dtype_text(buffer.dtype);
    if (!buffer.trainable && buffer.decay && value_bytes(dtype) > Bytes(0))
      out.push_back({buffer.name, buffer.shape, dtype});
  }
  return out;
}

bool is_written(const ParameterSpec& buffer) { return buffer.decay || buffer.written; }

const ParameterSpec* written_buffer(const LayerSpec& layer) {
  const auto found = std::ranges::find_if(
      layer.parameters, [](const ParameterSpec& parameter) { return !parameter.trainable && parameter.written; });
  return found == layer.parameters.end() ? nullptr : &*found;
}

std::int64_t parameter_count(const Model& model) {
  std::int64_t count = 0;
  std::set<std::string> seen;
  for (const LayerSpec& layer : model.layers)
    for (const ParameterSpec& parameter : layer.parameters)
      if (parameter.trainable && seen.insert(parameter.name).second) count += element_count(parameter.shape);
  return count;
}

}  // namespace stagecraft::model

#include "executor/model/model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "costmodel/errors.h"
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

std::vector<StateTensor> parameter_tensors(const LayerSpec& layer, StateType type) {
  std::vector<StateTensor> out;
  for (const ParameterSpec& parameter : layer.parameters) {
    if (parameter.trainable) out.push_back({parameter.name, parameter.shape, to_string(type)});
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

std::vector<std::vector<int>> layers_of_stages(const Plan& plan, const Model& model) {
  std::unordered_map<std::string, int> index;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    index[model.layers[i].name] = to_int(i);
    names.push_back(model.layers[i].name);
  }
  std::vector<std::vector<int>> out;
  std::size_t count = 0;
  for (const Stage& stage : plan.stages) {
    std::vector<int> layers;
    for (const std::string& id : stage.layers) {
      const auto it = index.find(id);
      if (it == index.end()) {
        const auto merged = model.merged.find(id);
        throw InputError(ErrorKind::UnknownName,
                         "model \"" + model.name + "\": " +
                             (merged == model.merged.end() ? unknown_name("layer", id, names)
                                                           : "layer \"" + id + "\" " + merged->second));
      }
      layers.push_back(it->second);
    }
    std::sort(layers.begin(), layers.end());
    count += layers.size();
    out.push_back(std::move(layers));
  }
  if (count != model.layers.size()) {
    std::set<std::string> planned;
    for (const Stage& stage : plan.stages) planned.insert(stage.layers.begin(), stage.layers.end());
    for (const std::string& name : names) {
      if (!planned.contains(name)) {
        throw InputError(ErrorKind::OtherModel,
                         "layer \"" + name + "\" of model \"" + model.name + "\" is not in any stage of the plan");
      }
    }
  }
  for (const Boundary& boundary : plan.boundaries) {
    for (const BoundaryTensor& tensor : boundary.tensors) {
      if (!tensor.output || tensor.dtype.empty()) {
        throw InputError(ErrorKind::OtherModel, "the plan lacks shape and type of the output of layer \"" +
                                                    tensor.layer +
                                                    "\"; make it from a graph written by stagecraft profile");
      }
    }
  }
  return out;
}

void check_samples(const Model& model, std::int64_t samples) {
  const std::int64_t least = model.least_samples;
  const std::int64_t most = model.most_samples;
  if (samples >= least && samples <= most) return;
  if (least == most) {
    throw InputError(
        ErrorKind::WrongMicrobatch,
        fmt::format("{} was exported for a microbatch of {}, found {}; export it with a dynamic batch size, or use "
                    "microbatches of {}",
                    model.name, least, samples, least));
  }
  const std::string bounds = most == std::numeric_limits<std::int64_t>::max() ? fmt::format("{} or more", least)
                                                                              : fmt::format("{} to {}", least, most);
  throw InputError(ErrorKind::WrongMicrobatch,
                   fmt::format("{} was exported for a microbatch of {}, found {}", model.name, bounds, samples));
}

}  // namespace stagecraft::model

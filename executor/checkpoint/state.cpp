#include "executor/checkpoint/state.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"

namespace stagecraft::checkpoint {
namespace {

constexpr const char* kAverage = "optimizer.average/";
constexpr const char* kMaster = "optimizer.master/";

/// The tensors of a parameter's state: their prefix, whether an optimizer keeps them of a parameter once it had a
/// gradient (but for averages and master values), and whether they are scalars instead of like the parameter.
struct StatePart {
  const char* prefix;
  at::Tensor stage::OptimizerState::* tensor;
  bool (*kept)(const stage::OptimizerKeeps&);
  bool scalar = false;
};
using Keeps = stage::OptimizerKeeps;
using State = stage::OptimizerState;
constexpr std::array kState{
    StatePart{"optimizer.first/", &State::first, [](const Keeps& keeps) { return keeps.tensors >= 1; }},
    StatePart{"optimizer.second/", &State::second, [](const Keeps& keeps) { return keeps.tensors >= 2; }},
    StatePart{"optimizer.third/", &State::third, [](const Keeps& keeps) { return keeps.tensors >= 3; }},
    StatePart{"optimizer.steps/", &State::steps, [](const Keeps& keeps) { return keeps.steps; }, true},
    StatePart{"optimizer.product/", &State::product, [](const Keeps& keeps) { return keeps.product; }, true},
    StatePart{kAverage, &State::average, [](const Keeps&) { return false; }},
    StatePart{kMaster, &State::master, [](const Keeps&) { return false; }}};

/// Suffix of a count that PyTorch's batch norm keeps but rarely needs.
constexpr const char* kTracked = ".num_batches_tracked";

/// Dtypes that may stand for each other; null: none.
using Accepted = bool (*)(at::ScalarType);
bool kept(at::ScalarType type) { return type == at::kFloat || type == at::kBFloat16; }

/// Refuses a tensor `name` that has not the shape of `like`, and its dtype or one that is `accepted` for it.
void check_kind(const files::TensorFiles& files, const std::string& name, const files::TensorKind& like,
                Accepted accepted) {
  const files::TensorKind& found = files.kind(name);
  const bool dtype = found.dtype == like.dtype || (accepted && accepted(like.dtype) && accepted(found.dtype));
  if (!dtype || found.shape != like.shape) {
    throw FormatError(ErrorKind::OtherCheckpoint, files.path_of(name) + ": tensor \"" + name + "\": found " +
                                                      files::kind_text(found) + ", expected " + files::kind_text(like));
  }
}

void load_values(const files::TensorFiles& files, const std::vector<stage::Parameter>& values, Accepted accepted) {
  const at::NoGradGuard no_graph;
  for (const stage::Parameter& value : values) {
    if (!files.holds(value.name)) continue;
    check_kind(files, value.name, files::kind_of(value.value), accepted);
    at::Tensor(value.value).copy_(files.read(value.name));
  }
}

/// Sets parameter `i` from the tensor `name`: one without memory, where the optimizer has values of it.
void load_parameter(const files::TensorFiles& files, const std::string& name, const stage::Parameter& parameter,
                    const stage::Optimizer* optimizer, std::size_t i, const UpdatedRanges& updated, Accepted accepted) {
  const at::NoGradGuard no_graph;
  const at::Tensor& value = parameter.value;
  check_kind(files, name, files::kind_of(value), accepted);
  if (stage::has_memory(value)) {
    at::Tensor(value).copy_(files.read(name));
  } else {
    const ValueRange range = updated(parameter.name);
    at::Tensor(optimizer->parameters()[i]).copy_(files.read_memory(name, value, range.first, range.count));
  }
}

void check_against(const files::TensorFiles& files, const std::set<std::string>& known,
                   const std::vector<std::string>& missing) {
  for (const std::string& name : files.names()) {
    if (!known.contains(name))
      throw FormatError(ErrorKind::OtherCheckpoint,
                        files.path_of(name) + ": " + unknown_name("tensor", name, {known.begin(), known.end()}));
  }
  if (missing.empty()) return;
  throw FormatError(ErrorKind::OtherCheckpoint,
                    fmt::format("{}: tensor \"{}\" is missing{}", files.path_of(missing.front()), missing.front(),
                                missing.size() == 1 ? "" : fmt::format(", and {} more", missing.size() - 1)));
}

}  // namespace

stage::OptimizerOptions saved_optimizer(const format::CheckpointManifest& manifest) {
  stage::OptimizerOptions out;
  out.name = manifest.optimizer;
  out.momentum = manifest.momentum;
  out.amsgrad = manifest.optimizer_settings.contains("amsgrad");
  out.centered = manifest.optimizer_settings.contains("centered");
  // Whether it is kept, not how it moves.
  if (manifest.optimizer_settings.contains("ema-decay")) out.ema_decay = 0.5;
  if (const auto type = manifest.optimizer_settings.find("parameter-dtype"); type != manifest.optimizer_settings.end())
    out.types.parameters = state_type(type->second);
  return out;
}

void collect_state(stage::StageProgram& program, const stage::Optimizer& optimizer, const OwnedRanges& owned,
                   std::vector<StatePiece>& out) {
  const at::NoGradGuard no_graph;
  const std::vector<stage::Parameter>& parameters = program.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, layer, value] = parameters[i];
    const std::optional<ValueRange> range = owned(name, value.numel());
    if (!range) continue;
    const std::vector<std::int64_t> shape = value.sizes().vec();
    const std::vector<TensorSlice> parts = files::slices_of_memory(value, range->first, range->count);
    const auto add = [&](const std::string& prefix, const at::Tensor& values, std::int64_t first) {
      for (const TensorSlice& part : parts)
        out.push_back({prefix + name, shape, part, files::part_of_memory(values.detach(), first, part, value)});
    };
    const at::Tensor& updated = optimizer.parameters()[i];
    const std::int64_t first = updated.numel() < value.numel() ? range->first : 0;
    add("", updated, first);
    const stage::OptimizerState state = optimizer.state(i);
    for (const StatePart& part : kState) {
      const at::Tensor& tensor = state.*part.tensor;
      if (!tensor.defined()) continue;
      if (!part.scalar) {
        add(part.prefix, tensor, first);
      } else if (range->first == 0 && (range->count > 0 || value.numel() == 0)) {
        out.push_back({part.prefix + name, {}, {}, tensor});
      }
    }
  }
  for (const stage::Parameter& buffer : program.buffers()) {
    if (!files::safetensors_hold(buffer.value.scalar_type())) continue;
    const std::optional<ValueRange> range = owned(buffer.name, buffer.value.numel());
    if (!range) continue;
    for (const TensorSlice& part : files::slices_of_memory(buffer.value, range->first, range->count))
      out.push_back({buffer.name, buffer.value.sizes().vec(), part, files::narrowed(buffer.value.detach(), part)});
  }
}

void load_state(const files::TensorFiles& files, stage::StageProgram& program, stage::Optimizer& optimizer,
                const UpdatedRanges& updated_ranges) {
  const at::NoGradGuard no_graph;
  const std::vector<stage::Parameter>& parameters = program.parameters();
  load_values(files, program.buffers(), nullptr);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& value = parameters[i].value;
    const std::string& name = parameters[i].name;
    const files::TensorKind like = files::kind_of(value);
    const bool is_part = optimizer.parameters()[i].sizes() != value.sizes();
    const auto read = [&](const std::string& tensor, bool scalar) {
      check_kind(files, tensor, scalar ? files::TensorKind{at::kFloat, {}} : like, scalar ? nullptr : kept);
      const ValueRange range = is_part && !scalar ? updated_ranges(name) : ValueRange{};
      const bool whole = scalar || !is_part;
      return (whole ? files.read(tensor) : files.read_memory(tensor, value, range.first, range.count))
          .to(value.device());
    };
    stage::OptimizerState state;
    for (const StatePart& part : kState) {
      if (files.holds(part.prefix + name)) state.*part.tensor = read(part.prefix + name, part.scalar);
    }
    // Where a checkpoint has one of them alone, that of more bits is both.
    const bool has_master = files.holds(kMaster + name);
    const std::string& exact = has_master && like.dtype == at::kFloat ? kMaster + name : name;
    if (files.holds(exact)) load_parameter(files, exact, parameters[i], &optimizer, i, updated_ranges, kept);
    if (!has_master && files.holds(name) && files.kind(name).dtype == at::kFloat) state.master = read(name, false);
    optimizer.set_state(i, state);
  }
}

void load_weights(const files::TensorFiles& files, stage::StageProgram& program, const stage::Optimizer* optimizer,
                  const UpdatedRanges& updated) {
  const std::vector<stage::Parameter>& parameters = program.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].name;
    if (files.holds(name)) load_parameter(files, name, parameters[i], optimizer, i, updated, c10::isFloatingType);
  }
  load_values(files, program.buffers(), c10::isFloatingType);
}

void check_names(const files::TensorFiles& files, const model::Model& model, const stage::OptimizerOptions& optimizer) {
  const bool averages = stage::keeps(optimizer).average;
  const bool masters = optimizer.types.parameters != StateType::Float32;
  std::set<std::string> known;
  std::vector<std::string> missing;
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters) {
      if (parameter.constant || (!parameter.trainable && !files::safetensors_hold(parameter.dtype))) continue;
      if (!known.insert(parameter.name).second) continue;
      if (!files.holds(parameter.name)) missing.push_back(parameter.name);
      if (!parameter.trainable) continue;
      if (averages) {  // of every parameter, also of one that had no gradient yet
        known.insert(kAverage + parameter.name);
        if (!files.holds(kAverage + parameter.name)) missing.push_back(kAverage + parameter.name);
      }
      std::vector<std::string> state;
      for (const StatePart& part : kState) {
        if (part.kept(stage::keeps(optimizer))) state.push_back(part.prefix + parameter.name);
      }
      known.insert(state.begin(), state.end());
      if (masters) known.insert(kMaster + parameter.name);
      const auto holds = [&](const std::string& name) { return files.holds(name); };
      if (std::ranges::none_of(state, holds)) continue;
      std::ranges::copy_if(state, std::back_inserter(missing), std::not_fn(holds));
      if (masters && !holds(kMaster + parameter.name)) missing.push_back(kMaster + parameter.name);
    }
  }
  check_against(files, known, missing);
}

bool use_averages(files::TensorFiles& files) {
  bool any = false;
  const std::string prefix = kAverage;
  for (const std::string& name : files.names()) {
    if (!name.starts_with(prefix)) continue;
    files.rename(name, name.substr(prefix.size()));
    any = true;
  }
  return any;
}

files::TensorFiles open_weights(const std::string& path, const model::Model& model, const TiedNames& tied) {
  files::TensorFiles out(files::tensor_file_paths(path));
  std::set<std::string> known;
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters) known.insert(parameter.name);
  }
  const auto fits = [&](const std::string& name) {
    return known.contains(name) || tied.contains(name) || name.ends_with(kTracked);
  };
  for (const std::string& name : out.names()) {
    std::string rest = name;
    const std::string compiled = "_orig_mod.";
    for (std::size_t at = 0; (at = rest.find(compiled)) != std::string::npos;) rest.erase(at, compiled.size());
    for (const std::string prefix : {"module.", "model."}) {
      if (!known.contains(rest) && !tied.contains(rest) && rest.starts_with(prefix)) rest.erase(0, prefix.size());
    }
    if (rest != name && fits(rest) && !out.holds(rest)) out.rename(name, rest);
  }
  for (const auto& [further, name] : tied) {
    if (out.holds(further) && !out.holds(name)) out.rename(further, name);
  }
  return out;
}

void check_weight_names(const files::TensorFiles& files, const model::Model& model, const TiedNames& tied) {
  std::set<std::string> known;
  std::vector<std::string> missing;
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters) {
      if (known.insert(parameter.name).second && parameter.trainable && !files.holds(parameter.name))
        missing.push_back(parameter.name);
    }
  }
  for (const std::string& name : files.names()) {
    if (name.ends_with(kTracked) || tied.contains(name)) known.insert(name);
  }
  check_against(files, known, missing);
  for (const auto& [further, name] : tied) {
    if (!files.holds(further) || !files.holds(name) || files.read(further).equal(files.read(name))) continue;
    throw FormatError(ErrorKind::OtherCheckpoint,
                      fmt::format("{}: tensors \"{}\" and \"{}\" differ; the model has one tensor with both names",
                                  files.path_of(further), further, name));
  }
}

files::NamedTensors state_dict(const files::TensorFiles& files, const model::Model& model, const TiedNames& tied) {
  files::NamedTensors out;
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters) {
      const std::string& name = parameter.name;
      if (parameter.constant || !parameter.in_state_dict || out.contains(name)) continue;
      if (!files::safetensors_hold(parameter.dtype)) {
        throw FormatError(
            ErrorKind::OtherCheckpoint,
            fmt::format("{}: layer \"{}\" has a buffer \"{}\" of type {}, which safetensors files cannot hold",
                        files.path_of(name), layer.name, name, c10::toString(parameter.dtype)));
      }
      check_kind(files, name, {parameter.dtype, parameter.shape}, parameter.trainable ? kept : nullptr);
      out[name] = files.read(name);
    }
  }
  for (const auto& [further, name] : tied) {
    if (const auto found = out.find(name); found != out.end()) out[further] = found->second;
  }
  return out;
}

void check_can_save(const model::Model& model) {
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ParameterSpec& buffer : layer.parameters) {
      if (buffer.trainable || files::safetensors_hold(buffer.dtype) || !(buffer.written || buffer.decay)) continue;
      throw std::invalid_argument(fmt::format(
          "layer \"{}\" writes its buffer \"{}\" of type {}, which checkpoints cannot store; run without --checkpoint",
          layer.name, buffer.name, c10::toString(buffer.dtype)));
    }
  }
}

}  // namespace stagecraft::checkpoint

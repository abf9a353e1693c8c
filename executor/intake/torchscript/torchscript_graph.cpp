#include "executor/intake/torchscript/torchscript_graph.h"

#include <ATen/core/class_type.h>
#include <ATen/core/function.h>
#include <ATen/core/function_schema.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/text/number.h"
#include "executor/device/dtype.h"
#include "executor/files/zip_archive.h"
#include "executor/intake/graph/layers/graph_model.h"
#include "executor/intake/torchscript/script_layout.h"
#include "executor/intake/torchscript/script_module.h"

namespace stagecraft::intake {
namespace {

constexpr std::size_t kMostAxes = 16;
constexpr std::int64_t kLongestAxis = std::int64_t{1} << 31;

std::optional<std::int64_t> whole(std::string_view text) {
  const std::optional<std::int64_t> out = number_in<std::int64_t>(text);
  return out && *out >= 0 && *out <= kLongestAxis ? out : std::nullopt;
}

}  // namespace

model::ModelInput parse_model_input(const std::string& name, const std::string& text) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument("input \"" + name + "\" is \"" + text + "\": " + why +
                                ", expected TYPE[SIZES] of one sample, such as float32[3,224,224] or int64[], then "
                                ":batch_axis=N (default: 0) or :batch_axis=none");
  };
  const std::string_view all = text;
  const std::size_t open = all.find('[');
  const std::size_t close = all.find(']');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) refuse("found no sizes");
  model::ModelInput out{.name = name, .dtype = std::string(all.substr(0, open)), .shape = {}};
  try {
    (void)device::dtype_of(out.dtype);
  } catch (const std::invalid_argument& e) { refuse(e.what()); }
  if (c10::isComplexType(device::dtype_of(out.dtype))) refuse("no data source provides complex numbers");
  std::string_view sizes = all.substr(open + 1, close - open - 1);
  while (!sizes.empty()) {
    const std::size_t comma = sizes.find(',');
    const auto size = whole(sizes.substr(0, comma));
    if (!size || *size == 0) refuse("found size \"" + std::string(sizes.substr(0, comma)) + "\"");
    out.shape.push_back(*size);
    if (out.shape.size() > kMostAxes) refuse("found too many sizes");
    if (comma != std::string_view::npos && comma + 1 == sizes.size()) refuse("found a comma at the end");
    sizes = comma == std::string_view::npos ? std::string_view() : sizes.substr(comma + 1);
  }
  const std::string_view rest = all.substr(close + 1);
  constexpr std::string_view kAxis = ":batch_axis=";
  if (rest.empty()) return out;
  if (!rest.starts_with(kAxis)) refuse("found \"" + std::string(rest) + "\" at the end");
  const std::string_view axis = rest.substr(kAxis.size());
  if (axis == "none") {
    out.batch_axis.reset();
    return out;
  }
  const auto number = whole(axis);
  if (!number || *number > static_cast<std::int64_t>(out.shape.size()))
    refuse("found batch axis \"" + std::string(axis) + "\"");
  out.batch_axis = to_int(*number);
  return out;
}

namespace {

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

}  // namespace

OperatorGraph torchscript_graph(const files::ZipArchive& archive, const TorchScriptInputs& declared,
                                model::ModelMode mode) {
  const std::string& file = archive.path();
  ScriptState state(load_torchscript(archive), mode);
  const torch::jit::Function* const forward = state.root()->type()->findMethod("forward");
  if (!forward) throw FormatError(ErrorKind::UnsupportedModel, file + ": the module has no method forward");

  std::vector<std::string> names;
  std::vector<ScriptInput> inputs;
  const auto& arguments = forward->getSchema().arguments();
  for (std::size_t i = 1; i < arguments.size(); ++i) names.push_back(arguments[i].name());
  for (const auto& [name, text] : declared.inputs) {
    if (std::ranges::find(names, name) == names.end())
      throw InputError(ErrorKind::UnknownName, file + ": " + unknown_name("input", name, names));
  }
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const auto given = declared.inputs.find(names[i - 1]);
    ScriptInput input{.model = {.name = names[i - 1], .dtype = "", .shape = {}}};
    if (given != declared.inputs.end()) {
      input.model = parse_model_input(names[i - 1], given->second);
    } else if (arguments[i].default_value() && !arguments[i].default_value()->isTensor()) {
      input.constant = *arguments[i].default_value();
    } else {
      throw std::invalid_argument(file + ": input \"" + names[i - 1] +
                                  "\" is not described in the file; forward takes " + listed(names) +
                                  ": describe each with --input NAME=float32[3,224,224], type and shape of one sample");
    }
    inputs.push_back(std::move(input));
  }
  for (const auto& [name, range] : declared.ranges) {
    const auto it = std::ranges::find(inputs, name, [](const ScriptInput& input) { return input.model.name; });
    if (it == inputs.end()) throw InputError(ErrorKind::UnknownName, file + ": " + unknown_name("input", name, names));
    it->model.least = range.first;
    it->model.classes = range.second;
  }
  return lay_out_script(file, state, inputs, declared.samples);
}

namespace {

OperatorGraph read_graph(const std::string& path, const ModelSettings& settings, model::ModelMode mode) {
  TorchScriptInputs told;
  told.ranges = input_ranges(settings);
  for (const auto& [key, text] : settings) {
    if (key.starts_with("input.")) told.inputs[key.substr(6)] = text;
  }
  if (const auto it = settings.find("samples"); it != settings.end()) {
    const std::string& text = it->second;
    const std::optional<std::int64_t> samples = number_in<std::int64_t>(text);
    if (!samples || *samples < 1 || *samples > 1 << 20)
      throw std::invalid_argument("setting samples is \"" + text + "\", expected an integer of at least 1");
    told.samples = *samples;
  }
  return torchscript_graph(files::ZipArchive(path, files::ZipArchive::Deflated::Read), told, mode);
}

}  // namespace

LayerSource torchscript_source() {
  return {.name = "torchscript",
          .models = "a .pt archive of torch.jit.save",
          .ending = ".pt",
          .has =
              [](const std::string& path) {
                return is_torchscript_archive(files::ZipArchive(path, files::ZipArchive::Deflated::Read));
              },
          .build =
              [](const std::string& path, const ModelSettings& settings, model::ModelMode mode) {
                return model_of_file(path, settings, mode, {.read = read_graph, .same_nodes = false});
              },
          .tied_names =
              [](const std::string& path) {
                const files::ZipArchive archive(path, files::ZipArchive::Deflated::Read);
                return ScriptState(load_torchscript(archive), model::ModelMode::Training).tied_names();
              },
          .digest = archive_digest};
}

}  // namespace stagecraft::intake

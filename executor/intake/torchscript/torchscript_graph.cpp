#include "executor/intake/torchscript/torchscript_graph.h"

#include <ATen/core/class_type.h>
#include <ATen/core/function.h>
#include <ATen/core/function_schema.h>

#include <algorithm>
#include <stdexcept>

#include "costmodel/errors.h"
#include "executor/device/dtype.h"
#include "executor/intake/torchscript/loading/script_state.h"
#include "executor/intake/torchscript/loading/torchscript_archive.h"
#include "executor/intake/torchscript/model_input.h"
#include "executor/intake/torchscript/script_layout.h"

namespace stagecraft::intake {
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

}  // namespace stagecraft::intake

#include "executor/model/builtin_models.h"

#include <algorithm>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/text/number.h"

namespace stagecraft::model {
namespace {

std::int64_t parse_option(const std::string& model, const ModelOption& option, const std::string& text) {
  const std::optional<std::int64_t> value = number_in<std::int64_t>(text);
  if (!value || *value < option.least || *value > option.most)
    throw std::invalid_argument(model + ": option " + option.name + " is \"" + text + "\", must be an integer from " +
                                std::to_string(option.least) + " to " + std::to_string(option.most));
  return *value;
}

}  // namespace

// The table. Each model file provides its entries.
BuiltinModel mlp_model();
BuiltinModel convnet_model();
BuiltinModel alexnet_model();
BuiltinModel vgg16_model();
BuiltinModel resnet18_model();
BuiltinModel resnet50_model();
BuiltinModel gnmt_model();
BuiltinModel transformer_model();
BuiltinModel gpt_model();

const std::vector<BuiltinModel>& builtin_models() {
  static const std::vector<BuiltinModel> models{
      mlp_model(),      convnet_model(), alexnet_model(),     vgg16_model(), resnet18_model(),
      resnet50_model(), gnmt_model(),    transformer_model(), gpt_model(),
  };
  return models;
}

std::vector<std::string> builtin_model_names() {
  std::vector<std::string> out;
  for (const BuiltinModel& model : builtin_models()) out.push_back(model.name);
  return out;
}

Model build_builtin_model(const std::string& name, const std::map<std::string, std::string>& settings) {
  const std::vector<BuiltinModel>& models = builtin_models();
  const auto entry = std::ranges::find(models, name, &BuiltinModel::name);
  if (entry == models.end())
    throw InputError(ErrorKind::UnknownName, unknown_name("model", name, builtin_model_names()));
  std::map<std::string, std::int64_t> values;
  std::vector<std::string> known;
  for (const ModelOption& option : entry->options) {
    values[option.name] = option.value;
    known.push_back(option.name);
  }
  std::map<std::string, std::string> changed;
  for (const auto& [key, text] : settings) {
    const auto option = std::ranges::find(entry->options, key, &ModelOption::name);
    if (option == entry->options.end())
      throw InputError(ErrorKind::UnknownName, name + ": " + unknown_name("option", key, known));
    values[key] = parse_option(name, *option, text);
    if (values[key] != option->value) changed[key] = std::to_string(values[key]);
  }
  Model model = entry->build(values);
  model.name = name;
  model.options = std::move(changed);
  return model;
}

}  // namespace stagecraft::model

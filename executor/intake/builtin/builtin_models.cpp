#include "executor/intake/builtin/builtin_models.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/text/number.h"

namespace stagecraft::intake {
namespace {

constexpr const char* kLayers = "layers";

std::int64_t parse_option(const std::string& model, const ModelOption& option, const std::string& text) {
  const std::optional<std::int64_t> value = number_in<std::int64_t>(text);
  if (!value || *value < option.least || *value > option.most)
    throw std::invalid_argument(model + ": option " + option.name + " is \"" + text + "\", must be an integer from " +
                                std::to_string(option.least) + " to " + std::to_string(option.most));
  return *value;
}

/// A model with values for its options.
struct Chosen {
  const BuiltinModel* entry = nullptr;
  std::map<std::string, std::int64_t> values;
  Granularity granularity;
  ModelSettings changed;  ///< from the defaults

  [[nodiscard]] BuildGraph build() const {
    return [this](GraphBuilder& builder) { return entry->build(builder, values); };
  }
};

/// The number and the granularity in a value of `layers`; either may be absent.
std::pair<std::optional<std::string>, std::optional<std::string>> parts_of_layers(const std::string& text) {
  const std::size_t comma = text.find(',');
  if (comma != std::string::npos) return {text.substr(0, comma), text.substr(comma + 1)};
  if (names_granularity(text)) return {std::nullopt, text};
  return {text, std::nullopt};
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

namespace {

Chosen choose(const std::string& name, const ModelSettings& settings) {
  const std::vector<BuiltinModel>& models = builtin_models();
  const auto entry = std::ranges::find(models, name, &BuiltinModel::name);
  if (entry == models.end())
    throw InputError(ErrorKind::UnknownName, unknown_name("model", name, builtin_model_names()));
  Chosen out{.entry = &*entry, .values = {}, .granularity = {}, .changed = {}};
  std::vector<std::string> known;
  for (const ModelOption& option : entry->options) {
    out.values[option.name] = option.value;
    known.push_back(option.name);
  }
  const bool counts_layers = out.values.contains(kLayers);
  if (!counts_layers) known.emplace_back(kLayers);
  for (const auto& [key, text] : settings) {
    std::optional<std::string> number = text;
    std::optional<std::string> cut;
    if (key == kLayers && counts_layers) {
      std::tie(number, cut) = parts_of_layers(text);
    } else if (key == kLayers) {
      std::swap(number, cut);
    }
    std::string changed;
    if (number) {
      const auto option = std::ranges::find(entry->options, key, &ModelOption::name);
      if (option == entry->options.end())
        throw InputError(ErrorKind::UnknownName, name + ": " + unknown_name("option", key, known));
      out.values[key] = parse_option(name, *option, *number);
      if (out.values[key] != option->value) changed = std::to_string(out.values[key]);
    }
    if (cut) {
      out.granularity = parse_granularity(*cut);
      if (out.granularity.kind != Granularity::Kind::Auto) changed += (changed.empty() ? "" : ",") + *cut;
    }
    if (!changed.empty()) out.changed[key] = changed;
  }
  return out;
}

}  // namespace

model::Model build_builtin_model(const std::string& name, const ModelSettings& settings) {
  const Chosen chosen = choose(name, settings);
  model::Model model = built_model(name, chosen.build(), chosen.granularity);
  model.options = chosen.changed;
  return model;
}

OperatorGraph builtin_graph(const std::string& name, const ModelSettings& settings, model::ModelMode mode) {
  const Chosen chosen = choose(name, settings);
  return built_graph(name, chosen.build(), mode);
}

}  // namespace stagecraft::intake

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "executor/intake/builtin/graph_builder.h"
#include "executor/intake/graph/layers/layer_source.h"
#include "executor/model/model.h"

namespace stagecraft::intake {

/// An option of a model: `key=value` on the command line, an integer in least..most.
struct ModelOption {
  std::string name;
  std::int64_t value;  ///< the default
  std::string help;
  std::int64_t least = 1;
  std::int64_t most = 1 << 20;
};

/// A built-in model: an entry of the table.
struct BuiltinModel {
  std::string name;
  std::string help;
  std::vector<ModelOption> options;
  /// Adds the model's nodes and returns its loss; `options` has a value for each of the model's options. Throws
  /// std::invalid_argument for values that do not fit together.
  std::function<ValueIndex(GraphBuilder&, const std::map<std::string, std::int64_t>& options)> build;
};

/// All built-in models.
[[nodiscard]] const std::vector<BuiltinModel>& builtin_models();

/// The names of all built-in models.
[[nodiscard]] std::vector<std::string> builtin_model_names();

/// The built-in model `name` with `settings` over the defaults: its options, and `layers`, how to cut it into layers as
/// for a model from a file. For a model with an option `layers`, that setting is a number, a granularity, or both:
/// "4", "op", "4,op". Throws std::invalid_argument for an unknown model or option (listing the known ones), for a value
/// that is not an integer in range, and for an unknown granularity.
[[nodiscard]] model::Model build_builtin_model(const std::string& name, const ModelSettings& settings);

/// The graph of the same model in one mode. Throws as build_builtin_model does.
[[nodiscard]] OperatorGraph builtin_graph(const std::string& name, const ModelSettings& settings,
                                          model::ModelMode mode = model::ModelMode::Training);

}  // namespace stagecraft::intake

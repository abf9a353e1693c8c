#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "executor/model/model.h"

namespace stagecraft::model {

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
  /// The model; `options` has a value for each of the model's options. Throws std::invalid_argument for
  /// values that do not fit together.
  std::function<Model(const std::map<std::string, std::int64_t>&)> build;
};

/// All built-in models.
[[nodiscard]] const std::vector<BuiltinModel>& builtin_models();

/// The names of all built-in models.
[[nodiscard]] std::vector<std::string> builtin_model_names();

/// The built-in model `name` with `settings` over the defaults. Throws std::invalid_argument for an unknown model or
/// option (listing the known ones) and for a value that is not an integer in range.
[[nodiscard]] Model build_builtin_model(const std::string& name, const std::map<std::string, std::string>& settings);

}  // namespace stagecraft::model

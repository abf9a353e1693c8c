#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace stagecraft::files {

/// A tensor as a state dict describes it: a view of a storage, which is another record of the file.
struct PickledTensor {
  std::string storage;  ///< its record is called data/STORAGE
  at::ScalarType dtype = at::kFloat;
  std::int64_t storage_values = 0;
  std::int64_t offset = 0;  ///< of the first value, in values
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in values, not negative
  friend bool operator==(const PickledTensor&, const PickledTensor&) = default;
};

/// The tensors of a state dict that torch.save pickled, by name: of the dict itself, or of the dict under its key
/// "state_dict" or "model"; entries "_extra_state", whatever a module's get_extra_state returned, are left out. The
/// pickle is not executed: classes and functions are looked up in a list of those that state dicts need, and only
/// represent their results. Every tensor is within its storage and has at most as many values. Throws FormatError that
/// begins with `file` for anything else, with the position in the pickle, what was found and what was expected.
[[nodiscard]] std::map<std::string, PickledTensor> parse_state_dict(const std::string& pickle, const std::string& file);

}  // namespace stagecraft::files

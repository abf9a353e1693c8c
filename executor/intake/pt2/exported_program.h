#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "executor/intake/graph/program/program_graph.h"

namespace stagecraft::intake {

/// An input of the whole graph.
struct ProgramInput {
  enum class Kind { Parameter, Buffer, Constant, User, Folded };
  Kind kind = Kind::User;
  ValueIndex value;        ///< unset for Folded: a Python number that the nodes already contain
  std::string name;        ///< of a parameter, buffer or constant in the model; for a user input, its own
  bool persistent = true;  ///< of a buffer: whether it is in the state dict
};

/// A training graph of torch.export, as in the file.
struct ExportedProgram {
  ProgramGraph graph;
  std::vector<ProgramInput> inputs;  ///< one for each of graph.inputs, and the folded ones
  /// Smallest and largest value of each symbol.
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> ranges;
  std::string torch_version;
};

/// A tensor whose bytes are in a record of the archive.
struct StoredTensor {
  std::string record;  ///< full name in the archive
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t storage_offset = 0;  ///< in values
  bool parameter = false;
  bool requires_grad = false;
  bool has_values = true;  ///< false: exported on the meta device, shape and type only
  /// Names with equal records and geometry are one tensor: tied.
  friend bool operator==(const StoredTensor&, const StoredTensor&) = default;
};

}  // namespace stagecraft::intake

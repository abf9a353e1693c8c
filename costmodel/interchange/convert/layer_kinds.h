#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "costmodel/interchange/convert/description.h"

namespace stagecraft::interchange {

/// The output of a layer: a tensor, a tuple of these forms, a number (the length of an axis), or None. Unknown: the
/// output of a user's layer; one tensor unless its items are read.
struct ValueForm {
  enum class Kind { Tensor, Tuple, Number, Nothing, Unknown };
  Kind kind = Kind::Tensor;
  std::vector<ValueForm> items = {};  ///< for a tuple
  friend bool operator==(const ValueForm&, const ValueForm&) = default;
};

/// How a layer is called. All but Module have no parameters and are an expression in Python.
enum class Operation { Module, Add, Multiply, Concatenate, Transpose, View, Size, Item, Hidden };

/// PythonCall::most_inputs without a limit.
inline constexpr int kAnyNumber = std::numeric_limits<int>::max();

/// A layer as Python calls it.
struct PythonCall {
  Operation operation = Operation::Module;
  std::string constructor;             ///< for a module: "torch.nn.Conv2d", "layers.Classifier"
  std::vector<std::string> arguments;  ///< of the constructor, without `inplace`
  bool inplace = false;                ///< the module may overwrite what it reads
  std::vector<std::int64_t>
      numbers;  ///< Concatenate, Size: the axis; Transpose: both; Item: which; View: the known lengths
  int least_inputs = 1;
  int most_inputs = 1;
  bool recurrent = false;  ///< its second input is a state: None, or a tuple
  ValueForm gives;         ///< ignored for Item and Hidden: their input decides
  /// The output has its own storage, which no backward needs: a single reader may overwrite it.
  bool fresh = false;
  friend bool operator==(const PythonCall&, const PythonCall&) = default;
};

/// The user's classes, kind -> "MODULE:CLASS", both consisting of Python names and dots.
using OwnKinds = std::map<std::string, std::string>;

/// The call of a described layer: kinds of `classes`, then PipeDream's operations, then torch.nn's modules that
/// known_kinds lists, then GNMT's, which layers_text defines. A user's kind is constructed from the description's
/// arguments, or from the description's text if it contains modules. Throws std::invalid_argument naming the kind and
/// listing the known ones, the argument that the kind does not take (listing those it takes) or that is missing, or the
/// invalid name in `classes`.
[[nodiscard]] PythonCall layer_call(const Description& description, const OwnKinds& classes);

/// Names of all kinds that need no class from the user, sorted.
[[nodiscard]] std::vector<std::string> known_kinds();

/// Python definitions of GNMT's modules: EmuBidirLSTM, BahdanauAttention, RecurrentAttention and Classifier. Their
/// parameters match the published profile byte for byte.
/// Sources: Wu et al., arXiv 1609.08144; Bahdanau et al., arXiv 1409.0473.
[[nodiscard]] std::string layers_text();

}  // namespace stagecraft::interchange

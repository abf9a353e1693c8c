#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "costmodel/interchange/convert/description.h"

namespace stagecraft {

/// What a layer gives: a tensor, a tuple of such forms, a number (as a tensor's axis is long), or None. Unknown: what a
/// layer of the user's own gives; one tensor unless items of it are read.
struct ValueForm {
  enum class Kind { Tensor, Tuple, Number, Nothing, Unknown };
  Kind kind = Kind::Tensor;
  std::vector<ValueForm> items = {};  ///< of a tuple
  friend bool operator==(const ValueForm&, const ValueForm&) = default;
};

/// What a layer does with what it reads. All but Module have no parameters and are an expression in Python.
enum class Operation { Module, Add, Multiply, Concatenate, Transpose, View, Size, Item, Hidden };

/// PythonCall::most_inputs without a limit.
inline constexpr int kAnyNumber = std::numeric_limits<int>::max();

/// A layer as Python calls it.
struct PythonCall {
  Operation operation = Operation::Module;
  std::string constructor;             ///< of a module: "torch.nn.Conv2d", "layers.Classifier"
  std::vector<std::string> arguments;  ///< of the constructor, without `inplace`
  bool inplace = false;                ///< the module may overwrite what it reads
  std::vector<std::int64_t>
      numbers;  ///< Concatenate, Size: the axis; Transpose: both; Item: which; View: what is known
  int least_inputs = 1;
  int most_inputs = 1;
  bool recurrent = false;  ///< its second input is a state: None, or a tuple
  ValueForm gives;         ///< of Item and Hidden: left as it is, what they read decides
  /// What it gives has storage of its own, which no backward needs: who reads it alone may overwrite it.
  bool fresh = false;
  friend bool operator==(const PythonCall&, const PythonCall&) = default;
};

/// Classes of the user's own, kind -> "MODULE:CLASS", both of Python names and dots.
using OwnKinds = std::map<std::string, std::string>;

/// The call of a described layer: kinds of `own`, then PipeDream's operations, then torch.nn's modules that known_kinds
/// lists, then GNMT's, which layers_text defines. A kind of one's own is constructed from the description's arguments,
/// or from the description's text where it has modules in it.
/// Throws std::invalid_argument naming the kind and listing the known ones, the argument that the kind does not take
/// (listing those it takes) or that is missing, or the name in `own` that is none.
[[nodiscard]] PythonCall layer_call(const Description& description, const OwnKinds& own);

/// Names of all kinds that need no class of one's own, sorted.
[[nodiscard]] std::vector<std::string> known_kinds();

/// Python definitions of GNMT's modules: EmuBidirLSTM, BahdanauAttention, RecurrentAttention and Classifier. Their
/// parameters are those that the published profile counts, byte for byte.
/// Sources: Wu et al., arXiv 1609.08144; Bahdanau et al., arXiv 1409.0473.
[[nodiscard]] std::string layers_text();

}  // namespace stagecraft

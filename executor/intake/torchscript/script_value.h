#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/torchscript/script_call.h"

namespace stagecraft {

struct ScriptNumber;
struct ScriptItems;

/// What a name in TorchScript stands for while its code is laid out as a graph. Dry runs compute along: each keeps what
/// the name is in it.
///  - Constant: the same in every run;
///  - Number: follows from the batch size alone, and may be a tensor that holds a number (traced sizes are);
///  - Value: a value of the graph;
///  - Items: a list or tuple of such; Python's, so that two names may stand for one list;
///  - Module: an object of the file, `constant`.
struct ScriptValue {
  enum class Kind { Constant, Number, Value, Items, Module };
  Kind kind = Kind::Constant;
  c10::IValue constant = {};
  int value = -1;                      ///< of Value
  std::vector<c10::IValue> runs = {};  ///< of Number and Value: by dry run
  std::shared_ptr<ScriptNumber> number = {};
  std::shared_ptr<ScriptItems> items = {};

  [[nodiscard]] bool is_none() const { return kind == Kind::Constant && constant.isNone(); }
};

/// How a Number is made, where it is wanted.
struct ScriptNumber {
  std::optional<SizeExpression> expression;  ///< if it is a * batch + c
  std::function<void(torch::jit::Stack&)> call;
  std::vector<ScriptValue> arguments;
  std::string target;
  int value = -1;  ///< in the graph, once it is there
};

struct ScriptItems {
  bool tuple = false;
  c10::TypePtr element;  ///< of a list
  std::vector<ScriptValue> items;
};

/// A constant; lists and tuples of it become Items.
[[nodiscard]] ScriptValue constant_value_of(const c10::IValue& value);

/// What it is in dry run `run`: lists are fresh ones. Modules are themselves.
[[nodiscard]] c10::IValue in_run(const ScriptValue& value, std::size_t run);

/// Whether it is the same in every run, all of its items included.
[[nodiscard]] bool is_constant(const ScriptValue& value);

/// Whether no value of the graph is in it.
[[nodiscard]] bool is_static(const ScriptValue& value);

/// Calls `visit` with each value in it that is no list or tuple.
void for_each_value(const ScriptValue& value, const std::function<void(const ScriptValue&)>& visit);

}  // namespace stagecraft

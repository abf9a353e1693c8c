#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/torchscript/values/script_call.h"

namespace stagecraft::intake {

struct ScriptNumber;
struct ScriptItems;

/// The meaning of a name in TorchScript during layout as a graph. Dry runs compute along: each keeps the name's value
/// in that run.
///  - Constant: the same in every run;
///  - Number: follows only from the batch size; may be a tensor with one number (as traced sizes are);
///  - Value: a value of the graph;
///  - Items: a list or tuple of these; by reference, as in Python, so that two names may share one list;
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

/// How a Number is computed where it is needed.
struct ScriptNumber {
  std::optional<SizeExpression> expression;  ///< if it is a * batch + c
  std::function<void(torch::jit::Stack&)> call;
  std::vector<ScriptValue> arguments;
  std::string target;
  int value = -1;  ///< in the graph, once it exists
};

struct ScriptItems {
  bool tuple = false;
  c10::TypePtr element;  ///< of a list
  std::vector<ScriptValue> items;
};

/// A constant; lists and tuples of it become Items.
[[nodiscard]] ScriptValue constant_value_of(const c10::IValue& value);

/// Its value in dry run `run`: lists are copies, modules themselves.
[[nodiscard]] c10::IValue in_run(const ScriptValue& value, std::size_t run);

/// Whether it is the same in every run, including all of its items.
[[nodiscard]] bool is_constant(const ScriptValue& value);

/// Whether it contains no value of the graph.
[[nodiscard]] bool is_static(const ScriptValue& value);

/// Calls `visit` with each value in it that is not a list or tuple.
void for_each_value(const ScriptValue& value, const std::function<void(const ScriptValue&)>& visit);

}  // namespace stagecraft::intake

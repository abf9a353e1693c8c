#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/intake/graph/operator_graph.h"

namespace stagecraft::intake {

/// An argument of a call in TorchScript: a constant, a value of the graph, or a list or tuple of such.
struct ScriptArgument {
  enum class Form { Constant, Value, List, Tuple, Device };
  Form form = Form::Constant;
  c10::IValue constant = {};
  int value = -1;
  std::vector<ScriptArgument> parts = {};
  c10::TypePtr element = {};  ///< of a List
};

/// A result of a call: a value of the graph (-1: unused), or a list of such tensors.
struct ScriptResult {
  int value = -1;
  std::optional<std::vector<int>> parts = {};
};

/// A call in a TorchScript graph. `run` takes its arguments from the stack and leaves its results there; it is
/// thread-safe.
struct ScriptCall {
  std::function<void(torch::jit::Stack&)> run;
  std::vector<ScriptArgument> arguments;
  std::vector<ScriptResult> results;
  std::string place;
};

/// Runs `call` on a frame. Device arguments are the frame's device.
[[nodiscard]] NodeCall script_call(const ScriptCall& call, const std::function<int(int)>& slot);

/// Operators of TorchScript by name, such as "aten::size". These return facts about a tensor that do not depend on its
/// values.
[[nodiscard]] bool tells_of_shape(const std::string& name);
/// These compute a * batch + c from such numbers.
[[nodiscard]] bool keeps_affine(const std::string& name);
/// In a trace, sizes are tensors that pass through these.
[[nodiscard]] bool computes_traced_size(const std::string& name);
/// These change more than tensors.
[[nodiscard]] bool has_side_effects(const std::string& name);
/// Without namespace: the result contains values of the first argument.
[[nodiscard]] bool moves_numbers(const std::string& name);

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

/// The results of operator `name`, which has `results` results, if they follow from the list or tuple that is its first
/// argument (its length, an item, a slice, an extended list; `append` changes the list) or from what is None; absent if
/// it must run. `place` begins errors. Throws FormatError for an index outside the list and if the number of items is
/// not that of the results.
[[nodiscard]] std::optional<std::vector<ScriptValue>> on_items(const std::string& name,
                                                               const std::vector<ScriptValue>& arguments,
                                                               std::size_t results, const std::string& place);

}  // namespace stagecraft::intake

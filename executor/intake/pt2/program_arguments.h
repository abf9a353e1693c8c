#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "costmodel/format/cursor.h"
#include "costmodel/index.h"
#include "executor/intake/pt2/exported_program.h"

// Only for the readers of this folder: the names of a graph's values, and arguments that use them.

namespace stagecraft::intake {

/// The values of one graph while it is read. All members throw FormatError with the place.
class ProgramScope {
 public:
  /// `at` is the JSON of the graph, which outlives this; `symbols` are those that sizes may depend on.
  ProgramScope(const format::Cursor& at, std::set<std::string> symbols);

  /// Defines the value `name`, once, from its entry in the graph's tables. Refuses sizes that depend on other symbols.
  ValueIndex define(const format::Cursor& at, const std::string& name, ProgramValue::Kind kind);
  /// The value `name`, which was defined before.
  [[nodiscard]] ValueIndex use(const format::Cursor& at, const std::string& name, ProgramValue::Kind kind) const;
  /// From now on sizes may depend on the symbols of the value `index` as well.
  void admit_symbols(ValueIndex index);

  [[nodiscard]] const std::set<std::string>& symbols() const { return symbols_; }
  [[nodiscard]] const ProgramValue& value(ValueIndex of) const { return values_[to_index(of.index)]; }
  [[nodiscard]] std::vector<ProgramValue> take_values() { return std::move(values_); }
  /// Refuses table entries without a value.
  void check_tables() const;

  /// Whether sizes of the next definitions may depend on any symbol, as for the inputs of a whole program.
  void set_open(bool open) { open_ = open; }

 private:
  void check_symbols(const format::Cursor& at, const std::string& name, const SizeExpression& expression) const;

  format::Cursor at_;
  std::set<std::string> symbols_;
  bool open_ = false;
  std::vector<ProgramValue> values_;
  std::unordered_map<std::string, int> index_of_;
  std::unordered_map<std::string_view, const format::Json*> entry_of_[4];  ///< by ProgramValue::Kind
};

/// An argument of a node, an output of a graph or of the signature. Inner graphs are read with the scope's symbols.
[[nodiscard]] ArgumentValue read_argument(const format::Cursor& at, const ProgramScope& scope);
/// An output of a node, whose values it defines.
[[nodiscard]] ProgramResult define_result(const format::Cursor& at, ProgramScope& scope);

/// The graph in the JSON at `at`, inside another one whose sizes depend on `symbols`.
[[nodiscard]] std::shared_ptr<const ProgramGraph> read_nested_graph(const format::Cursor& at,
                                                                    const std::set<std::string>& symbols);

}  // namespace stagecraft::intake

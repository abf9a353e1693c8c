#include "executor/intake/pt2/program_arguments.h"

#include <fmt/format.h>

#include <array>
#include <stdexcept>

#include "costmodel/index.h"
#include "executor/intake/pt2/program_metadata.h"

namespace stagecraft::intake {
namespace {

using Kind = ProgramValue::Kind;

constexpr std::array<const char*, 4> kTables{"tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values"};
constexpr std::array<const char*, 4> kKinds{"a tensor", "an integer", "a float", "a boolean"};

std::size_t number_of(Kind kind) { return static_cast<std::size_t>(kind); }

/// The name in an object {"name": ...}.
std::string read_name(const format::Cursor& at) {
  format::Fields fields(at);
  const std::string out = fields.required("name").text();
  fields.done();
  return out;
}

/// The number in {"as_name": ...} or {"as_int": 3}.
template <class Read>
auto read_number(const format::Cursor& at, const ProgramScope& scope, Kind kind, const std::string& literal,
                 Read&& read) -> std::variant<ValueIndex, decltype(read(at))> {
  const Choice choice = read_choice(at);
  if (choice.key == "as_name") return scope.use(choice.value, choice.value.text(), kind);
  if (choice.key != literal) at.fail(unknown_name("key", choice.key, {"as_name", literal}));
  return read(choice.value);
}

template <class Read>
ArgumentValue read_one_number(const format::Cursor& at, const ProgramScope& scope, Kind kind,
                              const std::string& literal, Read&& read) {
  return std::visit([](const auto& value) { return ArgumentValue(value); },
                    read_number(at, scope, kind, literal, read));
}

template <class Read>
auto read_literals(const format::Cursor& at, const ProgramScope& scope, Kind kind, const std::string& literal,
                   Read&& read) {
  return at.list([&](const format::Cursor& item) {
    const auto value = read_number(item, scope, kind, literal, read);
    if (std::holds_alternative<ValueIndex>(value))
      item.fail(fmt::format("found {} computed by a node inside a list, expected literals", kKinds[number_of(kind)]));
    return std::get<1>(value);
  });
}

std::complex<double> read_complex(const format::Cursor& at) {
  format::Fields fields(at);
  const std::complex<double> out(read_float(fields.required("real")), read_float(fields.required("imag")));
  fields.done();
  return out;
}

std::optional<ValueIndex> read_optional_tensor(const format::Cursor& at, const ProgramScope& scope) {
  const Choice choice = read_choice(at);
  if (choice.key == "as_none") return std::nullopt;
  if (choice.key == "as_tensor") return scope.use(choice.value, read_name(choice.value), Kind::Tensor);
  at.fail(unknown_name("key", choice.key, {"as_none", "as_tensor"}));
}

std::shared_ptr<const ProgramGraph> read_graph_argument(const format::Cursor& at, const ProgramScope& scope) {
  format::Fields fields(at);
  (void)fields.required("name").text();
  const format::Cursor graph = fields.required("graph");
  fields.done();
  return read_nested_graph(graph, scope.symbols());
}

bool boolean(const format::Cursor& at) { return at.boolean(); }
std::string text(const format::Cursor& at) { return at.text(); }

using ArgumentReader = ArgumentValue (*)(const format::Cursor&, const ProgramScope&);

const std::unordered_map<std::string_view, ArgumentReader>& readers() {
  using C = const format::Cursor&;
  using S = const ProgramScope&;
  static const std::unordered_map<std::string_view, ArgumentReader> out{
      {"as_none", [](C, S) { return ArgumentValue(); }},
      {"as_tensor", [](C at, S scope) { return ArgumentValue(scope.use(at, read_name(at), Kind::Tensor)); }},
      {"as_tensors",
       [](C at, S scope) {
         return ArgumentValue(at.list(
             [&](C item) -> std::optional<ValueIndex> { return scope.use(item, read_name(item), Kind::Tensor); }));
       }},
      {"as_optional_tensor",
       [](C at, S scope) {
         const auto value = read_optional_tensor(at, scope);
         return value ? ArgumentValue(*value) : ArgumentValue();
       }},
      {"as_optional_tensors",
       [](C at, S scope) { return ArgumentValue(at.list([&](C item) { return read_optional_tensor(item, scope); })); }},
      {"as_int", [](C at, S) { return ArgumentValue(read_int(at)); }},
      {"as_ints", [](C at, S) { return ArgumentValue(at.list([](C item) { return IntItem(read_int(item)); })); }},
      {"as_float", [](C at, S) { return ArgumentValue(read_float(at)); }},
      {"as_floats", [](C at, S) { return ArgumentValue(at.list(read_float)); }},
      {"as_bool", [](C at, S) { return ArgumentValue(at.boolean()); }},
      {"as_bools", [](C at, S) { return ArgumentValue(at.list(boolean)); }},
      {"as_string", [](C at, S) { return ArgumentValue(at.text()); }},
      {"as_strings", [](C at, S) { return ArgumentValue(at.list(text)); }},
      {"as_complex", [](C at, S) { return ArgumentValue(read_complex(at)); }},
      {"as_sym_int", [](C at, S scope) { return read_one_number(at, scope, Kind::Int, "as_int", read_int); }},
      {"as_sym_float", [](C at, S scope) { return read_one_number(at, scope, Kind::Float, "as_float", read_float); }},
      {"as_sym_bool", [](C at, S scope) { return read_one_number(at, scope, Kind::Bool, "as_bool", boolean); }},
      {"as_sym_ints",
       [](C at, S scope) {
         return ArgumentValue(at.list([&](C item) {
           return std::visit([](const auto& value) { return IntItem(value); },
                             read_number(item, scope, Kind::Int, "as_int", read_int));
         }));
       }},
      {"as_sym_floats",
       [](C at, S scope) { return ArgumentValue(read_literals(at, scope, Kind::Float, "as_float", read_float)); }},
      {"as_sym_bools",
       [](C at, S scope) { return ArgumentValue(read_literals(at, scope, Kind::Bool, "as_bool", boolean)); }},
      {"as_scalar_type", [](C at, S) { return ArgumentValue(read_dtype(at)); }},
      {"as_layout", [](C at, S) { return ArgumentValue(read_layout(at)); }},
      {"as_memory_format", [](C at, S) { return ArgumentValue(read_memory_format(at)); }},
      {"as_device", [](C at, S) { return ArgumentValue(read_device(at)); }},
      {"as_graph", [](C at, S scope) { return ArgumentValue(read_graph_argument(at, scope)); }},
      {"as_operator", [](C at, S) { return ArgumentValue(at.text()); }},
  };
  return out;
}

}  // namespace

ProgramScope::ProgramScope(const format::Cursor& at, std::set<std::string> symbols)
    : at_(at), symbols_(std::move(symbols)) {
  for (std::size_t kind = 0; kind < kTables.size(); ++kind) {
    const auto table = at.value().find(kTables[kind]);
    if (table == at.value().end()) continue;
    if (!table->is_object()) at.inside(*table).fail_type("an object");
    for (auto entry = table->begin(); entry != table->end(); ++entry) {
      entry_of_[kind].emplace(std::string_view(entry.key()), &*entry);
    }
  }
}

void ProgramScope::check_symbols(const format::Cursor& at, const std::string& name,
                                 const SizeExpression& expression) const {
  if (open_ || expression.kind == SizeExpression::Kind::Number) return;
  for (const std::string& symbol : symbols_of(expression)) {
    if (!symbols_.contains(symbol)) {
      at.fail(fmt::format(
          "makes \"{}\", whose size or value \"{}\" depends on data; sizes must follow from those of the inputs", name,
          symbol));
    }
  }
}

ValueIndex ProgramScope::define(const format::Cursor& at, const std::string& name, Kind kind) {
  const auto entry = entry_of_[number_of(kind)].find(name);
  if (entry == entry_of_[number_of(kind)].end())
    at.fail(fmt::format("value \"{}\" is not in the graph's {}", name, kTables[number_of(kind)]));
  const format::Cursor place = at_.inside(*entry->second);
  ProgramValue value;
  value.name = name;
  value.kind = kind;
  if (kind == Kind::Tensor) {
    value.tensor = read_tensor_meta(place);
    for (const SizeExpression& size : value.tensor->sizes) check_symbols(at, name, size);
    for (const SizeExpression& stride : value.tensor->strides) check_symbols(at, name, stride);
    check_symbols(at, name, value.tensor->storage_offset);
  } else if (kind == Kind::Int) {
    value.number = read_size(place);
    check_symbols(at, name, *value.number);
  } else {
    const Choice choice = read_choice(place);
    const std::string literal = kind == Kind::Float ? "as_float" : "as_bool";
    if (choice.key == "as_expr") {
      // Such an expression may use any function: only its symbols matter.
      const std::string expression = format::Fields(choice.value).required("expr_str").text();
      constexpr std::string_view kSymbol = "Symbol('";
      for (std::size_t i = expression.find(kSymbol); i != std::string::npos; i = expression.find(kSymbol, i)) {
        i += kSymbol.size();
        SizeExpression symbol;
        symbol.kind = SizeExpression::Kind::Symbol;
        symbol.symbol = expression.substr(i, expression.find('\'', i) - i);
        check_symbols(at, name, symbol);
      }
    } else if (choice.key != literal) {
      place.fail(unknown_name("key", choice.key, {"as_expr", literal}));
    }
  }
  if (!index_of_.emplace(name, to_int(values_.size())).second)
    at.fail(fmt::format("value \"{}\" is made twice; one input or node must make it", name));
  values_.push_back(std::move(value));
  return {to_int(values_.size()) - 1};
}

ValueIndex ProgramScope::use(const format::Cursor& at, const std::string& name, Kind kind) const {
  const auto found = index_of_.find(name);
  if (found == index_of_.end()) at.fail(fmt::format("value \"{}\" is used before an input or node makes it", name));
  const Kind is = value({found->second}).kind;
  if (is != kind)
    at.fail(fmt::format("value \"{}\" is {}, expected {}", name, kKinds[number_of(is)], kKinds[number_of(kind)]));
  return {found->second};
}

void ProgramScope::admit_symbols(ValueIndex index) {
  const ProgramValue& admitted = value(index);
  const auto admit = [&](const SizeExpression& expression) { symbols_.merge(symbols_of(expression)); };
  if (admitted.number) admit(*admitted.number);
  if (!admitted.tensor) return;
  for (const SizeExpression& size : admitted.tensor->sizes) admit(size);
}

void ProgramScope::check_tables() const {
  for (std::size_t kind = 0; kind < kTables.size(); ++kind) {
    for (const auto& [name, entry] : entry_of_[kind]) {
      const auto found = index_of_.find(std::string(name));
      if (found == index_of_.end() || number_of(value({found->second}).kind) != kind)
        at_.inside(*entry).fail(fmt::format("no input and no node makes the value \"{}\"", name));
    }
  }
}

ArgumentValue read_argument(const format::Cursor& at, const ProgramScope& scope) {
  const Choice choice = read_choice(at);
  const auto reader = readers().find(choice.key);
  if (reader != readers().end()) return reader->second(choice.value, scope);
  for (const char* other : {"as_custom_obj", "as_nested_tensors", "as_int_lists", "as_string_to_argument"}) {
    if (choice.key == other) at.fail(fmt::format("argument \"{}\" is not supported", other));
  }
  std::set<std::string> known;
  for (const auto& [key, read] : readers()) known.emplace(key);
  at.fail(unknown_name("argument", choice.key, {known.begin(), known.end()}));
}

ProgramResult define_result(const format::Cursor& at, ProgramScope& scope) {
  const Choice choice = read_choice(at);
  const auto number = [&](Kind kind) {
    const Choice name = read_choice(choice.value);
    if (name.key != "as_name") choice.value.fail(unknown_name("key", name.key, {"as_name"}));
    return ProgramResult{{scope.define(at, name.value.text(), kind)}, false};
  };
  if (choice.key == "as_none") return {};
  if (choice.key == "as_tensor") return {{scope.define(at, read_name(choice.value), Kind::Tensor)}, false};
  if (choice.key == "as_tensors") {
    return {choice.value.list(
                [&](const format::Cursor& item) { return scope.define(item, read_name(item), Kind::Tensor); }),
            true};
  }
  if (choice.key == "as_sym_int") return number(Kind::Int);
  if (choice.key == "as_sym_float") return number(Kind::Float);
  if (choice.key == "as_sym_bool") return number(Kind::Bool);
  at.fail(unknown_name("output", choice.key,
                       {"as_none", "as_tensor", "as_tensors", "as_sym_int", "as_sym_float", "as_sym_bool"}));
}

}  // namespace stagecraft::intake

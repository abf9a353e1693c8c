#include "executor/intake/program_guards.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>
#include <variant>

#include "executor/intake/program_metadata.h"

namespace stagecraft {
namespace {

using Range = std::pair<std::int64_t, std::int64_t>;
using Limits = std::numeric_limits<std::int64_t>;

/// L['x']['part'][0].size()[1]: of input `path`, dimension `axis`.
struct InputSize {
  std::string path;  ///< "x", or "['x']['part'][0]" where the input is inside another
  std::size_t axis = 0;
};
using Term = std::variant<InputSize, std::int64_t>;

/// Takes `prefix` off the front of `text`.
bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

template <class T>
bool take_number(std::string_view& text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

std::optional<Term> take_term(std::string_view& text) {
  std::int64_t number = 0;
  if (take_number(text, number)) return number;
  if (!take(text, "L")) return std::nullopt;
  const std::string_view begin = text;
  InputSize out;
  int parts = 0;
  for (; take(text, "["); ++parts) {
    std::size_t index = 0;
    if (take(text, "'")) {
      const std::size_t end = text.find('\'');
      if (end == std::string_view::npos) return std::nullopt;
      out.path = text.substr(0, end);
      text.remove_prefix(end + 1);
    } else if (!take_number(text, index)) {
      return std::nullopt;
    }
    if (!take(text, "]")) return std::nullopt;
  }
  if (parts != 1 || out.path.empty()) out.path = begin.substr(0, begin.size() - text.size());
  if (parts == 0 || !take(text, ".size()[") || !take_number(text, out.axis) || !take(text, "]")) return std::nullopt;
  return out;
}

/// The least and most that a size of an input can be; nothing if that is not known.
std::optional<Range> range_of(const InputSize& size, const ExportedProgram& program) {
  for (const ProgramInput& input : program.inputs) {
    if (input.kind != ProgramInput::Kind::User || input.name != size.path) continue;
    const auto& tensor = program.graph.values.at(static_cast<std::size_t>(input.value.index)).tensor;
    if (!tensor || size.axis >= tensor->sizes.size()) return std::nullopt;
    const SizeExpression& expression = tensor->sizes[size.axis];
    if (const auto number = constant_value(expression)) return Range{*number, *number};
    if (expression.kind != SizeExpression::Kind::Symbol) return std::nullopt;
    const auto found = program.ranges.find(expression.symbol);
    return found == program.ranges.end() ? std::nullopt : std::optional(found->second);
  }
  return std::nullopt;
}

/// Whether `a relation b` for all values of both.
bool always(const Range& a, std::string_view relation, const Range& b) {
  if (relation == "<") return a.second < b.first;
  if (relation == "<=") return a.second <= b.first;
  if (relation == ">") return a.first > b.second;
  if (relation == ">=") return a.first >= b.second;
  if (relation == "!=") return a.second < b.first || a.first > b.second;
  return a.first == a.second && b.first == b.second && a.first == b.first;
}

bool is_fulfilled(std::string_view guard, const ExportedProgram& program) {
  const auto left = take_term(guard);
  if (!left || !take(guard, " ")) return false;
  const std::string_view relation = guard.substr(0, guard.find(' '));
  guard.remove_prefix(relation.size());
  if (!take(guard, " ")) return false;
  const auto right = take_term(guard);
  if (!right || !guard.empty()) return false;
  bool known = false;
  for (const char* each : {"==", "!=", "<", "<=", ">", ">="}) known = known || relation == each;
  if (!known) return false;
  // Such sizes have one symbol, whose values must agree.
  if (relation == "==" && std::holds_alternative<InputSize>(*left) && std::holds_alternative<InputSize>(*right))
    return true;
  const auto range = [&](const Term& term) -> std::optional<Range> {
    if (const auto* const number = std::get_if<std::int64_t>(&term)) return Range{*number, *number};
    return range_of(std::get<InputSize>(term), program);
  };
  const auto a = range(*left);
  const auto b = range(*right);
  return a && b && always(*a, relation, *b);
}

}  // namespace

std::map<std::string, Range> read_ranges(const Cursor& at) {
  if (!at.value().is_object()) at.fail_type("an object");
  std::map<std::string, Range> out;
  for (const auto& [key, value] : at.value().items()) {
    const Cursor place = at.inside(value);
    Fields fields(place);
    const auto least = fields.optional("min_val");
    const auto most = fields.optional("max_val");
    fields.done();
    Range range{least ? read_int(*least) : Limits::min(), most ? read_int(*most) : Limits::max()};

    std::string_view symbol = key;
    std::int64_t factor = 1;
    if (take_number(symbol, factor) && (factor < 1 || !take(symbol, "*"))) symbol = "";
    const auto is_plain = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    };
    if (symbol.empty() || !std::ranges::all_of(symbol, is_plain))
      place.fail("found a range of \"" + key + "\", wanted one of a symbol or of a multiple of one");
    // From the multiple's range to the symbol's: up to the next whole number, and down to the last.
    if (range.first != Limits::min()) range.first = range.first / factor + (range.first % factor > 0 ? 1 : 0);
    if (range.second != Limits::max()) range.second = range.second / factor - (range.second % factor < 0 ? 1 : 0);
    const auto [entry, fresh] = out.emplace(symbol, range);
    if (!fresh) {
      entry->second.first = std::max(entry->second.first, range.first);
      entry->second.second = std::min(entry->second.second, range.second);
    }
    if (entry->second.first > entry->second.second) {
      place.fail(fmt::format("found a range from {} to {}, wanted one that is not empty", entry->second.first,
                             entry->second.second));
    }
  }
  return out;
}

void check_guards(const Cursor& at, const ExportedProgram& program) {
  for (std::size_t i = 0; i < at.elements(); ++i) {
    const std::string guard = at.at(i).text();
    if (!is_fulfilled(guard, program)) {
      at.at(i).fail(
          fmt::format("the program is right only where {}, wanted equal sizes of inputs and limits within their "
                      "ranges: export with a range that fulfils it, or for one batch size",
                      guard));
    }
  }
}

}  // namespace stagecraft

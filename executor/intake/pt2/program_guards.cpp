#include "executor/intake/pt2/program_guards.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/text/number.h"
#include "executor/intake/pt2/program_metadata.h"

namespace stagecraft::intake {
namespace {

using NumberRange = std::pair<std::int64_t, std::int64_t>;
using Limits = std::numeric_limits<std::int64_t>;

constexpr int kDeepest = 64;
/// Limit of the work of trying all values of a symbol.
constexpr std::int64_t kMostEvaluations = 4'000'000;

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// Sizes of the program's inputs by their names in guards.
class InputSizes {
 public:
  explicit InputSizes(const ExportedProgram& program) {
    for (const ProgramInput& input : program.inputs) {
      if (input.kind != ProgramInput::Kind::User) continue;
      const auto& tensor = program.graph.values.at(to_index(input.value.index)).tensor;
      if (tensor) sizes_[input.name] = &tensor->sizes;
    }
  }
  [[nodiscard]] std::optional<SizeExpression> find(const std::string& input, std::size_t axis) const {
    const auto found = sizes_.find(input);
    if (found == sizes_.end() || axis >= found->second->size()) return std::nullopt;
    return (*found->second)[axis];
  }

 private:
  std::map<std::string, const std::vector<SizeExpression>*> sizes_;
};

/// Reads one side of a comparison: integers, sizes of inputs, + - * // % ** and parentheses. Absent for anything else.
class GuardParser {
 public:
  GuardParser(std::string_view text, const InputSizes& sizes) : text_(text), sizes_(&sizes) {}

  std::optional<SizeExpression> side() { return sum(1); }
  std::string_view relation() {
    for (const std::string_view word : {" == ", " != ", " <= ", " >= ", " < ", " > "}) {
      if (take(text_, word)) return word.substr(1, word.size() - 2);
    }
    return {};
  }
  [[nodiscard]] bool at_end() const { return text_.empty(); }

 private:
  using Result = std::optional<SizeExpression>;

  static Result combine(SizeExpression::Kind kind, Result a, Result b) {
    if (!a || !b) return std::nullopt;
    SizeExpression out;
    out.kind = kind;
    out.parts.push_back(std::move(*a));
    out.parts.push_back(std::move(*b));
    return out;
  }
  static Result negative(Result of) {
    return combine(SizeExpression::Kind::Multiply, SizeExpression(-1), std::move(of));
  }

  Result sum(int depth) {
    Result out = product(depth + 1);
    while (out) {
      if (take(text_, " + ")) {
        out = combine(SizeExpression::Kind::Add, std::move(out), product(depth + 1));
      } else if (take(text_, " - ")) {
        out = combine(SizeExpression::Kind::Add, std::move(out), negative(product(depth + 1)));
      } else {
        break;
      }
    }
    return out;
  }
  Result product(int depth) {
    Result out = power(depth + 1);
    while (out) {
      if (take(text_, " // ")) {
        out = combine(SizeExpression::Kind::FloorDivide, std::move(out), power(depth + 1));
      } else if (take(text_, " % ")) {
        out = combine(SizeExpression::Kind::Modulo, std::move(out), power(depth + 1));
      } else if (!text_.starts_with("**") && take(text_, "*")) {
        out = combine(SizeExpression::Kind::Multiply, std::move(out), power(depth + 1));
      } else {
        break;
      }
    }
    return out;
  }
  Result power(int depth) {
    if (depth > kDeepest) return std::nullopt;
    const bool minus = take(text_, "-");
    Result out = atom(depth + 1);
    if (out && take(text_, "**")) out = combine(SizeExpression::Kind::Power, std::move(out), atom(depth + 1));
    return minus ? negative(std::move(out)) : out;
  }
  Result atom(int depth) {
    if (const auto number = take_number<std::int64_t>(text_)) return SizeExpression(*number);
    if (take(text_, "(")) {
      Result out = sum(depth + 1);
      return take(text_, ")") ? out : std::nullopt;
    }
    return take(text_, "L[") ? size() : std::nullopt;
  }
  /// The rest of L['x']['part'][0].size()[1], which is the graph's input x_part_0.
  Result size() {
    std::string input;
    do {
      const std::size_t end = text_.find(']');
      if (end == std::string_view::npos) return std::nullopt;
      std::string_view part = text_.substr(0, end);
      text_.remove_prefix(end + 1);
      if (part.size() > 2 && part.front() == '\'' && part.back() == '\'') part = part.substr(1, part.size() - 2);
      input += (input.empty() ? "" : "_") + std::string(part);
    } while (take(text_, "["));
    if (!take(text_, ".size()[")) return std::nullopt;
    const std::optional<std::size_t> axis = take_number<std::size_t>(text_);
    return axis && take(text_, "]") ? sizes_->find(input, *axis) : std::nullopt;
  }

  std::string_view text_;
  const InputSizes* sizes_;
};

bool holds(std::int64_t a, std::string_view relation, std::int64_t b) {
  if (relation == "==") return a == b;
  if (relation == "!=") return a != b;
  if (relation == "<=") return a <= b;
  if (relation == ">=") return a >= b;
  return relation == "<" ? a < b : a > b;
}

/// Whether `a relation b` for all values of both.
bool always(const NumberRange& a, std::string_view relation, const NumberRange& b) {
  if (relation == "!=") return a.second < b.first || a.first > b.second;
  if (relation == "==") return a.first == a.second && a == b;
  const bool less = relation.front() == '<';
  return holds(less ? a.second : a.first, relation, less ? b.first : b.second);
}

/// The range of a number or symbol.
std::optional<NumberRange> range_of(const SizeExpression& of, const ExportedProgram& program) {
  if (of.kind == SizeExpression::Kind::Number) return NumberRange{of.number, of.number};
  const auto found = program.ranges.find(of.symbol);
  if (of.kind != SizeExpression::Kind::Symbol || found == program.ranges.end()) return std::nullopt;
  return found->second;
}

std::int64_t parts_of(const SizeExpression& expression) {
  std::int64_t out = 1;
  for (const SizeExpression& part : expression.parts) out += parts_of(part);
  return out;
}

/// Whether a guard holds for all values of its symbols, by trying each; `evaluations` is the remaining limit.
bool is_implied(std::string_view guard, const InputSizes& sizes, const ExportedProgram& program,
                std::int64_t& evaluations) {
  GuardParser parser(guard, sizes);
  const auto left = parser.side();
  const std::string_view relation = parser.relation();
  const auto right = parser.side();
  if (!left || relation.empty() || !right || !parser.at_end()) return false;
  if (*left == *right) return holds(0, relation, 0);
  const auto left_range = range_of(*left, program);
  const auto right_range = range_of(*right, program);
  if (left_range && right_range && always(*left_range, relation, *right_range)) return true;

  std::set<std::string> symbols = symbols_of(*left);
  symbols.merge(symbols_of(*right));
  if (symbols.size() > 1) return false;
  NumberRange tried{0, 0};
  const std::string symbol = symbols.empty() ? "" : *symbols.begin();
  if (!symbol.empty()) {
    const auto range = program.ranges.find(symbol);
    if (range == program.ranges.end() || range->second.first < 0) return false;
    tried = {std::max<std::int64_t>(range->second.first, 0), range->second.second};
  }
  const std::int64_t cost = parts_of(*left) + parts_of(*right);
  if (tried.second - tried.first >= evaluations / cost) return false;
  evaluations -= (tried.second - tried.first + 1) * cost;
  try {
    for (std::int64_t value = tried.first; value <= tried.second; ++value) {
      const Symbols values{{symbol, value}};
      if (!holds(evaluate(*left, values), relation, evaluate(*right, values))) return false;
    }
  } catch (const std::invalid_argument&) { return false; }
  return true;
}

}  // namespace

std::map<std::string, NumberRange> read_ranges(const format::Cursor& at) {
  if (!at.value().is_object()) at.fail_type("an object");
  std::map<std::string, NumberRange> out;
  for (const auto& [key, value] : at.value().items()) {
    const format::Cursor place = at.inside(value);
    format::Fields fields(place);
    const auto least = fields.optional("min_val");
    const auto most = fields.optional("max_val");
    fields.done();
    NumberRange range{least ? read_int(*least) : Limits::min(), most ? read_int(*most) : Limits::max()};

    std::string_view symbol = key;
    const std::optional<std::int64_t> found = take_number<std::int64_t>(symbol);
    const std::int64_t factor = found.value_or(1);
    if (found && (factor < 1 || !take(symbol, "*"))) symbol = "";
    const auto is_plain = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    };
    if (symbol.empty() || !std::ranges::all_of(symbol, is_plain))
      place.fail("found a range of \"" + key + "\", expected the range of a symbol or of a multiple of one");
    // From the multiple's range to the symbol's: round the lower bound up and the upper bound down.
    if (range.first != Limits::min()) range.first = range.first / factor + (range.first % factor > 0 ? 1 : 0);
    if (range.second != Limits::max()) range.second = range.second / factor - (range.second % factor < 0 ? 1 : 0);
    const auto [entry, fresh] = out.emplace(symbol, range);
    if (!fresh) {
      entry->second.first = std::max(entry->second.first, range.first);
      entry->second.second = std::min(entry->second.second, range.second);
    }
    if (entry->second.first > entry->second.second) {
      place.fail(fmt::format("found an empty range from {} to {}", entry->second.first, entry->second.second));
    }
  }
  return out;
}

void check_guards(const format::Cursor& at, const ExportedProgram& program) {
  const InputSizes sizes(program);
  std::int64_t evaluations = kMostEvaluations;
  for (std::size_t i = 0; i < at.elements(); ++i) {
    const std::string guard = at.at(i).text();
    if (!is_implied(guard, sizes, program, evaluations)) {
      at.at(i).fail(
          fmt::format("the program is valid only if {}, which its size ranges do not imply; export with another range "
                      "or for one batch size",
                      guard));
    }
  }
}

}  // namespace stagecraft::intake

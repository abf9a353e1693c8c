#include "costmodel/interchange/convert/description.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "costmodel/text/number.h"

namespace stagecraft::interchange {
namespace {

constexpr std::size_t kMostBytes = 65536;
constexpr int kMostDepth = 16;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {
    if (text.size() > kMostBytes) {
      throw std::invalid_argument(
          fmt::format("a description of {} bytes, expected at most {}", text.size(), kMostBytes));
    }
  }

  Description whole() {
    Description out = description();
    skip_spaces();
    if (at_ != text_.size()) fail("the end");
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& wanted) const {
    std::string shown;
    for (const char c : text_.substr(0, 60)) shown += c >= ' ' && c <= '~' ? c : '?';
    if (text_.size() > 60) shown += "...";
    const char here = peek();
    const std::string found = at_ >= text_.size()          ? "the end"
                              : here >= ' ' && here <= '~' ? fmt::format("\"{}\"", here)
                                                           : fmt::format("byte {}", static_cast<unsigned char>(here));
    throw std::invalid_argument(
        fmt::format("\"{}\": at character {}: found {}, expected {}", shown, at_ + 1, found, wanted));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_spaces() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') ++at_;
  }
  bool take(char c) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void want(char c) {
    if (!take(c)) fail(fmt::format("\"{}\"", c));
  }

  /// Letters, digits, "_" and, with `dots`, "."; empty if there are none.
  std::string word(bool dots) {
    skip_spaces();
    const std::size_t begin = at_;
    while (is_letter(peek()) || is_digit(peek()) || (dots && peek() == '.')) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  class Nesting {
   public:
    explicit Nesting(Parser& parser) : depth_(parser.depth_) {
      if (++depth_ > kMostDepth) parser.fail(fmt::format("at most {} levels", kMostDepth));
    }
    ~Nesting() { --depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    int& depth_;
  };

  Description description() {
    const Nesting level(*this);
    Description out;
    skip_spaces();
    if (!is_letter(peek())) fail("a kind of layer");
    out.kind = word(true);
    if (!take('(')) return out;
    while (!take(')')) {
      if (const std::optional<std::string> name = child_name()) {
        out.children.push_back({*name, description()});
        continue;
      }
      add(out.arguments, argument());
      if (take(')')) break;
      if (!child_follows()) want(',');
    }
    return out;
  }

  /// "NAME" if the text continues with "(NAME):", which is then consumed.
  std::optional<std::string> child_name() {
    const std::size_t begin = at_;
    if (take('(')) {
      std::string name = word(false);
      if (!name.empty() && take(')') && take(':')) return name;
    }
    at_ = begin;
    return std::nullopt;
  }

  bool child_follows() {
    const std::size_t begin = at_;
    const bool follows = child_name().has_value();
    at_ = begin;
    return follows;
  }

  void add(std::vector<Argument>& arguments, Argument argument) const {
    for (const Argument& other : arguments) {
      if (!argument.name.empty() && other.name == argument.name) {
        fail(fmt::format("each argument once, \"{}\" appears twice", argument.name));
      }
    }
    if (argument.name.empty() && !arguments.empty() && !arguments.back().name.empty()) {
      fail("values without names before those with names");
    }
    arguments.push_back(std::move(argument));
  }

  Argument argument() {
    skip_spaces();
    if (!is_letter(peek())) return {"", literal()};
    const std::size_t begin = at_;
    const std::string name = word(false);
    if (take('=')) return {name, literal()};
    if (name == "True" || name == "False" || name == "None") {
      at_ = begin;
      return {"", literal()};
    }
    return {name, "True"};
  }

  std::string literal() {
    const Nesting level(*this);
    skip_spaces();
    const char c = peek();
    if (c == '(') return tuple();
    if (c == '\'' || c == '"') return string(c);
    if (is_letter(c)) {
      const std::size_t begin = at_;
      std::string name = word(false);
      if (name == "True" || name == "False" || name == "None") return name;
      at_ = begin;
      fail("a number, a string, a tuple, True, False or None");
    }
    return number();
  }

  std::string tuple() {
    want('(');
    std::string out = "(";
    std::size_t items = 0;
    while (!take(')')) {
      out += (items++ > 0 ? ", " : "") + literal();
      if (take(')')) break;
      want(',');
    }
    return out + (items == 1 ? ",)" : ")");
  }

  std::string string(char quote) {
    ++at_;
    std::string out = "\"";
    for (; peek() != quote; ++at_) {
      if (!is_letter(peek()) && !is_digit(peek()) && peek() != '-' && peek() != '.') {
        fail("letters, digits, \"-\", \"_\" and \".\" in a string");
      }
      out += peek();
    }
    ++at_;
    return out + "\"";
  }

  std::string number() {
    std::size_t end = at_;
    const auto belongs = [](char c) { return is_digit(c) || is_letter(c) || c == '.' || c == '-' || c == '+'; };
    while (end < text_.size() && belongs(text_[end])) ++end;
    const std::string_view token = std::string_view(text_).substr(at_, end - at_);
    const std::optional<std::int64_t> whole = number_in<std::int64_t>(token);
    const std::optional<double> real = number_in<double>(token);
    if (!real) fail("a finite number, at most 2^63 if it is an integer");
    at_ = end;
    return whole ? std::to_string(*whole) : fmt::format("{}", *real == 0 ? 0.0 : *real);  // no "-0"
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

bool operator==(const Description& a, const Description& b) {
  return a.kind == b.kind && a.arguments == b.arguments && a.children == b.children;
}

Description parse_description(const std::string& text) { return Parser(text).whole(); }

std::string description_text(const Description& description) {
  std::string out = description.kind;
  if (description.arguments.empty() && description.children.empty()) return out;
  std::string inner;
  for (const Argument& argument : description.arguments) {
    inner += (inner.empty() ? "" : ", ") + (argument.name.empty() ? "" : argument.name + "=") + argument.literal;
  }
  for (const auto& [name, child] : description.children) {
    inner += (inner.empty() ? "" : "  ") + fmt::format("({}): {}", name, description_text(child));
  }
  return out + "(" + inner + ")";
}

std::optional<std::int64_t> whole_number(const Argument& argument) { return number_in<std::int64_t>(argument.literal); }

}  // namespace stagecraft::interchange

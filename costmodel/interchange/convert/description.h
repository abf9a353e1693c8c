#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft::interchange {

/// `name` = `literal`; by position if `name` is empty. `literal` is Python text of a number, True, False, None, a
/// string of letters, digits, "_", "-" and ".", or a tuple of these: rewritten from the parsed value, so that it is
/// safe in a program.
struct Argument {
  std::string name;
  std::string literal;
  friend bool operator==(const Argument&, const Argument&) = default;
};

/// PyTorch's text for a module: "Conv2d(3, 64, kernel_size=(3, 3), bias=False)", or with submodules "Classifier(
/// (classifier): Linear(in_features=8, out_features=9, bias=True))".
struct Description {
  std::string kind;
  std::vector<Argument> arguments;
  struct Child;
  std::vector<Child> children;
  friend bool operator==(const Description& a, const Description& b);
};

struct Description::Child {
  std::string name;
  Description module;
  friend bool operator==(const Child&, const Child&) = default;
};

/// Reads such a text. A bare word, as in "ReLU(inplace)", is an argument of that name that is True; positional
/// arguments come before named ones.
/// Throws std::invalid_argument "TEXT: at character N: found, expected" for anything else, an argument that appears
/// twice, more than 64 KiB or more than 16 nested modules or tuples.
[[nodiscard]] Description parse_description(const std::string& text);

/// The description as Python prints it, on one line; parse_description reads it back.
[[nodiscard]] std::string description_text(const Description& description);

/// The argument's value if it is an integer.
[[nodiscard]] std::optional<std::int64_t> whole_number(const Argument& argument);

}  // namespace stagecraft::interchange

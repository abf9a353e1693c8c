#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "costmodel/errors.h"

namespace stagecraft {

/// What people read about a kind of error.
struct ErrorEntry {
  ErrorKind kind = ErrorKind::Unexpected;
  std::string code;    ///< "SC2101"; never reused for another kind, even after this one is removed
  std::string title;   ///< what happened, in a few words
  std::string cause;   ///< when it happens, in sentences
  std::string remedy;  ///< what to do, in sentences; commands as typed
};

/// Codes that begin with the same two digits.
struct ErrorArea {
  std::string title;
  std::vector<ErrorEntry> entries;  ///< by code
};

/// All kinds, each once.
[[nodiscard]] const std::vector<ErrorArea>& error_catalogue();

/// The entry of a kind.
[[nodiscard]] const ErrorEntry& error_entry(ErrorKind kind);

/// The entry of a code. Throws InputError listing the codes.
[[nodiscard]] const ErrorEntry& error_entry(std::string_view code);

/// `text` with the code of `kind` in brackets at the end of its first line: "plan.json: is empty [SC1202]".
[[nodiscard]] std::string with_code(const std::string& text, ErrorKind kind);

/// The message of an exception as programs print it: what(), with_code.
[[nodiscard]] std::string message_of(const std::exception& error);

/// A line for each code and its title, under the titles of the areas.
[[nodiscard]] std::string catalogue_text();

/// Code, title, cause and remedy of one kind, in lines that fit a terminal.
[[nodiscard]] std::string entry_text(const ErrorEntry& entry);

/// The catalogue as the page docs/errors.md.
[[nodiscard]] std::string catalogue_markdown();

}  // namespace stagecraft

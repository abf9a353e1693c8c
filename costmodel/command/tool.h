#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/text/number.h"
#include "costmodel/units.h"

// For the tools' main functions only: their common behaviour, ranges of numeric options, and what --help prints.

namespace stagecraft {

// Ranges of numeric options. Each is for CLI::Option::transform, so that the checked value is the stored one ("010" is
// ten); wrong ones are wrong usage: "--steps: 0 is not an integer of 1 or more".

/// `text` as quoted in a message: unchanged if it looks like a number.
[[nodiscard]] std::string shown_number(const std::string& text);

/// A number without the trailing zeros of std::to_string: "0.001", "1000000", "1e+30".
[[nodiscard]] std::string number_text(double value);

/// Integers from `least` to `most`; `why` explains `most` in messages. T is the type of the option's variable, or of
/// its elements.
template <class T>
[[nodiscard]] CLI::Validator integer(T least, T most = std::numeric_limits<T>::max(), const std::string& why = "") {
  const bool open = most == std::numeric_limits<T>::max();
  const std::string lowest = std::to_string(least);
  const std::string range = "from " + lowest + " to " + std::to_string(most);
  const auto check = [=](std::string& text) {
    const std::optional<T> value = number_in<T>(text);
    if (value && *value >= least && *value <= most) {
      text = std::to_string(*value);
      return std::string();
    }
    const bool too_large = !value && !text.empty() && text.find_first_not_of("0123456789") == text.npos;
    return shown_number(text) + " is not an integer " + (open && !too_large ? "of " + lowest + " or more" : range) +
           (why.empty() ? "" : ", " + why);
  };
  return {check, open ? lowest + " or more" : range};
}

/// Finite numbers from `least` to `most`.
[[nodiscard]] CLI::Validator number_from(double least, double most);

/// Finite numbers above `bound`.
[[nodiscard]] CLI::Validator number_above(double bound);

struct Conditions;
struct Provenance;

/// The text of --help, apart from the options.
struct ToolText {
  std::string verb;           ///< "plan"; the program is then stagecraft-plan, called as `stagecraft plan`
  std::string purpose;        ///< one or two sentences
  std::string example;        ///< command lines
  std::string versions = "";  ///< versions of libraries, which --version prints after the program's own
};

/// Says on standard error: "stagecraft-plan: warning: TEXT". On a terminal, warnings and the program's name before an
/// error are coloured.
void warn(const std::string& program, const std::string& text);

/// Warns if the device's speed changed while something was measured.
void warn_if_unsteady(const std::string& program, const Conditions& conditions);

/// The exit status of a tool: `configure(CLI::App&)` declares its options, then `run()` does the work and returns 0 for
/// done or 1 for "no answer". --help and --version end with 0. A command line that is wrong whatever the files contain
/// ends with 2: one that cannot be parsed, and a CLI::ParseError from `run`. Any other exception from `run` (bad input,
/// a failure of the machine) ends with 1. Messages go to standard error, begin with the program's name, and have the
/// code of their kind at the end of the first line.
[[nodiscard]] int run_tool(const ToolText& text, int argc, char** argv, const std::function<void(CLI::App&)>& configure,
                           const std::function<int()>& run);

/// Names what makes a document: sets the tool to the program that run_tool runs, "stagecraft-plan 0.1.0", and the note
/// "command" to its command line as typed.
void sign(Provenance& provenance);

/// The result of `call()`. Its std::invalid_argument becomes an InputError of the same kind, with `place` before its
/// text.
template <class Call>
auto within(const std::string& place, Call call) {
  try {
    return call();
  } catch (const std::invalid_argument& e) { throw InputError(kind_of(e), place + ": " + e.what()); }
}

/// The value of a result; no answer ends the tool, with `before` before the reason.
template <class T>
[[nodiscard]] T answer_of(std::variant<T, Infeasible> result, const std::string& before = "") {
  if (const auto* infeasible = std::get_if<Infeasible>(&result)) throw NoAnswerError(before, *infeasible);
  return std::get<T>(std::move(result));
}

/// The result of `read()` for the option `name`; its std::invalid_argument is wrong usage.
template <class Read>
auto usage(const std::string& name, Read read) {
  try {
    return read();
  } catch (const std::invalid_argument& e) { throw CLI::ValidationError(name, e.what()); }
}

/// Names from a table: "--clock: unknown clock "sundial", known are host, cupti". For CLI::Option::check.
[[nodiscard]] CLI::Validator one_of(const std::string& what, const std::vector<std::string>& known);

/// Declares --accept-untrusted, which STAGECRAFT_ACCEPT_UNTRUSTED=1 in the environment sets for every tool.
CLI::Option* add_accept_untrusted(CLI::App& app, bool& accept, const std::string& help);

/// Declares an option whose value is a byte count as parse_bytes reads it; a wrong one is wrong usage.
CLI::Option* add_bytes_option(CLI::App& app, const std::string& name, std::optional<Bytes>& value,
                              const std::string& help);

/// Declares --force, the `force` of check_outputs.
void add_force_option(CLI::App& app, bool& force);

/// Lines of at most `width` characters, broken at spaces; a longer word has a line of its own. The line breaks of
/// `text` stay, and what follows a line's spaces at its beginning is indented by them and two more.
[[nodiscard]] std::vector<std::string> wrapped(const std::string& text, int width);

/// Prints options in their groups, with descriptions that fit the screen and end with what is allowed:
/// "[1 or more; default: 10; not with --epochs]".
class HelpFormatter : public CLI::Formatter {
 public:
  /// `width`: of a line, in characters.
  explicit HelpFormatter(int width);

  std::string make_group(std::string group, bool is_positional, std::vector<const CLI::Option*> options) const override;
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
  /// In brackets unless required: by CLI11, or by a callback of the program, which ends its description with
  /// "(required)".
  std::string make_option_usage(const CLI::Option* option) const override;

 private:
  int width_;
};

/// The options that are declared while this object exists belong to the group `title`.
class OptionGroup {
 public:
  OptionGroup(CLI::App& app, const std::string& title);
  ~OptionGroup();
  OptionGroup(const OptionGroup&) = delete;
  OptionGroup& operator=(const OptionGroup&) = delete;

 private:
  CLI::App& app_;
  std::string before_;
};

}  // namespace stagecraft

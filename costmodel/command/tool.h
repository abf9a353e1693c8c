#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "costmodel/command/tool_numbers.h"
#include "costmodel/errors.h"
#include "costmodel/errors/catalogue.h"
#include "costmodel/text/units_text.h"
#include "costmodel/version.h"

// For the tools' main functions only: their common behaviour.

namespace stagecraft {

/// The text of --help, apart from the options.
struct ToolText {
  std::string verb;           ///< "plan"; the program is then stagecraft-plan, called as `stagecraft plan`
  std::string purpose;        ///< one or two sentences
  std::string example;        ///< command lines
  std::string versions = "";  ///< versions of libraries, which --version prints after the program's own
};

/// The known name of which `name` is probably a misspelling: the one with the fewest edits (a character added, dropped,
/// replaced, or swapped with the next), the first if several tie. Nothing if it takes more than one edit and more than
/// a third of its characters.
[[nodiscard]] inline std::optional<std::string> nearest_name(const std::string& name,
                                                             const std::vector<std::string>& known) {
  std::optional<std::string> nearest;
  std::size_t fewest = std::max<std::size_t>(1, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    // Optimal string alignment: edits[i][j] for the first i characters of `name` and the first j of the candidate.
    std::vector<std::vector<std::size_t>> edits(name.size() + 1, std::vector<std::size_t>(candidate.size() + 1));
    for (std::size_t i = 0; i <= name.size(); ++i) {
      for (std::size_t j = 0; j <= candidate.size(); ++j) {
        if (i == 0 || j == 0) {
          edits[i][j] = i + j;
          continue;
        }
        const bool same = name[i - 1] == candidate[j - 1];
        edits[i][j] = std::min({edits[i - 1][j] + 1, edits[i][j - 1] + 1, edits[i - 1][j - 1] + (same ? 0 : 1)});
        if (i > 1 && j > 1 && name[i - 1] == candidate[j - 2] && name[i - 2] == candidate[j - 1]) {
          edits[i][j] = std::min(edits[i][j], edits[i - 2][j - 2] + 1);
        }
      }
    }
    if (edits.back().back() < fewest) {
      fewest = edits.back().back();
      nearest = candidate;
    }
  }
  return nearest;
}

/// ", did you mean --depth?" for the first unexpected argument that looks like a misspelt option, else nothing.
[[nodiscard]] inline std::string suggested_option(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const std::string& argument : app.remaining()) {
    if (!argument.starts_with("--")) continue;
    if (const auto nearest = nearest_name(argument.substr(0, argument.find('=')), names)) {
      return ", did you mean " + *nearest + "?";
    }
  }
  return "";
}

/// Whether an error is of one of these classes.
template <class... Classes>
[[nodiscard]] bool is_any(const CLI::ParseError& error) {
  return (... || (dynamic_cast<const Classes*>(&error) != nullptr));
}

/// The kind of a wrong command line.
[[nodiscard]] inline ErrorKind usage_kind(const CLI::ParseError& error) {
  if (is_any<CLI::ExtrasError>(error)) return ErrorKind::UnknownOption;
  if (is_any<CLI::RequiredError>(error)) return ErrorKind::MissingOption;
  if (is_any<CLI::ExcludesError, CLI::RequiresError>(error)) return ErrorKind::OptionConflict;
  if (is_any<CLI::ValidationError, CLI::ConversionError, CLI::ArgumentMismatch>(error)) return ErrorKind::WrongValue;
  return ErrorKind::WrongUsage;
}

/// The exit status of a tool: `configure(CLI::App&)` declares its options, then `run()` does the work and returns 0 for
/// done or 1 for "no answer". --help and --version end with 0. A command line that is wrong whatever the files contain
/// ends with 2: one that cannot be parsed, and a CLI::ParseError from `run`. Any other exception from `run` (bad input,
/// a failure of the machine) ends with 1. Messages go to standard error, begin with the program's name, and have the
/// code of their kind at the end of the first line.
template <class Configure, class Run>
[[nodiscard]] int run_tool(const ToolText& text, int argc, char** argv, Configure configure, Run run) {
  const std::string program = "stagecraft-" + text.verb;
  const auto refuse_usage = [&](const CLI::ParseError& error, const std::string& suggestion = "") {
    std::cerr << program << ": " << with_code(error.what() + suggestion, usage_kind(error)) << "\nsee stagecraft "
              << text.verb << " --help\n";
    return 2;
  };
  try {
    CLI::App app(text.purpose, "stagecraft " + text.verb);
    app.footer("Example:\n  " + text.example + "\n\nExit status: 0 done, 1 bad input or no answer, 2 wrong usage.");
    app.set_version_flag("--version", program + " " + version() + text.versions);
    configure(app);
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& e) {  // --help, --version
      return app.exit(e);
    } catch (const CLI::ExtrasError& e) { return refuse_usage(e, suggested_option(app)); }
    return run();
  } catch (const CLI::ParseError& e) { return refuse_usage(e); } catch (const std::exception& e) {
    std::cerr << program << ": " << message_of(e) << "\n";
    return 1;
  }
}

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
[[nodiscard]] inline CLI::Validator one_of(const std::string& what, const std::vector<std::string>& known) {
  const auto check = [=](const std::string& name) {
    return std::ranges::find(known, name) != known.end() ? std::string() : unknown_name(what, name, known);
  };
  return {check, ""};
}

/// Declares --accept-untrusted, which STAGECRAFT_ACCEPT_UNTRUSTED=1 in the environment sets for every tool.
inline CLI::Option* add_accept_untrusted(CLI::App& app, bool& accept, const std::string& help) {
  return app.add_flag("--accept-untrusted", accept, help)->envname("STAGECRAFT_ACCEPT_UNTRUSTED");
}

/// Declares an option whose value is a byte count as parse_bytes reads it; a wrong one is wrong usage.
inline CLI::Option* add_bytes_option(CLI::App& app, const std::string& name, std::optional<Bytes>& value,
                                     const std::string& help) {
  const auto store = [&value, name](const std::string& text) {
    value = usage(name, [&] { return parse_bytes(text); });
  };
  return app.add_option_function<std::string>(name, store, help)->type_name("BYTES");
}

/// Declares --force, the `force` of check_outputs.
inline void add_force_option(CLI::App& app, bool& force) {
  app.add_flag("--force", force, "overwrite input files and files of another kind");
}

}  // namespace stagecraft

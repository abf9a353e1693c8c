#include "costmodel/command/tool.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <memory>

#include "costmodel/command/help.h"
#include "costmodel/conditions.h"
#include "costmodel/errors/catalogue.h"
#include "costmodel/graph.h"
#include "costmodel/text/shell_line.h"
#include "costmodel/text/terminal.h"
#include "costmodel/text/units_text.h"
#include "costmodel/version.h"

namespace stagecraft {

namespace {

/// The arguments that no option takes, in the order given. CLI11 prints them in reverse.
std::string unexpected_text(const CLI::App& app) {
  const std::vector<std::string> arguments = app.remaining();
  const char* const what = arguments.size() > 1 ? "the following arguments were" : "the following argument was";
  return fmt::format("{} not expected: {}", what, fmt::join(arguments, " "));
}

/// ", did you mean --depth?" for the first unexpected argument that looks like a misspelt option, else nothing.
std::string suggested_option(const CLI::App& app) {
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
bool is_any(const CLI::ParseError& error) {
  return (... || (dynamic_cast<const Classes*>(&error) != nullptr));
}

/// The kind of a wrong command line.
ErrorKind usage_kind(const CLI::ParseError& error) {
  if (is_any<CLI::ExtrasError>(error)) return ErrorKind::UnknownOption;
  if (is_any<CLI::RequiredError>(error)) return ErrorKind::MissingOption;
  if (is_any<CLI::ExcludesError, CLI::RequiresError>(error)) return ErrorKind::OptionConflict;
  if (is_any<CLI::ValidationError, CLI::ConversionError, CLI::ArgumentMismatch>(error)) return ErrorKind::WrongValue;
  return ErrorKind::WrongUsage;
}

/// Throws if an option without values has one, as in --spawn=2, which CLI11 would take for --spawn.
void refuse_values_of_flags(const CLI::App& app, const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--") return;
    const auto equals = argument.find('=');
    if (!argument.starts_with("--") || equals == std::string::npos) continue;
    const std::string name = argument.substr(0, equals);
    const CLI::Option* const option = app.get_option_no_throw(name);
    if (option != nullptr && option->get_items_expected_max() == 0)
      throw CLI::ArgumentMismatch(fmt::format("{} takes no value, found \"{}\"", name, argument.substr(equals + 1)));
  }
}

/// What sign writes: set by run_tool.
struct RunningTool {
  std::string program;
  std::string command;
};

RunningTool& running_tool() {
  static RunningTool out;
  return out;
}

}  // namespace

void sign(Provenance& provenance) {
  provenance.tool = running_tool().program + " " + version();
  provenance.notes["command"] = running_tool().command;
}

void warn(const std::string& program, const std::string& text) {
  std::cerr << program << ": " << emphasized("warning:", Emphasis::Warning, error_screen().colour) << " " << text
            << "\n";
}

void warn_if_unsteady(const std::string& program, const Conditions& conditions) {
  if (const std::string text = unsteady_text(conditions); !text.empty())
    warn(program, text + "; measure again on a quieter machine, or expect errors of this size");
}

int run_tool(const ToolText& text, int argc, char** argv, const std::function<void(CLI::App&)>& configure,
             const std::function<int()>& run) {
  const std::string program = "stagecraft-" + text.verb;
  const std::string place = emphasized(program + ":", Emphasis::Error, error_screen().colour) + " ";
  const auto refuse_usage = [&](const CLI::ParseError& error, const std::string& message) {
    std::cerr << place << with_code(message, usage_kind(error)) << "\nsee stagecraft " << text.verb << " --help\n";
    return 2;
  };
  running_tool() = {program, command_line(text.verb, argc, argv)};
  try {
    CLI::App app(text.purpose, "stagecraft " + text.verb);
    app.footer("Example:\n  " + text.example + "\n\nExit status: 0 done, 1 bad input or no answer, 2 wrong usage.");
    app.set_version_flag("--version", program + " " + version() + text.versions);
    app.formatter(std::make_shared<HelpFormatter>(output_screen().width));
    configure(app);
    refuse_values_of_flags(app, {argv + std::min(1, argc), argv + argc});
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& e) {  // --help, --version
      return app.exit(e);
    } catch (const CLI::ExtrasError& e) { return refuse_usage(e, unexpected_text(app) + suggested_option(app)); }
    return run();
  } catch (const CLI::ParseError& e) { return refuse_usage(e, e.what()); } catch (const std::exception& e) {
    std::cerr << place << message_of(e) << "\n";
    return 1;
  }
}

CLI::Validator one_of(const std::string& what, const std::vector<std::string>& known) {
  const auto check = [=](const std::string& name) {
    return std::ranges::find(known, name) != known.end() ? std::string() : unknown_name(what, name, known);
  };
  return {check, ""};
}

CLI::Option* add_accept_untrusted(CLI::App& app, bool& accept, const std::string& help) {
  return app.add_flag("--accept-untrusted", accept, help)->envname("STAGECRAFT_ACCEPT_UNTRUSTED");
}

CLI::Option* add_bytes_option(CLI::App& app, const std::string& name, std::optional<Bytes>& value,
                              const std::string& help) {
  const auto store = [&value, name](const std::string& text) {
    value = usage(name, [&] { return parse_bytes(text); });
  };
  return app.add_option_function<std::string>(name, store, help)->type_name("BYTES");
}

void add_force_option(CLI::App& app, bool& force) {
  app.add_flag("--force", force, "overwrite input files and files of another kind");
}

}  // namespace stagecraft

#include "costmodel/command/tool.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "costmodel/conditions.h"
#include "costmodel/errors.h"
#include "costmodel/format/escaping.h"
#include "costmodel/graph.h"
#include "costmodel/text/number.h"
#include "costmodel/text/table.h"
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

constexpr int kColumn = 26;  ///< where descriptions begin
constexpr int kLeast = 40;   ///< of a description's width, also on narrower screens

/// "INT" and "1 or more" of "INT:1 or more": CLI11 puts what validators say after the name of the type. A colon before
/// a capital is part of the name: "KIND=MODULE:CLASS".
std::pair<std::string, std::string> type_and_range(const CLI::Option& option) {
  const std::string full = option.get_type_name();
  std::size_t colon = full.find(':');
  while (colon != full.npos && colon + 1 < full.size() && full[colon + 1] >= 'A' && full[colon + 1] <= 'Z')
    colon = full.find(':', colon + 1);
  return colon == full.npos ? std::pair(full, std::string()) : std::pair(full.substr(0, colon), full.substr(colon + 1));
}

/// What the option takes: nothing for a positional, whose name says it better than CLI11's TEXT.
std::string value_name(const CLI::Option& option) {
  const std::string type = type_and_range(option).first;
  return option.get_positional() && type == "TEXT" ? "" : type;
}

std::string joined(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options) names.push_back(option->get_name());
  std::ranges::sort(names);
  return CLI::detail::join(names, ", ");
}

}  // namespace

std::string number_text(double value) {
  std::array<char, 32> out{};
  std::snprintf(out.data(), out.size(), "%.15g", value);
  return out.data();
}

std::string shown_number(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of("+-.0123456789eE") == std::string::npos;
  return plain ? text : "\"" + text + "\"";
}

CLI::Validator number_from(double least, double most) {
  const std::string range = "from " + number_text(least) + " to " + number_text(most);
  const auto check = [=](std::string& text) {
    const std::optional<double> value = number_in<double>(text);
    if (value && *value >= least && *value <= most) return std::string();
    return shown_number(text) + " is not a number " + range;
  };
  return {check, range};
}

CLI::Validator number_above(double bound) {
  const std::string range = "above " + number_text(bound);
  const auto check = [=](std::string& text) {
    const std::optional<double> value = number_in<double>(text);
    if (value && *value > bound) return std::string();
    return shown_number(text) + " is not a number " + range;
  };
  return {check, range};
}

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
  running_tool() = {program, format::command_line(text.verb, argc, argv)};
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

std::vector<std::string> wrapped(const std::string& text, int width) {
  std::vector<std::string> out;
  for (const std::string& line : CLI::detail::split(text, '\n')) {
    const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
    std::string rest = line;
    while (rest.size() > static_cast<std::size_t>(width)) {
      const std::size_t begin = rest.find_first_not_of(' ');
      std::size_t end = rest.rfind(' ', static_cast<std::size_t>(width));
      if (end == rest.npos || end <= begin) end = rest.find(' ', begin);  // the first word is too long
      if (end == rest.npos) break;
      out.push_back(rest.substr(0, end));
      rest = std::string(indent == 0 ? 0 : indent + 2, ' ') + rest.substr(end + 1);
    }
    out.push_back(rest);
  }
  return out;
}

HelpFormatter::HelpFormatter(int width) : width_(width) { column_width(kColumn); }

std::string HelpFormatter::make_group(std::string group, bool is_positional,
                                      std::vector<const CLI::Option*> options) const {
  std::string out = "\n" + group + ":\n";
  for (const CLI::Option* option : options) out += make_option(option, is_positional);
  return out;
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode /*mode*/) const {
  std::string out = make_description(app) + make_usage(app, std::move(name)) + make_positionals(app);
  for (const std::string& group : app->get_groups()) {
    const std::vector<const CLI::Option*> options = app->get_options(
        [&](const CLI::Option* option) { return option->nonpositional() && option->get_group() == group; });
    if (!group.empty() && !options.empty()) out += make_group(group, false, options);
  }
  return out + "\n" + make_footer(app);
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  const std::string name = "  " + make_option_name(option, is_positional) + make_option_opts(option);
  const std::vector<std::string> lines = wrapped(make_option_desc(option), std::max(width_ - kColumn, kLeast));
  const bool beside = name.size() + 2 <= kColumn;
  std::string out = name;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0 || !beside) out += '\n';
    if (!lines[i].empty()) out += std::string(i == 0 && beside ? kColumn - name.size() : kColumn, ' ') + lines[i];
  }
  return out + "\n";
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  std::string out;
  if (option->get_type_size() != 0) {
    const std::string value = value_name(*option);
    if (!value.empty()) out += " " + value;
    if (option->get_expected_max() == CLI::detail::expected_max_vector_size && !out.ends_with("...")) out += " ...";
  }
  return out;
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  std::vector<std::string> notes;
  const std::string range = type_and_range(*option).second;
  if (!range.empty()) notes.push_back(range);
  if (option->get_required() && !option->get_positional()) notes.emplace_back("required");
  if (!option->get_default_str().empty()) notes.push_back("default: " + option->get_default_str());
  if (!option->get_needs().empty()) notes.push_back("needs " + joined(option->get_needs()));
  if (!option->get_excludes().empty()) notes.push_back("not with " + joined(option->get_excludes()));
  if (!option->get_envname().empty()) notes.push_back("or the environment variable " + option->get_envname());
  if (notes.empty()) return option->get_description();
  return option->get_description() + " [" + CLI::detail::join(notes, "; ") + "]";
}

std::string HelpFormatter::make_option_usage(const CLI::Option* option) const {
  const std::string usage = CLI::Formatter::make_option_usage(option);
  const bool required = option->get_description().ends_with("(required)");
  return required && usage.starts_with('[') ? usage.substr(1, usage.size() - 2) : usage;
}

OptionGroup::OptionGroup(CLI::App& app, const std::string& title)
    : app_(app), before_(app.option_defaults()->get_group()) {
  app_.option_defaults()->group(title);
}

// CLI11 throws for names that it does not accept; this one it had.
OptionGroup::~OptionGroup() { app_.option_defaults()->group(before_); }  // NOLINT(bugprone-exception-escape)

}  // namespace stagecraft

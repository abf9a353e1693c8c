#include "costmodel/command/help.h"

#include <algorithm>
#include <set>
#include <utility>

namespace stagecraft {
namespace {

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

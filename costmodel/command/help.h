#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

// What --help prints.

namespace stagecraft {

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

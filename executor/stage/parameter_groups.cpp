#include "executor/stage/parameter_groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/text/number.h"

namespace stagecraft::stage {
namespace {

std::regex compiled(const std::string& pattern) {
  try {
    return std::regex(pattern, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& e) {
    throw std::invalid_argument(fmt::format("\"{}\" is not a regular expression: {}", pattern, e.what()));
  }
}

double setting_value(const std::string& group, const std::string& key, const std::string& text) {
  const std::optional<double> value = number_in<double>(text);
  if (!value || *value < 0 || *value > 1e6)
    throw std::invalid_argument(
        fmt::format("group \"{}\": {} is \"{}\", must be a number from 0 to 1e6", group, key, text));
  return *value;
}

}  // namespace

ParameterGroup parse_group(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) {
    throw std::invalid_argument(
        fmt::format("group \"{}\": expected PATTERN:SETTING=VALUE, such as \"bias|norm:weight-decay=0\"", text));
  }
  ParameterGroup out{.pattern = text.substr(0, colon)};
  (void)compiled(out.pattern);
  std::set<std::string> seen;
  std::istringstream settings(text.substr(colon + 1));
  for (std::string setting; std::getline(settings, setting, ',');) {
    const std::size_t equals = std::min(setting.find('='), setting.size());
    std::string key = setting.substr(0, equals);
    std::ranges::replace(key, '_', '-');
    if (key == "lr") key = "learning-rate";
    if (key == "lr-factor") key = "learning-rate-factor";
    const std::vector<std::string> known{"weight-decay", "learning-rate", "learning-rate-factor"};
    if (std::ranges::find(known, key) == known.end())
      throw InputError(ErrorKind::UnknownName,
                       fmt::format("group \"{}\": {}", text, unknown_name("setting", key, known)));
    if (!seen.insert(key).second) throw std::invalid_argument(fmt::format("group \"{}\": {} is set twice", text, key));
    const double value = setting_value(text, key, setting.substr(std::min(equals + 1, setting.size())));
    if (key == "weight-decay") out.weight_decay = value;
    if (key == "learning-rate") out.learning_rate = value;
    if (key == "learning-rate-factor") out.rate_factor = value;
  }
  return out;
}

std::string group_text(const ParameterGroup& group) {
  std::vector<std::string> settings;
  if (group.weight_decay) settings.push_back(fmt::format("weight-decay={}", *group.weight_decay));
  if (group.learning_rate) settings.push_back(fmt::format("learning-rate={}", *group.learning_rate));
  if (group.rate_factor != 1) settings.push_back(fmt::format("learning-rate-factor={}", group.rate_factor));
  return fmt::format("{}:{}", group.pattern, fmt::join(settings, ","));
}

std::vector<std::size_t> groups_of(const std::vector<ParameterGroup>& groups, const std::vector<std::string>& names) {
  std::vector<std::regex> patterns;
  for (const ParameterGroup& group : groups) patterns.push_back(compiled(group.pattern));
  std::vector<std::size_t> out;
  for (const std::string& name : names) {
    const auto found =
        std::ranges::find_if(patterns, [&](const std::regex& pattern) { return std::regex_search(name, pattern); });
    out.push_back(static_cast<std::size_t>(found - patterns.begin()));
  }
  return out;
}

void check_groups(const std::vector<ParameterGroup>& groups, const std::vector<std::string>& names) {
  const std::vector<std::size_t> used = groups_of(groups, names);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (std::ranges::find(used, g) != used.end()) continue;
    const std::string& pattern = groups[g].pattern;
    const std::regex compiled_pattern = compiled(pattern);
    const auto matches = [&](const std::string& name) { return std::regex_search(name, compiled_pattern); };
    if (std::ranges::any_of(names, matches)) {
      throw std::invalid_argument(
          fmt::format("group \"{}\" has no parameters: earlier groups have all that match", pattern));
    }
    constexpr std::size_t kMost = 40;
    const std::set<std::string> known(names.begin(), names.end());
    std::vector<std::string> listed(known.begin(), known.end());
    const std::size_t more = listed.size() > kMost ? listed.size() - kMost : 0;
    listed.resize(listed.size() - more);
    throw InputError(ErrorKind::UnknownName,
                     fmt::format("group \"{}\" matches no parameter; the model has {}{}", pattern,
                                 fmt::join(listed, ", "), more > 0 ? fmt::format(" and {} more", more) : ""));
  }
}

}  // namespace stagecraft::stage

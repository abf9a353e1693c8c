#pragma once

#include <optional>
#include <string>
#include <vector>

namespace stagecraft::stage {

/// Parameters with settings of their own, chosen by name.
struct ParameterGroup {
  std::string pattern;  ///< regular expression of ECMAScript, found anywhere in a parameter's name
  std::optional<double> weight_decay = {};
  std::optional<double> learning_rate = {};  ///< instead of the optimizer's
  double rate_factor = 1;                    ///< on the learning rate
};

/// Reads "PATTERN:SETTING=VALUE,...", such as "bias|norm:weight-decay=0"; the last colon ends the pattern. Settings are
/// weight-decay, learning-rate (or lr) and learning-rate-factor (or lr-factor). Throws std::invalid_argument naming
/// what is wrong in `text`.
[[nodiscard]] ParameterGroup parse_group(const std::string& text);
/// The text that parse_group reads.
[[nodiscard]] std::string group_text(const ParameterGroup& group);

/// For each name, the index of the first group whose pattern is found in it; `groups.size()` if there is none.
[[nodiscard]] std::vector<std::size_t> groups_of(const std::vector<ParameterGroup>& groups,
                                                 const std::vector<std::string>& names);
/// Throws std::invalid_argument naming a group that has none of the parameters `names`: it lists names, or says that
/// earlier groups have all that match.
void check_groups(const std::vector<ParameterGroup>& groups, const std::vector<std::string>& names);

}  // namespace stagecraft::stage

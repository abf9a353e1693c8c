#include "partitioner/command/shared_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "costmodel/command/tool.h"
#include "costmodel/text/units_text.h"
#include "partitioner/strategies/strategies.h"

namespace stagecraft::partitioner {

void declare_options(CLI::App& app, const Strategy& strategy, const std::string& title, OptionValues& values) {
  for (const Option& option : strategy.options) {
    std::vector<std::string> names;
    for (const std::string& name : option.names) names.push_back((name.size() == 1 ? "-" : "--") + name);
    std::ranges::stable_sort(names, {}, [](const std::string& name) { return name.starts_with("--"); });
    const std::string declared = fmt::format("{}", fmt::join(names, ","));
    const std::string key = option.names.front();
    CLI::Option* made = nullptr;
    switch (option.kind) {
      case OptionKind::Flag:
        made = app.add_flag_callback(declared, [&values, key] { values[key] = true; }, option.help);
        break;
      case OptionKind::Positive:
        made = app.add_option_function<double>(
                      declared, [&values, key](double value) { values[key] = value; }, option.help)
                   ->transform(number_above(0));
        break;
      case OptionKind::Bytes:
        made = app.add_option_function<std::string>(
                      declared,
                      [&values, key, declared](const std::string& text) {
                        values[key] = usage(declared, [&] { return parse_bytes(text); });
                      },
                      option.help)
                   ->type_name("BYTES");
        break;
    }
    made->group(title);
  }
}

const Strategy* owner_of_options(const OptionValues& given) {
  for (const Strategy& strategy : strategies()) {
    const auto is_given = [&](const Option& option) { return given.contains(option.names.front()); };
    if (std::ranges::any_of(strategy.options, is_given)) return &strategy;
  }
  return nullptr;
}

std::string titles_of_options() {
  std::vector<std::string> out;
  for (const Strategy& strategy : strategies()) {
    if (!strategy.options.empty()) out.push_back(strategy.options_title + "'s");
  }
  return fmt::format("{}", fmt::join(out, " and "));
}

}  // namespace stagecraft::partitioner

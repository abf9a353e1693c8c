#include "costmodel/command/tool_settings.h"

#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/text/table.h"

namespace stagecraft {

std::string settings_text() {
  std::vector<std::vector<std::string>> rows;
  for (const SettingText& text : settings_known()) rows.push_back({"  " + text.name, text.values, text.meaning});
  return table_text(
      {{.title = "  setting", .left = true}, {.title = "values", .left = true}, {.title = "", .left = true}}, rows,
      120);
}

CLI::Option* add_set_option(CLI::App& app, std::vector<std::string>& changes) {
  return app.add_option("--set", changes, "a change, NAME=VALUE; see below")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
}

Scenario with_settings(Scenario scenario, const std::vector<std::string>& changes) {
  for (const std::string& change : changes) {
    try {
      scenario = with_change(std::move(scenario), change);
    } catch (const std::invalid_argument& e) { throw InputError(kind_of(e), std::string("--set ") + e.what()); }
  }
  return scenario;
}

}  // namespace stagecraft

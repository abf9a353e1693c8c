#include "partitioner/command/shared_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "costmodel/command/tool.h"
#include "costmodel/format/json.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::partitioner {

void declare_devices(CLI::App& app, TopologyRequest& request, const std::string& note) {
  app.add_option("-n,--devices", request.devices,
                 "number of devices per level, innermost first; replaces TOPOLOGY" + note)
      ->delimiter(',')
      ->transform(integer(1))
      ->type_name("COUNT ...");
  app.add_option("-b,--bandwidths", request.bandwidths, "bandwidth of each level of --devices (default: 1e9)")
      ->delimiter(',')
      ->transform(number_above(0))
      ->type_name("BYTES_PER_S ...");
}

void check_topology(const TopologyRequest& request) {
  if (request.file.empty() == request.devices.empty())
    throw CLI::ValidationError("TOPOLOGY", "give either a topology file or --devices");
  if (!request.bandwidths.empty() && request.devices.empty())
    throw CLI::ValidationError("--bandwidths", "only valid with --devices; a topology file has its own");
  if (request.bandwidths.size() > request.devices.size()) {
    throw CLI::ValidationError("--bandwidths", fmt::format("found {} values for {} levels of --devices",
                                                           request.bandwidths.size(), request.devices.size()));
  }
}

Topology topology_of(const TopologyRequest& request) {
  if (request.devices.empty()) return format::read_topology(request.file);
  Topology out;
  out.name = "command line";
  for (std::size_t i = 0; i < request.devices.size(); ++i) {
    Level level;
    level.name = fmt::format("level {}", i + 1);
    level.count = request.devices[i];
    level.link.bandwidth = BytesPerSecond(i < request.bandwidths.size() ? request.bandwidths[i] : 1e9);
    out.levels.push_back(level);
  }
  validate(out);
  return out;
}

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

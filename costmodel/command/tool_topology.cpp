#include "costmodel/command/tool_topology.h"

#include <fmt/format.h>

#include "costmodel/command/tool_numbers.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/text/units_text.h"

namespace stagecraft {

void declare_devices(CLI::App& app, TopologyRequest& request, const std::string& note) {
  app.add_option("-n,--devices", request.devices,
                 "number of devices per level, innermost first; 8,4 is four hosts of 8; replaces TOPOLOGY" + note)
      ->delimiter(',')
      ->transform(integer(1))
      ->type_name("COUNT ...");
  app.add_option("-b,--bandwidths", request.bandwidths,
                 "bandwidth of each level's links (default: 1e9, which is 8 Gbit/s)")
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
    throw CLI::ValidationError(
        "--bandwidths", fmt::format("found {} for {} of --devices", count_text(request.bandwidths.size(), "value"),
                                    count_text(request.devices.size(), "level")));
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

}  // namespace stagecraft

#include <iostream>

#include "costmodel/command/tool.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/text/units_text.h"
#include "profiler/nvml.h"

namespace {

void print(const stagecraft::profiler::Discovery& found, const stagecraft::Topology& topology) {
  std::cerr << "driver " << found.driver << "\n";
  for (const stagecraft::profiler::DiscoveredDevice& device : found.devices) {
    std::cerr << "GPU " << device.links.rank << ": " << device.name << ", " << stagecraft::format_bytes(device.memory)
              << ", " << device.uuid << "\n";
  }
  for (const stagecraft::profiler::DiscoveredPair& pair : found.pairs) {
    std::cerr << "GPUs " << pair.a << " and " << pair.b << ": ";
    if (pair.nvlinks > 0) std::cerr << pair.nvlinks << " NVLinks, ";
    std::cerr << (pair.ancestor.empty() ? "no common ancestor reported" : pair.ancestor) << "\n";
  }
  for (const stagecraft::Level& level : topology.levels) {
    const stagecraft::Bytes in_a_second(static_cast<std::int64_t>(level.link.bandwidth.value));
    std::cerr << "level \"" << level.name << "\": " << level.count << " by " << topology.provenance.notes.at(level.name)
              << ", " << stagecraft::format_bytes(in_a_second) << "/s declared\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string output;
  bool force = false;
  return stagecraft::run_tool(
      {"discover",
       "Asks NVIDIA's driver for the GPUs of this machine and the links between them. Bandwidths are declared, not "
       "measured.",
       "stagecraft discover -o topology.json"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("-o,--output", output, "output file for the topology; - is standard output")->type_name("FILE");
        stagecraft::add_force_option(app, force);
      },
      [&] {
        stagecraft::format::check_outputs({}, {{output, "stagecraft.topology"}}, force);
        const stagecraft::profiler::Discovery found = stagecraft::profiler::discover(stagecraft::profiler::load_nvml());
        stagecraft::Topology topology = stagecraft::profiler::declared_topology(found);
        print(found, topology);
        stagecraft::sign(topology.provenance);
        if (!output.empty()) stagecraft::format::write_text(output, stagecraft::format::topology_json(topology));
        return 0;
      });
}

#include "profiler/links/links_machines.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "costmodel/index.h"
#include "executor/channel/rank_subset.h"
#include "profiler/links/links_channel.h"
#include "profiler/links/links_report.h"

namespace stagecraft::profiler {
namespace {

/// Ranks on each machine; throws as measure_machines does.
int ranks_per_machine(const std::vector<int>& machines) {
  const int count = machines.empty() ? 0 : machines.back() + 1;
  const int ranks = count == 0 ? 0 : to_int(machines.size()) / count;
  for (std::size_t rank = 0; rank < machines.size(); ++rank) {
    if (ranks > 0 && machines[rank] == to_int(rank) / ranks) continue;
    throw std::invalid_argument(
        fmt::format("rank {} is on machine {}; to measure the links between machines, start the same number of ranks "
                    "on each, one machine after the other",
                    rank, machines[rank]));
  }
  if (count < 2) throw std::invalid_argument("all ranks are on one machine");
  return ranks;
}

}  // namespace

MachineLinks measure_machines(channel::Channel& channel, const std::vector<int>& machines, const LinksOptions& options,
                              int threads, const std::function<void(const std::string&)>& progress) {
  MachineLinks out;
  out.ranks_per_machine = ranks_per_machine(machines);
  const auto measure = [&](const std::vector<int>& members, const std::string& what) {
    LinkMeasurement measured;
    if (std::ranges::find(members, channel.rank()) != members.end()) {
      channel::RankSubset subset(channel, members);
      LinksOptions half = options;
      if (out.ranks_per_machine > 1) half.most_time = options.most_time / 2;
      measured = measure_links(subset, half, threads,
                               progress ? [&](const std::string& text) { progress(what + ": " + text); }
                                        : std::function<void(const std::string&)>());
    }
    channel.barrier();
    return measured;
  };
  if (out.ranks_per_machine > 1) {
    std::vector<int> of_first(to_index(out.ranks_per_machine));
    std::iota(of_first.begin(), of_first.end(), 0);
    out.inside = measure(of_first, "inside a machine");
  }
  std::vector<int> firsts;
  for (int rank = 0; rank < channel.ranks(); rank += out.ranks_per_machine) firsts.push_back(rank);
  out.between = measure(firsts, "between machines");
  return out;
}

Topology topology_of(const MachineLinks& measured, const std::string& channel, Device device,
                     const Provenance& provenance) {
  Topology network = topology_of(measured.between, channel, device, provenance);
  network.levels.front().name = "network";
  const int machines = measured.between.ranks;
  const std::string name =
      fmt::format("{} ranks on {} hosts, {} channel", machines * measured.ranks_per_machine, machines, channel);
  if (measured.ranks_per_machine == 1) {
    network.name = name;
    return network;
  }
  Topology out = topology_of(measured.inside, channel, std::move(device), provenance);
  out.name = name;
  out.levels.push_back(network.levels.front());
  // The first machine is in both measurements.
  const std::vector<ProcessorUse>& hosts = network.conditions.hosts;
  if (!hosts.empty()) out.conditions.hosts.insert(out.conditions.hosts.end(), hosts.begin() + 1, hosts.end());
  for (const auto& [key, text] : network.provenance.notes) {
    if (key == "channel" || provenance.notes.contains(key)) continue;
    out.provenance.notes["network " + key] = text;
  }
  validate(out);
  return out;
}

}  // namespace stagecraft::profiler

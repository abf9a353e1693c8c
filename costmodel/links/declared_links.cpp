#include "costmodel/links/declared_links.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"

namespace stagecraft {
namespace {

using LinkedGroup = std::vector<const DeclaredGpu*>;

/// The slowest PCI link between two GPUs.
BytesPerSecond path_bandwidth(const DeclaredGpu& a, const DeclaredGpu& b) {
  BytesPerSecond out = std::min(a.path.front().bandwidth, b.path.front().bandwidth);
  const auto add = [&out](const DeclaredGpu& from, const DeclaredGpu& to) {
    for (const PciHop& hop : from.path) {
      const bool shared =
          std::any_of(to.path.begin(), to.path.end(), [&](const PciHop& h) { return h.element == hop.element; });
      if (shared) return;
      out = std::min(out, hop.bandwidth);
    }
  };
  add(a, b);
  add(b, a);
  return out;
}

BytesPerSecond link_bandwidth(const DeclaredGpu& gpu) {
  return gpu.link_bandwidth.value_or(nvlink_bandwidth(gpu.compute_capability));
}

/// Bytes per second of the direct NVLinks between two GPUs of one host, 0 if there are none.
BytesPerSecond direct_bandwidth(const DeclaredGpu& a, const DeclaredGpu& b) {
  const auto at = a.links.find(b.bus);
  return at == a.links.end() || a.host != b.host ? BytesPerSecond(0)
                                                 : std::min(link_bandwidth(a), link_bandwidth(b)) * at->second;
}

/// The groups of `gpus` that direct NVLinks join, in the order of their first members, and the slowest such connection.
std::pair<std::vector<LinkedGroup>, BytesPerSecond> nvlink_groups(const LinkedGroup& gpus) {
  std::vector<LinkedGroup> out;
  BytesPerSecond thinnest(0);
  std::set<const DeclaredGpu*> seen;
  for (const DeclaredGpu* first : gpus) {
    if (!seen.insert(first).second) continue;
    LinkedGroup group{first};
    for (std::size_t i = 0; i < group.size(); ++i) {
      for (const DeclaredGpu* other : gpus) {
        const BytesPerSecond bandwidth = direct_bandwidth(*group[i], *other);
        if (bandwidth == BytesPerSecond(0) || other == group[i]) continue;
        thinnest = thinnest == BytesPerSecond(0) ? bandwidth : std::min(thinnest, bandwidth);
        if (seen.insert(other).second) group.push_back(other);
      }
    }
    std::sort(group.begin(), group.end(), [](const DeclaredGpu* a, const DeclaredGpu* b) { return a->rank < b->rank; });
    out.push_back(std::move(group));
  }
  return {out, thinnest};
}

/// Whether the groups, one after the other, are `gpus` in equal parts.
bool are_equal_parts(const std::vector<LinkedGroup>& groups, const LinkedGroup& gpus) {
  LinkedGroup all;
  for (const LinkedGroup& group : groups) {
    if (group.size() != groups.front().size()) return false;
    all.insert(all.end(), group.begin(), group.end());
  }
  return all == gpus;
}

Level level(const char* name, std::size_t count, BytesPerSecond bandwidth) {
  return {name, to_int(count), {bandwidth, kNodeLatency, {}, {}}};
}

/// The levels inside one host, and the links that join them.
std::vector<Level> node_levels(const LinkedGroup& gpus, std::map<std::string, std::string>& notes) {
  const auto to_switch = [](const DeclaredGpu* gpu) { return link_bandwidth(*gpu) * gpu->switch_links; };
  BytesPerSecond switched = to_switch(gpus.front());
  BytesPerSecond pci = path_bandwidth(*gpus.front(), *gpus.front());
  for (const DeclaredGpu* a : gpus) {
    switched = std::min(switched, to_switch(a));
    for (const DeclaredGpu* b : gpus) {
      if (a != b) pci = std::min(pci, path_bandwidth(*a, *b));
    }
  }
  if (switched > BytesPerSecond(0)) {
    notes["node"] = "NVLinks to a switch";
    return {level("node", gpus.size(), switched)};
  }
  const auto [groups, thinnest] = nvlink_groups(gpus);
  if (groups.size() == 1 && gpus.size() > 1) {
    notes["node"] = "NVLinks between GPUs";
    return {level("node", gpus.size(), thinnest)};
  }
  notes["node"] = "PCI";
  if (thinnest == BytesPerSecond(0)) return {level("node", gpus.size(), pci)};
  if (!are_equal_parts(groups, gpus)) {
    notes["node"] = "PCI; NVLinks that do not join equal groups of consecutive ranks are not counted";
    return {level("node", gpus.size(), pci)};
  }
  notes["nvlink"] = "NVLinks between GPUs";
  return {level("nvlink", groups.front().size(), thinnest), level("node", groups.size(), pci)};
}

/// The slower of two hosts' levels, one by one; where their NVLinks join other groups, or those of one host alone, a
/// single level of PCI.
std::vector<Level> slowest_of(std::vector<Level> a, const std::vector<Level>& b) {
  const bool alike = std::ranges::equal(a, b, {}, &Level::count, &Level::count);
  if (!alike) {
    int count = 1;
    for (const Level& level : a) count *= level.count;
    a = {a.back()};
    a.back().count = count;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    BytesPerSecond& bandwidth = a[a.size() - i].link.bandwidth;
    bandwidth = std::min(bandwidth, b[b.size() - i].link.bandwidth);
  }
  return a;
}

}  // namespace

std::string plain_bus(std::string_view bus) {
  std::string out;
  for (const char c : bus) {
    if (c != ':' && c != '.' && (c != '0' || !out.empty())) {
      out += c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  return out;
}

BytesPerSecond nvlink_bandwidth(int compute_capability) {
  if (compute_capability >= 107 && compute_capability < 110) return BytesPerSecond(31.2e9);
  if (compute_capability >= 100) return BytesPerSecond(40.1e9);
  if (compute_capability >= 90) return BytesPerSecond(20.6e9);
  if (compute_capability == 86) return BytesPerSecond(12e9);
  if (compute_capability >= 70) return BytesPerSecond(20e9);
  return BytesPerSecond(compute_capability >= 60 ? 18e9 : 20e9);
}

BytesPerSecond xgmi_bandwidth(std::string_view gcn) {
  if (gcn.starts_with("gfx94") || gcn.starts_with("gfx95") || gcn == "940" || gcn == "941" || gcn == "942")
    return BytesPerSecond(48e9);
  return BytesPerSecond(gcn == "gfx90a" || gcn == "910" ? 36e9 : 24e9);
}

BytesPerSecond pci_bandwidth(double gigatransfers_per_s, int lanes) {
  static const std::map<double, double> table{{2.5, 0.1875e9}, {5, 0.375e9}, {8, 0.75e9},
                                              {16, 1.5e9},     {32, 3e9},    {64, 6e9}};
  const auto at = table.find(gigatransfers_per_s);
  return BytesPerSecond((at == table.end() ? 0.75e9 : at->second) * lanes);
}

std::vector<Level> declared_levels(const std::vector<DeclaredGpu>& gpus, std::map<std::string, std::string>& notes) {
  if (gpus.empty()) throw std::invalid_argument("no GPUs");
  std::map<std::string, LinkedGroup> hosts;
  LinkedGroup all;
  bool switched = true;
  for (const DeclaredGpu& gpu : gpus) {
    hosts[gpu.host].push_back(&gpu);
    all.push_back(&gpu);
    switched = switched && gpu.switch_links > 0;
  }
  if (switched) hosts = {{"", all}};
  std::vector<Level> out;
  for (const auto& [host, members] : hosts) {
    const std::size_t first = hosts.begin()->second.size();
    if (members.size() != first) {
      throw std::invalid_argument("found hosts of " + std::to_string(first) + " and " + std::to_string(members.size()) +
                                  " GPUs, expected equal numbers");
    }
    std::map<std::string, std::string> host_notes;
    std::vector<Level> levels = node_levels(members, host_notes);
    const bool slower = out.empty() || levels.back().link.bandwidth < out.back().link.bandwidth;
    if (slower) notes["node"] = host_notes.at("node");
    if (out.empty()) {
      out = std::move(levels);
      if (out.size() > 1) notes["nvlink"] = host_notes.at("nvlink");
    } else {
      out = slowest_of(out, levels);
      if (out.size() == 1) notes.erase("nvlink");
    }
  }
  return out;
}

}  // namespace stagecraft

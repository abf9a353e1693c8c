#include "costmodel/interchange/nccl_topology.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <pugixml.hpp>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/format/escaping.h"
#include "costmodel/index.h"
#include "costmodel/links/declared_links.h"
#include "costmodel/text/number.h"

namespace stagecraft::interchange {
namespace {

constexpr int kMostDevices = 1024;
constexpr int kMostDepth = 64;

/// A network interface.
struct DeclaredNet {
  std::string host;
  std::int64_t processor = 0;  ///< a unique number
  std::vector<PciHop> path;    ///< from the interface up; empty if it is not on PCI
  BytesPerSecond bandwidth;
  Seconds latency;
};

class DumpReader {
 public:
  DumpReader(const std::string& text, const std::string& file) : text_(text), file_(file) {
    if (!format::is_utf8(text)) throw FormatError(file + ": not UTF-8");
    pugi::xml_document document;
    const pugi::xml_parse_result result = document.load_buffer(text.data(), text.size());
    if (!result) fail_at(result.offset, std::string("not XML: ") + result.description());
    const pugi::xml_node system = document.child("system");
    if (!system) throw FormatError(file + ": found no element <system>");
    if (const std::string version = attribute(system, "version"); version != "1" && version != "2") {
      fail(system, "found version \"" + version + "\", expected \"1\" (NCCL) or \"2\" (RCCL)");
    }
    for (const pugi::xml_node cpu : system.children("cpu")) {
      processor_ = cpu.offset_debug();
      visit(cpu, cpu.attribute("host_hash").value(), {}, 0);
    }
    if (gpus.empty()) {
      fail(system,
           "found no <gpu> with a rank, as in a file for NCCL_TOPO_FILE: run a program that uses NCCL with "
           "NCCL_TOPO_DUMP_FILE=dump.xml and import that");
    }
    std::sort(gpus.begin(), gpus.end(), [](const DeclaredGpu& a, const DeclaredGpu& b) { return a.rank < b.rank; });
  }

  [[noreturn]] void fail_at(std::ptrdiff_t offset, const std::string& message) const {
    const std::size_t end = std::min(to_index(std::max<std::ptrdiff_t>(offset, 0)), text_.size());
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    throw FormatError(file_ + ": line " + std::to_string(line) + ": " + message);
  }

  std::vector<DeclaredGpu> gpus;                    ///< by rank
  std::map<std::int64_t, std::int64_t> processors;  ///< by rank of a GPU
  std::vector<DeclaredNet> nets;
  bool is_amd = false;
  int without_rank = 0;
  int without_speed = 0;

 private:
  [[noreturn]] void fail(const pugi::xml_node& node, const std::string& message) const {
    fail_at(node.offset_debug(), std::string("<") + node.name() + ">: " + message);
  }

  std::string attribute(const pugi::xml_node& node, const char* name) const {
    const pugi::xml_attribute found = node.attribute(name);
    if (!found) fail(node, std::string("attribute \"") + name + "\" is missing");
    return found.value();
  }

  std::int64_t number(const pugi::xml_node& node, const char* name, std::int64_t low, std::int64_t high) const {
    const std::string text = attribute(node, name);
    const std::optional<std::int64_t> out = number_in<std::int64_t>(text);
    if (!out || *out < low || *out > high) {
      fail(node, std::string("attribute \"") + name + "\": found \"" + text + "\", expected an integer from " +
                     std::to_string(low) + " to " + std::to_string(high));
    }
    return *out;
  }

  void visit(const pugi::xml_node& node, const std::string& host, std::vector<PciHop> path, int depth) {
    if (depth > kMostDepth) fail(node, "elements are nested deeper than " + std::to_string(kMostDepth));
    const std::string_view name = node.name();
    if (name == "pci") path.insert(path.begin(), hop(node));
    if (name == "gpu") return add_gpu(node, host, path);
    if (name == "net") return add_net(node, host, path);
    for (const pugi::xml_node child : node.children()) visit(child, host, path, depth + 1);
  }

  PciHop hop(const pugi::xml_node& pci) {
    std::string_view speed = pci.attribute("link_speed").value();
    const std::string width = pci.attribute("link_width").value();
    const std::int64_t lanes = width.empty() ? 0 : number(pci, "link_width", 0, 32);
    if (lanes == 0 || speed.empty()) ++without_speed;
    // "16.0 GT/s PCIe"; anything but a number counts as unknown.
    const double gigatransfers = take_number<double>(speed).value_or(0);
    return {pci.offset_debug(), pci_bandwidth(gigatransfers, lanes == 0 ? 16 : to_int(lanes))};
  }

  void add_gpu(const pugi::xml_node& node, const std::string& host, const std::vector<PciHop>& path) {
    if (!node.attribute("rank")) {
      ++without_rank;
      return;
    }
    DeclaredGpu gpu;
    gpu.rank = number(node, "rank", 0, 1 << 24);
    gpu.compute_capability = to_int(number(node, "sm", 10, 1000));
    gpu.host = host;
    gpu.path = path;
    if (path.empty()) fail(node, "found outside of a <pci>");
    gpu.bus = plain_bus(attribute(node.parent(), "busid"));
    if (const std::string gcn = node.attribute("gcn").value(); !gcn.empty()) {
      gpu.link_bandwidth = xgmi_bandwidth(gcn);
      is_amd = true;
    }
    for (const pugi::xml_node link : node.children("xgmi"))
      gpu.links[plain_bus(attribute(link, "target"))] += to_int(number(link, "count", 0, 1024));
    for (const pugi::xml_node link : node.children("nvlink")) {
      const int count = to_int(number(link, "count", 0, 1024));
      const std::string target = plain_bus(attribute(link, "target"));
      const std::string kind = attribute(link, "tclass");
      if (kind.starts_with("0x068001")) continue;  // a processor's NVLink
      if (kind.starts_with("0x03")) {
        gpu.links[target] += count;
      } else {
        gpu.switch_links += count;
      }
    }
    for (const DeclaredGpu& other : gpus) {
      if (other.rank == gpu.rank) fail(node, "rank " + std::to_string(gpu.rank) + " appears twice");
    }
    if (gpus.size() == kMostDevices) fail(node, "more than " + std::to_string(kMostDevices) + " devices");
    processors[gpu.rank] = processor_;
    gpus.push_back(std::move(gpu));
  }

  /// NCCL assumes 10 Gbit/s for a NIC of unknown speed, and ignores NICs with net="0".
  void add_net(const pugi::xml_node& node, const std::string& host, const std::vector<PciHop>& path) {
    if (std::string_view(node.attribute("net").value()) == "0") return;
    const std::int64_t megabits = node.attribute("speed") ? number(node, "speed", -1, 1'000'000'000) : 0;
    const double bandwidth = (megabits > 0 ? static_cast<double>(megabits) : 10000) * 1e6 / 8;
    nets.push_back({host, processor_, path, BytesPerSecond(bandwidth),
                    Seconds(std::clamp(node.attribute("latency").as_double(), 0.0, 1e6) * 1e-6)});
  }

  std::int64_t processor_ = 0;
  const std::string& text_;
  const std::string& file_;
};

/// How near a network interface is: behind a PCI switch of the GPU, at its processor, elsewhere.
int distance(const DeclaredGpu& gpu, const DeclaredNet& net, std::int64_t processor) {
  for (const PciHop& hop : net.path) {
    if (std::ranges::find(gpu.path, hop.element, &PciHop::element) != gpu.path.end()) return 0;
  }
  return net.processor == processor ? 1 : 2;
}

/// A PCI link of 8 GT/s or more in its data sheet, 63 GB/s for 32 GT/s and 16 lanes; NCCL counts 48, with which it
/// chooses among PCI paths, but which is below the 50 of a network interface.
BytesPerSecond data_sheet_bandwidth(const PciHop& hop) { return hop.bandwidth * (63.0 / 48); }

/// The slowest link between a GPU and the network, without those of their own two PCI paths that both share.
BytesPerSecond path_bandwidth(const DeclaredGpu& gpu, const DeclaredNet& net) {
  BytesPerSecond out = net.bandwidth;
  const auto add = [&out](const std::vector<PciHop>& from, const std::vector<PciHop>& to) {
    for (const PciHop& hop : from) {
      if (std::ranges::find(to, hop.element, &PciHop::element) != to.end()) return;
      out = std::min(out, data_sheet_bandwidth(hop));
    }
  };
  add(gpu.path, net.path);
  add(net.path, gpu.path);
  return out;
}

/// The link between hosts, and in `note` what it is.
Link cluster_link(const DumpReader& dump, std::string& note) {
  std::vector<std::vector<const DeclaredNet*>> used;  // by GPU
  std::map<const DeclaredNet*, int> users;
  for (const DeclaredGpu& gpu : dump.gpus) {
    std::vector<const DeclaredNet*> best;
    std::pair<double, int> best_rank;  // fastest, then nearest
    for (const DeclaredNet& net : dump.nets) {
      if (net.host != gpu.host) continue;
      const std::pair rank{-path_bandwidth(gpu, net).value, distance(gpu, net, dump.processors.at(gpu.rank))};
      if (!best.empty() && rank > best_rank) continue;
      if (!best.empty() && rank < best_rank) best.clear();
      best_rank = rank;
      best.push_back(&net);
    }
    for (const DeclaredNet* net : best) ++users[net];
    used.push_back(std::move(best));
  }
  Link out{BytesPerSecond(0), kClusterLatency, {}, {}};
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i].empty()) continue;
    BytesPerSecond sum(0);
    for (const DeclaredNet* net : used[i]) {
      sum += path_bandwidth(dump.gpus[i], *net) / static_cast<double>(users[net]);
      out.latency = std::max(out.latency, net->latency);
    }
    sum = std::min(sum, data_sheet_bandwidth(dump.gpus[i].path.front()));
    if (out.bandwidth > BytesPerSecond(0) && sum >= out.bandwidth) continue;
    out.bandwidth = sum;
    note = std::to_string(used[i].size()) + " network interface" + (used[i].size() == 1 ? "" : "s") + " of each GPU" +
           (users[used[i].front()] == 1 ? "" : ", shared by " + std::to_string(users[used[i].front()]) + " GPUs") +
           "; the dump does not give the number of nodes";
  }
  return out;
}

/// The matrix of `nvidia-smi topo -m`: by GPU and GPU "X", "NV18", "PIX", ...
Topology parse_matrix(const std::string& text, const std::string& file) {
  std::vector<DeclaredGpu> gpus;
  std::istringstream in(text);
  std::size_t columns = 0;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const auto fail = [&](const std::string& message) {
      throw FormatError(file + ": line " + std::to_string(number) + ": " + message);
    };
    // The header is underlined in terminals.
    for (std::size_t escape; (escape = line.find('\x1b')) != line.npos;) {
      const std::size_t end = line.find('m', escape);
      if (end == line.npos) break;
      line.erase(escape, end + 1 - escape);
    }
    std::istringstream words(line);
    std::vector<std::string> found;
    for (std::string word; words >> word;) found.push_back(word);
    if (found.empty() || !found.front().starts_with("GPU") || found.front() == "GPU") continue;
    if (columns == 0) {
      columns = to_index(std::ranges::count_if(
          found, [](const std::string& w) { return w.size() > 3 && w.starts_with("GPU") && std::isdigit(w[3]) != 0; }));
      continue;
    }
    const std::size_t row = gpus.size();
    if (found.front() != "GPU" + std::to_string(row))
      fail("found " + found.front() + ", expected GPU" + std::to_string(row));
    if (found.size() <= columns)
      fail("found " + std::to_string(found.size() - 1) + " columns, expected " + std::to_string(columns));
    DeclaredGpu gpu;
    gpu.rank = static_cast<std::int64_t>(row);
    gpu.compute_capability = 80;
    gpu.bus = std::to_string(row);
    gpu.path = {{static_cast<std::int64_t>(row), pci_bandwidth(16, 16)}};
    for (std::size_t i = 0; i < columns; ++i) {
      std::string_view entry = found[i + 1];
      if (!entry.starts_with("NV")) continue;
      entry.remove_prefix(2);
      const int links = take_number<int>(entry).value_or(0);
      if (i != row && links > 0 && links <= 1024) gpu.links[std::to_string(i)] = links;
    }
    if (gpus.size() == columns || gpus.size() == kMostDevices) fail("found more rows than columns");
    gpus.push_back(std::move(gpu));
  }
  if (gpus.empty() || gpus.size() != columns) {
    throw FormatError(file + ": found no complete matrix of GPUs, expected NCCL's topology dump or the output of " +
                      "nvidia-smi topo -m");
  }
  Topology out;
  out.levels = declared_levels(gpus, out.provenance.notes);
  out.provenance.notes["NVLink"] = "counted as 20 GB/s each, as the matrix does not name the GPUs; PCI as 16 GT/s";
  out.provenance.notes["latency"] = "not in a matrix: 5 us";
  out.device.name = "GPU";
  out.device.kind = DeviceKind::Gpu;
  out.name = std::to_string(gpus.size()) + " GPUs, nvidia-smi topo";
  return out;
}

}  // namespace

Topology parse_nccl_topology(const std::string& text, const std::string& file) {
  if (const std::size_t first = text.find_first_not_of(" \t\r\n");
      first != text.npos && text[first] != '<' && format::is_utf8(text)) {
    Topology out = parse_matrix(text, file);
    try {
      validate(out);
    } catch (const std::invalid_argument& e) { throw FormatError(file + ": " + e.what()); }
    return out;
  }
  const DumpReader dump(text, file);
  Topology out;
  auto& notes = out.provenance.notes;
  try {
    out.levels = declared_levels(dump.gpus, notes);
  } catch (const std::invalid_argument& e) { dump.fail_at(0, std::string("<system>: ") + e.what()); }
  const int hosts = to_int(dump.gpus.size()) / device_count(out);
  if (hosts > 1 && dump.nets.empty()) dump.fail_at(0, "<system>: found several hosts and no <net>");
  if (!dump.nets.empty()) {
    const Link link = cluster_link(dump, notes["cluster"]);
    if (link.bandwidth <= BytesPerSecond(0)) dump.fail_at(0, "<system>: found no <net> on a host with GPUs");
    out.levels.push_back({"cluster", hosts, link});
  }
  out.device.kind = DeviceKind::Gpu;
  notes["latency"] = "not in a dump: 5 us inside a node, 10 us between nodes";
  if (dump.without_rank > 0) notes["left out"] = std::to_string(dump.without_rank) + " GPUs without a rank";
  if (dump.without_speed > 0) {
    notes["PCI"] = std::to_string(dump.without_speed) + " links without speed or width, taken as 8 GT/s or 16 lanes";
  }
  if (dump.is_amd) {
    for (const char* level : {"node", "nvlink"}) {
      if (const auto note = notes.find(level); note != notes.end() && note->second == "NVLinks between GPUs")
        note->second = "XGMI links between GPUs";
    }
  }
  out.device.name = dump.is_amd
                        ? "AMD GPU"
                        : "GPU of compute capability " + std::to_string(dump.gpus.front().compute_capability / 10) +
                              "." + std::to_string(dump.gpus.front().compute_capability % 10);
  out.name = std::to_string(dump.gpus.size()) + " GPUs, NCCL's topology dump";
  try {
    validate(out);
  } catch (const std::invalid_argument& e) { throw FormatError(file + ": " + e.what()); }
  return out;
}

}  // namespace stagecraft::interchange

#include "costmodel/interchange/nccl_topology.h"

#include <algorithm>
#include <charconv>
#include <pugixml.hpp>
#include <stdexcept>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/format/files/utf8.h"
#include "costmodel/index.h"
#include "costmodel/links/declared_links.h"

namespace stagecraft::interchange {
namespace {

constexpr int kMostDevices = 1024;
constexpr int kMostDepth = 64;
constexpr Seconds kClusterLatency(1e-5);

class DumpReader {
 public:
  DumpReader(const std::string& text, const std::string& file) : text_(text), file_(file) {
    if (!format::is_utf8(text)) throw FormatError(file + ": not UTF-8");
    pugi::xml_document document;
    const pugi::xml_parse_result result = document.load_buffer(text.data(), text.size());
    if (!result) fail_at(result.offset, std::string("not XML: ") + result.description());
    const pugi::xml_node system = document.child("system");
    if (!system) throw FormatError(file + ": found no element <system>");
    if (const std::string version = attribute(system, "version"); version != "1") {
      fail(system, "found version \"" + version + "\", expected \"1\"");
    }
    for (const pugi::xml_node cpu : system.children("cpu")) { visit(cpu, cpu.attribute("host_hash").value(), {}, 0); }
    if (gpus.empty()) fail(system, "found no <gpu> with a rank");
    std::sort(gpus.begin(), gpus.end(), [](const DeclaredGpu& a, const DeclaredGpu& b) { return a.rank < b.rank; });
  }

  [[noreturn]] void fail_at(std::ptrdiff_t offset, const std::string& message) const {
    const std::size_t end = std::min(to_index(std::max<std::ptrdiff_t>(offset, 0)), text_.size());
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    throw FormatError(file_ + ": line " + std::to_string(line) + ": " + message);
  }

  std::vector<DeclaredGpu> gpus;  ///< by rank
  double net_bandwidth = 0;
  Seconds net_latency = kClusterLatency;
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
    std::int64_t out = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error != std::errc() || end != text.data() + text.size() || out < low || out > high) {
      fail(node, std::string("attribute \"") + name + "\": found \"" + text + "\", expected an integer from " +
                     std::to_string(low) + " to " + std::to_string(high));
    }
    return out;
  }

  void visit(const pugi::xml_node& node, const std::string& host, std::vector<PciHop> path, int depth) {
    if (depth > kMostDepth) fail(node, "elements are nested deeper than " + std::to_string(kMostDepth));
    const std::string_view name = node.name();
    if (name == "pci") path.insert(path.begin(), hop(node));
    if (name == "gpu") return add_gpu(node, host, path);
    if (name == "net") return add_net(node);
    for (const pugi::xml_node child : node.children()) visit(child, host, path, depth + 1);
  }

  PciHop hop(const pugi::xml_node& pci) {
    const std::string speed = pci.attribute("link_speed").value();
    const std::string width = pci.attribute("link_width").value();
    const std::int64_t lanes = width.empty() ? 0 : number(pci, "link_width", 0, 32);
    if (lanes == 0 || speed.empty()) ++without_speed;
    // "16.0 GT/s PCIe"; anything but a number counts as unknown.
    double gigatransfers = 0;
    std::from_chars(speed.data(), speed.data() + speed.size(), gigatransfers);
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
    gpus.push_back(std::move(gpu));
  }

  /// NCCL assumes 10 Gbit/s for a NIC of unknown speed, and ignores NICs with net="0".
  void add_net(const pugi::xml_node& node) {
    if (std::string_view(node.attribute("net").value()) == "0") return;
    const std::int64_t megabits = node.attribute("speed") ? number(node, "speed", -1, 1'000'000'000) : 0;
    const double bandwidth = (megabits > 0 ? static_cast<double>(megabits) : 10000) * 1e6 / 8;
    if (net_bandwidth != 0 && bandwidth >= net_bandwidth) return;
    net_bandwidth = bandwidth;
    net_latency = std::max(kClusterLatency, Seconds(std::min(node.attribute("latency").as_double(), 1e6) * 1e-6));
  }

  const std::string& text_;
  const std::string& file_;
};

}  // namespace

Topology parse_nccl_topology(const std::string& text, const std::string& file) {
  const DumpReader dump(text, file);
  Topology out;
  auto& notes = out.provenance.notes;
  try {
    out.levels = declared_levels(dump.gpus, notes);
  } catch (const std::invalid_argument& e) { dump.fail_at(0, std::string("<system>: ") + e.what()); }
  const int hosts = to_int(dump.gpus.size()) / device_count(out);
  if (hosts > 1 && dump.net_bandwidth == 0) dump.fail_at(0, "<system>: found several hosts and no <net>");
  if (dump.net_bandwidth > 0) {
    out.levels.push_back({"cluster", hosts, {BytesPerSecond(dump.net_bandwidth), dump.net_latency, {}, {}}});
    notes["cluster"] = "the slowest network interface; the dump does not give the number of nodes";
  }
  notes["latency"] = "not in a dump: 5 us inside a node, 10 us between nodes";
  if (dump.without_rank > 0) notes["left out"] = std::to_string(dump.without_rank) + " GPUs without a rank";
  if (dump.without_speed > 0) {
    notes["PCI"] = std::to_string(dump.without_speed) + " links without speed or width, taken as 8 GT/s or 16 lanes";
  }
  out.device.name = "GPU of compute capability " + std::to_string(dump.gpus.front().compute_capability / 10) + "." +
                    std::to_string(dump.gpus.front().compute_capability % 10);
  out.name = std::to_string(dump.gpus.size()) + " GPUs, NCCL's topology dump";
  try {
    validate(out);
  } catch (const std::invalid_argument& e) { throw FormatError(file + ": " + e.what()); }
  return out;
}

}  // namespace stagecraft::interchange

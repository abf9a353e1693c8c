#include "profiler/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/version.h"

namespace stagecraft::profiler {
namespace {

constexpr unsigned kMostNvlinks = 36;
constexpr int kEnabled = 1;
constexpr int kSmClock = 1;
constexpr int kMemoryClock = 2;

/// nvmlGpuTopologyLevel_t.
const std::map<int, std::string> kAncestors = {
    {0, "one board"},        {10, "one PCI switch"}, {20, "several PCI switches"},
    {30, "one host bridge"}, {40, "one NUMA node"},  {50, "several NUMA nodes"}};

[[noreturn]] void fail(const std::string& what) {
  throw DeviceError(
      ErrorKind::NoGpu,
      what +
          "; install NVIDIA's driver, or import a dump of NCCL's topology (stagecraft import nccl-topology), "
          "or write a topology by hand, as in examples/topology-3-levels.json");
}

void check(const Nvml& nvml, int status, const std::string& call) {
  if (status == 0) return;
  const char* const text = nvml.error_string(status);
  fail(call + ": " + (text != nullptr ? text : "unknown error") + " (" + std::to_string(status) + ")");
}

/// The value that `call` puts where its last argument points; absent if it fails.
template <class T, class Call, class... Arguments>
std::optional<T> asked(const Call& call, Arguments... arguments) {
  T out{};
  if (call(arguments..., &out) != 0) return std::nullopt;
  return out;
}

/// The text that `call` puts into the buffer of its last two arguments.
template <class Call, class... Arguments>
std::string text(const Nvml& nvml, const std::string& name, const Call& call, Arguments... arguments) {
  std::array<char, 128> buffer{};
  check(nvml, call(arguments..., buffer.data(), static_cast<unsigned>(buffer.size())), name);
  buffer.back() = '\0';
  return buffer.data();
}

std::string bus_of(const NvmlPciInfo& pci) {
  const auto* const end = std::find(std::begin(pci.bus_id), std::end(pci.bus_id), '\0');
  return plain_bus({pci.bus_id, to_index(end - pci.bus_id)});
}

BytesPerSecond pci_of(const Nvml& nvml, NvmlDevice* device) {
  constexpr std::array<double, 7> kGigatransfers = {0, 2.5, 5, 8, 16, 32, 64};
  const unsigned generation = asked<unsigned>(nvml.pci_generation, device).value_or(0);
  const unsigned width = asked<unsigned>(nvml.pci_width, device).value_or(0);
  return pci_bandwidth(generation < kGigatransfers.size() ? kGigatransfers[generation] : 0,
                       width == 0 ? 16 : to_int(std::min(width, 32U)));
}

std::optional<double> clock_hz(const Nvml& nvml, NvmlDevice* device, int clock) {
  const auto megahertz = asked<unsigned>(nvml.max_clock, device, clock);
  return megahertz ? std::optional(*megahertz * 1e6) : std::nullopt;
}

DiscoveredDevice device_of(const Nvml& nvml, NvmlDevice* device, int number) {
  DiscoveredDevice out;
  out.name = text(nvml, "nvmlDeviceGetName", nvml.name, device);
  out.uuid = text(nvml, "nvmlDeviceGetUUID", nvml.uuid, device);
  NvmlMemory memory{};
  check(nvml, nvml.memory(device, &memory), "nvmlDeviceGetMemoryInfo");
  out.memory = Bytes(static_cast<std::int64_t>(memory.total));
  out.sm_clock_hz = clock_hz(nvml, device, kSmClock);
  out.memory_clock_hz = clock_hz(nvml, device, kMemoryClock);
  int major = 0;
  int minor = 0;
  check(nvml, nvml.compute_capability(device, &major, &minor), "nvmlDeviceGetCudaComputeCapability");
  NvmlPciInfo pci{};
  check(nvml, nvml.pci(device, &pci), "nvmlDeviceGetPciInfo_v3");
  out.links.rank = number;
  out.links.compute_capability = major * 10 + minor;
  out.links.bus = bus_of(pci);
  out.links.path = {{number, pci_of(nvml, device)}};
  return out;
}

void add_nvlinks(const Nvml& nvml, NvmlDevice* device, const std::set<std::string>& buses, DeclaredGpu& links) {
  for (unsigned link = 0; link < kMostNvlinks; ++link) {
    if (asked<int>(nvml.nvlink_state, device, link) != kEnabled) continue;
    const auto remote = asked<NvmlPciInfo>(nvml.nvlink_remote, device, link);
    const std::string bus = remote ? bus_of(*remote) : "";
    if (buses.contains(bus)) {
      ++links.links[bus];
    } else {
      ++links.switch_links;
    }
  }
}

template <class T>
void look_up(void* library, const char* name, std::function<T>& out) {
  void* const symbol = ::dlsym(library, name);
  if (symbol == nullptr) fail(std::string("the driver's libnvidia-ml has no ") + name);
  out = reinterpret_cast<T*>(symbol);
}

}  // namespace

Nvml load_nvml(const std::string& library) {
  Nvml out;
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    fail("no NVIDIA driver found: tried " + library + ": " + (why != nullptr ? why : "unknown error"));
  }
  out.library = {handle, [](void* p) { ::dlclose(p); }};
  look_up(handle, "nvmlInit_v2", out.init);
  look_up(handle, "nvmlShutdown", out.shutdown);
  look_up(handle, "nvmlErrorString", out.error_string);
  look_up(handle, "nvmlSystemGetDriverVersion", out.driver_version);
  look_up(handle, "nvmlDeviceGetCount_v2", out.count);
  look_up(handle, "nvmlDeviceGetHandleByIndex_v2", out.handle);
  look_up(handle, "nvmlDeviceGetName", out.name);
  look_up(handle, "nvmlDeviceGetUUID", out.uuid);
  look_up(handle, "nvmlDeviceGetMemoryInfo", out.memory);
  look_up(handle, "nvmlDeviceGetMaxClockInfo", out.max_clock);
  look_up(handle, "nvmlDeviceGetCudaComputeCapability", out.compute_capability);
  look_up(handle, "nvmlDeviceGetPciInfo_v3", out.pci);
  look_up(handle, "nvmlDeviceGetMaxPcieLinkGeneration", out.pci_generation);
  look_up(handle, "nvmlDeviceGetMaxPcieLinkWidth", out.pci_width);
  look_up(handle, "nvmlDeviceGetNvLinkState", out.nvlink_state);
  look_up(handle, "nvmlDeviceGetNvLinkRemotePciInfo_v2", out.nvlink_remote);
  look_up(handle, "nvmlDeviceGetTopologyCommonAncestor", out.common_ancestor);
  return out;
}

Discovery discover(const Nvml& nvml) {
  check(nvml, nvml.init(), "nvmlInit_v2");
  struct Shutdown {
    const Nvml& nvml;
    ~Shutdown() { nvml.shutdown(); }
  };
  const Shutdown shutdown{nvml};
  Discovery out;
  out.driver = text(nvml, "nvmlSystemGetDriverVersion", nvml.driver_version);
  unsigned count = 0;
  check(nvml, nvml.count(&count), "nvmlDeviceGetCount_v2");
  if (count == 0) fail("the driver " + out.driver + " sees no GPUs");
  std::vector<NvmlDevice*> handles(count);
  std::set<std::string> buses;
  for (unsigned i = 0; i < count; ++i) {
    check(nvml, nvml.handle(i, &handles[i]), "nvmlDeviceGetHandleByIndex_v2");
    out.devices.push_back(device_of(nvml, handles[i], to_int(i)));
    buses.insert(out.devices.back().links.bus);
  }
  for (unsigned i = 0; i < count; ++i) add_nvlinks(nvml, handles[i], buses, out.devices[i].links);
  for (unsigned a = 0; a < count; ++a) {
    for (unsigned b = a + 1; b < count; ++b) {
      DiscoveredPair pair{to_int(a), to_int(b), 0, ""};
      const auto& links = out.devices[a].links.links;
      if (const auto at = links.find(out.devices[b].links.bus); at != links.end()) pair.nvlinks = at->second;
      if (const auto level = asked<int>(nvml.common_ancestor, handles[a], handles[b])) {
        const auto known = kAncestors.find(*level);
        pair.ancestor = known == kAncestors.end() ? "level " + std::to_string(*level) : known->second;
      }
      out.pairs.push_back(pair);
    }
  }
  return out;
}

Topology declared_topology(const Discovery& discovery) {
  Topology out;
  std::vector<DeclaredGpu> gpus;
  std::set<std::string> kinds;
  std::set<std::string> clocks;
  for (const DiscoveredDevice& device : discovery.devices) {
    gpus.push_back(device.links);
    kinds.insert(device.name);
    out.device.memory = std::min(out.device.memory.value_or(device.memory), device.memory);
    const auto megahertz = [](const std::optional<double>& hz) {
      return hz ? std::to_string(static_cast<int>(*hz / 1e6)) + " MHz" : std::string("unknown");
    };
    clocks.insert("multiprocessors " + megahertz(device.sm_clock_hz) + ", memory " + megahertz(device.memory_clock_hz));
  }
  const auto joined = [](const std::set<std::string>& texts) {
    std::string all;
    for (const std::string& one : texts) all += (all.empty() ? "" : "; ") + one;
    return all;
  };
  auto& notes = out.provenance.notes;
  out.levels = declared_levels(gpus, notes);
  out.device.name = joined(kinds);
  out.device.kind = DeviceKind::Gpu;
  out.name = std::to_string(gpus.size()) + " x " + out.device.name + ", as the driver declares them";
  notes["highest clocks"] = joined(clocks);
  notes["latency"] = "not declared: 5 us";
  std::map<std::string, int> ancestors;
  for (const DiscoveredPair& pair : discovery.pairs) {
    if (!pair.ancestor.empty()) ++ancestors[pair.ancestor];
  }
  for (const auto& [ancestor, pairs] : ancestors) { notes["pairs below " + ancestor] = std::to_string(pairs); }
  out.provenance.tool = std::string("stagecraft-discover ") + version();
  out.provenance.device = out.device.name;
  out.provenance.versions["driver"] = discovery.driver;
  validate(out);
  return out;
}

}  // namespace stagecraft::profiler

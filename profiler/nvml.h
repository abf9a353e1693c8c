#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/declared_links.h"
#include "costmodel/topology.h"

namespace stagecraft {

// NVML, the library of NVIDIA's driver, found when the program runs: nothing of it is needed to build. What is declared
// here has the layout that NVML's API reference gives, version 13.

struct NvmlDevice;  // NVML's own

/// nvmlPciInfo_t.
struct NvmlPciInfo {
  char bus_id_legacy[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pci_device_id;
  unsigned int pci_subsystem_id;
  char bus_id[32];
};

/// nvmlMemory_t, bytes.
struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

/// The entry points that discovery calls, by the names that NVML gives them; all but error_string give NVML's status, 0
/// for success. The functions stand as long as `library`.
struct Nvml {
  std::unique_ptr<void, void (*)(void*)> library{nullptr, [](void*) {}};
  std::function<int()> init;                                              ///< nvmlInit_v2
  std::function<int()> shutdown;                                          ///< nvmlShutdown
  std::function<const char*(int)> error_string;                           ///< nvmlErrorString
  std::function<int(char*, unsigned)> driver_version;                     ///< nvmlSystemGetDriverVersion
  std::function<int(unsigned*)> count;                                    ///< nvmlDeviceGetCount_v2
  std::function<int(unsigned, NvmlDevice**)> handle;                      ///< nvmlDeviceGetHandleByIndex_v2
  std::function<int(NvmlDevice*, char*, unsigned)> name;                  ///< nvmlDeviceGetName
  std::function<int(NvmlDevice*, char*, unsigned)> uuid;                  ///< nvmlDeviceGetUUID
  std::function<int(NvmlDevice*, NvmlMemory*)> memory;                    ///< nvmlDeviceGetMemoryInfo
  std::function<int(NvmlDevice*, int, unsigned*)> max_clock;              ///< nvmlDeviceGetMaxClockInfo
  std::function<int(NvmlDevice*, int*, int*)> compute_capability;         ///< nvmlDeviceGetCudaComputeCapability
  std::function<int(NvmlDevice*, NvmlPciInfo*)> pci;                      ///< nvmlDeviceGetPciInfo_v3
  std::function<int(NvmlDevice*, unsigned*)> pci_generation;              ///< nvmlDeviceGetMaxPcieLinkGeneration
  std::function<int(NvmlDevice*, unsigned*)> pci_width;                   ///< nvmlDeviceGetMaxPcieLinkWidth
  std::function<int(NvmlDevice*, unsigned, int*)> nvlink_state;           ///< nvmlDeviceGetNvLinkState
  std::function<int(NvmlDevice*, unsigned, NvmlPciInfo*)> nvlink_remote;  ///< nvmlDeviceGetNvLinkRemotePciInfo_v2
  std::function<int(NvmlDevice*, NvmlDevice*, int*)> common_ancestor;     ///< nvmlDeviceGetTopologyCommonAncestor
};

/// The entry points of `library`. Throws DeviceError that says what was tried, why it failed and what else gives
/// a topology.
[[nodiscard]] Nvml load_nvml(const std::string& library = "libnvidia-ml.so.1");

/// One GPU. Clocks are the highest, in 1/s; absent: the driver does not tell.
struct DiscoveredDevice {
  std::string name;
  std::string uuid;
  Bytes memory;
  std::optional<double> sm_clock_hz;
  std::optional<double> memory_clock_hz;
  DeclaredGpu links;  ///< rank: the driver's number of the GPU
  friend bool operator==(const DiscoveredDevice&, const DiscoveredDevice&) = default;
};

/// Two GPUs, by their numbers.
struct DiscoveredPair {
  int a = 0;
  int b = 0;
  int nvlinks = 0;       ///< direct ones
  std::string ancestor;  ///< what joins them in the PCI tree: "one PCI switch", ...; empty: the driver does not tell
  friend bool operator==(const DiscoveredPair&, const DiscoveredPair&) = default;
};

/// What the driver of this machine tells.
struct Discovery {
  std::string driver;
  std::vector<DiscoveredDevice> devices;
  std::vector<DiscoveredPair> pairs;  ///< every two devices, a < b
  friend bool operator==(const Discovery&, const Discovery&) = default;
};

/// Asks `nvml`, which it initialises and shuts down. NVLinks that are not up do not count; one whose other end is none
/// of the GPUs goes to a switch. PCI generation and width are the highest that GPU and slot share. Throws
/// DeviceError naming the call that failed, and if there are no GPUs.
[[nodiscard]] Discovery discover(const Nvml& nvml);

/// `discovery` as a topology of declared_levels. The memory is that of the smallest GPU; GPUs of several kinds are
/// named all. Notes say what joins the levels, the clocks, and how often each PCI ancestor joins two GPUs.
[[nodiscard]] Topology declared_topology(const Discovery& discovery);

}  // namespace stagecraft

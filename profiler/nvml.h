#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/links/declared_links.h"
#include "costmodel/topology.h"

namespace stagecraft::profiler {

// NVML, the library of NVIDIA's driver, is loaded at run time and not needed to build. The declarations here follow
// NVML's API reference, version 13.

struct NvmlDevice;  // opaque

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

/// The functions of NVML that discovery calls. All but error_string return NVML's status, 0 for success. They are valid
/// as long as `library` is.
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

/// The functions of `library`. Throws DeviceError, with what was tried, why it failed and how to get a topology
/// otherwise.
[[nodiscard]] Nvml load_nvml(const std::string& library = "libnvidia-ml.so.1");

/// One GPU. Clocks are the highest possible, in 1/s; absent if the driver does not report them.
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
  int nvlinks = 0;       ///< direct NVLinks
  std::string ancestor;  ///< what joins them in the PCI tree: "one PCI switch", ...; empty if the driver reports none
  friend bool operator==(const DiscoveredPair&, const DiscoveredPair&) = default;
};

/// What the driver of this machine reports.
struct Discovery {
  std::string driver;
  std::vector<DiscoveredDevice> devices;
  std::vector<DiscoveredPair> pairs;  ///< all pairs of devices, a < b
  friend bool operator==(const Discovery&, const Discovery&) = default;
};

/// Initialises `nvml`, queries it and shuts it down. NVLinks that are down do not count; an NVLink whose other end is
/// not a GPU leads to a switch. PCI generation and width are the highest that both GPU and slot support. Throws
/// DeviceError, with the name of the call, if a call fails, and if there are no GPUs.
[[nodiscard]] Discovery discover(const Nvml& nvml);

/// `discovery` as a topology of declared_levels. The memory is that of the smallest GPU; if there are several kinds of
/// GPUs, all are named. The notes say what joins each level, the clocks, and how many pairs each PCI ancestor joins.
[[nodiscard]] Topology declared_topology(const Discovery& discovery);

}  // namespace stagecraft::profiler

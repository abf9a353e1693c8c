#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/topology.h"

namespace stagecraft {

/// Latencies of a message inside a host and between hosts, assumed where no source has them.
constexpr Seconds kNodeLatency(5e-6);
constexpr Seconds kClusterLatency(1e-5);

/// A PCI link upwards from `element`, a unique number.
struct PciHop {
  std::int64_t element = 0;
  BytesPerSecond bandwidth;
  friend bool operator==(const PciHop&, const PciHop&) = default;
};

/// One GPU's links, as reported by a driver or a dump.
struct DeclaredGpu {
  std::int64_t rank = 0;
  int compute_capability = 0;  ///< 90 for 9.0
  std::string host;
  std::string bus;                                    ///< unique on its host
  std::vector<PciHop> path;                           ///< from the GPU up; not empty
  int switch_links = 0;                               ///< NVLinks to switches
  std::map<std::string, int> links;                   ///< NVLinks to other GPUs, by their bus
  std::optional<BytesPerSecond> link_bandwidth = {};  ///< of one of them; absent: nvlink_bandwidth
  friend bool operator==(const DeclaredGpu&, const DeclaredGpu&) = default;
};

/// A bus id in a normal form, whichever program wrote it: lower case, without punctuation or leading zeros.
[[nodiscard]] std::string plain_bus(std::string_view bus);

/// Bandwidth of one NVLink of a GPU in one direction, as NCCL counts it (ncclTopoNVLinkBw in src/graph/topo.h of NCCL
/// 2.30): less than in the data sheet.
[[nodiscard]] BytesPerSecond nvlink_bandwidth(int compute_capability);

/// Bandwidth of one XGMI link between AMD GPUs in one direction, as RCCL counts it (ncclTopoXGMISpeed in
/// src/graph/topo.h of RCCL 2.22). `gcn`: "gfx90a", or "910" as older versions write it.
[[nodiscard]] BytesPerSecond xgmi_bandwidth(std::string_view gcn);

/// Bandwidth in one direction of `lanes` PCI lanes of 2.5, 5, 8, 16, 32 or 64 GT/s; anything else counts as 8 GT/s. As
/// NCCL counts it (kvDictPciGen in src/graph/topo.cc of NCCL 2.30): less than in the data sheet.
[[nodiscard]] BytesPerSecond pci_bandwidth(double gigatransfers_per_s, int lanes);

/// Levels that join `gpus`, which ascend by rank, up to "node", and in `notes`, by level, the links of each:
///   "nvlink"   GPUs that NVLinks join, if they join equal groups of consecutive ranks but not all
///   "node"     the GPUs of a host, or all GPUs if NVSwitches join all
/// Bandwidth: through a switch, all NVLinks of a GPU together; between GPUs, the slowest direct connection; else the
/// slowest PCI link on the path between two GPUs. If hosts or GPUs differ, the slowest. Links between processors are
/// not counted. Latency: 5 us, as no source declares it.
/// Throws std::invalid_argument for no GPUs and for hosts of unequal numbers of them.
[[nodiscard]] std::vector<Level> declared_levels(const std::vector<DeclaredGpu>& gpus,
                                                 std::map<std::string, std::string>& notes);

}  // namespace stagecraft

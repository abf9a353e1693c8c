#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/topology.h"

namespace stagecraft {

/// A PCI link upwards of `element`, a number that is one thing's own.
struct PciHop {
  std::int64_t element = 0;
  BytesPerSecond bandwidth;
  friend bool operator==(const PciHop&, const PciHop&) = default;
};

/// What a driver or a dump tells of one GPU's links.
struct DeclaredGpu {
  std::int64_t rank = 0;
  int compute_capability = 0;  ///< 90 for 9.0
  std::string host;
  std::string bus;                   ///< its own on its host
  std::vector<PciHop> path;          ///< from the GPU up; not empty
  int switch_links = 0;              ///< NVLinks to switches
  std::map<std::string, int> links;  ///< NVLinks to other GPUs, by their bus
  friend bool operator==(const DeclaredGpu&, const DeclaredGpu&) = default;
};

/// A bus id without what its writers differ in: upper case, punctuation and leading zeros.
[[nodiscard]] std::string plain_bus(std::string_view bus);

/// One way, one NVLink of a GPU; as NCCL counts it (ncclTopoNVLinkBw in src/graph/topo.h of NCCL 2.30): less than the
/// data sheet says.
[[nodiscard]] BytesPerSecond nvlink_bandwidth(int compute_capability);

/// One way, `lanes` PCI lanes of 2.5, 5, 8, 16, 32 or 64 GT/s; of anything else as of 8 GT/s. As NCCL counts it
/// (kvDictPciGen in src/graph/topo.cc of NCCL 2.30): less than the data sheet says.
[[nodiscard]] BytesPerSecond pci_bandwidth(double gigatransfers_per_s, int lanes);

/// Levels that join `gpus`, which ascend by rank, up to "node", and in `notes`, by level, what joins each:
///   "nvlink"   GPUs that NVLinks join, where they join equal groups of consecutive ranks and not all
///   "node"     the GPUs of a host, or all of them where NVSwitches join them all
/// Bandwidth: through a switch a GPU's NVLinks together, between GPUs the thinnest direct connection, else the slowest
/// PCI link on the way from one GPU to another; of unlike hosts and GPUs the slowest. Links between processors are not
/// counted. Latency: 5 us, which nobody declares.
/// Throws std::invalid_argument for no GPUs and for hosts of unequal numbers of them.
[[nodiscard]] std::vector<Level> declared_levels(const std::vector<DeclaredGpu>& gpus,
                                                 std::map<std::string, std::string>& notes);

}  // namespace stagecraft

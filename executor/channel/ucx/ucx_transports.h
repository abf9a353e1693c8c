#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "executor/channel/ucx/ucx_worker.h"

namespace stagecraft::channel {

/// Identifies what ranks must have in common to share memory: machine, namespaces and user.
[[nodiscard]] std::string memory_domain();

/// The network interface with this IP address, "eth0"; empty if there is none.
[[nodiscard]] std::string interface_of(const std::string& address);

/// All IPv4 addresses of this machine, "10.0.0.7".
[[nodiscard]] std::vector<std::string> own_addresses();

/// The active InfiniBand and RoCE ports of this machine, "mlx5_0:1". `folder` is Linux's list of such devices.
[[nodiscard]] std::vector<std::string> active_rdma_ports(const std::string& folder = "/sys/class/infiniband");

/// What the choice of transports is based on.
struct UcxSurroundings {
  std::vector<std::string> domains{};          ///< memory_domain of every rank
  std::string interface{};                     ///< towards the rendezvous server
  std::vector<std::string> rdma_ports{};       ///< active_rdma_ports
  std::optional<std::string> given_tls{};      ///< UCX_TLS of the environment
  std::optional<std::string> given_devices{};  ///< UCX_NET_DEVICES of the environment
};

/// Shared memory only, and no port, if all ranks can share memory; else also TCP on the interface towards the meeting
/// point and any RDMA ports. Choices made in the environment are kept.
[[nodiscard]] UcxSettings choose_transports(const UcxSurroundings& surroundings);

}  // namespace stagecraft::channel

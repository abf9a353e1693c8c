#include "executor/channel/ucx/ucx_transports.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace stagecraft::channel {
namespace {

/// Transports that need no help from the sender's processor, see UcxSettings::one_sided.
const std::set<std::string>& shared_memory_transports() {
  static const std::set<std::string> names{"posix", "sysv", "cma", "xpmem", "knem", "mm", "sm", "shm", "self"};
  return names;
}

/// Whether a value of UCX_TLS names only such transports.
bool only_shared_memory(const std::string& tls) {
  std::istringstream list(tls);
  bool any = false;
  for (std::string name; std::getline(list, name, ',');) {
    if (!shared_memory_transports().contains(name)) return false;
    any = true;
  }
  return any;
}

/// Name and IP address of every network interface, an entry per address.
std::vector<std::pair<std::string, std::string>> interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(list, freeifaddrs);
  std::vector<std::pair<std::string, std::string>> out;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const bool v4 = entry->ifa_addr->sa_family == AF_INET;
    if (!v4 && entry->ifa_addr->sa_family != AF_INET6) continue;
    char text[NI_MAXHOST];
    const socklen_t size = v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(entry->ifa_addr, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    const std::string address(text);
    out.emplace_back(entry->ifa_name, address.substr(0, address.find('%')));  // "fe80::1%eth0"
  }
  return out;
}

}  // namespace

std::string memory_domain() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::string out = fmt::format("{} user {}", boot, getuid());
  for (const char* name : {"ipc", "pid", "user", "mnt"}) {
    std::error_code error;
    out += ' ' + std::filesystem::read_symlink(fmt::format("/proc/self/ns/{}", name), error).string();
  }
  return out;
}

std::string interface_of(const std::string& address) {
  for (const auto& [name, known] : interfaces()) {
    if (known == address) return name;
  }
  return "";
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> out;
  for (const auto& [name, address] : interfaces()) {
    if (address.find(':') == std::string::npos) out.push_back(address);
  }
  return out;
}

std::vector<std::string> active_rdma_ports(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator(folder, error)) {
    std::error_code none;
    for (const auto& port : std::filesystem::directory_iterator(device.path() / "ports", none)) {
      std::string state;  // "4: ACTIVE"
      std::getline(std::ifstream(port.path() / "state"), state);
      if (state.find("ACTIVE") == std::string::npos || state.find("INIT") != std::string::npos) continue;
      out.push_back(fmt::format("{}:{}", device.path().filename().string(), port.path().filename().string()));
    }
  }
  std::ranges::sort(out);
  return out;
}

UcxSettings choose_transports(const UcxSurroundings& s) {
  UcxSettings out;
  const bool together = std::ranges::adjacent_find(s.domains, std::not_equal_to<>()) == s.domains.end();
  if (s.given_tls) {
    out.one_sided = only_shared_memory(*s.given_tls);
    out.rdma = !out.one_sided && !s.rdma_ports.empty();
  } else if (together) {
    out.transports = "posix,cma";
    out.one_sided = true;
  } else {
    out.transports = s.rdma_ports.empty() ? "posix,cma,tcp" : "posix,cma,tcp,ib";
    out.rdma = !s.rdma_ports.empty();
  }
  if (s.given_devices || out.one_sided || s.given_tls || s.interface.empty()) return out;
  std::vector<std::string> devices{s.interface};
  devices.insert(devices.end(), s.rdma_ports.begin(), s.rdma_ports.end());
  // Shared memory's devices are not network devices: UCX_NET_DEVICES leaves them alone.
  out.devices = fmt::format("{}", fmt::join(devices, ","));
  return out;
}

}  // namespace stagecraft::channel

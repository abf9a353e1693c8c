#include "executor/launch/hosts.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/index.h"
#include "executor/meeting/secret.h"

namespace stagecraft::launch {
namespace {

/// An address of a name, as text; empty if it has none here.
std::string address_text(const std::string& name) {
  addrinfo* found = nullptr;
  if (getaddrinfo(name.c_str(), nullptr, nullptr, &found) != 0) return "";
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(found->ai_addr, found->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  return text.data();
}

}  // namespace

std::vector<interchange::HostSlots> read_hosts(const std::string& path) {
  return interchange::parse_host_list(format::read_text(path), path);
}

std::vector<RankPlace> place_ranks(const std::vector<interchange::HostSlots>& hosts, int ranks) {
  std::vector<RankPlace> places;
  int slots = 0;
  for (const interchange::HostSlots& host : hosts) {
    slots += host.slots;
    for (int i = 0; i < host.slots && to_int(places.size()) < ranks; ++i) places.push_back({host.name, i});
  }
  if (slots < ranks) {
    throw InputError(ErrorKind::WrongRankCount,
                     fmt::format("the plan needs {} ranks, the {} {} {}; set slots=N for hosts that run more than one",
                                 ranks, hosts.size(), hosts.size() == 1 ? "host has" : "hosts have",
                                 slots == 1 ? "1 slot" : fmt::format("{} slots", slots)));
  }
  return places;
}

std::string meeting_host(const std::vector<RankPlace>& places, const std::map<std::string, std::string>& environment) {
  if (const auto set = environment.find("MASTER_ADDR"); set != environment.end() && !set->second.empty())
    return set->second;
  const bool one_machine = std::ranges::all_of(places, [](const RankPlace& place) { return is_local(place.host); });
  if (one_machine) return "127.0.0.1";
  if (is_local(places.front().host)) {
    throw std::invalid_argument(
        "rank 0 is on localhost, which other hosts cannot reach; use the host's real name or set MASTER_ADDR");
  }
  return interchange::address_of(places.front().host);
}

ResolvedHosts resolve_hosts(const std::vector<interchange::HostSlots>& hosts, int ranks,
                            const std::map<std::string, std::string>& environment) {
  const std::vector<RankPlace> places = place_ranks(hosts, ranks);
  ResolvedHosts out;
  const auto with_address = [&](const std::string& host) {
    const std::string name = interchange::address_of(host);
    const std::string address = address_text(name);
    if (address.empty()) {
      if (std::ranges::find(out.unknown, name) == out.unknown.end()) out.unknown.push_back(name);
      return host + " (no address)";
    }
    return address == name ? host : fmt::format("{} ({})", host, address);
  };
  std::map<std::string, std::string> texts;
  for (const interchange::HostSlots& host : hosts) texts[host.name] = with_address(host.name);
  for (const RankPlace& place : places) out.of_rank.push_back(texts[place.host]);
  for (const interchange::HostSlots& host : hosts) {
    if (std::ranges::find(places, host.name, &RankPlace::host) == places.end()) out.idle.push_back(texts[host.name]);
  }
  out.meeting = with_address(meeting_host(places, environment));
  return out;
}

bool is_local(const std::string& host) { return host == "localhost"; }

std::string shell_word(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string remote_command(const std::vector<std::string>& arguments,
                           const std::map<std::string, std::string>& environment, const std::string& folder) {
  std::string script;
  if (environment.contains(meeting::kSecretVariable)) {
    script += fmt::format("IFS= read -r {0} && export {0} && ", meeting::kSecretVariable);
  }
  script += fmt::format("cd {} && env", shell_word(folder));
  for (const auto& [name, value] : environment) {
    if (name != meeting::kSecretVariable) script += fmt::format(" {}={}", name, shell_word(value));
  }
  for (const std::string& argument : arguments) script += " " + shell_word(argument);
  // Without a further command, a shell may replace itself with the program, and a remote shell does not report which
  // signal killed that.
  script += "; exit $?";
  return "sh -c " + shell_word(script);
}

std::map<std::string, std::string> handed_over(const std::map<std::string, std::string>& environment) {
  constexpr std::array kBegins = {"STAGECRAFT_", "GLOO_", "UCX_", "NCCL_", "CUDA_", "OMP_", "MKL_", "TORCH_"};
  std::map<std::string, std::string> out;
  for (const auto& [name, value] : environment) {
    if (name == "STAGECRAFT_LISTEN") continue;  // an address of this machine
    const auto begins = [&name = name](const char* begin) { return name.starts_with(begin); };
    if (name == "LD_LIBRARY_PATH" || std::ranges::any_of(kBegins, begins)) out[name] = value;
  }
  return out;
}

}  // namespace stagecraft::launch

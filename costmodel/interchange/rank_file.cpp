#include "costmodel/interchange/rank_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/text/number.h"

namespace stagecraft::interchange {
namespace {

constexpr int kMostSlots = 1 << 20;

bool is_host_name(const std::string& word) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_' || c == ':' || c == '@';
  };
  return !word.empty() && std::isalnum(static_cast<unsigned char>(word.front())) != 0 &&
         std::ranges::all_of(word, fits);
}

constexpr const char* kExpected = "expected NAME [slots=N]";

int read_slots(const std::string& text, const std::string& place) {
  const std::optional<int> value = number_in<int>(text);
  if (!value || *value < 1 || *value > kMostSlots)
    throw FormatError(fmt::format("{}: slots is \"{}\", must be an integer from 1 to {}", place, text, kMostSlots));
  return *value;
}

/// The host of a line's words.
HostSlots read_host(std::string name, std::istringstream& words, const std::string& place) {
  std::optional<int> slots;
  // More than one colon is an IPv6 address.
  if (const auto colon = name.find(':'); colon != std::string::npos && colon == name.rfind(':')) {
    slots = read_slots(name.substr(colon + 1), place);
    name.resize(colon);
  }
  if (!is_host_name(name)) throw FormatError(fmt::format("{}: \"{}\" is not a host name, {}", place, name, kExpected));
  for (std::string word; words >> word;) {
    const std::string begin = "slots=";
    if (!word.starts_with(begin)) throw FormatError(fmt::format("{}: unknown word \"{}\", {}", place, word, kExpected));
    if (slots) throw FormatError(fmt::format("{}: the slots of \"{}\" are given twice", place, name));
    slots = read_slots(word.substr(begin.size()), place);
  }
  return {std::move(name), slots.value_or(1)};
}

/// A device of a host.
struct Slot {
  std::size_t host = 0;
  int number = 0;
};

/// Where each rank runs.
std::vector<Slot> slots_of_ranks(const BoundPlan& plan, const std::vector<HostSlots>& hosts) {
  std::vector<Slot> slots;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    for (int number = 0; number < hosts[host].slots; ++number) slots.push_back({host, number});
  }
  std::vector<Slot> out;
  for (const RankRole& role : plan.ranks()) {
    if (role.device >= to_int(slots.size())) {
      throw std::invalid_argument(
          fmt::format("the plan uses device {}, the {} {} {}: slots=N says how many devices a host has", role.device,
                      hosts.size(), hosts.size() == 1 ? "host has" : "hosts have",
                      slots.size() == 1 ? "1 slot" : fmt::format("{} slots", slots.size())));
    }
    out.push_back(slots[to_index(role.device)]);
  }
  return out;
}

}  // namespace

std::vector<HostSlots> parse_host_list(const std::string& text, const std::string& file) {
  std::vector<HostSlots> out;
  std::map<std::string, int> line_of;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string place = fmt::format("{}: line {}", file, ++number);
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name;
    if (!(words >> name)) continue;
    HostSlots host = read_host(std::move(name), words, place);
    const auto [before, is_new] = line_of.emplace(address_of(host.name), number);
    if (!is_new) {
      throw FormatError(
          fmt::format("{}: host \"{}\" is already on line {}; set slots=N there", place, host.name, before->second));
    }
    out.push_back(std::move(host));
  }
  if (out.empty()) throw FormatError(fmt::format("{}: has no hosts, {} on each line", file, kExpected));
  return out;
}

std::string address_of(const std::string& host) { return host.substr(host.rfind('@') + 1); }

std::string open_mpi_rank_file(const BoundPlan& plan, const std::vector<HostSlots>& hosts, int cores) {
  std::string out;
  int rank = 0;
  for (const Slot& slot : slots_of_ranks(plan, hosts)) {
    const int first = slot.number * cores;
    out += fmt::format("rank {}={} slot={}", rank++, hosts[slot.host].name, first);
    out += cores > 1 ? fmt::format("-{}\n", first + cores - 1) : "\n";
  }
  return out;
}

std::string host_list(const BoundPlan& plan, const std::vector<HostSlots>& hosts) {
  const std::vector<Slot> slots = slots_of_ranks(plan, hosts);
  std::map<std::size_t, std::size_t> last_rank;  // by host
  std::string out;
  for (std::size_t begin = 0; begin < slots.size();) {
    const std::size_t host = slots[begin].host;
    if (const auto before = last_rank.find(host); before != last_rank.end()) {
      throw std::invalid_argument(
          fmt::format("ranks {} and {} are on host {}, but not rank {} between them: a host list fills one host after "
                      "the other; use rankfile",
                      before->second, begin, hosts[host].name, before->second + 1));
    }
    std::size_t end = begin + 1;
    for (; end < slots.size() && slots[end].host == host; ++end) {
      if (slots[end].number < slots[end - 1].number) {
        throw std::invalid_argument(fmt::format(
            "ranks {} and {} are on devices {} and {} of host {}: a host list keeps their order; use rankfile", end - 1,
            end, slots[end - 1].number, slots[end].number, hosts[host].name));
      }
    }
    last_rank[host] = end - 1;
    out += fmt::format("{} slots={}\n", hosts[host].name, end - begin);
    begin = end;
  }
  return out;
}

}  // namespace stagecraft::interchange

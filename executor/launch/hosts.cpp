#include "executor/launch/hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <sstream>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/index.h"
#include "executor/meeting/secret.h"

namespace stagecraft::launch {
namespace {

constexpr int kMostSlots = 1 << 20;

bool is_name(const std::string& word) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_' || c == ':' || c == '@';
  };
  return std::isalnum(static_cast<unsigned char>(word.front())) != 0 && std::ranges::all_of(word, fits);
}

/// The number after "slots=".
int read_slots(const std::string& text, const std::string& place) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMostSlots) {
    throw FormatError(fmt::format("{}: slots is \"{}\", must be an integer from 1 to {}", place, text, kMostSlots));
  }
  return value;
}

}  // namespace

std::vector<Host> read_hosts(const std::string& path) {
  std::vector<Host> hosts;
  std::map<std::string, int> line_of;
  std::istringstream text(format::read_text(path));
  int number = 0;
  for (std::string line; std::getline(text, line);) {
    const std::string place = fmt::format("{}: line {}", path, ++number);
    std::istringstream words(line.substr(0, line.find('#')));
    Host host;
    if (!(words >> host.name)) continue;
    if (!is_name(host.name)) {
      throw FormatError(fmt::format("{}: \"{}\" is not a host name, expected NAME [slots=N]", place, host.name));
    }
    for (std::string word; words >> word;) {
      const std::string slots = "slots=";
      if (!word.starts_with(slots)) {
        throw FormatError(fmt::format("{}: unknown word \"{}\", expected NAME [slots=N]", place, word));
      }
      host.slots = read_slots(word.substr(slots.size()), place);
    }
    const auto [before, is_new] = line_of.emplace(address_of(host.name), number);
    if (!is_new) {
      throw FormatError(fmt::format("{}: host \"{}\" is already on line {}; set slots=N there to run more ranks on it",
                                    place, host.name, before->second));
    }
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) throw FormatError(path + ": has no hosts, expected one NAME [slots=N] per line");
  return hosts;
}

std::vector<RankPlace> place_ranks(const std::vector<Host>& hosts, int ranks) {
  std::vector<RankPlace> places;
  int slots = 0;
  for (const Host& host : hosts) {
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

bool is_local(const std::string& host) { return host == "localhost"; }

std::string address_of(const std::string& host) { return host.substr(host.rfind('@') + 1); }

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

#include "costmodel/prediction/device_match.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "costmodel/errors.h"

namespace stagecraft {
namespace {

/// These words of device names do not distinguish models.
constexpr std::array kCommonWords = {
    "amd",    "capability", "card",       "cards", "compute", "core",    "cpu",  "cpus",
    "cuda",   "device",     "gpu",        "gpus",  "host",    "intel",   "node", "of",
    "nvidia", "processor",  "processors", "tm",    "at",      "unknown", "with",
};

constexpr std::array kProcessorWords = {"cpu", "cpus", "epyc", "opteron", "processor", "processors", "ryzen", "xeon"};

constexpr std::array kGpuWords = {
    "a10",    "a100",    "a30",   "a40",    "a800",   "b100",  "b200",   "b300",   "cuda",   "gb200",
    "gb300",  "geforce", "gh200", "gpu",    "gpus",   "gtx",   "h100",   "h20",    "h200",   "h800",
    "l4",     "l40",     "l40s",  "mi100",  "mi210",  "mi250", "mi250x", "mi300a", "mi300x", "mi325x",
    "mi350x", "nvidia",  "p100",  "quadro", "radeon", "rtx",   "t4",     "tesla",  "v100",
};

template <class Words>
bool is_one_of(const std::string& word, const Words& words) {
  return std::any_of(words.begin(), words.end(), [&](const char* known) { return word == known; });
}

/// Runs of letters and digits, in lower case.
std::set<std::string> words_of(const std::string& name) {
  std::set<std::string> out;
  std::string word;
  for (const char c : name + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!word.empty()) {
      out.insert(std::move(word));
      word.clear();
    }
  }
  return out;
}

/// The words that identify a model; not single characters, as in "9.0" or "(R)".
std::set<std::string> model_words(const std::string& name) {
  std::set<std::string> out;
  for (const std::string& word : words_of(name)) {
    if (word.size() > 1 && !is_one_of(word, kCommonWords)) out.insert(word);
  }
  return out;
}

bool are_different_models(const std::string& a, const std::string& b) {
  const std::set<std::string> first = model_words(a);
  const std::set<std::string> second = model_words(b);
  return !std::includes(first.begin(), first.end(), second.begin(), second.end()) &&
         !std::includes(second.begin(), second.end(), first.begin(), first.end());
}

DeviceKind kind_of_name(const std::string& name) {
  const std::set<std::string> words = words_of(name);
  const auto any = [&](const auto& known) {
    return std::any_of(words.begin(), words.end(), [&](const std::string& word) { return is_one_of(word, known); });
  };
  if (any(kGpuWords)) return DeviceKind::Gpu;
  return any(kProcessorWords) ? DeviceKind::Processor : DeviceKind::Unknown;
}

/// "NAME, 8 processors", as the provenance of a measurement on processors has it; unknown kind if it does not.
MeasuredDevice processors_of(const std::string& text) {
  constexpr std::string_view kEnd = " processors";
  const std::size_t comma = text.rfind(", ");
  if (comma == text.npos || !text.ends_with(kEnd)) return {};
  int count = 0;
  const char* const begin = text.data() + comma + 2;
  const char* const end = text.data() + text.size() - kEnd.size();
  if (begin >= end) return {};
  const auto [at, error] = std::from_chars(begin, end, count);
  if (error != std::errc() || at != end || count < 1) return {};
  return {text.substr(0, comma), DeviceKind::Processor, count};
}

std::string kind_text(const MeasuredDevice& device, bool several) {
  std::string out =
      device.kind == DeviceKind::Gpu ? (several ? "GPUs" : "a GPU") : (several ? "processors" : "a processor");
  return device.name.empty() ? out : out + " (" + device.name + ")";
}

bool has_slowdown(const Graph& graph) {
  return std::any_of(graph.slowdown.begin(), graph.slowdown.end(), [](double factor) { return factor > 1; });
}

std::string processors_text(int count) { return std::to_string(count) + (count == 1 ? " processor" : " processors"); }

}  // namespace

MeasuredDevice measured_device(const Graph& graph) {
  if (graph.device != MeasuredDevice{} || !graph.provenance.tool.starts_with("stagecraft-profile")) return graph.device;
  if (graph.provenance.notes.contains("uuid")) return {graph.provenance.device, DeviceKind::Gpu, 0};
  return processors_of(graph.provenance.device);
}

MeasuredDevice described_device(const Topology& topology) {
  MeasuredDevice out{topology.device.name, topology.device.kind, topology.device.host_processors};
  if (out.kind == DeviceKind::Unknown && topology.provenance.tool.starts_with("stagecraft-links")) {
    const MeasuredDevice host = processors_of(topology.provenance.device);
    if (host.kind == DeviceKind::Processor && host.name == out.name) out = host;
  }
  if (out.kind == DeviceKind::Unknown) out.kind = kind_of_name(out.name);
  return out;
}

void take_kind(Topology& topology, const Graph& graph) {
  DeviceKind& kind = topology.device.kind;
  if (kind == DeviceKind::Unknown) kind = described_device(topology).kind;
  if (kind == DeviceKind::Unknown) kind = measured_device(graph).kind;
}

namespace {

/// Of the types of devices in Topology::others.
std::vector<std::string> other_differences(const Graph& graph, const Topology& topology) {
  std::vector<std::string> out;
  std::set<std::string> known;
  for (const DeviceRange& range : topology.others) {
    const std::string& type = range.device.name;
    if (!known.insert(type).second) continue;
    const auto profile = std::find_if(graph.profiles.begin(), graph.profiles.end(),
                                      [&](const DeviceProfile& other) { return other.type == type; });
    if (profile == graph.profiles.end()) {
      out.push_back("there is no profile for the devices of type \"" + type + "\"; add --graph-for " +
                    (type.find(' ') == type.npos ? type : "\"" + type + "\"") + "=GRAPH");
    } else if (are_different_models(profile->device.name, type)) {
      out.push_back("the graph for \"" + type + "\" was measured on \"" + profile->device.name + "\"");
    }
  }
  return out;
}

}  // namespace

std::vector<std::string> device_differences(const Graph& graph, const Topology& topology) {
  const MeasuredDevice measured = measured_device(graph);
  const MeasuredDevice described = described_device(topology);
  const std::string origin = graph.estimate ? "the graph's times are estimates for " : "the graph was measured on ";
  std::vector<std::string> out;
  const bool kinds_known = measured.kind != DeviceKind::Unknown && described.kind != DeviceKind::Unknown;
  if (kinds_known && measured.kind != described.kind) {
    out.push_back(origin + kind_text(measured, false) + ", the topology's devices are " + kind_text(described, true));
  } else if (are_different_models(measured.name, described.name)) {
    out.push_back(origin + "\"" + measured.name + "\", the topology's devices are \"" + described.name + "\"");
  }
  for (std::string& difference : other_differences(graph, topology)) out.push_back(std::move(difference));
  if (!has_slowdown(graph)) return out;
  if (described.kind == DeviceKind::Gpu && measured.kind == DeviceKind::Unknown) {
    out.push_back("the graph has a slowdown of ranks that share a host's processors, the topology's devices are " +
                  kind_text(described, true));
  }
  if (described.kind != DeviceKind::Gpu && measured.host_processors > 0 && described.host_processors > 0 &&
      measured.host_processors != described.host_processors) {
    out.push_back("the graph's slowdown was measured on a host of " + processors_text(measured.host_processors) +
                  ", the topology's hosts have " + std::to_string(described.host_processors));
  }
  return out;
}

std::string accepted_differences(Graph& graph, const Topology& topology, bool accept_other) {
  std::string out;
  for (const std::string& difference : device_differences(graph, topology))
    out += (out.empty() ? "" : "; ") + difference;
  if (out.empty()) return estimate_text(graph);
  if (!accept_other) {
    const bool gpu = described_device(topology).kind == DeviceKind::Gpu;
    throw InputError(ErrorKind::OtherDevice,
                     out + "; profile the model on such a device" +
                         (gpu ? " (stagecraft profile MODEL --device cuda)" : "") +
                         ", estimate its times there (stagecraft estimate), or use --accept-other-device to "
                         "take these times without the slowdown of shared hosts");
  }
  graph = without_host(std::move(graph));
  const std::string estimate = estimate_text(graph);
  return estimate.empty() ? out : out + "; " + estimate;
}

std::string slowdown_assumption(const Graph& graph, const Topology& topology) {
  const int measured = measured_device(graph).host_processors;
  if (!has_slowdown(graph) || (measured > 0 && described_device(topology).host_processors > 0)) return "";
  return "assuming that ranks on one host slow each other down as on the host where the graph was measured" +
         (measured > 0 ? ", which has " + processors_text(measured) : std::string()) +
         (described_device(topology).host_processors > 0
              ? ": the graph does not say how many processors its host had"
              : ": the topology does not say how many processors its hosts have");
}

Graph without_host(Graph graph) {
  graph.slowdown.clear();
  graph.in_flight_slowdown.reset();
  const auto clear = [](std::vector<Layer>& layers) {
    for (Layer& layer : layers) {
      if (!is_input(layer)) continue;
      layer.forward = Timing{};
      layer.loading.reset();
    }
  };
  clear(graph.layers);
  for (DeviceProfile& profile : graph.profiles) clear(profile.layers);
  return graph;
}

Graph with_profile(Graph graph, const std::string& type, const Graph& other) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument("the graph for \"" + type + "\" " + why);
  };
  if (std::ranges::count(graph.profiles, type, &DeviceProfile::type) > 0)
    throw std::invalid_argument("there are two graphs for \"" + type + "\"");
  if (other.microbatch_samples != graph.microbatch_samples) {
    const auto samples = [](const Graph& of) {
      return of.microbatch_samples ? std::to_string(*of.microbatch_samples) : std::string("an unknown number of");
    };
    refuse("has microbatches of " + samples(other) + " samples, the graph of " + samples(graph));
  }
  if (other.layers.size() != graph.layers.size()) {
    refuse("has " + std::to_string(other.layers.size()) + " layers, the graph " + std::to_string(graph.layers.size()) +
           ": it describes another model");
  }
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    const Layer& one = graph.layers[i];
    const Layer& two = other.layers[i];
    if (two.id != one.id) refuse("has layer \"" + two.id + "\" where the graph has \"" + one.id + "\"");
    if (activation_bytes(two) != activation_bytes(one) || two.parameter_bytes != one.parameter_bytes)
      refuse("has different outputs or parameters in layer \"" + one.id + "\"");
  }
  graph.profiles.push_back({type, other.device, other.iteration, other.layers});
  return graph;
}

Graph graph_on(const Graph& graph, const std::string& type) {
  Graph out = graph;
  out.profiles.clear();
  const auto it = std::ranges::find(graph.profiles, type, &DeviceProfile::type);
  if (it == graph.profiles.end()) return out;
  out.device = it->device;
  out.iteration = it->iteration;
  out.layers = it->layers;
  return out;
}

std::set<std::string> types_of(const Topology& topology, const std::vector<int>& devices) {
  std::set<std::string> out;
  for (const int device : devices) out.insert(device_at(topology, device).name);
  return out;
}

std::set<std::string> types_of(const Topology& topology, const Plan& plan) {
  std::set<std::string> out;
  for (const Stage& stage : plan.stages) out.merge(types_of(topology, stage.devices));
  return out;
}

std::optional<Bytes> least_memory(const Topology& topology, const std::vector<int>& devices) {
  std::optional<Bytes> out;
  for (const int device : devices) {
    const std::optional<Bytes>& memory = device_at(topology, device).memory;
    if (memory) out = out ? std::min(*out, *memory) : *memory;
  }
  return out;
}

}  // namespace stagecraft

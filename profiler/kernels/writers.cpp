#include "profiler/kernels/writers.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "costmodel/format/escaping.h"
#include "costmodel/format/trace_events.h"
#include "costmodel/index.h"
#include "profiler/kernels/attribution.h"

namespace stagecraft::profiler {
namespace {

constexpr int kHostTrack = 0;
constexpr int kLayerTrack = 1;
constexpr int kFirstStreamTrack = 2;

/// Names from chrome://tracing's fixed palette.
constexpr const char* kColours[] = {"thread_state_running",
                                    "rail_response",
                                    "rail_idle",
                                    "rail_animation",
                                    "rail_load",
                                    "thread_state_iowait",
                                    "thread_state_unknown",
                                    "startup",
                                    "good",
                                    "vsync_highlight_color",
                                    "thread_state_runnable",
                                    "olive"};

const char* colour_of(const Tag& tag) {
  return tag.phase == Phase::None ? "grey" : kColours[to_index(tag.layer) % std::size(kColours)];
}

bool has_layer(Phase phase) { return phase != Phase::None && phase != Phase::Data; }

template <typename Integer>
bool is_index(Integer i, const std::vector<std::string>& list) {
  return i >= 0 && std::cmp_less(i, list.size());
}

/// Empty where the phase has no layer.
std::string layer_name(std::int64_t layer, Phase phase, const std::vector<std::string>& layers) {
  if (!has_layer(phase)) return "";
  return is_index(layer, layers) ? format::valid_utf8(layers[to_index(layer)]) : "layer " + std::to_string(layer);
}

const char* kind_name(ActivityKind kind) {
  switch (kind) {
    case ActivityKind::Kernel:
      return "kernel";
    case ActivityKind::Copy:
      return "copy";
    default:
      return "set";
  }
}

std::string span_name(const Tag& tag, const std::vector<std::string>& layers) {
  const std::string layer = layer_name(tag.layer, tag.phase, layers);
  return (layer.empty() ? layer : layer + " ") + (tag.phase == Phase::None ? "unattributed" : name_of(tag.phase));
}

/// Writes the events of one device.
class DeviceEvents {
 public:
  DeviceEvents(const AttributedTrace& trace, const std::vector<std::string>& layers, std::uint32_t device,
               std::int64_t origin, format::TraceEvents& out)
      : trace_(trace), layers_(layers), device_(device), origin_(origin), out_(out) {
    for (std::size_t i = 0; i < trace.activities.size(); ++i) {
      if (trace.activities[i].activity.device == device) on_device_.push_back(i);
    }
    for (const std::string& name : trace.names) names_.push_back(format::json_string(name));
  }

  void write() {
    out_.name_process(device_, fmt::format("device {}", device_));
    out_.name_track(device_, kHostTrack, "launches");
    out_.name_track(device_, kLayerTrack, "layers");
    std::map<std::uint32_t, int> tracks;
    for (const std::size_t i : on_device_) tracks.emplace(trace_.activities[i].activity.stream, 0);
    int track = kFirstStreamTrack;
    for (auto& [stream, number] : tracks) {
      number = track++;
      out_.name_track(device_, number, fmt::format("stream {}", stream));
    }
    launches();
    layers();
    for (const std::size_t i : on_device_) activity(i, tracks.at(trace_.activities[i].activity.stream));
  }

 private:
  /// `format` makes the members of its args.
  template <class... Args>
  void slice(int track, std::int64_t begin, std::int64_t end, const std::string& name, const char* colour,
             fmt::format_string<Args...> format, Args&&... args) {
    out_.slice(device_, track, begin - origin_, end - begin, name, colour, format, std::forward<Args>(args)...);
  }

  void launches() {
    std::vector<std::int64_t> times;
    for (const std::size_t i : on_device_) {
      if (trace_.activities[i].launched_ns > 0) times.push_back(trace_.activities[i].launched_ns);
    }
    std::sort(times.begin(), times.end());
    times.erase(std::unique(times.begin(), times.end()), times.end());
    const std::string name = format::json_string("launch");
    for (std::size_t i = 0; i < times.size(); ++i) {
      const std::int64_t next = i + 1 < times.size() ? times[i + 1] : std::numeric_limits<std::int64_t>::max();
      slice(kHostTrack, times[i], std::min(times[i] + 1000, next), name, "grey", "");
    }
  }

  void layers() {
    for (std::size_t i = 0; i < on_device_.size();) {
      const Tag tag = trace_.activities[on_device_[i]].tag;
      const std::int64_t begin = trace_.activities[on_device_[i]].activity.begin_ns;
      std::int64_t end = begin;
      for (; i < on_device_.size() && trace_.activities[on_device_[i]].tag == tag; ++i)
        end = std::max(end, trace_.activities[on_device_[i]].activity.end_ns);
      if (i < on_device_.size()) end = std::min(end, trace_.activities[on_device_[i]].activity.begin_ns);
      slice(kLayerTrack, begin, end, format::json_string(span_name(tag, layers_)), colour_of(tag),
            R"("step":{},"microbatch":{})", tag.step, tag.microbatch);
    }
  }

  void activity(std::size_t index, int track) {
    const auto& [work, tag, launched] = trace_.activities[index];
    slice(track, work.begin_ns, work.end_ns,
          is_index(work.name, names_) ? names_[to_index(work.name)] : format::json_string(kind_name(work.kind)),
          colour_of(tag), R"({},"step":{},"microbatch":{},"bytes":{})", owner(tag), tag.step, tag.microbatch,
          work.bytes);
    if (launched <= 0) return;
    out_.arrow_begin(device_, kHostTrack, launched - origin_, index, "launch");
    out_.arrow_end(device_, track, work.begin_ns - origin_, index, "launch");
  }
  /// Layer and phase as JSON members.
  const std::string& owner(const Tag& tag) {
    std::string& out = owners_[{tag.layer, tag.phase}];
    if (out.empty()) {
      out = fmt::format(R"("layer":{},"phase":{})", format::json_string(layer_name(tag.layer, tag.phase, layers_)),
                        format::json_string(name_of(tag.phase)));
    }
    return out;
  }

  const AttributedTrace& trace_;
  const std::vector<std::string>& layers_;
  std::uint32_t device_;
  std::int64_t origin_;
  format::TraceEvents& out_;
  std::vector<std::size_t> on_device_;
  std::vector<std::string> names_;  ///< as JSON
  std::map<LayerPhase, std::string> owners_;
};

/// A field of RFC 4180.
std::string field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

}  // namespace

std::string chrome_trace(const AttributedTrace& trace, const std::vector<std::string>& layers,
                         const std::string& title) {
  std::int64_t origin = std::numeric_limits<std::int64_t>::max();
  std::vector<std::uint32_t> devices;
  for (const Attributed& a : trace.activities) {
    origin = std::min(origin, a.activity.begin_ns);
    if (a.launched_ns > 0) origin = std::min(origin, a.launched_ns);
    if (std::find(devices.begin(), devices.end(), a.activity.device) == devices.end())
      devices.push_back(a.activity.device);
  }
  if (trace.activities.empty()) origin = 0;
  format::TraceEvents out(title, "ns", "begin_ns", std::to_string(origin));
  std::sort(devices.begin(), devices.end());
  for (const std::uint32_t device : devices) DeviceEvents(trace, layers, device, origin, out).write();
  return out.take();
}

std::string activities_csv(const AttributedTrace& trace, const std::vector<std::string>& layers) {
  std::string out = "step,microbatch,phase,layer,kind,name,stream,begin_ns,end_ns,bytes,launched_ns\n";
  std::vector<std::string> names;
  for (const std::string& name : trace.names) names.push_back(field(format::valid_utf8(name)));
  for (const auto& [work, tag, launched] : trace.activities) {
    if (tag.phase == Phase::None) {
      out += ",,";
    } else {
      fmt::format_to(std::back_inserter(out), "{},{},", tag.step, tag.microbatch);
    }
    fmt::format_to(std::back_inserter(out), "{},{},{},{},{},{},{},{},{}\n", name_of(tag.phase),
                   field(layer_name(tag.layer, tag.phase, layers)), kind_name(work.kind),
                   is_index(work.name, names) ? names[to_index(work.name)] : kind_name(work.kind), work.stream,
                   work.begin_ns, work.end_ns, work.bytes, launched > 0 ? std::to_string(launched) : "");
  }
  return out;
}

}  // namespace stagecraft::profiler

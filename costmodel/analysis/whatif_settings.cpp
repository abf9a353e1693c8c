#include "costmodel/analysis/whatif.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/index.h"
#include "costmodel/links/collectives.h"
#include "costmodel/prediction/cards.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/estimate.h"
#include "costmodel/prediction/stage_costs.h"
#include "costmodel/text/number.h"
#include "costmodel/text/units_text.h"

// The settings that a scenario can have, and their effect: what whatif.h declares of one change.

namespace stagecraft {
namespace {

using Names = std::vector<std::string>;  // the parts of a name between dots

/// Groups of a level that can be set.
constexpr int kMostGroups = 1 << 20;

std::invalid_argument wrong(const std::string& value, const std::string& expected) {
  return std::invalid_argument("found \"" + value + "\", expected " + expected);
}

/// "2x" is 2; absent without the x.
std::optional<double> factor(const std::string& value) {
  if (value.empty() || value.back() != 'x') return std::nullopt;
  const auto out = number_in<double>(std::string_view(value).substr(0, value.size() - 1));
  if (!out || *out <= 0) throw wrong(value, "a factor above 0 such as 2x");
  return out;
}

double factor_only(const std::string& value) {
  if (const auto out = factor(value)) return *out;
  throw wrong(value, "a factor such as 0.8x");
}

/// "5us", "1.5 ms", "2s", "100ns".
Seconds seconds(const std::string& value) {
  static const std::vector<std::pair<std::string, double>> units{{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
  for (const auto& [unit, scale] : units) {
    if (!value.ends_with(unit)) continue;
    std::string_view digits = std::string_view(value).substr(0, value.size() - unit.size());
    while (digits.ends_with(' ')) digits.remove_suffix(1);
    if (const auto out = number_in<double>(digits); out && *out >= 0) return Seconds(*out * scale);
    break;
  }
  throw wrong(value, "a factor such as 0.5x or a time such as 5us");
}

/// parse_bytes of `bytes`, all or a part of `value`. They need a unit: "2" may have been meant as a factor.
Bytes bytes_with_unit(const std::string& bytes, const std::string& value, const std::string& expected) {
  try {
    const bool has_unit = !number_in<double>(bytes);
    if (const Bytes out = parse_bytes(bytes); has_unit && out > Bytes(0)) return out;
  } catch (const std::invalid_argument&) {}
  throw wrong(value, expected);
}

/// "25GB/s", "25e9B/s".
BytesPerSecond rate(const std::string& value) {
  constexpr const char* kExpected = "a factor such as 2x or a bandwidth such as 25GB/s";
  if (!value.ends_with("/s")) throw wrong(value, kExpected);
  const Bytes out = bytes_with_unit(value.substr(0, value.size() - 2), value, kExpected);
  return BytesPerSecond(static_cast<double>(out.value));
}

bool on_or_off(const std::string& value) {
  if (value != "on" && value != "off") throw wrong(value, "on or off");
  return value == "on";
}

/// The layers with their times on each type of devices: the graph's, and those of its profiles. Their times are what is
/// predicted with, so that they can be changed one by one.
std::vector<std::vector<Layer>*> times_of_types(Graph& graph) {
  std::vector<std::vector<Layer>*> out;
  const auto add = [&](std::vector<Layer>& layers, std::optional<Timing>& iteration) {
    const double closure = closure_factor(layers, iteration);
    for (Layer& layer : layers) {
      if (!is_input(layer)) scale(layer, closure);
    }
    iteration.reset();
    out.push_back(&layers);
  };
  add(graph.layers, graph.iteration);
  for (DeviceProfile& profile : graph.profiles) add(profile.layers, profile.iteration);
  return out;
}

Stage& stage_of(Scenario& scenario, const std::string& name) {
  const auto index = number_in<double>(name);
  const auto stages = to_int(scenario.plan.stages.size());
  if (!index || *index < 0 || *index >= stages || *index != std::floor(*index))
    throw std::invalid_argument(fmt::format("there is no stage {}, the plan has 0..{}", name, stages - 1));
  return scenario.plan.stages[static_cast<std::size_t>(*index)];
}

/// The level's index.
int level_of(const Scenario& scenario, const std::string& name) {
  std::vector<std::string> known;
  for (const Level& level : scenario.topology.levels) {
    if (level.name == name) return to_int(known.size());
    known.push_back(level.name);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("level", name, known));
}

Link& link_of(Scenario& scenario, const std::string& name) {
  return scenario.topology.levels[to_index(level_of(scenario, name))].link;
}

/// Scales the latency in each measured time, that of `hops` messages, and the rest.
void scale(Curve& curve, Seconds latency, int hops, double latency_by, double rest_by) {
  for (CurvePoint& point : curve.points) {
    const Seconds waiting = std::min(point.time, latency * hops);
    point.time = waiting * latency_by + (point.time - waiting) * rest_by;
  }
}

/// Scales the time that every message takes, that of the smallest measured one, and the rest.
void scale_handling(Curve& curve, double fixed_by, double rest_by) {
  if (!curve.points.empty()) scale(curve, curve.points.front().time, 1, fixed_by, rest_by);
}

void scale(Link& link, double latency_by, double rest_by) {
  scale(link.send_receive, link.latency, 1, latency_by, rest_by);
  for (auto& [ranks, curve] : link.all_reduce) scale(curve, link.latency, 2 * (ranks - 1), latency_by, rest_by);
  for (auto& [ranks, curve] : link.all_gather) scale(curve, link.latency, ranks - 1, latency_by, rest_by);
  for (auto& [ranks, curve] : link.reduce_scatter) scale(curve, link.latency, ranks - 1, latency_by, rest_by);
  for (auto& [ranks, curve] : link.all_to_all) scale(curve, link.latency, ranks - 1, latency_by, rest_by);
  // A message's time contains the processor time at its ends: if that stayed, a message of a shared host could not
  // become faster than its handling.
  if (link.processing) {
    scale_handling(link.processing->sender, latency_by, rest_by);
    scale_handling(link.processing->receiver, latency_by, rest_by);
  }
  link.latency = link.latency * latency_by;
  link.bandwidth = link.bandwidth / rest_by;
}

/// The first `per_group` devices of each group below `level`, `ranks` in all; empty if there are not so many.
std::vector<int> devices_of(const SpanKey& key, const Topology& topology, std::size_t level) {
  int group = 1;
  for (std::size_t i = 0; i < level; ++i) group *= topology.levels[i].count;
  std::vector<int> out;
  for (int first = 0; to_int(out.size()) < key.ranks; first += group) {
    if (key.per_group > group || first + group > device_count(topology)) return {};
    for (int i = 0; i < key.per_group; ++i) out.push_back(first + i);
  }
  return out;
}

/// Changes the link of a level by `change`. Collectives that were measured over several levels change as predicted
/// ones do.
void change_link(Scenario& scenario, const std::string& name, const std::function<void(Link&)>& change) {
  Topology before = scenario.topology;
  for (Level& level : before.levels) level.link.spans.clear();
  change(link_of(scenario, name));
  Topology after = scenario.topology;
  for (Level& level : after.levels) level.link.spans.clear();
  for (std::size_t i = 0; i < scenario.topology.levels.size(); ++i) {
    for (auto& [key, curve] : scenario.topology.levels[i].link.spans) {
      const std::vector<int> devices = devices_of(key, before, i);
      if (devices.empty()) continue;
      for (CurvePoint& point : curve.points) {
        const auto time = [&](const Topology& topology) {
          return collective_time(key.collective, point.bytes, devices, topology).time;
        };
        point.time = point.time * (time(after) / time(before));
      }
    }
  }
}

void set_bandwidth(Scenario& scenario, const Names& names, const std::string& value) {
  change_link(scenario, names[1], [&](Link& link) {
    const auto by = factor(value);
    scale(link, 1, 1 / (by ? *by : rate(value).value / link.bandwidth.value));
  });
}

void set_latency_of(Link& link, const std::string& value) {
  if (const auto by = factor(value)) return scale(link, *by, 1);
  const Seconds latency = seconds(value);
  if (link.latency > Seconds(0)) return scale(link, latency / link.latency, 1);
  for (CurvePoint& point : link.send_receive.points) point.time += latency;
  for (auto& [ranks, curve] : link.all_reduce) {
    for (CurvePoint& point : curve.points) point.time += latency * (2 * (ranks - 1));
  }
  for (auto* curves : {&link.all_gather, &link.reduce_scatter, &link.all_to_all}) {
    for (auto& [ranks, curve] : *curves) {
      for (CurvePoint& point : curve.points) point.time += latency * (ranks - 1);
    }
  }
  link.latency = latency;
}

void set_latency(Scenario& scenario, const Names& names, const std::string& value) {
  change_link(scenario, names[1], [&](Link& link) { set_latency_of(link, value); });
}

void set_compute(Scenario& scenario, const Names&, const std::string& value) {
  const double by = factor_only(value);
  for (std::vector<Layer>* layers : times_of_types(scenario.graph)) {
    for (Layer& layer : *layers) {
      if (!is_input(layer)) scale(layer, by);
    }
  }
}

/// Forward and backward of a microbatch; where replicas are on several types of devices, on the slowest of them.
Seconds time_of(const Scenario& scenario, const Stage& stage, const std::set<std::string>& ids) {
  Seconds out;
  for (const std::string& type : types_of(scenario.topology, stage.devices)) {
    Seconds time;
    for (const Layer& layer : graph_on(scenario.graph, type).layers) {
      if (ids.contains(layer.id)) time += layer.forward.median + layer.backward.median;
    }
    out = std::max(out, time);
  }
  return out;
}

void set_stage_compute(Scenario& scenario, const Names& names, const std::string& value) {
  const Stage& stage = stage_of(scenario, names[1]);
  const std::set<std::string> ids(stage.layers.begin(), stage.layers.end());
  const auto by = factor(value);
  const auto types = times_of_types(scenario.graph);
  const Seconds now = time_of(scenario, stage, ids);
  if (!by && now <= Seconds(0)) throw std::invalid_argument("stage " + names[1] + " takes no time, so none can be set");
  const double scaled_by = by ? *by : seconds(value) / now;
  for (std::vector<Layer>* layers : types) {
    for (Layer& layer : *layers) {
      if (ids.contains(layer.id)) scale(layer, scaled_by);
    }
  }
}

void set_stage_recompute(Scenario& scenario, const Names& names, const std::string& value) {
  Stage& stage = stage_of(scenario, names[1]);
  stage.recompute = on_or_off(value);
  if (!stage.recompute) stage.recompute_every = 0;
}

void set_recompute(Scenario& scenario, const Names&, const std::string& value) {
  const bool on = on_or_off(value);
  for (Stage& stage : scenario.plan.stages) {
    stage.recompute = on;
    if (!on) stage.recompute_every = 0;
  }
}

void set_schedule(Scenario& scenario, const Names&, const std::string& value) {
  static_cast<void>(schedule_by_name(value));
  scenario.plan.schedule = value;
  scenario.plan.listed.clear();
}

void set_microbatches(Scenario& scenario, const Names&, const std::string& value) {
  const std::optional<int> count = number_in<int>(value);
  if (!count || *count < 1) throw wrong(value, "an integer of 1 or more");
  scenario.plan.microbatches = *count;
}

void set_bucket(Scenario& scenario, const Names&, const std::string& value) {
  scenario.plan.gradient_bucket_bytes.reset();
  if (value != "off") scenario.plan.gradient_bucket_bytes = parse_bytes(value);
}

void set_shard(Scenario& scenario, const Names&, const std::string& value) {
  scenario.plan.sharding = state_sharding(value);
}

void set_count(Scenario& scenario, const Names& names, const std::string& value) {
  const int level = level_of(scenario, names[0]);
  const auto by = factor(value);
  const double count =
      by ? *by * scenario.topology.levels[to_index(level)].count : number_in<double>(value).value_or(0);
  if (count < 1 || count > kMostGroups || count != std::floor(count))
    throw wrong(value, "an integer of 1 or more, or a factor such as 2x that makes one");
  scenario = with_groups(scenario, level, static_cast<int>(count));
}

/// The device of the graph's times, as a roofline describes it.
Machine machine_of_times(const Graph& graph) {
  const std::string name = measured_device(graph).name;
  Machine out = [&] {
    try {
      return machine_of(find_card(name), graph.dtype, graph.allow_tf32.value_or(false));
    } catch (const std::invalid_argument&) {
      throw std::invalid_argument(fmt::format(
          "the graph's times are those of {}, whose peak rates are not in the table of cards; stagecraft estimate "
          "takes them by hand, and makes the graph of the other device",
          name.empty() ? "an unknown device" : "\"" + name + "\""));
    }
  }();
  if (graph.estimate) {
    out.peak = graph.estimate->peak;
    out.bandwidth = graph.estimate->bandwidth;
    out.time_per_operator = graph.estimate->time_per_operator;
  }
  return out;
}

/// An estimate of an estimate has the doubts of both.
void add_doubt(Timing& timing, const Timing& before) {
  if (timing.log_spread && before.log_spread) timing.log_spread = std::hypot(*timing.log_spread, *before.log_spread);
}

void set_device(Scenario& scenario, const Names&, const std::string& value) {
  const Card& card = find_card(value);
  if (!scenario.topology.others.empty() || !scenario.graph.profiles.empty())
    throw std::invalid_argument("needs devices of one type, the topology has several");
  const Graph before = scenario.graph;
  const RooflineReference reference{before, machine_of_times(before)};
  const Machine target = machine_of(card, before.dtype, before.allow_tf32.value_or(false));
  scenario.graph = estimated(before, target, reference);
  for (std::size_t i = 0; before.estimate && i < before.layers.size(); ++i) {
    Layer& layer = scenario.graph.layers[i];
    add_doubt(layer.forward, before.layers[i].forward);
    add_doubt(layer.backward, before.layers[i].backward);
    if (layer.update && before.layers[i].update) add_doubt(*layer.update, *before.layers[i].update);
  }
  Device& device = scenario.topology.device;
  device.name = card.name;
  device.kind = DeviceKind::Gpu;
  device.memory = card.memory;
}

void set_memory(Scenario& scenario, const Names&, const std::string& value) {
  auto& memory = scenario.topology.device.memory;
  if (const auto by = factor(value)) {
    if (!memory) throw std::invalid_argument("the topology gives no device memory to multiply");
    memory = Bytes(std::llround(static_cast<double>(memory->value) * *by));
  } else {
    memory = bytes_with_unit(value, value, "a factor such as 2x or a size such as 80GiB");
  }
}

struct ScenarioSetting {
  SettingText text;
  std::function<void(Scenario&, const Names&, const std::string&)> set;
};

/// Parts of a name in capitals stand for any text.
const std::vector<ScenarioSetting>& table() {
  static const std::vector<ScenarioSetting> settings{
      {{"compute", "0.8x", "times of all layers"}, set_compute},
      {{"stage.S.compute", "0.8x, 3ms", "times of the stage's layers; forward and backward of a microbatch"},
       set_stage_compute},
      {{"stage.S.recompute", "on, off", "recomputation in the stage"}, set_stage_recompute},
      {{"recompute", "on, off", "recomputation in all stages"}, set_recompute},
      {{"schedule", "zb-h1", "schedule of the plan"}, set_schedule},
      {{"microbatches", "16", "microbatches per step; their size does not change"}, set_microbatches},
      {{"gradient_bucket", "25MB, off", "largest bucket of gradients in one all-reduce"}, set_bucket},
      {{"shard", "optimizer, gradients, parameters, none", "what of the training state replicas divide among them"},
       set_shard},
      {{"link.LEVEL.bandwidth", "2x, 25GB/s", "of the level's links, and of what was measured on them"}, set_bandwidth},
      {{"link.LEVEL.latency", "0.5x, 5us", "of the level's links, and of what was measured on them"}, set_latency},
      {{"LEVEL.count", "4, 2x", "number of groups; the plan is copied to added groups and dropped from removed ones"},
       set_count},
      {{"device", "H200", "GPU model of all devices (stagecraft estimate --list): estimated times, and its memory"},
       set_device},
      {{"memory", "2x, 80GiB", "memory of each device"}, set_memory},
  };
  return settings;
}

bool is_variable(const std::string& part) {
  return std::all_of(part.begin(), part.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}

Names parts_of(const std::string& name) {
  Names out{""};
  for (const char c : name) {
    if (c == '.')
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

/// Whether `name` is the setting; what stands for any text may have dots.
std::optional<Names> matched(const Names& setting, const Names& name) {
  const auto variable = std::find_if(setting.begin(), setting.end(), is_variable) - setting.begin();
  const bool has_variable = to_index(variable) < setting.size();
  if (name.size() < setting.size() || (!has_variable && name.size() > setting.size())) return std::nullopt;
  Names out = name;
  while (out.size() > setting.size()) {
    out[to_index(variable)] += "." + out[to_index(variable) + 1];
    out.erase(out.begin() + variable + 1);
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!is_variable(setting[i]) && setting[i] != out[i]) return std::nullopt;
  }
  return out;
}

}  // namespace

const std::vector<SettingText>& settings_known() {
  static const std::vector<SettingText> texts = [] {
    std::vector<SettingText> out;
    for (const ScenarioSetting& setting : table()) out.push_back(setting.text);
    return out;
  }();
  return texts;
}

Scenario with_change(Scenario scenario, const std::string& change) {
  const auto equals = change.find('=');
  if (equals == std::string::npos) throw wrong(change, "NAME=VALUE");
  const std::string name = change.substr(0, equals);
  const std::string value = change.substr(equals + 1);
  for (const ScenarioSetting& setting : table()) {
    const auto names = matched(parts_of(setting.text.name), parts_of(name));
    if (!names) continue;
    try {
      setting.set(scenario, *names, value);
    } catch (const std::invalid_argument& e) { throw InputError(kind_of(e), name + ": " + e.what()); }
    return scenario;
  }
  std::vector<std::string> known;
  for (const ScenarioSetting& setting : table()) known.push_back(setting.text.name);
  throw InputError(ErrorKind::UnknownName, unknown_name("setting", name, known));
}

}  // namespace stagecraft

#include "costmodel/interchange/problems/piper.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/format/cursor.h"
#include "costmodel/index.h"
#include "costmodel/interchange/problems/problem_numbers.h"
#include "costmodel/text/number.h"

namespace stagecraft::interchange {
namespace {

using format::Cursor;
using format::Fields;

constexpr int kMostDevices = 10'000;
constexpr int kMostMicrobatches = 1 << 20;
constexpr const char* kRecomputed = "activation recomp";

/// Sum of the fastest times above which they are milliseconds: no planner's microbatch takes 20 s.
constexpr double kSlowest = 20;

using Numbers = std::map<std::int64_t, int>;

/// The whole number that a key is, or nothing.
std::optional<std::int64_t> number_of_key(const std::string& key) {
  return key.size() <= 16 ? number_in<std::int64_t>(key) : std::nullopt;
}

/// Bytes by the neighbours `wanted`, which must be the keys.
std::map<int, double> read_sync(const Cursor& at, const Numbers& index, const std::set<int>& wanted) {
  if (!at.value().is_object()) at.fail_type("an object");
  std::map<int, double> out;
  for (const auto& [key, value] : at.value().items()) {
    const auto id = number_of_key(key);
    const auto found = id ? index.find(*id) : index.end();
    if (found == index.end() || !wanted.contains(found->second))
      at.fail("key \"" + key + "\" is not a node with an edge there");
    if (!out.emplace(found->second, amount(at.inside(value))).second) at.fail("node " + key + " appears twice");
  }
  for (const int node : wanted) {
    if (out.contains(node)) continue;
    for (const auto& [id, i] : index) {
      if (i == node) at.fail("key \"" + std::to_string(id) + "\" is missing, there is an edge with that node");
    }
  }
  return out;
}

/// Index of the fastest of `modes`, which are not empty.
const PiperMode& fastest(const std::vector<PiperMode>& modes) {
  return *std::ranges::min_element(modes, {}, [](const PiperMode& mode) { return mode.time; });
}

}  // namespace

Piper parse_piper(const std::string& text, const std::string& file) {
  const format::Json json = format::parse_document(text, file);
  const Cursor root(json, file);
  Fields fields(root);
  Piper out;
  const Cursor limit = fields.required("maxMemoryPerDevice");
  out.memory_limit = amount(limit);
  if (out.memory_limit <= 0) limit.fail_type("a number above 0");
  out.devices = to_int(fields.required("maxDevices").integer(1, kMostDevices));
  const Cursor bandwidth = fields.required("bandwidth");
  out.bandwidth = bandwidth.positive();
  if (out.bandwidth < 1e-9) bandwidth.fail_type("a number of at least 1e-9");
  const auto microbatches = fields.optional("maxBatchSize");
  out.microbatches =
      to_int((microbatches ? *microbatches : fields.required("mbsInBatch")).integer(1, kMostMicrobatches));
  const Cursor nodes = fields.required("nodes");
  const std::size_t count = nodes.elements();
  if (count == 0) nodes.fail_type("at least one node");
  Numbers index;
  for (std::size_t i = 0; i < count; ++i) {
    Fields node(nodes.at(i));
    const Cursor id = node.required("id");
    PiperNode& made = out.nodes.emplace_back();
    made.id = id.integer(-kMostId, kMostId);
    if (const auto name = node.optional("name")) made.name = name->text();
    if (!index.emplace(made.id, to_int(i)).second) id.fail("id " + std::to_string(made.id) + " appears twice");
  }
  const Cursor edges = fields.required("edges");
  std::vector<std::set<int>> next(count);
  std::vector<std::set<int>> before(count);
  for (std::size_t i = 0; i < edges.elements(); ++i) {
    const Cursor at = edges.at(i);
    Fields edge(at);
    const auto end_of = [&](const char* key) {
      const Cursor id = edge.required(key);
      const auto found = index.find(id.integer(-kMostId, kMostId));
      if (found == index.end()) id.fail("node " + id.value().dump() + " does not exist");
      return found->second;
    };
    PiperEdge& made = out.edges.emplace_back();
    made.source = end_of("sourceId");
    made.destination = end_of("destId");
    made.bytes = amount(edge.required("communicationCost"));
    if (!next[to_index(made.source)].insert(made.destination).second) at.fail("this edge appears twice");
    before[to_index(made.destination)].insert(made.source);
  }
  check_acyclic(nodes, out.nodes, out.edges);
  for (std::size_t i = 0; i < count; ++i) {
    Fields node(nodes.at(i));
    const Cursor modes = node.required("TMPCs");
    if (!modes.value().is_object()) modes.fail_type("an object");
    for (const auto& [key, list] : modes.value().items()) {
      const auto devices = number_of_key(key);
      if (!devices || *devices < 1 || *devices > kMostDevices)
        modes.fail("key \"" + key + "\" is not a number of devices from 1 to " + std::to_string(kMostDevices));
      std::set<std::string> ids;
      auto made = modes.inside(list).list([&](const Cursor& at) {
        Fields mode(at);
        PiperMode one;
        const Cursor id = mode.required("id");
        one.id = id.text();
        if (one.id.empty()) id.fail_type("a name");
        if (!ids.insert(one.id).second) id.fail("\"" + one.id + "\" appears twice");
        one.time = amount(mode.required("timePerSample"));
        one.parameters = amount(mode.required("parameterSize"));
        one.memory_each = amount(mode.required("memoryUsageA"));
        one.memory_fixed = amount(mode.required("memoryUsageB"));
        one.sync_forward = read_sync(mode.required("syncTimeFw"), index, before[i]);
        one.sync_backward = read_sync(mode.required("syncTimeBw"), index, next[i]);
        return one;
      });
      if (made.empty()) continue;
      if (!out.nodes[i].modes.emplace(to_int(*devices), std::move(made)).second)
        modes.fail("key \"" + key + "\" is a number of devices that appears twice");
    }
    if (out.nodes[i].modes.empty()) modes.fail_type("at least one way to run the node");
  }
  return out;
}

PiperTimeUnit piper_time_unit(const Piper& input, Units units) {
  if (units == Units::Published) return {1, "times are read as published, in seconds"};
  double sum = 0;
  for (const PiperNode& node : input.nodes) {
    const auto single = node.modes.find(1);
    sum += fastest((single == node.modes.end() ? node.modes.begin() : single)->second).time;
  }
  const std::string text = "the layers' fastest times on one device add up to " + format::Json(sum).dump();
  if (sum > kSlowest) return {1e-3, "fixed: " + text + ", so times are read as milliseconds"};
  return {1, "nothing to fix: " + text + "; times are read as published, in seconds"};
}

Graph piper_graph(const Piper& input, Units units) {
  const PiperTimeUnit unit = piper_time_unit(input, units);
  Graph graph;
  int derived = 0;
  for (const PiperNode& node : input.nodes) {
    const auto modes = node.modes.find(1);
    if (modes == node.modes.end()) {
      throw std::invalid_argument("node " + std::to_string(node.id) +
                                  " cannot run on one device, and a graph has only times on one device");
    }
    const PiperMode& mode = modes->second.front();
    Layer& layer = graph.layers.emplace_back();
    layer.id = std::to_string(node.id);
    layer.name = node.name;
    const auto recomputed = std::ranges::find(modes->second, kRecomputed, &PiperMode::id);
    double forward = mode.time / 3;
    if (recomputed != modes->second.end() && recomputed->time >= mode.time && recomputed->time <= 2 * mode.time &&
        &*recomputed != &mode) {
      forward = recomputed->time - mode.time;
      ++derived;
    }
    layer.forward.median = Seconds(forward * unit.s);
    layer.backward.median = Seconds((mode.time - forward) * unit.s);
    layer.parameter_bytes = whole_bytes(mode.parameters);
    layer.saved_bytes = whole_bytes(mode.memory_each);
  }
  std::map<std::pair<int, double>, int> output_of;  // by layer and bytes
  for (const PiperEdge& edge : input.edges) {
    Layer& layer = graph.layers[to_index(edge.source)];
    const auto [output, is_new] = output_of.emplace(std::pair(edge.source, edge.bytes), to_int(layer.outputs.size()));
    if (is_new) layer.outputs.push_back({whole_bytes(edge.bytes), {}, "", true, {}});
    graph.edges.push_back({edge.source, edge.destination, output->second});
  }
  auto& notes = graph.provenance.notes;
  notes["source"] =
      "an input of Piper: the first mode of each layer on one device; memory per sample is in saved_bytes";
  notes["units"] = unit.reason;
  notes["forward"] = "of " + std::to_string(derived) + " layers, the time that recomputation adds; of " +
                     std::to_string(to_int(input.nodes.size()) - derived) + ", a third of the layer's time";
  notes["devices"] = std::to_string(input.devices) + " devices of " + format::Json(input.memory_limit).dump() +
                     " bytes, " + format::Json(input.bandwidth).dump() + " bytes/s, " +
                     std::to_string(input.microbatches) + " microbatches";
  return graph;
}

}  // namespace stagecraft::interchange

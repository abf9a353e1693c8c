#include "costmodel/interchange/problems/dnn_partitioning.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/format/cursor.h"
#include "costmodel/index.h"
#include "costmodel/interchange/problems/problem_numbers.h"

namespace stagecraft::interchange {
namespace {

using format::Cursor;
using format::Fields;

constexpr int kMostDevices = 100'000;

/// Bytes in a second of the published costs.
constexpr double kPublishedBandwidth = 2147483648.0;

bool flag(const Cursor& at) { return at.value().is_boolean() ? at.boolean() : at.integer(0, 1) != 0; }

PlacementNode read_node(const Cursor& at) {
  Fields fields(at);
  PlacementNode node;
  node.id = fields.required("id").integer(-kMostId, kMostId);
  if (const auto name = fields.optional("name")) node.name = name->text();
  node.on_accelerator = flag(fields.required("supportedOnFpga"));
  node.cpu_ms = amount(fields.required("cpuLatency"));
  node.accelerator_ms = amount(fields.required("fpgaLatency"));
  node.backward = flag(fields.required("isBackwardNode"));
  if (const auto color = fields.optional("colorClass")) node.color = color->integer(-kMostId, kMostId);
  if (const auto size = fields.optional("size")) node.bytes = amount(*size);
  return node;
}

/// Strongly connected components of a graph of `nodes` nodes, numbered in any order. Tarjan, without recursion.
std::vector<int> components(int nodes, const std::vector<std::vector<int>>& next) {
  constexpr int kNew = -1;
  std::vector<int> out(to_index(nodes), kNew);
  std::vector<int> entered(to_index(nodes), kNew);
  std::vector<int> low(to_index(nodes), 0);
  std::vector<int> open;                          // entered, component unknown
  std::vector<std::pair<int, std::size_t>> path;  // node, its next edge
  int time = 0;
  int count = 0;
  for (int root = 0; root < nodes; ++root) {
    if (entered[to_index(root)] != kNew) continue;
    path.emplace_back(root, 0);
    while (!path.empty()) {
      const int node = path.back().first;
      const auto v = to_index(node);
      if (path.back().second == 0) {
        entered[v] = low[v] = time++;
        open.push_back(node);
      }
      if (path.back().second < next[v].size()) {
        const int to = next[v][path.back().second++];
        if (entered[to_index(to)] == kNew) {
          path.emplace_back(to, 0);
        } else if (out[to_index(to)] == kNew) {
          low[v] = std::min(low[v], entered[to_index(to)]);
        }
        // An edge's target counts again below, once its own edges are done.
        continue;
      }
      if (low[v] == entered[v]) {
        for (int member = kNew; member != node;) {
          member = open.back();
          open.pop_back();
          out[to_index(member)] = count;
        }
        ++count;
      }
      path.pop_back();
      if (!path.empty()) {
        const auto parent = to_index(path.back().first);
        low[parent] = std::min(low[parent], low[v]);
      }
    }
  }
  return out;
}

/// Renumbers groups by the first node of each; returns their number.
int renumber(std::vector<int>& group_of_node) {
  std::map<int, int> numbers;
  for (int& group : group_of_node) group = numbers.emplace(group, to_int(numbers.size())).first->second;
  return to_int(numbers.size());
}

Seconds seconds_of_ms(double ms) { return Seconds(ms * 1e-3); }

}  // namespace

Units units_by_name(const std::string& name) {
  if (name == "published") return Units::Published;
  if (name == "fixed") return Units::Fixed;
  throw InputError(ErrorKind::UnknownName, unknown_name("units", name, {"published", "fixed"}));
}

DnnPartitioning parse_dnn_partitioning(const std::string& text, const std::string& file) {
  const format::Json json = format::parse_document(text, file);
  const Cursor root(json, file);
  Fields fields(root);
  DnnPartitioning out;
  out.memory_limit = amount(fields.required("maxSizePerFPGA"));
  out.accelerators = to_int(fields.required("maxFPGAs").integer(0, kMostDevices));
  const Cursor cpus = fields.required("maxCPUs");
  out.cpus = to_int(cpus.integer(0, kMostDevices));
  if (out.accelerators + out.cpus == 0) cpus.fail("found no accelerators and no CPUs, expected a device");
  const Cursor nodes = fields.required("nodes");
  out.nodes = nodes.list(read_node);
  if (out.nodes.empty()) nodes.fail_type("at least one node");
  std::map<std::int64_t, int> index;
  for (std::size_t i = 0; i < out.nodes.size(); ++i) {
    if (!index.emplace(out.nodes[i].id, to_int(i)).second)
      nodes.at(i).fail("id " + std::to_string(out.nodes[i].id) + " appears twice");
  }
  const Cursor edges = fields.required("edges");
  std::vector<bool> has_cost(out.nodes.size(), false);
  const std::size_t count = edges.elements();
  for (std::size_t i = 0; i < count; ++i) {
    const Cursor at = edges.at(i);
    Fields edge(at);
    const auto end_of = [&](const char* key) {
      const Cursor id = edge.required(key);
      const auto found = index.find(id.integer(-kMostId, kMostId));
      if (found == index.end()) id.fail("node " + id.value().dump() + " does not exist");
      return found->second;
    };
    const int source = end_of("sourceId");
    const int destination = end_of("destId");
    PlacementNode& from = out.nodes[to_index(source)];
    const Cursor cost_at = edge.required("cost");
    const double cost = amount(cost_at);
    if (has_cost[to_index(source)] && std::abs(from.transfer - cost) > 1e-6) {
      cost_at.fail("found " + cost_at.value().dump() + ", another edge of node " + std::to_string(from.id) + " costs " +
                   format::Json(from.transfer).dump() + "; all edges of a node carry one output");
    }
    if (!has_cost[to_index(source)]) from.transfer = cost;
    has_cost[to_index(source)] = true;
    if (const auto size = edge.optional("size"); size && !from.output_bytes) from.output_bytes = amount(*size);
    if (from.backward && !out.nodes[to_index(destination)].backward) at.fail("leads from a backward to a forward node");
    out.edges.push_back({source, destination});
  }
  check_acyclic(nodes, out.nodes, out.edges);
  return out;
}

TransferUnit transfer_unit(const DnnPartitioning& input, Units units) {
  if (units == Units::Published) return {1, "transfer costs are read as published, in milliseconds"};
  int seconds = 0;
  int milliseconds = 0;
  for (const PlacementNode& node : input.nodes) {
    if (!node.output_bytes || node.transfer <= 0) continue;
    const double expected_s = *node.output_bytes / kPublishedBandwidth;
    if (std::abs(node.transfer - expected_s) <= 0.01 * expected_s) ++seconds;
    if (std::abs(node.transfer - 1e3 * expected_s) <= 10 * expected_s) ++milliseconds;
  }
  const std::string counts = std::to_string(seconds) + " of " + std::to_string(seconds + milliseconds) +
                             " transfer costs are their bytes at 2 GiB/s in seconds";
  if (seconds > milliseconds)
    return {1000, "fixed: " + counts + ", so all are read as seconds, and latencies as milliseconds"};
  if (seconds + milliseconds == 0)
    return {1, "nothing to fix: no transfer cost can be checked against its bytes; read as published, in milliseconds"};
  return {1, "nothing to fix: " + counts + "; read as published, in milliseconds"};
}

Colocation colocation(const DnnPartitioning& input) {
  Colocation out;
  const std::size_t nodes = input.nodes.size();
  out.group_of_node.resize(nodes);
  std::map<std::int64_t, int> group_of_color;
  for (std::size_t v = 0; v < nodes; ++v) {
    const auto& color = input.nodes[v].color;
    out.group_of_node[v] = color ? group_of_color.emplace(*color, to_int(v)).first->second : to_int(v);
  }
  out.groups = renumber(out.group_of_node);
  std::vector<bool> has_forward(to_index(out.groups), false);
  for (std::size_t v = 0; v < nodes; ++v) {
    if (!input.nodes[v].backward) has_forward[to_index(out.group_of_node[v])] = true;
  }
  std::set<std::pair<int, int>> order;
  for (const PlacementEdge& edge : input.edges) {
    const int from = out.group_of_node[to_index(edge.source)];
    const int to = out.group_of_node[to_index(edge.destination)];
    if (from == to) continue;
    const bool backward = input.nodes[to_index(edge.source)].backward;
    if (!backward && !input.nodes[to_index(edge.destination)].backward) order.emplace(from, to);
    if (backward && (!has_forward[to_index(from)] || !has_forward[to_index(to)])) order.emplace(to, from);
  }
  std::vector<std::vector<int>> next(to_index(out.groups));
  for (const auto& [from, to] : order) next[to_index(from)].push_back(to);
  const std::vector<int> component = components(out.groups, next);
  std::vector<int> merged(nodes);
  for (std::size_t v = 0; v < nodes; ++v) merged[v] = component[to_index(out.group_of_node[v])];
  out.groups = renumber(merged);
  std::vector<int> new_group(next.size());
  for (std::size_t v = 0; v < nodes; ++v) new_group[to_index(out.group_of_node[v])] = merged[v];
  out.group_of_node = std::move(merged);
  std::set<std::pair<int, int>> edges;
  for (const auto& [from, to] : order) {
    const int a = new_group[to_index(from)];
    const int b = new_group[to_index(to)];
    if (a != b) edges.emplace(a, b);
  }
  out.edges.assign(edges.begin(), edges.end());
  return out;
}

Graph dnn_partitioning_graph(const DnnPartitioning& input, Units units) {
  const TransferUnit unit = transfer_unit(input, units);
  const Colocation groups = colocation(input);
  Graph graph;
  graph.layers.resize(to_index(groups.groups));
  std::vector<int> members(graph.layers.size(), 0);
  std::vector<double> bytes(graph.layers.size(), 0);
  for (std::size_t v = 0; v < input.nodes.size(); ++v) {
    const PlacementNode& node = input.nodes[v];
    const auto g = to_index(groups.group_of_node[v]);
    Layer& layer = graph.layers[g];
    if (members[g]++ == 0) {
      layer.id = std::to_string(node.id);
      layer.name = node.name;
    }
    (node.backward ? layer.backward : layer.forward).median += seconds_of_ms(node.accelerator_ms);
    bytes[g] += node.bytes;
  }
  for (std::size_t g = 0; g < graph.layers.size(); ++g) {
    if (members[g] > 1) graph.layers[g].name += " and " + std::to_string(members[g] - 1) + " more";
    if (bytes[g] > 0) graph.layers[g].saved_bytes = whole_bytes(bytes[g]);
  }
  std::vector<int> output_of(input.nodes.size(), -1);
  std::set<std::pair<int, std::size_t>> read;  // group, node
  std::size_t dropped = 0;
  for (const PlacementEdge& edge : input.edges) {
    const auto from = to_index(edge.source);
    const int source = groups.group_of_node[from];
    const int destination = groups.group_of_node[to_index(edge.destination)];
    if (source == destination) continue;
    if (input.nodes[from].backward || input.nodes[to_index(edge.destination)].backward) {
      ++dropped;
      continue;
    }
    if (!read.emplace(destination, from).second) continue;
    Layer& layer = graph.layers[to_index(source)];
    if (output_of[from] < 0) {
      output_of[from] = to_int(layer.outputs.size());
      const PlacementNode& node = input.nodes[from];
      const double sent = node.output_bytes ? *node.output_bytes : node.transfer * unit.ms * 1e-3 * kPublishedBandwidth;
      layer.outputs.push_back({whole_bytes(std::min(sent, kMostAmount)), {}, "", true, {}});
    }
    graph.edges.push_back({source, destination, output_of[from]});
  }
  auto& notes = graph.provenance.notes;
  notes["source"] = "an input of dnn-partitioning: times on an accelerator; sizes of nodes are in saved_bytes";
  notes["units"] = unit.reason;
  notes["devices"] = std::to_string(input.accelerators) + " accelerators of " +
                     format::Json(input.memory_limit).dump() + " bytes, " + std::to_string(input.cpus) + " CPUs";
  if (dropped > 0) notes["edges"] = std::to_string(dropped) + " edges to backward nodes are not in the graph";
  return graph;
}

}  // namespace stagecraft::interchange

#include "partitioner/objective/load_problem.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "costmodel/index.h"

namespace stagecraft::partitioner {
namespace {

/// The problem with the nodes of one class joined.
LoadProblem joined(LoadProblem problem, const Contraction& classes) {
  LoadProblem out;
  out.accelerators = problem.accelerators;
  out.cpus = problem.cpus;
  out.memory_limit = problem.memory_limit;
  out.order = classes.dag;
  out.nodes.resize(to_index(classes.dag.nodes));
  for (std::size_t v = 0; v < problem.nodes.size(); ++v) {
    LoadProblem::Node& from = problem.nodes[v];
    LoadProblem::Node& to = out.nodes[to_index(classes.class_of_node[v])];
    to.accelerator += from.accelerator;
    to.cpu += from.cpu;
    to.bytes += from.bytes;
    to.on_accelerator = to.on_accelerator && from.on_accelerator;
    std::ranges::move(from.members, std::back_inserter(to.members));
  }
  for (CutTensor& tensor : problem.tensors) {
    const int producer = classes.class_of_node[to_index(tensor.producer)];
    std::set<int> consumers;
    for (const int consumer : tensor.consumers) consumers.insert(classes.class_of_node[to_index(consumer)]);
    consumers.erase(producer);
    if (!consumers.empty()) out.tensors.push_back({producer, {consumers.begin(), consumers.end()}, tensor.cost});
  }
  return out;
}

}  // namespace

LoadProblem load_problem(const interchange::DnnPartitioning& input, interchange::Units units) {
  const interchange::Colocation groups = interchange::colocation(input);
  const Seconds transfer(interchange::transfer_unit(input, units).ms * 1e-3);
  LoadProblem problem;
  problem.accelerators = input.accelerators;
  problem.cpus = input.cpus;
  problem.memory_limit = FractionalBytes(input.memory_limit);
  problem.nodes.resize(to_index(groups.groups));
  problem.order = {groups.groups, groups.edges};
  FractionalBytes bytes;
  for (std::size_t v = 0; v < input.nodes.size(); ++v) {
    const interchange::PlacementNode& node = input.nodes[v];
    LoadProblem::Node& to = problem.nodes[to_index(groups.group_of_node[v])];
    to.accelerator += Seconds(node.accelerator_ms * 1e-3);
    to.cpu += Seconds(node.cpu_ms * 1e-3);
    to.bytes += FractionalBytes(node.bytes);
    to.on_accelerator = to.on_accelerator && node.on_accelerator;
    to.members.push_back(std::to_string(node.id));
    bytes += FractionalBytes(node.bytes);
  }
  std::vector<std::set<int>> readers(input.nodes.size());
  for (const interchange::PlacementEdge& edge : input.edges)
    readers[to_index(edge.source)].insert(groups.group_of_node[to_index(edge.destination)]);
  Dag touching = problem.order;
  for (std::size_t v = 0; v < readers.size(); ++v) {
    const int producer = groups.group_of_node[v];
    readers[v].erase(producer);
    if (readers[v].empty()) continue;
    for (const int reader : readers[v]) touching.edges.emplace_back(producer, reader);
    if (input.nodes[v].transfer > 0)
      problem.tensors.push_back({producer, {readers[v].begin(), readers[v].end()}, input.nodes[v].transfer * transfer});
  }
  std::vector<bool> is_free;
  for (const LoadProblem::Node& node : problem.nodes) {
    is_free.push_back(node.accelerator == Seconds(0) && node.cpu == Seconds(0) && node.on_accelerator &&
                      (node.bytes == FractionalBytes(0) || bytes <= problem.memory_limit));
  }
  const Dag order = problem.order;
  return joined(std::move(problem), contract(order, free_leaves(touching, is_free)));
}

LayerNodes layer_nodes(const Graph& graph) {
  LayerNodes out;
  std::vector<int> node_of_layer(graph.layers.size(), -1);
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    if (is_input(graph.layers[i])) continue;
    node_of_layer[i] = to_int(out.layer_of_node.size());
    out.layer_of_node.push_back(to_int(i));
  }
  out.order.nodes = to_int(out.layer_of_node.size());
  std::map<std::pair<int, int>, std::set<int>> readers;  // by layer and output, -1 for all of them
  for (const Edge& edge : graph.edges) {
    const int from = node_of_layer[to_index(edge.source)];
    const int to = node_of_layer[to_index(edge.destination)];
    if (from < 0 || to < 0) continue;
    out.order.edges.emplace_back(from, to);
    readers[{edge.source, edge.output.value_or(-1)}].insert(to);
  }
  for (const auto& [output, nodes] : readers) {
    const Layer& layer = graph.layers[to_index(output.first)];
    const Bytes bytes = output.second < 0 ? activation_bytes(layer) : layer.outputs[to_index(output.second)].bytes;
    out.outputs.push_back({node_of_layer[to_index(output.first)], {nodes.begin(), nodes.end()}, bytes});
  }
  return out;
}

LoadProblem load_problem(const Graph& graph, int devices, std::optional<BytesPerSecond> bandwidth, int crossings,
                         std::optional<Bytes> memory_limit) {
  LoadProblem problem;
  problem.accelerators = devices;
  if (memory_limit) problem.memory_limit = fractional(*memory_limit);
  const LayerNodes nodes = layer_nodes(graph);
  for (const int number : nodes.layer_of_node) {
    const Layer& layer = graph.layers[to_index(number)];
    LoadProblem::Node& node = problem.nodes.emplace_back();
    node.accelerator = node.cpu = layer.forward.median + layer.backward.median;
    node.bytes = fractional(layer.parameter_bytes + activation_bytes(layer));
    node.members = {layer.id};
  }
  problem.order = nodes.order;
  for (const LayerNodes::ReadOutput& output : nodes.outputs) {
    if (bandwidth && output.bytes > Bytes(0))
      problem.tensors.push_back({output.producer, output.readers, output.bytes / *bandwidth * crossings});
  }
  const Dag order = problem.order;
  return joined(std::move(problem), contract(order));
}

std::vector<int> depth_first(const Dag& dag) {
  std::vector<std::vector<int>> next(to_index(dag.nodes));
  std::vector<int> waiting(to_index(dag.nodes), 0);
  for (const auto& [from, to] : dag.edges) {
    next[to_index(from)].push_back(to);
    ++waiting[to_index(to)];
  }
  std::vector<int> ready;
  for (int v = dag.nodes; v-- > 0;) {
    if (waiting[to_index(v)] == 0) ready.push_back(v);
  }
  std::vector<int> out;
  while (!ready.empty()) {
    const int node = ready.back();
    ready.pop_back();
    out.push_back(node);
    for (const int to : next[to_index(node)]) {
      if (--waiting[to_index(to)] == 0) ready.push_back(to);
    }
  }
  return out;
}

Dag list_of(const std::vector<int>& order) {
  Dag out{to_int(order.size()), {}};
  for (std::size_t i = 1; i < order.size(); ++i) out.edges.emplace_back(order[i - 1], order[i]);
  return out;
}

std::vector<std::vector<int>> depth_first_orders(const Dag& dag) {
  std::vector<int> from_the_end = depth_first(reversed(dag));
  std::ranges::reverse(from_the_end);
  return {depth_first(dag), from_the_end};
}

std::vector<Dag> depth_first_lists(const Dag& dag) {
  std::vector<Dag> out;
  for (const std::vector<int>& order : depth_first_orders(dag)) out.push_back(list_of(order));
  return out;
}

namespace {

constexpr Seconds kInfinite(std::numeric_limits<double>::infinity());

}  // namespace

LoadBounds bounds_of(const LoadProblem& problem) {
  LoadBounds out;
  for (const LoadProblem::Node& node : problem.nodes) {
    const bool counts = problem.cpus == 0 || (node.on_accelerator && node.cpu > Seconds(0));
    const Seconds work = counts ? node.accelerator : Seconds(0);
    if (problem.cpus > 0 && work > Seconds(0)) out.cpu_share = std::max(out.cpu_share, node.accelerator / node.cpu);
    out.work.push_back(work);
    out.all += work;
  }
  return out;
}

Seconds least_slowest(const LoadProblem& problem, bool replicated) {
  std::vector<const LoadProblem::Node*> nodes;
  Seconds largest;
  for (const LoadProblem::Node& node : problem.nodes) {
    nodes.push_back(&node);
    const bool on_accelerator = node.on_accelerator && problem.accelerators > 0;
    const Seconds here = on_accelerator ? node.accelerator : kInfinite;
    const Seconds there = problem.cpus > 0 ? node.cpu : kInfinite;
    largest = std::max(largest, std::min(here, there));
  }
  if (problem.cpus == 0) {
    Seconds all;
    for (const LoadProblem::Node* node : nodes) all += node->accelerator;
    return std::max(all / problem.accelerators, replicated ? Seconds(0) : largest);
  }
  // The most accelerator time for each second of a CPU first; what only a CPU can run before all.
  const auto gain = [](const LoadProblem::Node* node) {
    if (!node->on_accelerator || node->cpu == Seconds(0)) return std::numeric_limits<double>::infinity();
    return node->accelerator / node->cpu;
  };
  std::ranges::stable_sort(nodes, std::ranges::greater{}, gain);
  const auto fits = [&](Seconds time) {
    Seconds cpu = time * problem.cpus;
    Seconds accelerator = time * problem.accelerators;
    for (const LoadProblem::Node* node : nodes) {
      const double share = node->cpu <= cpu ? 1 : cpu / node->cpu;
      cpu -= share * node->cpu;
      if (share == 1) continue;
      if (!node->on_accelerator) return false;
      accelerator -= (1 - share) * node->accelerator;
      if (accelerator < Seconds(0)) return false;
    }
    return true;
  };
  Seconds high;
  for (const LoadProblem::Node& node : problem.nodes) high += std::max(node.cpu, node.accelerator);
  Seconds low;
  for (int step = 0; step < 60 && low < high; ++step) {
    const Seconds middle = low + (high - low) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return std::max(low * (1 - kLoadRounding), replicated ? Seconds(0) : largest);
}

Seconds first_bound(const LoadProblem& problem, const LoadObjective& objective) {
  const Seconds slowest = least_slowest(problem, objective.replicated);
  Seconds all;
  for (const LoadProblem::Node& node : problem.nodes) all += node.accelerator;
  switch (objective.combination) {
    case Combination::Slowest:
      return slowest;
    case Combination::FlushSum: {
      const Seconds sum = objective.replicated ? all / problem.accelerators : all;
      return (problem.cpus > 0 ? Seconds(0) : sum * (1 - kLoadRounding)) + (objective.microbatches - 1) * slowest;
    }
    case Combination::FlushEven: {
      Seconds least = kInfinite;
      LoadProblem fewer;
      fewer.nodes = problem.nodes;
      for (int stages = 1; stages <= problem.accelerators; ++stages) {
        fewer.accelerators = stages;
        least = std::min(least, (objective.microbatches + stages - 1) * least_slowest(fewer, false));
      }
      return least;
    }
  }
  return Seconds(0);
}

}  // namespace stagecraft::partitioner

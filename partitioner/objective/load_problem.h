#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/interchange/problems/dnn_partitioning.h"
#include "costmodel/units.h"
#include "partitioner/costs/byte_units.h"
#include "partitioner/costs/lattice.h"

namespace stagecraft::partitioner {

/// Nodes to divide into contiguous stages, each on a separate device. On an accelerator a stage takes the work of its
/// nodes and the cost of each tensor that crosses its boundary, once; on a CPU only the work.
struct LoadProblem {
  struct Node {
    Seconds accelerator;
    Seconds cpu;
    FractionalBytes bytes;  ///< on an accelerator
    bool on_accelerator = true;
    std::vector<std::string> members;  ///< ids of the source's nodes that were joined into this one, in file order
  };
  std::vector<Node> nodes;
  std::vector<CutTensor> tensors;  ///< between different nodes
  Dag order;                       ///< which node comes first; acyclic
  int accelerators = 0;
  int cpus = 0;
  FractionalBytes memory_limit{std::numeric_limits<double>::infinity()};  ///< of an accelerator
};

/// The layers of a graph besides inputs as nodes, in the graph's order, and what they read from each other.
struct LayerNodes {
  struct ReadOutput {
    int producer = 0;
    std::vector<int> readers;  ///< each once
    Bytes bytes;
  };
  std::vector<int> layer_of_node;
  Dag order;
  std::vector<ReadOutput> outputs;
};
[[nodiscard]] LayerNodes layer_nodes(const Graph& graph);

/// How the stages of a plan add up.
enum class Combination {
  Slowest,    ///< max t: the time of a microbatch in steady state
  FlushSum,   ///< sum t + (M - 1) max t: Alpa's latency of M microbatches
  FlushEven,  ///< (M + K - 1) max t for K stages: GPipe's step if all stages were as slow as the slowest
};

/// What to minimise.
struct LoadObjective {
  Combination combination = Combination::Slowest;
  int microbatches = 1;     ///< M
  bool replicated = false;  ///< a stage may take several accelerators, which divide its time among them
};

/// The problem of an input of dnn-partitioning: groups of colocation() as nodes, one for each device at most. Leaves
/// that cost nothing are joined to their neighbour, those with bytes only if bytes cannot affect the result.
[[nodiscard]] LoadProblem load_problem(const interchange::DnnPartitioning& input, interchange::Units units);

/// The problem of a graph on equal devices: a layer takes its forward and backward; an output takes its bytes over
/// `bandwidth`, as often as `crossings` says; without bandwidth, nothing. Memory: parameters and outputs. Inputs are
/// left out.
[[nodiscard]] LoadProblem load_problem(const Graph& graph, int devices, std::optional<BytesPerSecond> bandwidth,
                                       int crossings, std::optional<Bytes> memory_limit);

/// The nodes of an acyclic graph in a topological order that follows one branch as far as it goes.
[[nodiscard]] std::vector<int> depth_first(const Dag& dag);

/// The graph of a list: each node before the next.
[[nodiscard]] Dag list_of(const std::vector<int>& order);

/// Two orders of all nodes: depth first from the first nodes, and from the last ones.
[[nodiscard]] std::vector<std::vector<int>> depth_first_orders(const Dag& dag);

/// The lists in these orders.
[[nodiscard]] std::vector<Dag> depth_first_lists(const Dag& dag);

/// The slack of load_solver on sums that are taken in different orders, relatively.
inline constexpr double kLoadRounding = 1e-11;

/// What of a problem bounds stages from below, whatever their borders.
struct LoadBounds {
  /// Of each node: work that is counted, such that a CPU that takes time t holds at most cpu_share * t of it.
  std::vector<Seconds> work;
  double cpu_share = 0;
  Seconds all;
};
[[nodiscard]] LoadBounds bounds_of(const LoadProblem& problem);

/// A time that the slowest stage takes in every plan: all work divided at will among all devices, each node where it is
/// relatively fastest; and the largest node, unless accelerators divide it.
[[nodiscard]] Seconds least_slowest(const LoadProblem& problem, bool replicated);

/// A value that every plan has at least.
[[nodiscard]] Seconds first_bound(const LoadProblem& problem, const LoadObjective& objective);

}  // namespace stagecraft::partitioner

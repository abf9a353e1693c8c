#include "partitioner/costs/lattice.h"

#include <functional>
#include <numeric>
#include <queue>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace stagecraft::partitioner {
namespace {

using Lists = std::vector<std::vector<int>>;

/// A list of numbers for each of many rows, one after the other.
struct Rows {
  std::vector<std::size_t> first;
  std::vector<int> values;
  [[nodiscard]] std::span<const int> row(int i) const {
    return std::span(values).subspan(first[to_index(i)], first[to_index(i) + 1] - first[to_index(i)]);
  }
};

/// Neighbours of each node along (or against) the edges, ascending, each once.
Rows neighbours(const Dag& graph, bool against) {
  std::vector<std::pair<int, int>> pairs;
  pairs.reserve(graph.edges.size());
  for (const auto& [from, to] : graph.edges) pairs.push_back(against ? std::pair(to, from) : std::pair(from, to));
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  Rows out;
  out.first.assign(to_index(graph.nodes) + 1, 0);
  for (const auto& [at, other] : pairs) {
    ++out.first[to_index(at) + 1];
    out.values.push_back(other);
  }
  std::partial_sum(out.first.begin(), out.first.end(), out.first.begin());
  return out;
}

class Classes {
 public:
  explicit Classes(int nodes) : parent_(to_index(nodes)) { std::iota(parent_.begin(), parent_.end(), 0); }
  int find(int node) {
    while (parent_[to_index(node)] != node) {
      parent_[to_index(node)] = parent_[to_index(parent_[to_index(node)])];
      node = parent_[to_index(node)];
    }
    return node;
  }
  /// The smaller number represents the class.
  void join(int a, int b) {
    a = find(a);
    b = find(b);
    parent_[to_index(std::max(a, b))] = std::min(a, b);
  }

 private:
  std::vector<int> parent_;
};

/// Joins the nodes of each strongly connected component. Source: Tarjan, SIAM J. Comput. 1(2), 1972; no recursion.
void join_cycles(const Dag& graph, Classes& classes) {
  const Rows consumers = neighbours(graph, false);
  const std::size_t nodes = to_index(graph.nodes);
  std::vector<int> index(nodes, -1);
  std::vector<int> low(nodes, 0);
  std::vector<bool> open(nodes, false);
  std::vector<int> stack;
  std::vector<std::pair<int, std::size_t>> path;  // node and the next of its consumers
  int next = 0;
  const auto enter = [&](int node) {
    index[to_index(node)] = low[to_index(node)] = next++;
    open[to_index(node)] = true;
    stack.push_back(node);
    path.emplace_back(node, 0);
  };
  for (int root = 0; root < graph.nodes; ++root) {
    if (index[to_index(root)] >= 0) continue;
    enter(root);
    while (!path.empty()) {
      const int node = path.back().first;
      const std::span<const int> row = consumers.row(node);
      int& lowest = low[to_index(node)];
      if (path.back().second < row.size()) {
        const int to = row[path.back().second++];
        if (index[to_index(to)] < 0) {
          enter(to);
        } else if (open[to_index(to)]) {
          lowest = std::min(lowest, index[to_index(to)]);
        }
        continue;
      }
      path.pop_back();
      if (!path.empty()) low[to_index(path.back().first)] = std::min(low[to_index(path.back().first)], lowest);
      if (lowest != index[to_index(node)]) continue;
      for (int member = -1; member != node;) {
        member = stack.back();
        stack.pop_back();
        open[to_index(member)] = false;
        classes.join(member, node);
      }
    }
  }
}

void check_node(int node, int nodes) {
  if (node < 0 || node >= nodes) {
    throw std::invalid_argument("node " + std::to_string(node) + " does not exist, there are " + std::to_string(nodes));
  }
}

/// Nodes in topological order, among ready ones the smallest first; those on cycles are missing.
std::vector<int> order_of(const Dag& graph) {
  const Rows consumers = neighbours(graph, false);
  std::vector<int> left(to_index(graph.nodes), 0);
  for (const int to : consumers.values) ++left[to_index(to)];
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (int node = 0; node < graph.nodes; ++node) {
    if (left[to_index(node)] == 0) ready.push(node);
  }
  std::vector<int> out;
  while (!ready.empty()) {
    const int node = ready.top();
    ready.pop();
    out.push_back(node);
    for (const int to : consumers.row(node)) {
      if (--left[to_index(to)] == 0) ready.push(to);
    }
  }
  return out;
}

/// 128 random bits for a node, always the same ones.
struct Key {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const Key&, const Key&) = default;
};

std::uint64_t mixed(std::uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

Key key_of(int node) {
  const auto n = static_cast<std::uint64_t>(node);
  return {mixed(2 * n), mixed(2 * n + 1)};
}

struct KeyHash {
  std::size_t operator()(const Key& key) const { return static_cast<std::size_t>(key.low); }
};

/// The sets of one cardinality while the next ones are grown: their keys, members and the nodes that can be added.
struct Generation {
  std::vector<Key> keys;
  std::vector<std::uint64_t> members;   ///< rows of bits
  std::vector<std::vector<int>> ready;  ///< ascending
};

}  // namespace

Dag reversed(Dag graph) {
  for (auto& [from, to] : graph.edges) std::swap(from, to);
  return graph;
}

Contraction contract(const Dag& graph, const std::vector<std::pair<int, int>>& together) {
  for (const auto& [from, to] : graph.edges) {
    check_node(from, graph.nodes);
    check_node(to, graph.nodes);
  }
  Classes classes(graph.nodes);
  for (const auto& [a, b] : together) {
    check_node(a, graph.nodes);
    check_node(b, graph.nodes);
    classes.join(a, b);
  }
  const auto quotient = [&] {
    Dag out{graph.nodes, {}};
    for (const auto& [from, to] : graph.edges) {
      const std::pair edge(classes.find(from), classes.find(to));
      if (edge.first != edge.second) out.edges.push_back(edge);
    }
    return out;
  };
  join_cycles(quotient(), classes);
  // A class is represented by its smallest node, so an order of the nodes that represent is one of the classes.
  Contraction out;
  const Dag joined = quotient();
  std::vector<int> number(to_index(graph.nodes), -1);
  for (const int node : order_of(joined)) {
    if (classes.find(node) == node) number[to_index(node)] = out.dag.nodes++;
  }
  for (int node = 0; node < graph.nodes; ++node) out.class_of_node.push_back(number[to_index(classes.find(node))]);
  for (const auto& [from, to] : joined.edges) out.dag.edges.emplace_back(number[to_index(from)], number[to_index(to)]);
  std::sort(out.dag.edges.begin(), out.dag.edges.end());
  out.dag.edges.erase(std::unique(out.dag.edges.begin(), out.dag.edges.end()), out.dag.edges.end());
  return out;
}

std::vector<std::pair<int, int>> free_leaves(const Dag& graph, const std::vector<bool>& is_free) {
  std::vector<std::pair<int, int>> pairs;
  for (auto [a, b] : graph.edges) {
    if (a != b) pairs.emplace_back(std::min(a, b), std::max(a, b));
  }
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  Lists beside(to_index(graph.nodes));
  std::vector<int> degree(to_index(graph.nodes), 0);
  for (const auto& [a, b] : pairs) {
    beside[to_index(a)].push_back(b);
    beside[to_index(b)].push_back(a);
    ++degree[to_index(a)];
    ++degree[to_index(b)];
  }
  std::vector<bool> joined(to_index(graph.nodes), false);
  std::vector<int> leaves;
  const auto consider = [&](int node) {
    if (is_free[to_index(node)] && degree[to_index(node)] == 1 && !joined[to_index(node)]) leaves.push_back(node);
  };
  for (int node = 0; node < graph.nodes; ++node) consider(node);
  std::vector<std::pair<int, int>> out;
  while (!leaves.empty()) {
    const int leaf = leaves.back();
    leaves.pop_back();
    if (joined[to_index(leaf)] || degree[to_index(leaf)] != 1) continue;
    for (const int other : beside[to_index(leaf)]) {
      if (joined[to_index(other)]) continue;
      joined[to_index(leaf)] = true;
      out.emplace_back(other, leaf);
      --degree[to_index(other)];
      consider(other);
      break;
    }
  }
  return out;
}

std::optional<Lattice> Lattice::of(const Dag& graph, std::size_t most) {
  const std::size_t nodes = to_index(graph.nodes);
  const std::size_t words = (nodes + 63) / 64;
  const Rows consumers = neighbours(graph, false);
  const Rows producers = neighbours(graph, true);
  std::vector<Key> keys;
  for (int node = 0; node < graph.nodes; ++node) keys.push_back(key_of(node));

  Lattice out;
  out.nodes_ = graph.nodes;
  out.first_ = {0, 0};  // the empty set has no covers
  Generation now;
  now.keys.emplace_back();
  now.members.assign(words, 0);
  now.ready.emplace_back();
  for (int node = 0; node < graph.nodes; ++node) {
    if (producers.row(node).empty()) now.ready.front().push_back(node);
  }
  std::size_t count = 1;
  std::uint32_t first_of_now = 0;
  struct Grown {
    std::uint32_t set;  // within its generation
    Cover cover;
  };
  std::vector<Grown> grown;
  std::unordered_map<Key, std::uint32_t, KeyHash> number;
  for (std::size_t size = 0; size < nodes; ++size) {
    Generation next;
    grown.clear();
    number.clear();
    for (std::size_t s = 0; s < now.keys.size(); ++s) {
      const std::uint64_t* members = now.members.data() + s * words;
      for (const int node : now.ready[s]) {
        const Key& added = keys[to_index(node)];
        const Key key{now.keys[s].low ^ added.low, now.keys[s].high ^ added.high};
        const auto [at, fresh] = number.emplace(key, static_cast<std::uint32_t>(next.keys.size()));
        grown.push_back({at->second, {first_of_now + static_cast<std::uint32_t>(s), node}});
        if (!fresh) continue;
        if (++count > most) return std::nullopt;
        next.keys.push_back(key);
        next.members.insert(next.members.end(), members, members + words);
        std::uint64_t* mine = next.members.data() + (next.keys.size() - 1) * words;
        mine[to_index(node) / 64] |= std::uint64_t{1} << (node % 64);
        std::vector<int> ready;
        for (const int other : now.ready[s]) {
          if (other != node) ready.push_back(other);
        }
        for (const int consumer : consumers.row(node)) {
          const auto is_member = [&](int p) { return (mine[to_index(p) / 64] >> (p % 64) & 1) != 0; };
          if (std::ranges::all_of(producers.row(consumer), is_member)) ready.push_back(consumer);
        }
        std::sort(ready.begin(), ready.end());
        next.ready.push_back(std::move(ready));
      }
    }
    if (next.keys.empty()) return std::nullopt;  // the rest lies on cycles
    // By set; the covers of a set stay in the order of the smaller sets.
    std::vector<std::size_t> place(next.keys.size() + 1, 0);
    for (const Grown& larger : grown) ++place[larger.set + 1];
    std::partial_sum(place.begin(), place.end(), place.begin());
    const std::size_t start = out.covers_.size();
    for (std::size_t s = 1; s < place.size(); ++s) out.first_.push_back(start + place[s]);
    out.covers_.resize(start + grown.size());
    for (const Grown& larger : grown) out.covers_[start + place[larger.set]++] = larger.cover;
    first_of_now += static_cast<std::uint32_t>(now.keys.size());
    now = std::move(next);
  }
  return out;
}

std::vector<int> Lattice::members(std::uint32_t set, std::uint32_t without) const {
  // Down from both; what only the larger one passes is the difference.
  std::vector<bool> has = membership(set);
  for (std::uint32_t s = without; s != 0; s = covers(s).front().below) has[to_index(covers(s).front().node)] = false;
  std::vector<int> out;
  for (int node = 0; node < nodes_; ++node) {
    if (has[to_index(node)]) out.push_back(node);
  }
  return out;
}

std::vector<bool> Lattice::membership(std::uint32_t set) const {
  std::vector<bool> out(to_index(nodes_), false);
  for (std::uint32_t s = set; s != 0; s = covers(s).front().below) out[to_index(covers(s).front().node)] = true;
  return out;
}

CutCosts::CutCosts(int nodes, std::vector<CutTensor> tensors)
    : tensors_(std::move(tensors)), produced_(to_index(nodes)), read_(to_index(nodes)) {
  for (int t = 0; t < to_int(tensors_.size()); ++t) {
    produced_[to_index(tensors_[to_index(t)].producer)].push_back(t);
    for (const int consumer : tensors_[to_index(t)].consumers) read_[to_index(consumer)].push_back(t);
  }
  clear();
}

void CutCosts::clear() {
  readers_inside_.assign(tensors_.size(), 0);
  made_inside_.assign(tensors_.size(), false);
  now_ = {};
  before_.clear();
}

void CutCosts::add(int node) {
  before_.emplace_back(node, now_);
  for (const int t : produced_[to_index(node)]) {
    const CutTensor& tensor = tensors_[to_index(t)];
    const int readers = readers_inside_[to_index(t)];
    made_inside_[to_index(t)] = true;
    if (readers > 0) now_.incoming -= tensor.cost;
    if (readers < to_int(tensor.consumers.size())) now_.outgoing += tensor.cost;
  }
  for (const int t : read_[to_index(node)]) {
    const CutTensor& tensor = tensors_[to_index(t)];
    const int readers = ++readers_inside_[to_index(t)];
    if (!made_inside_[to_index(t)]) {
      if (readers == 1) now_.incoming += tensor.cost;
    } else if (readers == to_int(tensor.consumers.size())) {
      now_.outgoing -= tensor.cost;
    }
  }
}

void CutCosts::remove_last() {
  const auto [node, sums] = before_.back();
  before_.pop_back();
  now_ = sums;
  for (const int t : produced_[to_index(node)]) made_inside_[to_index(t)] = false;
  for (const int t : read_[to_index(node)]) --readers_inside_[to_index(t)];
}

}  // namespace stagecraft::partitioner

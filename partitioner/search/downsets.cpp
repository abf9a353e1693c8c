#include "partitioner/search/downsets.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "costmodel/index.h"

namespace stagecraft::partitioner {
namespace {

using Word = std::uint64_t;

/// Rows of bits, one after the other.
struct BitRows {
  std::size_t words = 0;
  std::vector<Word> bits;

  BitRows(std::size_t rows, std::size_t words_of_a_row) : words(words_of_a_row), bits(rows * words_of_a_row) {}
  Word* row(std::size_t i) { return bits.data() + i * words; }
  const Word* row(std::size_t i) const { return bits.data() + i * words; }
};

void set_bit(Word* row, std::size_t bit) { row[bit / 64] |= Word{1} << (bit % 64); }
void unite(Word* row, const Word* other, std::size_t words) {
  for (std::size_t w = 0; w < words; ++w) row[w] |= other[w];
}

template <class Visit>
void each_bit(const Word* row, std::size_t words, Visit&& visit) {
  for (std::size_t w = 0; w < words; ++w) {
    for (Word left = row[w]; left != 0; left &= left - 1) { visit(w * 64 + to_index(std::countr_zero(left))); }
  }
}

/// The nodes of the sets, with their relations as rows of bits.
struct Prepared {
  std::vector<int> layer_of_node;
  std::size_t first = 0;  ///< the node that the sets grow from
  BitRows ancestors;
  BitRows consumers;
  BitRows sent;  ///< see Downsets::boundary: for each node as the maximal member, the ancestors that count
};

bool is_getitem(const Layer& layer) {
  return layer.name.starts_with("__getitem__") || layer.kind.starts_with("__getitem__");
}

Prepared prepare(const Graph& graph) {
  const std::size_t layers = graph.layers.size();
  std::vector<bool> feeds(layers, false);
  for (const Edge& edge : graph.edges) feeds[to_index(edge.source)] = true;
  std::vector<int> node_of_layer(layers, -1);
  std::vector<int> layer_of_node;
  for (const int index : topological_order(graph)) {
    const auto i = to_index(index);
    if (is_input(graph.layers[i]) || (!feeds[i] && is_getitem(graph.layers[i]))) continue;
    node_of_layer[i] = to_int(layer_of_node.size());
    layer_of_node.push_back(index);
  }
  const std::size_t nodes = layer_of_node.size();
  const std::size_t words = (nodes + 63) / 64;
  Prepared p{std::move(layer_of_node), 0, {nodes, words}, {nodes, words}, {nodes, words}};
  BitRows producers(nodes, words);
  for (const Edge& edge : graph.edges) {
    const int from = node_of_layer[to_index(edge.source)];
    const int to = node_of_layer[to_index(edge.destination)];
    if (from < 0 || to < 0) continue;
    set_bit(p.consumers.row(to_index(from)), to_index(to));
    set_bit(producers.row(to_index(to)), to_index(from));
  }
  int earliest = -1;
  for (std::size_t v = 0; v < nodes; ++v) {
    Word* mine = p.ancestors.row(v);
    bool source = true;
    each_bit(producers.row(v), words, [&](std::size_t u) {
      source = false;
      set_bit(mine, u);
      unite(mine, p.ancestors.row(u), words);
    });
    if (source && (earliest < 0 || p.layer_of_node[v] < earliest)) {
      earliest = p.layer_of_node[v];
      p.first = v;
    }
  }
  std::vector<std::vector<std::size_t>> readers(nodes);
  for (std::size_t u = 0; u < nodes; ++u)
    each_bit(p.consumers.row(u), words, [&](std::size_t reader) { readers[u].push_back(reader); });
  for (std::size_t v = 0; v < nodes; ++v) {
    const Word* mine = p.ancestors.row(v);
    each_bit(mine, words, [&](std::size_t u) {
      const auto is_outside = [&](std::size_t reader) {
        return reader != v && (mine[reader / 64] >> (reader % 64) & 1) == 0;
      };
      if (std::ranges::any_of(readers[u], is_outside)) set_bit(p.sent.row(v), u);
    });
  }
  return p;
}

/// Grows the sets, each once, in order of discovery.
class Grower {
 public:
  Grower(const Prepared& prepared, int most)
      : p_(prepared), most_(to_index(most)), words_(prepared.ancestors.words), table_(1024, kFree) {}

  /// False if there are more than `most`.
  bool grow() {
    std::vector<Word> next(words_);
    set_bit(next.data(), p_.first);
    unite(next.data(), p_.ancestors.row(p_.first), words_);
    insert(next);
    std::vector<Word> frontier(words_);
    for (std::size_t s = 0; s < count_; ++s) {
      std::fill(frontier.begin(), frontier.end(), 0);
      each_bit(set(s), words_, [&](std::size_t v) { unite(frontier.data(), p_.consumers.row(v), words_); });
      for (std::size_t w = 0; w < words_; ++w) frontier[w] &= ~set(s)[w];
      bool room = true;
      each_bit(frontier.data(), words_, [&](std::size_t v) {
        if (!room) return;
        std::copy_n(set(s), words_, next.begin());
        unite(next.data(), p_.ancestors.row(v), words_);
        set_bit(next.data(), v);
        insert(next);
        room = count_ <= most_;
      });
      if (!room) return false;
    }
    return true;
  }

  std::size_t count() const { return count_; }
  const Word* set(std::size_t s) const { return sets_.data() + s * words_; }

 private:
  static constexpr std::uint32_t kFree = ~std::uint32_t{0};

  static std::size_t hash(const Word* bits, std::size_t words) {
    Word h = 0x9E3779B97F4A7C15;
    for (std::size_t w = 0; w < words; ++w) {
      h = (h ^ bits[w]) * 0xD6E8FEB86659FD93;
      h ^= h >> 32;
    }
    return static_cast<std::size_t>(h);
  }

  void insert(const std::vector<Word>& bits) {
    if (2 * (count_ + 1) > table_.size()) rehash();
    std::size_t at = hash(bits.data(), words_) & (table_.size() - 1);
    for (; table_[at] != kFree; at = (at + 1) & (table_.size() - 1)) {
      if (std::equal(bits.begin(), bits.end(), set(table_[at]))) return;
    }
    table_[at] = static_cast<std::uint32_t>(count_++);
    sets_.insert(sets_.end(), bits.begin(), bits.end());
  }

  void rehash() {
    table_.assign(2 * table_.size(), kFree);
    for (std::size_t s = 0; s < count_; ++s) {
      std::size_t at = hash(set(s), words_) & (table_.size() - 1);
      while (table_[at] != kFree) at = (at + 1) & (table_.size() - 1);
      table_[at] = static_cast<std::uint32_t>(s);
    }
  }

  const Prepared& p_;
  std::size_t most_;
  std::size_t words_;
  std::size_t count_ = 0;
  std::vector<Word> sets_;
  std::vector<std::uint32_t> table_;
};

struct Costs {
  Seconds compute;
  Bytes activation;
  Bytes parameter;
  Bytes boundary;
  int members = 0;
};

/// Sums in node order, so that rounding keeps a set's costs at least those of its subsets.
Costs costs_of(const Word* set, const Prepared& p, const std::vector<Costs>& nodes, std::vector<Word>& sent) {
  const std::size_t words = p.ancestors.words;
  Costs sum;
  std::fill(sent.begin(), sent.end(), 0);
  each_bit(set, words, [&](std::size_t v) {
    sum.compute += nodes[v].compute;
    sum.activation += nodes[v].activation;
    sum.parameter += nodes[v].parameter;
    ++sum.members;
    const Word* readers = p.consumers.row(v);
    bool maximal = true;
    for (std::size_t w = 0; w < words; ++w) maximal = maximal && (readers[w] & set[w]) == 0;
    if (!maximal) return;
    set_bit(sent.data(), v);
    unite(sent.data(), p.sent.row(v), words);
  });
  each_bit(sent.data(), words, [&](std::size_t v) { sum.boundary += nodes[v].activation; });
  return sum;
}

}  // namespace

std::variant<Downsets, Infeasible> pipedream_downsets(const Graph& graph, int most) {
  const Prepared p = prepare(graph);
  if (p.layer_of_node.empty()) return Infeasible{"the graph has no layers besides its inputs"};
  const std::size_t words = p.ancestors.words;
  Grower grower(p, most);
  if (!grower.grow()) {
    return Infeasible{
        "the graph's " + std::to_string(p.layer_of_node.size()) + " layers can be cut at more than " +
        std::to_string(most) +
        " places; merge parallel branches into single layers, or use a strategy that cuts a list, such as profile"};
  }
  std::vector<Costs> nodes;
  for (const int index : p.layer_of_node) {
    const Layer& layer = graph.layers[to_index(index)];
    nodes.push_back(
        {layer.forward.median + layer.backward.median, activation_bytes(layer), layer.parameter_bytes, Bytes(0), 1});
  }
  std::vector<Costs> costs;
  std::vector<Word> scratch(words);
  for (std::size_t s = 0; s < grower.count(); ++s) costs.push_back(costs_of(grower.set(s), p, nodes, scratch));

  std::vector<std::size_t> order(grower.count());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return costs[a].compute != costs[b].compute ? costs[a].compute < costs[b].compute
                                                : costs[a].members < costs[b].members;
  });
  Downsets sets;
  sets.layer_of_node = p.layer_of_node;
  sets.words = to_int(words);
  sets.members.assign(words, 0);
  sets.compute.emplace_back(0);
  for (auto* column : {&sets.activation, &sets.parameter, &sets.boundary}) column->emplace_back(0);
  for (const std::size_t s : order) {
    sets.members.insert(sets.members.end(), grower.set(s), grower.set(s) + words);
    sets.compute.push_back(costs[s].compute);
    sets.activation.push_back(costs[s].activation);
    sets.parameter.push_back(costs[s].parameter);
    sets.boundary.push_back(costs[s].boundary);
  }
  return sets;
}

}  // namespace stagecraft::partitioner

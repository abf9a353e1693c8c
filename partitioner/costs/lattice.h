#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/units.h"

namespace stagecraft::partitioner {

// Every set of nodes that can precede a cut, and a walk over all pairs of them. A pipeline of contiguous stages is a
// chain of such sets from the empty one to the full one; a stage is the difference of two neighbours.

/// A directed graph of nodes 0..nodes-1; an edge goes from producer to consumer. Edges may repeat.
struct Dag {
  int nodes = 0;
  std::vector<std::pair<int, int>> edges;
  friend bool operator==(const Dag&, const Dag&) = default;
};

/// The same nodes with every edge reversed: its down-sets are the complements of the graph's.
[[nodiscard]] Dag reversed(Dag graph);

/// A graph whose nodes were joined into classes.
struct Contraction {
  std::vector<int> class_of_node;
  Dag dag;  ///< of the classes, numbered in topological order, among ready ones the earliest first node first; no edge
            ///< repeats
};

/// Joins nodes that must stay together: the pairs `together` and all nodes on a cycle that this creates, and no others.
/// No stage that keeps these together is lost. Throws std::invalid_argument for a node out of range.
[[nodiscard]] Contraction contract(const Dag& graph, const std::vector<std::pair<int, int>>& together = {});

/// Pairs for `contract` that cost nothing where a stage costs the work of its nodes and the tensors that cross its
/// border: each node of `is_free`, which must have neither work nor bytes, in or out, that has a single neighbour, with
/// that neighbour; again until none is left. The pairs form trees: joining them makes no cycle.
[[nodiscard]] std::vector<std::pair<int, int>> free_leaves(const Dag& graph, const std::vector<bool>& is_free);

/// All down-sets of a graph: sets that have, with a node, all its ancestors. They are numbered breadth first: set 0 is
/// empty, the last one is full, and a larger set has a larger number. Takes 8 bytes for each pair of a set and a node
/// that can be removed from it, and 8 for each set; members are not stored.
class Lattice {
 public:
  /// A set and one of its maximal nodes, without which it is the set `below`.
  struct Cover {
    std::uint32_t below = 0;
    std::int32_t node = 0;
    friend bool operator==(const Cover&, const Cover&) = default;
  };

  /// The down-sets of `graph`; absent if there are more than `most`, or if it has a cycle. Sets are identified by
  /// 128-bit sums of random numbers for their nodes: two of n sets are confused with a probability of n^2 / 2^129.
  [[nodiscard]] static std::optional<Lattice> of(const Dag& graph, std::size_t most);

  [[nodiscard]] int nodes() const { return nodes_; }
  [[nodiscard]] std::size_t count() const { return first_.size() - 1; }
  [[nodiscard]] std::uint32_t full() const { return static_cast<std::uint32_t>(count() - 1); }
  [[nodiscard]] std::span<const Cover> covers(std::uint32_t set) const {
    return std::span(covers_).subspan(first_[set], first_[set + 1] - first_[set]);
  }
  /// Members of `set` that are not in its subset `without`, ascending.
  [[nodiscard]] std::vector<int> members(std::uint32_t set, std::uint32_t without = 0) const;
  [[nodiscard]] std::vector<bool> membership(std::uint32_t set) const;

 private:
  int nodes_ = 0;
  std::vector<std::size_t> first_;  // into covers_, by set, and the end
  std::vector<Cover> covers_;
};

/// Whether a walk goes on to the subsets of a set.
enum class Descend { No, Yes };

/// Walks from a set down to its subsets, one node at a time.
class DownWalk {
 public:
  explicit DownWalk(const Lattice& lattice) : lattice_(&lattice), stamp_(lattice.count(), 0) {}

  /// Visits each proper subset J of `set` once, unless all ways to it lead through sets that the visitor does not
  /// descend from. Before a visit, the nodes of `set` without J were added, one by one, by `add(node)`; `remove(node)`
  /// takes back the latest. `visit(J)` returns Descend. A visitor that prunes must decide by a quantity that only grows
  /// with the nodes, so that it would decline every subset of a declined set too.
  template <class Add, class Remove, class Visit>
  void each_subset(std::uint32_t set, Add&& add, Remove&& remove, Visit&& visit) {
    if (++now_ == 0) {
      std::fill(stamp_.begin(), stamp_.end(), 0);
      now_ = 1;
    }
    path_.clear();
    path_.push_back({set, 0, -1});
    while (!path_.empty()) {
      Step& top = path_.back();
      const std::span<const Lattice::Cover> covers = lattice_->covers(top.set);
      while (top.next < covers.size() && stamp_[covers[top.next].below] == now_) ++top.next;
      if (top.next == covers.size()) {
        const int node = top.node;
        path_.pop_back();
        if (!path_.empty()) remove(node);
        continue;
      }
      const Lattice::Cover cover = covers[top.next++];
      stamp_[cover.below] = now_;
      add(cover.node);
      if (visit(cover.below) == Descend::Yes) {
        path_.push_back({cover.below, 0, cover.node});
      } else {
        remove(cover.node);
      }
    }
  }

 private:
  struct Step {
    std::uint32_t set = 0;
    std::uint32_t next = 0;  // cover to try
    int node = -1;           // that was removed to come here
  };
  const Lattice* lattice_;
  std::vector<std::uint32_t> stamp_;
  std::uint32_t now_ = 0;
  std::vector<Step> path_;
};

/// A value that a node produces and others read.
struct CutTensor {
  int producer = 0;
  std::vector<int> consumers;  ///< each once, without the producer
  Seconds cost;
};

/// Costs of the tensors that cross the border of a growing set of nodes; each counts once, however many nodes read it.
class CutCosts {
 public:
  CutCosts(int nodes, std::vector<CutTensor> tensors);

  void add(int node);
  /// Takes back the latest `add`, without any rounding.
  void remove_last();
  void clear();

  [[nodiscard]] Seconds incoming() const { return now_.incoming; }  ///< produced outside, read inside
  [[nodiscard]] Seconds outgoing() const { return now_.outgoing; }  ///< produced inside, read outside
  [[nodiscard]] Seconds crossing() const { return now_.incoming + now_.outgoing; }

 private:
  struct Sums {
    Seconds incoming, outgoing;
  };
  std::vector<CutTensor> tensors_;
  std::vector<std::vector<int>> produced_, read_;  // tensors, by node
  std::vector<int> readers_inside_;                // by tensor
  std::vector<bool> made_inside_;                  // by tensor
  Sums now_;
  std::vector<std::pair<int, Sums>> before_;  // by added node
};

}  // namespace stagecraft::partitioner

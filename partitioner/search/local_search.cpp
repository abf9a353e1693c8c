#include "partitioner/search/local_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "costmodel/index.h"
#include "partitioner/search/search_tuning.h"

namespace stagecraft::partitioner {
namespace {

int used(const Split& split) {
  return std::accumulate(split.replicas.begin(), split.replicas.begin() + positions_of(split), 0);
}

/// The nodes of a stage, ascending, which is a topological order.
std::vector<int> nodes_of(const Split& split, int stage) {
  std::vector<int> out;
  for (int node = 0; node < to_int(split.stage_of_node.size()); ++node) {
    if (split.stage_of_node[to_index(node)] == stage) out.push_back(node);
  }
  return out;
}

/// `split` with a stage and the next one joined, with the replicas of the first stage or of both.
Split joined(Split split, int stage, bool adds_replicas) {
  for (int& node_stage : split.stage_of_node) node_stage -= node_stage > stage ? 1 : 0;
  if (adds_replicas) split.replicas[to_index(stage)] += split.replicas[to_index(stage) + 1];
  split.replicas.erase(split.replicas.begin() + stage + 1);
  return split;
}

/// `split` with the stage of these nodes cut in two before node number `cut`, with `first` and `second` replicas.
Split divided(Split split, int stage, const std::vector<int>& nodes, int cut, int first, int second) {
  for (int& node_stage : split.stage_of_node) node_stage += node_stage > stage ? 1 : 0;
  for (int i = cut; i < to_int(nodes.size()); ++i) split.stage_of_node[to_index(nodes[to_index(i)])] = stage + 1;
  split.replicas[to_index(stage)] = first;
  split.replicas.insert(split.replicas.begin() + stage + 1, second);
  return split;
}

/// Whether single stages may get more or fewer replicas.
bool moves_replicas(const PipelineCosts& costs, const Movable& movable) {
  return movable.replicas && !costs.schedule().equal_replicas;
}

/// A random number from 0 to below - 1. Precondition: below > 0.
int pick(std::mt19937& random, int below) { return to_int(random() % static_cast<unsigned>(below)); }

class Moves {
 public:
  Moves(const PipelineCosts& costs, Split split, const Movable& movable, const SplitValue& value,
        const std::function<bool()>& stop)
      : costs_(costs), best_(std::move(split)), movable_(movable), value_of_(value), stop_(stop) {
    value_ = value(best_, kForever);
    producers_.resize(to_index(costs.dag().nodes));
    consumers_.resize(to_index(costs.dag().nodes));
    for (const auto& [from, to] : costs.dag().edges) {
      producers_[to_index(to)].push_back(from);
      consumers_[to_index(from)].push_back(to);
    }
  }

  /// Tries all moves and takes each one that helps. False if none helped or `stop` ended the search.
  bool round() {
    const Split before = best_;
    move_nodes();
    if (moves_replicas(costs_, movable_) && best_.chunks == 1) move_replicas();
    if (movable_.stages && best_.chunks == 1) {
      join_stages();
      divide_stages();
    }
    return best_ != before && !stop_();
  }
  [[nodiscard]] const Split& best() const { return best_; }

 private:
  bool try_split(Split split) {
    if (stop_()) return false;
    if (used(split) > movable_.devices) return false;
    const Seconds upper_bound = value_ ? *value_ * (1 - 1e-9) : kForever;
    if (movable_.limit && costs_.least_memory(split) > *movable_.limit) return false;
    const auto value = value_of_(split, upper_bound);
    if (!value || *value >= upper_bound) return false;
    best_ = std::move(split);
    value_ = value;
    return true;
  }

  /// The computation of each position in a step: that of a microbatch, times the microbatches of a replica.
  [[nodiscard]] std::vector<Seconds> loads() const {
    const int positions = positions_of(best_);
    std::vector<Seconds> out(to_index(positions));
    for (int v = 0; v < costs_.dag().nodes; ++v)
      out[to_index(costs_.position_of(best_, best_.stage_of_node[to_index(v)]))] += costs_.node(v).least;
    for (int p = 0; p < positions; ++p) out[to_index(p)] = out[to_index(p)] * costs_.share(best_.replicas[to_index(p)]);
    return out;
  }

  /// Moves single nodes to the next stage, beginning with the last stages, so that a stage that gave nodes away can
  /// take nodes from the stage before; then to the stage before, beginning with the first stages.
  void move_nodes() {
    const int stages = to_int(best_.replicas.size());
    for (int s = stages - 2; s >= 0; --s) move_nodes_of(s, true);
    for (int s = 1; s < stages; ++s) move_nodes_of(s, false);
  }

  void move_nodes_of(int from, bool later) {
    const int positions = positions_of(best_);
    const int to = from + (later ? 1 : -1);
    std::vector<int> nodes = nodes_of(best_, from);
    std::size_t left = nodes.size();
    if (later) std::ranges::reverse(nodes);
    std::vector<Seconds> load = loads();
    for (const int node : nodes) {
      if (stop_() || left < 2) return;
      const auto blocks = [&](int other) { return best_.stage_of_node[to_index(other)] == from; };
      if (std::ranges::any_of((later ? consumers_ : producers_)[to_index(node)], blocks)) continue;
      if (movable_.is_step && positions > 1) {  // not if that alone takes too long
        const auto position = to_index(costs_.position_of(best_, to));
        const Seconds more = costs_.node(node).least * costs_.share(best_.replicas[position]);
        if (value_ && load[position] + more >= *value_) continue;
      }
      Split split = best_;
      split.stage_of_node[to_index(node)] = to;
      if (!try_split(std::move(split))) continue;
      load = loads();
      --left;
    }
  }

  void move_replicas() {
    const int stages = to_int(best_.replicas.size());
    for (int s = 0; s < stages; ++s) {
      Split more = best_;
      ++more.replicas[to_index(s)];
      try_split(std::move(more));
      for (const int factor : {2, 4}) {
        Split many = best_;
        many.replicas[to_index(s)] *= factor;
        try_split(std::move(many));
        Split few = best_;
        few.replicas[to_index(s)] = std::max(1, few.replicas[to_index(s)] / factor);
        if (few != best_) try_split(std::move(few));
      }
      if (best_.replicas[to_index(s)] > 1) {
        Split less = best_;
        --less.replicas[to_index(s)];
        try_split(less);
      }
      for (int t = 0; t < stages; ++t) {
        if (t == s || best_.replicas[to_index(t)] < 2 || (stages > SearchTuning::kEveryPair && std::abs(t - s) > 1))
          continue;
        Split other = best_;
        ++other.replicas[to_index(s)];
        --other.replicas[to_index(t)];
        try_split(std::move(other));
        if (stop_()) return;
      }
    }
  }

  void join_stages() {
    for (int s = 0; s + 1 < to_int(best_.replicas.size()); ++s) {
      try_split(joined(best_, s, moves_replicas(costs_, movable_)));
      if (stop_()) return;
    }
  }

  /// Cuts each stage in two, at some places of the order of its nodes.
  void divide_stages() {
    for (int s = 0; s < to_int(best_.replicas.size()); ++s) {
      const std::vector<int> nodes = nodes_of(best_, s);
      const int step = std::max(1, to_int(nodes.size()) / SearchTuning::kMostStageCuts);
      for (int cut = step; cut < to_int(nodes.size()); cut += step) {
        const int replicas = best_.replicas[to_index(s)];
        // A stage of little work between others lets the stages before run ahead.
        const std::pair<int, int> ways[] = {
            {replicas, replicas}, {replicas / 2, replicas - replicas / 2}, {replicas, 1}, {replicas, 2}, {1, replicas}};
        for (const auto& [first, second] : ways) {
          if (first < 1 || second > replicas) continue;
          if (try_split(divided(best_, s, nodes, cut, first, second))) return;
          if (stop_()) return;
        }
      }
    }
  }

  const PipelineCosts& costs_;
  Split best_;
  std::optional<Seconds> value_;
  Movable movable_;
  const SplitValue& value_of_;
  const std::function<bool()>& stop_;
  std::vector<std::vector<int>> producers_, consumers_;  ///< by node
};

}  // namespace

Split improved(const PipelineCosts& costs, Split split, const Movable& movable, const SplitValue& value,
               const std::function<bool()>& stop) {
  Moves moves(costs, std::move(split), movable, value, stop);
  while (moves.round()) {}
  return moves.best();
}

Split shaken(const PipelineCosts& costs, Split split, const Movable& movable, std::mt19937& random) {
  const int stages = to_int(split.replicas.size());
  const int moves = 1 + pick(random, 3);
  for (int move = 0; move < moves; ++move) {
    if (moves_replicas(costs, movable) && split.chunks == 1 && pick(random, 2) == 0) {
      const auto s = to_index(pick(random, stages));
      const auto t = to_index(pick(random, stages));
      if (split.replicas[t] > 1) --split.replicas[t];
      if (used(split) < movable.devices) ++split.replicas[s];
      continue;
    }
    // Moves a node to the next stage with all nodes that must follow, or to the stage before with all that must
    // precede.
    const int node = pick(random, costs.dag().nodes);
    const int home = split.stage_of_node[to_index(node)];
    const int to = home + (pick(random, 2) == 0 ? 1 : -1);
    if (to < 0 || to >= stages) continue;
    Split other = split;
    std::vector<int> waiting{node};
    while (!waiting.empty()) {
      const int v = waiting.back();
      waiting.pop_back();
      if (other.stage_of_node[to_index(v)] != home) continue;
      other.stage_of_node[to_index(v)] = to;
      for (const auto& [from, into] : costs.dag().edges) {
        if (to > home && from == v) waiting.push_back(into);
        if (to < home && into == v) waiting.push_back(from);
      }
    }
    if (std::ranges::count(other.stage_of_node, home) > 0) split = std::move(other);
  }
  return split;
}

namespace {

class Rearrangement {
 public:
  Rearrangement(const PipelineCosts& costs, Split split, const Movable& movable, std::mt19937& random)
      : costs_(costs), split_(std::move(split)), movable_(movable), random_(random) {}

  void change() {
    const bool is_free = split_.chunks == 1;
    const int what = pick(random_, 6);
    if (what <= 1) return move_nodes();
    if (what == 2 && is_free && movable_.stages) return join();
    if (what == 3 && is_free && movable_.stages) return divide(pick(random_, stages()));
    if (is_free && moves_replicas(costs_, movable_)) move_replica(pick(random_, stages()));
  }
  [[nodiscard]] Split take() { return std::move(split_); }

 private:
  [[nodiscard]] int stages() const { return to_int(split_.replicas.size()); }

  /// Moves the first nodes of a stage to the stage before, or the last nodes of the stage before to this one, with the
  /// nodes of the same stage that they need or that need them.
  void move_nodes() {
    if (stages() < 2) return;
    const int before = pick(random_, stages() - 1);
    const bool back = pick(random_, 2) == 0;
    const std::vector<int> nodes = nodes_of(split_, back ? before + 1 : before);
    const int most = std::min(to_int(nodes.size()) - 1, std::max(1, costs_.dag().nodes / SearchTuning::kMovedShare));
    if (most < 1) return;
    const int count = 1 + pick(random_, most);
    for (int i = 0; i < count; ++i) {
      const int node = back ? nodes[to_index(i)] : nodes[nodes.size() - 1 - to_index(i)];
      split_.stage_of_node[to_index(node)] = back ? before : before + 1;
    }
  }

  void join() {
    if (stages() < 2) return;
    const int stage = pick(random_, stages() - 1);
    split_ = joined(std::move(split_), stage, moves_replicas(costs_, movable_));
  }

  void divide(int stage) {
    const std::vector<int> nodes = nodes_of(split_, stage);
    const int replicas = split_.replicas[to_index(stage)];
    const bool is_shared = replicas > 1 && moves_replicas(costs_, movable_);
    if (nodes.size() < 2 || (!is_shared && used(split_) + replicas > movable_.devices)) return;
    const int cut = 1 + pick(random_, to_int(nodes.size()) - 1);
    const int first = is_shared ? 1 + pick(random_, replicas - 1) : replicas;
    split_ = divided(std::move(split_), stage, nodes, cut, first, is_shared ? replicas - first : replicas);
  }

  /// Adds a replica to this stage, from another stage or from the idle devices.
  void move_replica(int stage) {
    if (used(split_) < movable_.devices && pick(random_, 2) == 0) {
      ++split_.replicas[to_index(stage)];
      return;
    }
    const auto from = to_index(pick(random_, stages()));
    if (split_.replicas[from] < 2) return;
    --split_.replicas[from];
    ++split_.replicas[to_index(stage)];
  }

  const PipelineCosts& costs_;
  Split split_;
  const Movable& movable_;
  std::mt19937& random_;
};

}  // namespace

Split random_split(const PipelineCosts& costs, const Movable& movable, std::mt19937& random) {
  const int nodes = costs.dag().nodes;
  const int stages = 1 + pick(random, std::min({movable.devices, SearchTuning::kMostRandomStages, nodes}));
  Split out;
  out.replicas.assign(to_index(stages), 1);
  if (movable.replicas && costs.schedule().equal_replicas) {
    out.replicas.assign(to_index(stages), 1 + pick(random, movable.devices / stages));
  } else if (movable.replicas) {
    for (int spare = pick(random, movable.devices - stages + 1); spare > 0; --spare)
      ++out.replicas[to_index(pick(random, stages))];
  }
  // Each stage has up to 1.5 times more or less computation than in proportion.
  std::vector<double> until;
  for (const int replicas : out.replicas)
    until.push_back((until.empty() ? 0 : until.back()) + replicas * std::pow(1.5, pick(random, 2001) / 1000.0 - 1));
  Seconds all;
  for (int node = 0; node < nodes; ++node) all += costs.node(node).least;
  Seconds done;
  int stage = 0;
  for (int node = 0; node < nodes; ++node) {
    const bool is_full = done * until.back() >= all * until[to_index(stage)];
    const bool must = nodes - node <= stages - 1 - stage;  // one node for each stage that is left
    if (node > 0 && stage + 1 < stages && (is_full || must)) ++stage;
    out.stage_of_node.push_back(stage);
    done += costs.node(node).least;
  }
  return out;
}

Split rearranged(const PipelineCosts& costs, Split split, const Movable& movable, std::mt19937& random) {
  Rearrangement out(costs, std::move(split), movable, random);
  const auto changes = 1 + random() % 3;
  for (auto left = changes; left > 0; --left) out.change();
  return out.take();
}

SplitValue bound_of_split(const PipelineCosts& costs) {
  return [&costs](const Split& split, Seconds upper_bound) { return costs.lower_bound(split, {}, upper_bound); };
}

}  // namespace stagecraft::partitioner

#include "executor/intake/graph/layers/layer_groups.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/intake/graph/calls/block_scope.h"
#include "executor/intake/graph/layers/node_needs.h"

namespace stagecraft::intake {
namespace {

using Origin = GraphValue::Origin;

class Grouper {
 public:
  Grouper(const OperatorGraph& graph, int root, const Granularity& granularity)
      : graph_(graph), root_(root), granularity_(granularity), memory_(graph) {
    maker_.assign(graph.values.size(), -1);
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      for (const int value : graph.nodes[n].gives) maker_[to_index(value)] = to_int(n);
    }
  }

  Grouping run(const Grouping* like) {
    needed_ = needed_nodes(graph_, root_, memory_);
    repeatable_ = repeatable_nodes(graph_, needed_, memory_);
    make_runs();
    if (granularity_.kind == Granularity::Kind::Auto && labels_.size() == 1 && labels_.front().path.empty()) {
      // The model computes without modules: cut it between its operators.
      granularity_.kind = Granularity::Kind::Operator;
      groups_.clear();
      labels_.clear();
      make_runs();
    }
    if (like) merge_like(*like);
    while (merge_once()) {}
    place_repeatable();
    return finish();
  }

 private:
  [[nodiscard]] const GraphNode& node(int n) const { return graph_.nodes[to_index(n)]; }
  [[nodiscard]] int count() const { return to_int(graph_.nodes.size()); }
  void make_runs() {
    std::vector<int> members;
    std::vector<LayerLabel> labels;
    std::set<std::string> above;  // paths that have labels below them
    for (int n = 0; n < count(); ++n) {
      if (!needed_[to_index(n)] || node(n).number || repeatable_[to_index(n)]) continue;
      members.push_back(n);
      labels.push_back(label_of(node(n), granularity_));
      if (granularity_.kind == Granularity::Kind::Operator) continue;
      std::string path = labels.back().path;
      if (!path.empty()) above.insert("");
      for (std::size_t dot; (dot = path.rfind('.')) != std::string::npos;) above.insert(path = path.substr(0, dot));
    }
    group_of_.assign(graph_.nodes.size(), -1);
    std::vector<int> before_first;
    std::vector<int> state_only;
    for (std::size_t i = 0; i < members.size(); ++i) {
      const int n = members[i];
      const bool parent = above.contains(labels[i].path) && granularity_.kind != Granularity::Kind::Operator;
      if (memory_.writes_state(node(n)) && reads_activation(n) &&
          std::ranges::none_of(node(n).gives, [&](int v) { return read(v); }) && (parent || labels[i].name.empty())) {
        state_only.push_back(n);
      } else if (parent) {
        if (groups_.empty()) {
          before_first.push_back(n);
        } else {
          join(n, to_int(groups_.size()) - 1);
        }
      } else {
        if (groups_.empty() || !(labels_.back() == labels[i])) {
          groups_.push_back({labels[i].name, labels[i].kind, {}});
          labels_.push_back(labels[i]);
        }
        join(n, to_int(groups_.size()) - 1);
      }
    }
    if (groups_.empty()) groups_.push_back({"", "", {}});
    for (const int n : before_first) join(n, 0);
    for (const int n : state_only) {
      int latest = 0;
      for (const int v : node(n).reads) {
        if (maker_[to_index(v)] >= 0) latest = std::max(latest, group_of_[to_index(maker_[to_index(v)])]);
      }
      join(n, latest);
    }
    merged_into_.resize(groups_.size());
    std::iota(merged_into_.begin(), merged_into_.end(), 0);
    reason_.resize(groups_.size());
  }

  void join(int n, int group) {
    group_of_[to_index(n)] = group;
    groups_[to_index(group)].nodes.push_back(n);
  }

  bool reads_activation(int n) {
    return std::ranges::any_of(node(n).reads, [&](int v) {
      return graph_.values[to_index(v)].origin == Origin::Node && maker_[to_index(v)] >= 0 &&
             !repeatable_[to_index(maker_[to_index(v)])] && graph_.values[to_index(v)].kind == GraphValue::Kind::Tensor;
    });
  }
  bool read(int value) {
    if (readers_.empty()) {
      readers_.resize(graph_.values.size());
      for (int n = 0; n < count(); ++n) {
        if (!needed_[to_index(n)]) continue;
        for (const int v : node(n).reads) readers_[to_index(v)].push_back(n);
      }
    }
    return value == root_ || !readers_[to_index(value)].empty();
  }

  [[nodiscard]] int group_of(int n) const {
    const int group = group_of_[to_index(n)];
    return group < 0 ? group : group_root(group);
  }
  /// The group that `group` became part of.
  [[nodiscard]] int group_root(int group) const {
    while (merged_into_[to_index(group)] != group) group = merged_into_[to_index(group)];
    return group;
  }
  /// The group that makes `value`, or -1 if it exists before.
  [[nodiscard]] int made_in(int value) const {
    return maker_[to_index(value)] < 0 ? -1 : group_of(maker_[to_index(value)]);
  }

  /// Merges groups `first` to `last`.
  void merge(int first, int last, const std::string& reason) {
    for (int g = first + 1; g <= last; ++g) {
      if (merged_into_[to_index(g)] != g) continue;
      merged_into_[to_index(g)] = first;
      reason_[to_index(g)] = reason;
    }
  }

  void merge_like(const Grouping& like) {
    std::map<std::pair<std::string, int>, std::size_t> place;  // name of a run and how often it occurred -> group
    std::map<std::string, int> times;
    for (std::size_t g = 0; g < like.groups.size(); ++g) {
      for (const std::string& part : like.groups[g].parts) place[{part, times[part]++}] = g;
    }
    times.clear();
    std::map<std::size_t, std::pair<int, int>> range;  // of groups here, by group there
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const auto there = place.find({groups_[g].name, times[groups_[g].name]++});
      if (there == place.end()) continue;
      const int here = to_int(g);
      range.try_emplace(there->second, here, here).first->second.second = here;
    }
    for (const auto& [there, ends] : range) {
      if (ends.first == ends.second) continue;
      const int first = group_root(ends.first);
      merge(first, ends.second, "they are one layer in training");
    }
  }

  bool merge_once() {
    (void)read(root_);
    // Values other than tensors of known shape stay inside a layer.
    for (std::size_t v = 0; v < graph_.values.size(); ++v) {
      const GraphValue& value = graph_.values[v];
      const int maker = maker_[v];
      if (maker < 0 || !needed_[to_index(maker)] || value.kind == GraphValue::Kind::Number || group_of(maker) < 0)
        continue;
      if (value.kind == GraphValue::Kind::Tensor && value.meta) continue;
      for (const int reader : readers_[v]) {
        const int to = group_of(reader);
        if (to < 0 || to == group_of(maker)) continue;
        merge(group_of(maker), to,
              "\"" + value.name + "\", which is " +
                  (value.kind == GraphValue::Kind::Tensor ? "a tensor of unknown shape" : "not a tensor") +
                  ", passes from one to the other");
        return true;
      }
    }
    for (int n = 0; n < count(); ++n) {
      if (!needed_[to_index(n)] || group_of(n) < 0) continue;
      for (const int written : node(n).writes) {
        if (merge_around(n, written)) return true;
      }
    }
    return merge_joined() || merge_casts() || merge_behind_loss();
  }

  /// Merges a node that must be in the layer of the one before it with that layer.
  bool merge_joined() {
    for (int n = 1; n < count(); ++n) {
      if (node(n).joined.empty() || group_of(n) < 0) continue;
      int before = n - 1;
      while (before > 0 && node(before).number) --before;
      if (group_of(before) < 0 || group_of(before) == group_of(n)) continue;
      merge(group_of(before), group_of(n), node(n).joined);
      return true;
    }
    return false;
  }

  /// The layer that computes the loss is the last one; what comes after it, such as a write to a buffer or an unused
  /// draw of random numbers, is part of it.
  bool merge_behind_loss() {
    const int maker = maker_[to_index(root_)];
    const int group = maker < 0 ? -1 : group_of(maker);
    if (group < 0 || group_of_last() <= group) return false;
    merge(group, group_of_last(), "it comes after the loss");
    return true;
  }

  /// Merges layers that read the same parameter in one block of autocast with cached casts: it is cast once for all of
  /// them, and their gradients are summed in that type.
  bool merge_casts() {
    std::map<std::pair<std::string, int>, int> first;  // outermost block of autocast, parameter -> layer
    for (int n = 0; n < count(); ++n) {
      if (!needed_[to_index(n)] || group_of(n) < 0 || !keeps_casts(node(n))) continue;
      const auto block = std::ranges::find_if(node(n).blocks, &GraphBlock::autocast);
      for (const int v : node(n).reads) {
        const GraphValue& value = graph_.values[to_index(v)];
        if (value.origin != Origin::Parameter) continue;
        const auto [it, fresh] = first.try_emplace({block->name, value.source}, group_of(n));
        if (fresh || it->second == group_of(n)) continue;
        merge(std::min(it->second, group_of(n)), std::max(it->second, group_of(n)),
              "both read \"" + value.name + "\", which the torch.autocast block \"" + block->name +
                  "\" casts once for both; cache_enabled=False allows a cut between them");
        return true;
      }
    }
    return false;
  }

  /// Merges layers between which the write of node `n` to `written` forbids a cut.
  bool merge_around(int n, int written) {
    const int memory = memory_.of(written);
    const int here = group_of(n);
    const bool state = memory_.is_state(memory);
    const std::string what =
        "\"" + node(n).name + "\" writes in place to \"" + graph_.values[to_index(written)].name + "\"";
    std::set<int> from_outside;
    int earliest = here;
    for (int other = 0; other < count(); ++other) {
      const int there = needed_[to_index(other)] ? group_of(other) : -1;
      if (there < 0) continue;
      for (const int v : node(other).reads) {
        if (graph_.values[to_index(v)].kind == GraphValue::Kind::Number || memory_.of(v) != memory) continue;
        if (state && there != here) {
          merge(std::min(here, there), std::max(here, there), what + ", a buffer that both use");
          return true;
        }
        if (state) continue;
        const int made = made_in(v);
        if (there == here && made != here) {
          from_outside.insert(v);
          if (made >= 0) earliest = std::min(earliest, made);
        }
        if (there > here && made < here) {
          merge(here, there, what + ", which is read later under that name");
          return true;
        }
      }
    }
    if (from_outside.size() > 1 && earliest < here) {
      merge(earliest, here, what + ", whose memory another value shares");
      return true;
    }
    return false;
  }

  /// Each repeatable node joins the only layer that reads it, or is shared. Its readers are those of its results,
  /// directly or through values that follow from them, and of memory that it shares with a write.
  void place_repeatable() {
    readers_of_.assign(graph_.nodes.size(), {});
    std::map<int, std::vector<int>> touched;  // written memory -> nodes that read or give it
    for (int n = 0; n < count(); ++n) {
      if (!repeatable_[to_index(n)]) continue;
      for (const int v : node(n).writes) touched[memory_.of(v)];
    }
    for (int n = 0; n < count(); ++n) {
      if (!repeatable_[to_index(n)]) continue;
      std::set<int> memories;
      for (const auto* const values : {&node(n).reads, &node(n).gives}) {
        for (const int v : *values) memories.insert(memory_.of(v));
      }
      for (const int memory : memories) {
        if (const auto it = touched.find(memory); it != touched.end()) it->second.push_back(n);
      }
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (int n = count() - 1; n >= 0; --n) {
        if (repeatable_[to_index(n)]) changed = add_readers(n) || changed;
      }
      // Nodes that use memory that is written stay together.
      for (const auto& [memory, nodes] : touched) {
        std::set<int> all;
        for (const int n : nodes) all.insert(readers_of_[to_index(n)].begin(), readers_of_[to_index(n)].end());
        for (const int n : nodes) {
          changed = changed || readers_of_[to_index(n)] != all;
          readers_of_[to_index(n)] = all;
        }
      }
    }
  }

  /// Adds the layers that read its results to the layers that read node `n`; returns whether there were new ones.
  bool add_readers(int n) {
    std::set<int>& readers = readers_of_[to_index(n)];
    const std::size_t before = readers.size();
    for (const int v : node(n).gives) {
      for (const int reader : readers_[to_index(v)]) {
        if (repeatable_[to_index(reader)]) {
          readers.insert(readers_of_[to_index(reader)].begin(), readers_of_[to_index(reader)].end());
        } else if (group_of(reader) >= 0) {
          readers.insert(group_of(reader));
        }
      }
      if (v == root_) readers.insert(group_of_last());
    }
    return readers.size() != before;
  }

  [[nodiscard]] int group_of_last() const {
    int last = to_int(merged_into_.size()) - 1;
    while (merged_into_[to_index(last)] != last) last = merged_into_[to_index(last)];
    return last;
  }

  Grouping finish() {
    Grouping out;
    std::map<int, std::size_t> place;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (merged_into_[g] != to_int(g)) continue;
      place[to_int(g)] = out.groups.size();
      out.groups.push_back({groups_[g].name, groups_[g].kind, {}});
    }
    for (std::size_t g = 0; g < groups_.size(); ++g)
      out.groups[place.at(group_root(to_int(g)))].parts.push_back(groups_[g].name);
    for (int n = 0; n < count(); ++n) {
      if (!needed_[to_index(n)] || node(n).number) continue;
      if (!repeatable_[to_index(n)]) {
        out.groups[place.at(group_of(n))].nodes.push_back(n);
      } else if (readers_of_[to_index(n)].size() == 1) {
        out.groups[place.at(*readers_of_[to_index(n)].begin())].nodes.push_back(n);
      } else if (readers_of_[to_index(n)].size() > 1) {
        out.shared.push_back(n);
        for (const int v : node(n).gives) {
          const bool wanted = std::ranges::any_of(readers_[to_index(v)], [&](int reader) {
            return !repeatable_[to_index(reader)] || readers_of_[to_index(reader)].size() == 1;
          });
          if (wanted && graph_.values[to_index(v)].kind == GraphValue::Kind::Tensor) out.derived.push_back(v);
        }
      }
    }
    name(out);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      int into = to_int(g);
      std::string reason = reason_[g];
      while (merged_into_[to_index(into)] != into) into = merged_into_[to_index(into)];
      if (into == to_int(g)) continue;
      const std::string& whole = out.groups[place.at(into)].name;
      if (groups_[g].name != whole) out.merged[groups_[g].name] = "is part of layer \"" + whole + "\": " + reason;
    }
    return out;
  }

  /// Unique names: the second run of an interrupted module is "NAME#2", and so on.
  void name(Grouping& out) const {
    std::map<std::string, int> seen;
    for (LayerGroup& group : out.groups) {
      if (group.name.empty()) group.name = group.kind.empty() ? "model" : group.kind;
      if (group.kind.empty()) group.kind = "Module";
      const int times = ++seen[group.name];
      if (times > 1) group.name += "#" + std::to_string(times);
    }
  }

  const OperatorGraph& graph_;
  int root_;
  Granularity granularity_;
  GraphMemory memory_;
  std::vector<int> maker_;                 // by value: its node, or -1
  std::vector<bool> needed_;               // by node
  std::vector<bool> repeatable_;           // by node
  std::vector<std::vector<int>> readers_;  // by value
  std::vector<LayerGroup> groups_;
  std::vector<LayerLabel> labels_;
  std::vector<int> group_of_;     // by node, before merging; -1: none
  std::vector<int> merged_into_;  // by group
  std::vector<std::string> reason_;
  std::vector<std::set<int>> readers_of_;  // by repeatable node: groups
};

}  // namespace

Grouping layer_groups(const OperatorGraph& graph, int root, const Granularity& granularity, const Grouping* like) {
  return Grouper(graph, root, granularity).run(like);
}

std::vector<int> shared_nodes_for(const OperatorGraph& graph, const Grouping& grouping, int value) {
  GraphMemory memory(graph);
  std::set<int> wanted{value};
  std::set<int> wanted_memory{memory.of(value)};
  std::set<int> nodes;
  // Backwards, once for each write after a reader.
  for (bool changed = true; changed;) {
    changed = false;
    for (auto n = grouping.shared.rbegin(); n != grouping.shared.rend(); ++n) {
      const GraphNode& node = graph.nodes[to_index(*n)];
      const bool reaches =
          std::ranges::any_of(node.gives, [&](int v) { return wanted.contains(v); }) ||
          std::ranges::any_of(node.writes, [&](int v) { return wanted_memory.contains(memory.of(v)); });
      if (!reaches || !nodes.insert(*n).second) continue;
      changed = true;
      for (const int v : node.reads) {
        wanted.insert(v);
        wanted_memory.insert(memory.of(v));
      }
    }
  }
  return {nodes.begin(), nodes.end()};
}

}  // namespace stagecraft::intake

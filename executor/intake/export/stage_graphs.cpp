#include "executor/intake/export/stage_graphs.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

using Origin = GraphValue::Origin;

class Cutter {
 public:
  Cutter(const OperatorGraph& graph, const Grouping& grouping, int loss,
         const std::vector<std::vector<int>>& groups_of_stages)
      : graph_(graph), grouping_(grouping), loss_(loss), stage_of_node_(graph.nodes.size(), -1) {
    shared_.insert(grouping.shared.begin(), grouping.shared.end());
    for (std::size_t s = 0; s < groups_of_stages.size(); ++s) {
      for (const int group : groups_of_stages[s]) {
        for (const int n : grouping.groups[to_index(group)].nodes) stage_of_node_[to_index(n)] = to_int(s);
      }
    }
    stages_.resize(groups_of_stages.size());
  }

  std::vector<StageGraph> run() {
    for (std::size_t s = 0; s < stages_.size(); ++s) cut(to_int(s));
    find_outputs();
    place_unread();
    return std::move(stages_);
  }

 private:
  [[nodiscard]] const GraphValue& value(int v) const { return graph_.values[to_index(v)]; }
  [[nodiscard]] const GraphNode& node(int n) const { return graph_.nodes[to_index(n)]; }

  /// Collects what one stage needs.
  struct Needs {
    std::set<int> nodes, received, inputs, tensors, numbers;
    std::map<int, SizeSource> sizes;
  };

  void cut(int stage) {
    Needs needs;
    for (std::size_t n = 0; n < stage_of_node_.size(); ++n) {
      if (stage_of_node_[n] == stage) needs.nodes.insert(to_int(n));
    }
    std::vector<int> pending(needs.nodes.begin(), needs.nodes.end());
    while (!pending.empty()) {
      const int n = pending.back();
      pending.pop_back();
      for (const int v : node(n).reads) {
        for (const int more : need(needs, stage, v)) {
          if (needs.nodes.insert(more).second) pending.push_back(more);
        }
      }
    }
    // What the stage has is now known; sizes are only read from that.
    for (const int number : std::exchange(needs.numbers, {})) need_number(needs, number);

    StageGraph& out = stages_[to_index(stage)];
    out.nodes.assign(needs.nodes.begin(), needs.nodes.end());
    out.received.assign(needs.received.begin(), needs.received.end());
    out.inputs.assign(needs.inputs.begin(), needs.inputs.end());
    out.tensors.assign(needs.tensors.begin(), needs.tensors.end());
    for (const auto& [number, source] : needs.sizes) out.sizes.push_back(source);
    find_copied(out);
  }

  /// Notes that the stage reads `v`; returns further nodes that it must compute.
  std::vector<int> need(Needs& needs, int stage, int v) const {
    const GraphValue& read = value(v);
    if (read.kind == GraphValue::Kind::Number && read.origin == Origin::Node) {
      needs.numbers.insert(v);
      return {};
    }
    switch (read.origin) {
      case Origin::Input:
        needs.inputs.insert(v);
        return {};
      case Origin::Node:
        break;
      default:
        needs.tensors.insert(v);
        return {};
    }
    if (shared_.contains(read.source)) return shared_nodes_for(graph_, grouping_, v);
    const int maker = stage_of_node_[to_index(read.source)];
    if (maker == stage) return {};
    if (maker < 0)
      throw std::logic_error(graph_.file + ": value \"" + read.name +
                             "\" is read by a layer, but no layer computes it");
    if (maker > stage) {
      throw std::invalid_argument(graph_.file + ": stage " + std::to_string(stage) + " reads \"" + read.name +
                                  "\", which stage " + std::to_string(maker) +
                                  " computes; a stage can only read from earlier ones");
    }
    needs.received.insert(v);
    return {};
  }

  [[nodiscard]] bool has(const Needs& needs, int v) const {
    switch (value(v).origin) {
      case Origin::Node:
        return needs.nodes.contains(value(v).source) || needs.received.contains(v);
      case Origin::Input:
        return needs.inputs.contains(v);
      default:
        return needs.tensors.contains(v);
    }
  }

  /// Adds the nodes that compute `number`, or the size that determines it.
  void need_number(Needs& needs, int number) const {
    if (!needs.numbers.insert(number).second) return;
    const GraphNode& maker = node(value(number).source);
    const auto is_tensor = [&](int v) { return value(v).kind == GraphValue::Kind::Tensor; };
    const bool at_hand = std::ranges::all_of(maker.reads, [&](int v) { return !is_tensor(v) || has(needs, v); });
    if (!at_hand) {
      needs.sizes[number] = source_of(needs, number);
      return;
    }
    needs.nodes.insert(value(number).source);
    for (const int v : maker.reads) {
      if (!is_tensor(v) && value(v).origin == Origin::Node) need_number(needs, v);
    }
  }

  [[nodiscard]] SizeSource source_of(Needs& needs, int number) const {
    const GraphValue& wanted = value(number);
    std::set<std::string> symbols;
    if (wanted.number) symbols = symbols_of(*wanted.number);
    if (symbols.size() != 1) {
      throw std::invalid_argument(place_of(graph_, node(wanted.source)) +
                                  ": another stage has the tensor that determines \"" + wanted.name +
                                  "\"; both must be in one stage");
    }
    const auto same = [&](const SizeExpression& extent) { return extent == *wanted.number; };
    const auto tells = [&](const SizeExpression& extent) {
      return symbols_of(extent) == symbols && solve(extent, evaluate(extent, {{*symbols.begin(), 1}}));
    };
    std::vector<int> tensors(needs.received.begin(), needs.received.end());
    tensors.insert(tensors.end(), needs.inputs.begin(), needs.inputs.end());
    if (const auto found = find_extent(tensors, number, same)) return *found;
    if (const auto found = find_extent(tensors, number, tells)) return *found;
    std::vector<int> inputs;
    for (std::size_t v = 0; v < graph_.values.size(); ++v) {
      if (graph_.values[v].origin == Origin::Input) inputs.push_back(to_int(v));
    }
    const auto found = find_extent(inputs, number, tells);
    if (!found) throw std::invalid_argument(graph_.file + ": no input determines the size " + *symbols.begin());
    needs.inputs.insert(found->tensor);
    return *found;
  }

  template <class Fits>
  [[nodiscard]] std::optional<SizeSource> find_extent(const std::vector<int>& tensors, int number, Fits fits) const {
    for (const int v : tensors) {
      if (!value(v).meta) continue;
      const std::vector<SizeExpression>& sizes = value(v).meta->sizes;
      const auto it = std::ranges::find_if(sizes, fits);
      if (it != sizes.end()) return SizeSource{number, v, to_int(it - sizes.begin())};
    }
    return std::nullopt;
  }

  void find_copied(StageGraph& stage) const {
    const std::set<int> written = written_values(graph_, stage.nodes);
    for (const auto* const values : {&stage.received, &stage.inputs}) {
      std::ranges::copy_if(*values, std::back_inserter(stage.copied), [&](int v) { return written.contains(v); });
    }
    std::ranges::sort(stage.copied);
  }

  void find_outputs() {
    std::set<int> sent;
    for (const StageGraph& stage : stages_) sent.insert(stage.received.begin(), stage.received.end());
    for (const int v : sent) stages_[to_index(stage_of_node_[to_index(value(v).source)])].outputs.push_back(v);
    const bool computed = value(loss_).origin == Origin::Node && stage_of_node_[to_index(value(loss_).source)] >= 0;
    StageGraph& last = computed ? stages_[to_index(stage_of_node_[to_index(value(loss_).source)])] : stages_.back();
    std::erase(last.outputs, loss_);
    last.outputs.push_back(loss_);
  }

  void place_unread() {
    std::set<int> placed;
    for (const StageGraph& stage : stages_) placed.insert(stage.tensors.begin(), stage.tensors.end());
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      const int v = to_int(i);
      const Origin origin = value(v).origin;
      if ((origin != Origin::Parameter && origin != Origin::Buffer) || placed.contains(v)) continue;
      const auto tied = std::ranges::find_if(stages_, [&](const StageGraph& stage) {
        return std::ranges::any_of(stage.tensors, [&](int other) {
          return value(other).origin == origin && value(other).source == value(v).source;
        });
      });
      std::vector<int>& place = tied == stages_.end() ? stages_.back().tensors : tied->tensors;
      place.insert(std::ranges::upper_bound(place, v), v);
    }
  }

  const OperatorGraph& graph_;
  const Grouping& grouping_;
  int loss_;
  std::vector<int> stage_of_node_;
  std::set<int> shared_;
  std::vector<StageGraph> stages_;
};

}  // namespace

std::vector<StageGraph> stage_graphs(const OperatorGraph& graph, const Grouping& grouping, int loss,
                                     const std::vector<std::vector<int>>& groups_of_stages) {
  return Cutter(graph, grouping, loss, groups_of_stages).run();
}

}  // namespace stagecraft::intake

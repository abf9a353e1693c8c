#include "costmodel/simulation/critical_path.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "costmodel/index.h"

namespace stagecraft {
namespace {

constexpr Seconds kNoLimit(std::numeric_limits<double>::infinity());

/// A computation, a reduction, an update or a message, and what must end before it begins.
struct PathNode {
  Span span;
  std::vector<int> before;
  bool has_span = false;
};

class PathSearch {
 public:
  PathSearch(const SimulationInput& input, const Timeline& timeline) : in_(input), plan_(input.plan) {
    if (input.mode != TransferMode::Rendezvous)
      throw std::invalid_argument("messages that occupy no link have no critical path");
    messages_.assign(2 * plan_.plan().boundaries.size() * microbatches(), -1);
    for (std::size_t rank = 0; rank < in_.lists.size(); ++rank) add_list(to_int(rank));
    join_reduces();
    take_spans(timeline);
    sort();
  }

  CriticalPath path(Seconds begin, Seconds end, int last) const {
    CriticalPath out;
    int node = -1;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const Span& span = nodes_[i].span;
      if (span.step <= last && span.end == end && (node < 0 || span.start > nodes_[to_index(node)].span.start))
        node = to_int(i);
    }
    if (node < 0) throw std::invalid_argument("no action ends with the step");
    Seconds until = end;
    while (node >= 0 && until > begin) {
      const int earlier = latest(nodes_[to_index(node)].before);
      const Seconds from = std::max(begin, earlier < 0 ? begin : nodes_[to_index(earlier)].span.end);
      if (until > from) {
        Span segment = nodes_[to_index(node)].span;
        segment.start = from;
        segment.end = until;
        out.segments.push_back(segment);
      }
      until = from;
      node = earlier;
    }
    std::reverse(out.segments.begin(), out.segments.end());
    add_slack(out, end, last);
    return out;
  }

 private:
  std::size_t microbatches() const { return to_index(plan_.plan().microbatches) * to_index(in_.steps); }

  int message(const Action& action) {
    const auto boundary = plan_.boundary(action.stage, action.peer);
    if (!boundary) throw std::invalid_argument("the lists send where the plan has no boundary");
    int& node = messages_[(2 * to_index(*boundary) + (carries_gradient(action.kind) ? 1U : 0U)) * microbatches() +
                          to_index(action.microbatch)];
    if (node < 0) {
      node = to_int(nodes_.size());
      nodes_.emplace_back();
    }
    return node;
  }

  void add_list(int rank) {
    auto& nodes = of_rank_.emplace_back();
    std::map<std::tuple<int, int, bool>, int> lanes;  // (boundary, peer's rank, gradient) -> its last message
    const auto need = [&](int node) {
      if (!nodes.empty()) nodes_[to_index(node)].before.push_back(nodes.back());
    };
    for (const Action& action : in_.lists[to_index(rank)]) {
      if (is_send(action.kind)) {
        const int node = message(action);
        need(node);
        const int boundary = *plan_.boundary(action.stage, action.peer);
        const std::tuple lane{boundary, plan_.runner(action.peer, action.microbatch), carries_gradient(action.kind)};
        if (const auto it = lanes.find(lane); it != lanes.end()) nodes_[to_index(node)].before.push_back(it->second);
        lanes[lane] = node;
        sends_[{action.stage, action.peer, action.microbatch, carries_gradient(action.kind)}] = node;
        continue;
      }
      if (is_receive(action.kind)) {
        need(message(action));
        continue;
      }
      // A wait for parameters counts for the computation that needs them.
      if (is_residence(action.kind)) continue;
      const int node = to_int(nodes_.size());
      nodes_.emplace_back();
      need(node);
      for (const Passage& input : plan_.inputs(action)) {
        if (!plan_.is_message(action, input)) continue;  // earlier in this list
        const int from = message(receive_of(action, input));
        nodes_[to_index(node)].before.push_back(from);
      }
      if (action.kind == ActionKind::Reduce) reduce_nodes_.emplace_back(rank, node, action.stage);
      nodes.push_back(node);
    }
  }

  /// A reduction begins once all its members are there. Of several of a rank in one group, with several stages per
  /// rank, only the last waits.
  void join_reduces() {
    std::map<std::pair<int, int>, int> count;  // (rank, group) -> reduces so far
    std::map<std::pair<int, int>, int> total;
    const auto group = [&](int stage) { return plan_.reduce_groups()[to_index(stage)]; };
    for (const auto& [rank, node, stage] : reduce_nodes_) ++total[{rank, group(stage)}];
    std::map<std::pair<int, int>, std::vector<int>> members;  // (group, number) -> nodes
    for (const auto& [rank, node, stage] : reduce_nodes_) {
      const int number = count[{rank, group(stage)}]++;
      const bool last = number + 1 == total[{rank, group(stage)}];
      if (plan_.plan().chunks == 1)
        members[{group(stage), number}].push_back(node);
      else if (last)
        members[{group(stage), 0}].push_back(node);
    }
    for (const auto& [key, joined] : members) {
      std::vector<int> before;
      for (const int node : joined) {
        const auto& needs = nodes_[to_index(node)].before;
        before.insert(before.end(), needs.begin(), needs.end());
      }
      for (const int node : joined) nodes_[to_index(node)].before = before;
    }
  }

  void take_spans(const Timeline& timeline) {
    std::vector<std::size_t> next(of_rank_.size());
    const auto wrong = [] { throw std::invalid_argument("the timeline is not a replay of all actions"); };
    for (const Span& span : timeline.spans) {
      if (is_receive(span.action.kind) || is_residence(span.action.kind)) continue;
      int node = -1;
      if (is_send(span.action.kind)) {
        const auto it = sends_.find(
            {span.action.stage, span.action.peer, span.action.microbatch, carries_gradient(span.action.kind)});
        if (it != sends_.end()) node = it->second;
      } else if (next[to_index(span.rank)] < of_rank_[to_index(span.rank)].size()) {
        node = of_rank_[to_index(span.rank)][next[to_index(span.rank)]++];
      }
      if (node < 0) wrong();
      nodes_[to_index(node)].span = span;
      nodes_[to_index(node)].has_span = true;
    }
    for (const PathNode& node : nodes_) {
      if (!node.has_span) wrong();
    }
  }

  /// Sets an order in which every node comes after those it needs.
  void sort() {
    std::vector<int> needs(nodes_.size());
    std::vector<std::vector<int>> after(nodes_.size());
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      needs[i] = to_int(nodes_[i].before.size());
      for (const int before : nodes_[i].before) after[to_index(before)].push_back(to_int(i));
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (needs[i] == 0) order_.push_back(to_int(i));
    }
    for (std::size_t i = 0; i < order_.size(); ++i) {
      for (const int later : after[to_index(order_[i])]) {
        if (--needs[to_index(later)] == 0) order_.push_back(later);
      }
    }
  }

  /// The one of these nodes that ends last; -1 if there are none.
  int latest(const std::vector<int>& nodes) const {
    int out = -1;
    for (const int node : nodes) {
      if (out < 0 || nodes_[to_index(node)].span.end > nodes_[to_index(out)].span.end) out = node;
    }
    return out;
  }

  void add_slack(CriticalPath& out, Seconds end, int last) const {
    std::vector<Seconds> limit(nodes_.size(), kNoLimit);  // latest end
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].span.step <= last) limit[i] = end;
    }
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
      const PathNode& node = nodes_[to_index(*it)];
      const int ready = latest(node.before);
      if (ready < 0) continue;
      const Seconds begin = limit[to_index(*it)] - (node.span.end - nodes_[to_index(ready)].span.end);
      for (const int before : node.before) limit[to_index(before)] = std::min(limit[to_index(before)], begin);
    }
    for (const auto& nodes : of_rank_) {
      auto& slack = out.slack.emplace_back();
      for (const int node : nodes)
        slack.push_back(std::max(Seconds(0), limit[to_index(node)] - nodes_[to_index(node)].span.end));
    }
  }

  const SimulationInput& in_;
  const BoundPlan& plan_;
  std::vector<PathNode> nodes_;
  std::vector<std::vector<int>> of_rank_;                 // all but messages, in the lists' order
  std::vector<int> messages_;                             // by boundary, direction and microbatch
  std::map<std::tuple<int, int, int, bool>, int> sends_;  // (stage, peer, microbatch, gradient)
  std::vector<std::tuple<int, int, int>> reduce_nodes_;   // (rank, node, stage)
  std::vector<int> order_;
};

}  // namespace

CriticalPath critical_path(const SimulationInput& input, const Timeline& timeline, Seconds begin, int last) {
  if (last < 0 || last >= to_int(timeline.steps.size())) throw std::invalid_argument("the timeline has no such step");
  return PathSearch(input, timeline).path(begin, timeline.steps[to_index(last)].end, last);
}

}  // namespace stagecraft

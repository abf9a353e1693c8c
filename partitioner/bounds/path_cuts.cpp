#include "partitioner/bounds/path_cuts.h"

#include <algorithm>
#include <utility>

#include "partitioner/bounds/bound_limits.h"

namespace stagecraft::partitioner {
namespace {

void add(PathSums& sums, const NodeCosts& node) {
  sums.forward += node.forward;
  sums.back += node.least_return;
  sums.least += node.least;
  sums.update += node.update;
  sums.untied += node.untied;
  sums.bytes += node.bytes;
  ++sums.nodes;
}

PathSums difference(PathSums all, const PathSums& part) {
  all.forward -= part.forward;
  all.back -= part.back;
  all.least -= part.least;
  all.update -= part.update;
  all.untied -= part.untied;
  all.bytes.state -= part.bytes.state;
  all.bytes.divided -= part.bytes.divided;
  all.bytes.gradients -= part.bytes.gradients;
  all.bytes.per_microbatch -= part.bytes.per_microbatch;
  all.bytes.once -= part.bytes.once;
  all.bytes.loaded -= part.bytes.loaded;
  all.bytes.unmeasured -= part.bytes.unmeasured;
  all.bytes.segment = Bytes(0);  // the largest of some layers
  all.nodes -= part.nodes;
  return all;
}

/// Joins neighbours between which there is no more computation than `most`, besides the first and the last cut.
std::vector<PathCut> joined(const std::vector<PathCut>& finer, Seconds most) {
  std::vector<PathCut> out;
  for (std::size_t i = 0; i < finer.size(); ++i) {
    const PathCut& cut = finer[i];
    const bool is_end = i <= 1 || i + 1 == finer.size();
    if (!is_end && cut.low.least - out.back().low.least <= most) {
      PathCut& open = out.back();
      open.last = cut.last;
      open.high = cut.high;
      open.several = true;
      open.hop = {std::min(open.hop.forward, cut.hop.forward), std::min(open.hop.back, cut.hop.back),
                  std::min(open.hop.port, cut.hop.port)};
    } else {
      out.push_back(cut);
      out.back().parts = i;
    }
    out.back().parts_end = i + 1;
  }
  return out;
}

}  // namespace

PathCuts::PathCuts(const PipelineCosts& costs, int most_cuts) {
  levels_.push_back(every_cut(costs, computation_path(costs)));
  const Seconds all = levels_.front().back().low.least;
  for (bool joins = true; joins && to_int(coarse().size()) - 2 > most_cuts;) {
    const int most = std::max(most_cuts, to_int(coarse().size()) / BoundLimits::kFinerCuts);
    joins = most > most_cuts;
    levels_.insert(levels_.begin(), joined(coarse(), all / std::max(1, most)));
  }
}

std::vector<PathCut> PathCuts::every_cut(const PipelineCosts& costs, const std::vector<int>& path) {
  const int nodes = costs.dag().nodes;
  const std::size_t length = path.size();
  std::vector<std::vector<int>> producers(to_index(nodes));
  std::vector<std::vector<int>> consumers(to_index(nodes));
  for (const auto& [from, to] : costs.dag().edges) {
    producers[to_index(to)].push_back(from);
    consumers[to_index(from)].push_back(to);
  }
  PathSums all;
  for (int v = 0; v < nodes; ++v) add(all, costs.node(v));
  // Of a node's ancestors or descendants, with itself, those that have not been seen.
  const auto reach = [&](std::vector<bool>& seen, const std::vector<std::vector<int>>& next, int node, auto&& visit) {
    std::vector<int> waiting{node};
    while (!waiting.empty()) {
      const int v = waiting.back();
      waiting.pop_back();
      if (seen[to_index(v)]) continue;
      seen[to_index(v)] = true;
      visit(v);
      waiting.insert(waiting.end(), next[to_index(v)].begin(), next[to_index(v)].end());
    }
  };
  std::vector<PathCut> cuts(length + 1);
  along_.assign(1, {});
  place_.assign(to_index(nodes), to_int(length));
  std::vector<bool> seen(to_index(nodes), false);
  PathSums before;
  for (std::size_t c = 0; c <= length; ++c) {
    cuts[c].first = cuts[c].last = to_int(c);
    cuts[c].low = before;
    if (c == length) break;
    reach(seen, producers, path[c], [&](int v) {
      add(before, costs.node(v));
      place_[to_index(v)] = to_int(c);
    });
    along_.push_back(along_.back());
    add(along_.back(), costs.node(path[c]));
    const Seconds loading = costs.node(path[c]).loading;
    if (loading > Seconds(0)) loading_.emplace_back(to_int(c), loading);
  }
  seen.assign(to_index(nodes), false);
  PathSums after;
  for (std::size_t c = length + 1; c-- > 0;) {
    if (c < length) reach(seen, consumers, path[c], [&](int v) { add(after, costs.node(v)); });
    cuts[c].high = difference(all, after);
    cuts[c].several = cuts[c].high.nodes > cuts[c].low.nodes;
    if (c > 0 && c < length) cuts[c].hop = path_hop(costs, path[c - 1], path[c]);
    // A replica's messages may take several levels, and with them several ports.
    if (costs.levels() > 1) cuts[c].hop.port = Seconds(0);
  }
  PathCut begin;
  begin.several = false;
  const PathCut end{to_int(length), to_int(length), all, all, false, {}, 0, 0};
  if (cuts.back().low.nodes == all.nodes) cuts.pop_back();
  if (!cuts.empty() && cuts.front().high.nodes == 0) cuts.erase(cuts.begin());
  cuts.insert(cuts.begin(), begin);
  cuts.push_back(end);
  return cuts;
}

PathSums PathCuts::between(const PathCut& a, const PathCut& b) const {
  const PathSums nothing;
  const PathSums& from = along(a.last);
  const PathSums& to = along(std::max(a.last, b.first));
  PathSums out;
  const auto least = [&](auto PathSums::* part) {
    out.*part = std::max({to.*part - from.*part, b.low.*part - a.high.*part, nothing.*part});
  };
  const auto least_bytes = [&](auto StageBytes::* part) {
    out.bytes.*part =
        std::max({to.bytes.*part - from.bytes.*part, b.low.bytes.*part - a.high.bytes.*part, nothing.bytes.*part});
  };
  least(&PathSums::forward);
  least(&PathSums::back);
  least(&PathSums::least);
  least(&PathSums::update);
  least(&PathSums::untied);
  least_bytes(&StageBytes::state);
  least_bytes(&StageBytes::gradients);
  least_bytes(&StageBytes::per_microbatch);
  least_bytes(&StageBytes::once);
  least_bytes(&StageBytes::loaded);
  least_bytes(&StageBytes::unmeasured);
  out.least = std::max(out.least, out.forward + out.back);
  for (const auto& [place, loading] : loading_) {
    if (a.last <= place && place < b.first) out.loading = std::max(out.loading, loading);
  }
  return out;
}

std::vector<int> PathCuts::stage_of_node(const std::vector<std::size_t>& begins) const {
  std::vector<int> out;
  for (const int place : place_) {
    int stage = 0;
    while (to_index(stage) < begins.size() && fine()[begins[to_index(stage)]].first <= place) ++stage;
    out.push_back(stage);
  }
  return out;
}

}  // namespace stagecraft::partitioner

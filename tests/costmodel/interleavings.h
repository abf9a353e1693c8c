#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "costmodel/plan.h"
#include "costmodel/simulation/queue_replay.h"

// Answers the verifier's question with a different algorithm: it explores every order in which the ranks of a plan can
// run their actions and the network can deliver messages, one step at a time.

namespace stagecraft::testing {

/// A plan of consecutive stages with the given replicas and one layer per stage.
inline Plan row_plan(const std::string& schedule, const std::vector<int>& replicas, int microbatches, int chunks = 1) {
  Plan plan;
  plan.schedule = schedule;
  plan.microbatches = microbatches;
  plan.chunks = chunks;
  const int stages = static_cast<int>(replicas.size());
  const int positions = stages / chunks;
  int device = 0;
  for (int s = 0; s < stages; ++s) {
    Stage stage{{"l" + std::to_string(s)}, {}, false};
    for (int r = 0; r < replicas[static_cast<std::size_t>(s)]; ++r) stage.devices.push_back(device++);
    const int position = position_of(s, positions, schedule_by_name(schedule).placement);
    if (s >= positions) stage.devices = plan.stages[static_cast<std::size_t>(position)].devices;
    plan.stages.push_back(std::move(stage));
    if (s > 0) plan.boundaries.push_back({s - 1, s, {{"l" + std::to_string(s - 1), 0, Bytes(8), {}, "float32", true}}});
  }
  plan.warmups = warmup_counts(replicas);
  return plan;
}

class Interleavings {
 public:
  using Lists = std::vector<std::vector<Action>>;

  Interleavings(const Plan& plan, const Lists& lists, Queues kind) : lists_(lists) {
    int rank = 0;
    const int positions = static_cast<int>(plan.stages.size()) / plan.chunks;
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      replicas_.push_back(static_cast<int>(plan.stages[s].devices.size()));
      const int position = position_of(static_cast<int>(s), positions, schedule_of(plan).placement);
      first_.push_back(static_cast<int>(s) < positions ? rank : first_[static_cast<std::size_t>(position)]);
      rank += replicas_.back();
    }
    for (const Boundary& b : plan.boundaries) edges_.emplace_back(b.source, b.destination);
    // Queues by name; entries are in the order of the rank's list, each with how much of the list must be done before
    // it.
    std::map<std::string, int> names;
    for (std::size_t r = 0; r < lists.size(); ++r) {
      for (std::size_t i = 0; i < lists[r].size(); ++i) {
        const Action& a = lists[r][i];
        if (a.kind == ActionKind::Reduce) reducers_[a.stage].insert(static_cast<int>(r));
        if (!transfer(a)) continue;
        const int other = runner(a.peer, a.microbatch);
        const int low = std::min(a.stage, a.peer);
        const bool back = a.kind == ActionKind::SendGradient || a.kind == ActionKind::ReceiveGradient;
        const bool send = a.kind == ActionKind::SendActivation || a.kind == ActionKind::SendGradient;
        std::string name = std::to_string(r);
        const std::string line =
            std::to_string(low) + "-" + std::to_string(std::max(a.stage, a.peer)) + (back ? "b" : "f");
        if (kind == Queues::Edge) name += " " + line + " " + std::to_string(other);
        if (kind == Queues::Boundary) name += " " + line;
        if (kind == Queues::Pair) name += " " + std::to_string(other);
        const int q = names.emplace(name, static_cast<int>(names.size())).first->second;
        if (q == static_cast<int>(queues_.size())) queues_.emplace_back();
        const std::string message = line + std::to_string(a.microbatch);
        queues_[static_cast<std::size_t>(q)].push_back({message, send, static_cast<int>(r), i});
        ends_[message][send ? 0 : 1] = {q, static_cast<int>(queues_[static_cast<std::size_t>(q)].size()) - 1};
      }
    }
  }

  enum class Verdict { Ends, Sticks, Both };

  /// The outcome of the lists over all orders or, beyond `most` states, over `walks` random orders. `states` is the
  /// number of states visited.
  Verdict follow(std::size_t most, int walks, std::mt19937& random, std::size_t& states) {
    bool ends = false;
    bool sticks = false;
    std::set<std::string> seen;
    std::vector<std::string> open{std::string(lists_.size() + queues_.size(), '\0')};
    seen.insert(open.front());
    while (!open.empty() && seen.size() <= most) {
      const std::string state = open.back();
      open.pop_back();
      const std::vector<std::string> next = steps(state);
      if (next.empty()) (done(state) ? ends : sticks) = true;
      for (const std::string& s : next) {
        if (seen.insert(s).second) open.push_back(s);
      }
    }
    states = seen.size();
    for (int walk = 0; !open.empty() && walk < walks; ++walk) {
      std::string state(lists_.size() + queues_.size(), '\0');
      for (std::vector<std::string> next = steps(state); !next.empty(); next = steps(state)) {
        state = next[random() % next.size()];
      }
      (done(state) ? ends : sticks) = true;
    }
    return ends && sticks ? Verdict::Both : ends ? Verdict::Ends : Verdict::Sticks;
  }

 private:
  struct Entry {
    std::string message;
    bool send;
    int rank;
    std::size_t index;
  };
  static bool transfer(const Action& a) { return a.peer >= 0; }
  int runner(int stage, int m) const {
    return first_[static_cast<std::size_t>(stage)] + m % replicas_[static_cast<std::size_t>(stage)];
  }
  // A state: each rank's position, then how many entries of each queue have moved.
  std::size_t host(const std::string& state, std::size_t rank) const { return static_cast<unsigned char>(state[rank]); }
  std::size_t moved(const std::string& state, int queue) const {
    return static_cast<unsigned char>(state[lists_.size() + static_cast<std::size_t>(queue)]);
  }
  bool arrived(const std::string& state, const std::string& message) const {
    const auto it = ends_.find(message);
    if (it == ends_.end() || !it->second.contains(1)) return false;
    const auto& [queue, place] = it->second.at(1);
    return moved(state, queue) > static_cast<std::size_t>(place);
  }
  bool before(std::size_t rank, std::size_t index, ActionKind kind, int stage, int m) const {
    for (std::size_t i = 0; i < index; ++i) {
      const Action& a = lists_[rank][i];
      if (a.kind == kind && a.stage == stage && a.microbatch == m) return true;
    }
    return false;
  }
  bool runs(const std::string& state, std::size_t rank) const {
    const std::size_t i = host(state, rank);
    const Action& a = lists_[rank][i];
    if (a.kind == ActionKind::Update) return true;
    if (a.kind == ActionKind::WeightGradient) return before(rank, i, ActionKind::Backward, a.stage, a.microbatch);
    // A value that was never computed cannot be sent.
    if (a.kind == ActionKind::SendActivation) return before(rank, i, ActionKind::Forward, a.stage, a.microbatch);
    if (a.kind == ActionKind::SendGradient) return before(rank, i, ActionKind::Backward, a.stage, a.microbatch);
    if (a.kind == ActionKind::ReceiveActivation || a.kind == ActionKind::ReceiveGradient) return true;
    if (a.kind == ActionKind::Reduce) {
      for (const int member : reducers_.at(a.stage)) {
        const std::size_t r = static_cast<std::size_t>(member);
        if (host(state, r) >= lists_[r].size() || lists_[r][host(state, r)] != a) return false;
      }
      return true;
    }
    const bool back = a.kind == ActionKind::Backward;
    if (back && !before(rank, i, ActionKind::Forward, a.stage, a.microbatch)) return false;
    for (const auto& [source, destination] : edges_) {
      if ((back ? source : destination) != a.stage) continue;
      const int peer = back ? destination : source;
      const std::string message = std::to_string(source) + "-" + std::to_string(destination) + (back ? "b" : "f") +
                                  std::to_string(a.microbatch);
      if (runner(peer, a.microbatch) == static_cast<int>(rank)) {
        if (!before(rank, i, a.kind, peer, a.microbatch)) return false;
      } else if (!arrived(state, message)) {
        return false;
      }
    }
    return true;
  }
  std::vector<std::string> steps(const std::string& state) const {
    std::vector<std::string> out;
    std::set<int> reduced;
    for (std::size_t rank = 0; rank < lists_.size(); ++rank) {
      if (host(state, rank) >= lists_[rank].size() || !runs(state, rank)) continue;
      const Action& a = lists_[rank][host(state, rank)];
      std::string next = state;
      if (a.kind == ActionKind::Reduce) {
        if (!reduced.insert(a.stage).second) continue;
        for (const int member : reducers_.at(a.stage)) ++next[static_cast<std::size_t>(member)];
      } else {
        ++next[rank];
      }
      // Starting a transfer or an update is always possible and blocks nothing else: done immediately, to have fewer
      // states.
      for (std::size_t r = 0; r < lists_.size(); ++r) {
        while (host(next, r) < lists_[r].size()) {
          const Action& b = lists_[r][host(next, r)];
          if ((!transfer(b) && b.kind != ActionKind::Update) || !runs(next, r)) break;
          ++next[r];
        }
      }
      out.push_back(std::move(next));
    }
    for (const auto& [message, sides] : ends_) {
      if (sides.size() < 2) continue;
      bool first = true;
      for (const auto& [side, where] : sides) {
        const auto& [queue, place] = where;
        const Entry& entry = queues_[static_cast<std::size_t>(queue)][static_cast<std::size_t>(place)];
        first = first && moved(state, queue) == static_cast<std::size_t>(place) &&
                host(state, static_cast<std::size_t>(entry.rank)) > entry.index;
      }
      if (!first) continue;
      std::string next = state;
      for (const auto& [side, where] : sides) ++next[lists_.size() + static_cast<std::size_t>(where.first)];
      out.push_back(std::move(next));
    }
    return out;
  }
  bool done(const std::string& state) const {
    for (std::size_t r = 0; r < lists_.size(); ++r) {
      if (host(state, r) < lists_[r].size()) return false;
    }
    for (std::size_t q = 0; q < queues_.size(); ++q) {
      if (moved(state, static_cast<int>(q)) < queues_[q].size()) return false;
    }
    return true;
  }

  Lists lists_;
  std::vector<int> replicas_;
  std::vector<int> first_;
  std::vector<std::pair<int, int>> edges_;
  std::vector<std::vector<Entry>> queues_;
  std::map<std::string, std::map<int, std::pair<int, int>>> ends_;  // message -> side (0 sends) -> queue, place
  std::map<int, std::set<int>> reducers_;
};

/// A plan whose stages have these layers, one device per stage; each stage sends the output of its last layer.
inline Plan plan_of_layers(const std::vector<std::vector<std::string>>& stages) {
  Plan plan = row_plan("1f1b", std::vector<int>(stages.size(), 1), 4);
  for (std::size_t s = 0; s < stages.size(); ++s) plan.stages[s].layers = stages[s];
  for (Boundary& boundary : plan.boundaries) {
    for (BoundaryTensor& tensor : boundary.tensors)
      tensor.layer = stages[static_cast<std::size_t>(boundary.source)].back();
  }
  return plan;
}

/// Consecutive layers, without times.
inline Graph graph_of_layers(const std::vector<std::string>& ids) {
  Graph graph;
  graph.name = "net";
  for (const std::string& id : ids) {
    const int at = static_cast<int>(graph.layers.size());
    if (at > 0) graph.edges.push_back({at - 1, at, {}});
    graph.layers.emplace_back().id = id;
  }
  return graph;
}

}  // namespace stagecraft::testing

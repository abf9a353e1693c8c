#include "costmodel/simulation/queue_replay.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/simulation/waiting.h"

namespace stagecraft {
namespace {

constexpr std::array<std::pair<Queues, const char*>, 4> kWords{{
    {Queues::Edge, "edge"},
    {Queues::Boundary, "boundary"},
    {Queues::Pair, "pair"},
    {Queues::Rank, "rank"},
}};

/// An error message names at most this many ranks.
constexpr std::size_t kManyRanks = 16;

class Replay {
 public:
  Replay(const MessageTable& table, const std::vector<std::vector<Action>>& lists, Queues queues,
         const std::vector<int>& reduce_groups)
      : table_(table), lists_(lists), kind_(queues), groups_(reduce_groups), gathers_(lists) {
    next_.assign(lists.size(), 0);
    joined_.assign(lists.size(), false);
    messages_.resize(table.count());
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      std::set<int> stages;
      for (const Action& action : lists[rank]) {
        if (action.kind != ActionKind::Reduce) continue;
        members_[groups_[to_index(action.stage)]].insert(to_int(rank));
        stages.insert(action.stage);
      }
      reduces_several_.push_back(stages.size() > 1);
    }
  }

  std::optional<std::string> run() {
    for (std::size_t rank = 0; rank < lists_.size(); ++rank) ready_.push_back(to_int(rank));
    while (!ready_.empty()) {
      const int rank = ready_.back();
      ready_.pop_back();
      advance(rank);
    }
    for (std::size_t rank = 0; rank < lists_.size(); ++rank) {
      if (next_[rank] < lists_[rank].size()) return explain(Place{to_int(rank), -1});
    }
    for (std::size_t q = 0; q < queues_.size(); ++q) {
      if (queues_[q].head < queues_[q].messages.size()) { return explain(Place{queues_[q].rank, to_int(q)}); }
    }
    return std::nullopt;
  }

 private:
  struct Queue {
    int rank = 0;
    std::vector<int> messages;
    std::size_t head = 0;
  };
  /// The queues of the two ends of a message, -1 before they begin.
  struct QueuedMessage {
    int send = -1;
    int receive = -1;
    bool moved = false;
  };
  /// A place of waiting: a rank before an action, or the first of a queue.
  struct Place {
    int rank = 0;
    int queue = -1;
    friend auto operator<=>(const Place&, const Place&) = default;
  };

  int sender(int message) const { return runner(table_.send(message)); }
  int receiver(int message) const { return runner(table_.receive(message)); }
  int runner(const Action& action) const { return table_.runner(action.stage, action.microbatch); }

  int queue_of(int rank, const Action& action, int message) {
    const int from = sender(message);
    const int to = receiver(message);
    const int boundary = *table_.boundary(action.stage, action.peer);
    std::tuple<int, int, int, int> key{rank, 0, 0, 0};
    if (kind_ == Queues::Edge) key = {rank, 2 * boundary + (carries_gradient(action.kind) ? 1 : 0), from, to};
    if (kind_ == Queues::Boundary) key = {rank, 2 * boundary + (carries_gradient(action.kind) ? 1 : 0), 0, 0};
    if (kind_ == Queues::Pair) key = {rank, 0, std::min(from, to), std::max(from, to)};
    const auto [it, fresh] = queue_numbers_.emplace(key, to_int(queues_.size()));
    if (fresh) queues_.push_back({rank, {}, 0});
    return it->second;
  }
  bool first(int queue, int message) const {
    const Queue& q = queues_[to_index(queue)];
    return q.head < q.messages.size() && q.messages[q.head] == message;
  }

  void begin(int rank, const Action& action) {
    const int message = table_.message(action);
    const int queue = queue_of(rank, action, message);
    (is_send(action.kind) ? messages_[to_index(message)].send : messages_[to_index(message)].receive) = queue;
    queues_[to_index(queue)].messages.push_back(message);
    move(message);
  }
  /// Moves the message if it can, then those queued behind it.
  void move(int first_message) {
    std::vector<int> tries{first_message};
    while (!tries.empty()) {
      const int message = tries.back();
      tries.pop_back();
      QueuedMessage& m = messages_[to_index(message)];
      if (m.moved || m.send < 0 || m.receive < 0 || !first(m.send, message) || !first(m.receive, message)) continue;
      m.moved = true;
      for (const int q : {m.send, m.receive}) {
        Queue& queue = queues_[to_index(q)];
        if (++queue.head < queue.messages.size()) tries.push_back(queue.messages[queue.head]);
      }
      ready_.push_back(receiver(message));
    }
  }

  void advance(int rank) {
    const auto& list = lists_[to_index(rank)];
    while (next_[to_index(rank)] < list.size()) {
      const Action& action = list[next_[to_index(rank)]];
      if (is_transfer(action.kind)) {
        ++next_[to_index(rank)];
        begin(rank, action);
      } else if (action.kind == ActionKind::Gather) {
        ++next_[to_index(rank)];
        gather(rank, action.stage);
      } else if (action.kind == ActionKind::Free) {
        ++next_[to_index(rank)];
      } else if (action.kind == ActionKind::Reduce) {
        if (!reduced(rank, action)) return;
      } else {
        if (lacks_parameters(rank, action) || missing(action) >= 0) return;
        ++next_[to_index(rank)];
      }
    }
  }
  void gather(int rank, int stage) {
    if (!gathers_.begin(rank, stage)) return;
    (void)gathers_.end(stage);
    for (const int member : gathers_.members(stage)) {
      if (member != rank) ready_.push_back(member);
    }
  }
  bool lacks_parameters(int rank, const Action& action) const {
    return is_compute(action.kind) && !gathers_.is_whole(rank, action.stage);
  }
  /// A message that the action needs and that has not arrived, -1 if it can run.
  int missing(const Action& action) const {
    for (const int message : table_.inputs(action)) {
      if (!messages_[to_index(message)].moved) return message;
    }
    return -1;
  }
  bool reduced(int rank, const Action& action) {
    if (joined_[to_index(rank)]) return false;
    const int group = groups_[to_index(action.stage)];
    if (reduces_again(rank, group)) {
      ++next_[to_index(rank)];
      return true;
    }
    joined_[to_index(rank)] = true;
    if (++arrived_[group] < members_[group].size()) return false;
    arrived_[group] = 0;
    for (const int member : members_[group]) {
      joined_[to_index(member)] = false;
      ++next_[to_index(member)];
      if (member != rank) ready_.push_back(member);
    }
    return true;
  }

  /// Whether a rank of several stages has another Reduce of the group, which then covers this one too.
  bool reduces_again(int rank, int group) const {
    if (!reduces_several_[to_index(rank)]) return false;
    const auto& list = lists_[to_index(rank)];
    const auto rest = list.begin() + static_cast<std::ptrdiff_t>(next_[to_index(rank)]) + 1;
    return std::any_of(rest, list.end(), [&](const Action& later) {
      return later.kind == ActionKind::Reduce && groups_[to_index(later.stage)] == group;
    });
  }

  // --- messages about deadlocks ---
  const Action& stuck(int rank) const { return lists_[to_index(rank)][next_[to_index(rank)]]; }
  bool ended(int rank) const { return next_[to_index(rank)] >= lists_[to_index(rank)].size(); }
  static std::string of_rank(const Action& action, int rank) {
    return action_text(action) + " of rank " + std::to_string(rank);
  }

  /// The thing that the place waits for, and the place where that thing waits in turn; no place if it never comes.
  std::pair<std::string, std::optional<Place>> follow(const Place& place) {
    if (place.queue >= 0) {
      const Queue& queue = queues_[to_index(place.queue)];
      const int message = queue.messages[queue.head];
      const bool sending = messages_[to_index(message)].send == place.queue;
      return other_end(of_rank(sending ? table_.send(message) : table_.receive(message), place.rank), message,
                       !sending);
    }
    const Action& action = stuck(place.rank);
    const std::string who = of_rank(action, place.rank);
    if (action.kind == ActionKind::Reduce) {
      for (const int member : members_[groups_[to_index(action.stage)]]) {
        const bool here =
            joined_[to_index(member)] && groups_[to_index(stuck(member).stage)] == groups_[to_index(action.stage)];
        if (here) continue;
        if (ended(member)) return {who + " waits for rank " + std::to_string(member) + ", which has ended", {}};
        return {
            who + " waits for rank " + std::to_string(member) + ", which is blocked at " + action_text(stuck(member)),
            Place{member, -1}};
      }
    }
    if (lacks_parameters(place.rank, action)) {
      const int member = gathers_.missing(place.rank, action.stage);
      const std::string waits = who + " waits for the parameters of rank " + std::to_string(member) + ", which ";
      if (ended(member)) return {waits + "has ended", {}};
      return {waits + "is blocked at " + action_text(stuck(member)), Place{member, -1}};
    }
    const int message = missing(action);
    const int queue = messages_[to_index(message)].receive;
    if (queue >= 0 && first(queue, message)) return other_end(who, message, true);
    if (queue < 0) return {who + " waits for " + action_text(table_.receive(message)) + ", which never starts", {}};
    return {who + " waits for " + action_text(table_.receive(message)) + ", which is queued behind " + head_text(queue),
            Place{place.rank, queue}};
  }
  /// `who` waits for the sending or receiving end of a message.
  std::pair<std::string, std::optional<Place>> other_end(const std::string& who, int message, bool sending) {
    const Action& action = sending ? table_.send(message) : table_.receive(message);
    const int rank = runner(action);
    const int queue = sending ? messages_[to_index(message)].send : messages_[to_index(message)].receive;
    std::string text = who + " waits for " + of_rank(action, rank) + ", which ";
    if (queue >= 0) return {text + "is queued behind " + head_text(queue), Place{rank, queue}};
    if (ended(rank)) return {text + "has ended without it", {}};
    return {text + "is blocked at " + action_text(stuck(rank)), Place{rank, -1}};
  }
  std::string head_text(int queue) const {
    const Queue& q = queues_[to_index(queue)];
    const int message = q.messages[q.head];
    return action_text(messages_[to_index(message)].send == queue ? table_.send(message) : table_.receive(message));
  }

  std::string explain(Place place) {
    std::vector<Place> seen;
    std::vector<std::string> said;
    std::optional<Place> here = place;
    std::size_t circle = 0;
    while (here) {
      const auto again = std::find(seen.begin(), seen.end(), *here);
      if (again != seen.end()) {
        circle = to_index(again - seen.begin());
        break;
      }
      seen.push_back(*here);
      auto [text, next] = follow(*here);
      said.push_back(std::move(text));
      here = next;
    }
    std::string out = "deadlock: ";
    for (std::size_t i = circle; i < said.size(); ++i) out += (i > circle ? "; " : "") + said[i];
    std::string table;
    std::size_t stuck_ranks = 0;
    for (std::size_t rank = 0; rank < lists_.size(); ++rank) {
      if (next_[rank] >= lists_[rank].size() || ++stuck_ranks > kManyRanks) continue;
      table += (table.empty() ? "" : ", ") + std::string("rank ") + std::to_string(rank) + " before " +
               action_text(lists_[rank][next_[rank]]) + " (entry " + std::to_string(next_[rank] + 1) + ")";
    }
    if (stuck_ranks > kManyRanks) table += " and " + std::to_string(stuck_ranks - kManyRanks) + " more";
    return table.empty() ? out : out + ". Stuck: " + table;
  }

  const MessageTable& table_;
  const std::vector<std::vector<Action>>& lists_;
  const Queues kind_;
  const std::vector<int>& groups_;
  simulation::Gathers gathers_;
  std::vector<std::size_t> next_;
  std::vector<bool> reduces_several_;  // the rank reduces more than one stage
  std::vector<bool> joined_;           // the rank is at its Reduce and was counted
  std::vector<QueuedMessage> messages_;
  std::vector<Queue> queues_;
  std::map<std::tuple<int, int, int, int>, int> queue_numbers_;
  std::map<int, std::set<int>> members_;
  std::map<int, std::size_t> arrived_;
  std::vector<int> ready_;
};

}  // namespace

const char* to_string(Queues queues) {
  for (const auto& [value, word] : kWords) {
    if (value == queues) return word;
  }
  return "?";
}

Queues queues_by_name(const std::string& word) {
  std::vector<std::string> known;
  for (const auto& [value, text] : kWords) {
    if (word == text) return value;
    known.emplace_back(text);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("kind of queue", word, known));
}

std::size_t MessageTable::count() const { return 2 * plan_.plan().boundaries.size() * to_index(microbatches_); }

int MessageTable::message(int boundary, bool gradient, int microbatch) const {
  return 2 * (boundary * microbatches_ + microbatch) + (gradient ? 1 : 0);
}

int MessageTable::message(const Action& transfer) const {
  return message(*boundary(transfer.stage, transfer.peer), carries_gradient(transfer.kind), transfer.microbatch);
}

Action MessageTable::send(int message) const {
  const BoundaryEnds& ends = plan_.ends(message / 2 / microbatches_);
  const int microbatch = message / 2 % microbatches_;
  if (message % 2 == 1) return {ActionKind::SendGradient, ends.destination, microbatch, ends.source};
  return {ActionKind::SendActivation, ends.source, microbatch, ends.destination};
}

Action MessageTable::receive(int message) const { return other_end(send(message)); }

std::vector<int> MessageTable::messages(const Action& compute, const std::vector<Passage>& passages) const {
  std::vector<int> out;
  for (const Passage& passage : passages) {
    if (plan_.is_message(compute, passage))
      out.push_back(message(passage.boundary, passage.gradient, compute.microbatch));
  }
  return out;
}

std::vector<int> MessageTable::inputs(const Action& compute) const { return messages(compute, plan_.inputs(compute)); }
std::vector<int> MessageTable::outputs(const Action& compute) const {
  return messages(compute, plan_.outputs(compute));
}

std::optional<std::string> find_deadlock(const MessageTable& table, const std::vector<std::vector<Action>>& lists,
                                         Queues queues, const std::vector<int>& reduce_groups) {
  return Replay(table, lists, queues, reduce_groups).run();
}

}  // namespace stagecraft

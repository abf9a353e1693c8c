#include "costmodel/prediction/verify.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/gradient_sums.h"
#include "costmodel/index.h"
#include "costmodel/prediction/memory_replay.h"
#include "costmodel/text/units_text.h"

namespace stagecraft {
namespace {

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

/// The proofs in order; each returns a refusal or nothing and may rely on those before it.
class Verifier {
 public:
  Verifier(const BoundPlan& plan, const std::vector<std::vector<Action>>& lists, const VerifyOptions& options)
      : bound_(plan),
        plan_(plan.plan()),
        lists_(lists),
        options_(options),
        schedule_(plan.schedule()),
        shape_(plan.shape(options.steps)),
        roles_(plan.ranks()),
        table_(plan, plan_.microbatches * options.steps),
        groups_(plan.reduce_groups()) {
    proof_.ranks.resize(roles_.size());
    if (!schedule_.mixes_backwards) return;
    for (const auto& list : compute_lists(schedule_, shape_)) {
      for (const Action& a : list) {
        if (a.kind == ActionKind::WeightGradient) split_.insert({a.stage, a.microbatch});
      }
    }
  }

  std::variant<Verified, Infeasible> run() {
    struct Proof {
      const char* proved;
      Refusal (Verifier::*find)();
    };
    for (const auto& [proved, find] :
         {Proof{"every action is on its rank", &Verifier::standing}, Proof{"no action is missing", &Verifier::complete},
          Proof{"inputs come first", &Verifier::ordered},
          Proof{"parameters are whole where they are used", &Verifier::whole},
          Proof{"every gradient has its update", &Verifier::applied},
          Proof{"both ends of an edge agree", &Verifier::edges}, Proof{"no deadlock", &Verifier::ending},
          Proof{"bounds of the schedule", &Verifier::bounded}}) {
      if (options_.progress) options_.progress(proved);
      if (Refusal refusal = (this->*find)()) return Infeasible{std::move(*refusal), ErrorKind::Unprovable};
    }
    int in_flight = 0;
    int versions = 1;
    for (const RankProof& rank : proof_.ranks) {
      in_flight = std::max(in_flight, rank.in_flight);
      versions = std::max(versions, rank.versions);
    }
    proof_.summary =
        count_text(lists_.size(), "rank") + ", " + count_text(proof_.actions, "action") + ", " +
        count_text(proof_.messages, "message") +
        (options_.steps > 1 ? ", " + count_text(to_index(options_.steps), "step") : std::string()) +
        ": each microbatch runs once on every stage, each edge keeps one order, no deadlock with one queue for each " +
        to_string(options_.queues) + ", at most " + std::to_string(in_flight) + " in flight" +
        (versions > 1 ? " and " + std::to_string(versions) + " weight versions" : std::string()) + " on a rank";
    return std::move(proof_);
  }

 private:
  using Refusal = std::optional<std::string>;

  std::string place(int rank, std::size_t index) const {
    return rank_text(rank) + ", entry " + std::to_string(index + 1) + ": " + action_text(lists_[to_index(rank)][index]);
  }
  std::size_t slot(int stage, int microbatch) const {
    return to_index(stage) * to_index(table_.microbatches()) + to_index(microbatch);
  }
  std::size_t slot(const Action& a) const { return slot(a.stage, a.microbatch); }
  bool splits(int stage, int microbatch) const {
    return schedule_.splits_backward && (!schedule_.mixes_backwards || split_.contains({stage, microbatch}));
  }
  /// Whether `a` is the last of its microbatch on its stage.
  bool is_gradient(const Action& a) const {
    const bool backward = a.kind == ActionKind::Backward || a.kind == ActionKind::WeightGradient;
    return backward && (a.kind == ActionKind::WeightGradient) == splits(a.stage, a.microbatch);
  }

  /// Every listed action exists in the plan and is on the rank that runs it.
  Refusal standing() {
    if (lists_.size() != roles_.size()) {
      return "found " + count_text(lists_.size(), "list") + ", the plan has " + count_text(roles_.size(), "rank");
    }
    for (int rank = 0; rank < to_int(lists_.size()); ++rank) {
      const RankRole& role = roles_[to_index(rank)];
      for (std::size_t i = 0; i < lists_[to_index(rank)].size(); ++i) {
        const Action& a = lists_[to_index(rank)][i];
        if (std::find(role.stages.begin(), role.stages.end(), a.stage) == role.stages.end()) {
          return place(rank, i) + " belongs to stage " + std::to_string(a.stage) + ", which the rank does not run";
        }
        const bool once = !traits_of(a.kind).microbatch;
        if (once ? a.microbatch != -1 : a.microbatch < 0 || a.microbatch >= table_.microbatches()) {
          return place(rank, i) + " belongs to microbatch " + std::to_string(a.microbatch) + ", there are 0.." +
                 std::to_string(table_.microbatches() - 1);
        }
        if (!once && bound_.runner(a.stage, a.microbatch) != rank) {
          return place(rank, i) + " belongs to " + rank_text(bound_.runner(a.stage, a.microbatch));
        }
        if (!is_transfer(a.kind)) continue;
        const std::optional<int> boundary = bound_.boundary(a.stage, a.peer);
        if (!boundary) return place(rank, i) + ": there is no boundary between the two stages";
        const int message = table_.message(a);
        const Action other = table_.send(message) == a ? table_.receive(message) : table_.send(message);
        if (table_.send(message) != a && table_.receive(message) != a) {
          return place(rank, i) + " is opposite to the boundary's direction";
        }
        if (message % 2 == 1 && !bound_.has_gradient(*boundary)) {
          return place(rank, i) + ": no gradient comes back between these stages";
        }
        if (bound_.runner(other.stage, other.microbatch) == rank) {
          return place(rank, i) + " stays on the same rank; no transfer is needed";
        }
      }
    }
    return std::nullopt;
  }

  /// No action appears twice, and none is missing.
  Refusal complete() {
    std::map<std::tuple<ActionKind, int, int, int>, std::size_t> seen;
    for (int rank = 0; rank < to_int(lists_.size()); ++rank) {
      seen.clear();
      const auto& list = lists_[to_index(rank)];
      proof_.actions += list.size();
      for (std::size_t i = 0; i < list.size(); ++i) {
        const Action& a = list[i];
        if (a.microbatch < 0) continue;
        const auto [it, fresh] = seen.emplace(std::tuple(a.kind, a.stage, a.microbatch, a.peer), i);
        if (!fresh) return place(rank, i) + " also appears at entry " + std::to_string(it->second + 1);
      }
      const auto lacks = [&](const Action& a) -> Refusal {
        if (seen.erase({a.kind, a.stage, a.microbatch, a.peer}) > 0) return std::nullopt;
        return rank_text(rank) + " lacks " + action_text(a);
      };
      for (const int stage : roles_[to_index(rank)].stages) {
        for (const int m : bound_.microbatches_of(stage, rank, table_.microbatches())) {
          for (const ActionKind kind : {ActionKind::Forward, ActionKind::Backward, ActionKind::WeightGradient}) {
            if (kind != ActionKind::Forward && !schedule_.trains) continue;
            if (kind == ActionKind::WeightGradient && !splits(stage, m)) continue;
            const Action compute{kind, stage, m, -1};
            if (Refusal refusal = lacks(compute)) return refusal;
            for (const int message : table_.inputs(compute)) {
              if (Refusal refusal = lacks(table_.receive(message))) return refusal;
            }
            for (const int message : table_.outputs(compute)) {
              if (Refusal refusal = lacks(table_.send(message))) return refusal;
              ++proof_.messages;
            }
          }
        }
      }
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (list[i].microbatch >= 0 && seen.contains({list[i].kind, list[i].stage, list[i].microbatch, list[i].peer})) {
          return place(rank, i) + " is not allowed in schedule \"" + plan_.schedule + "\"";
        }
      }
    }
    return std::nullopt;
  }

  /// On each rank, an action comes after the actions that produce its inputs.
  Refusal ordered() {
    for (int rank = 0; rank < to_int(lists_.size()); ++rank) {
      const auto& list = lists_[to_index(rank)];
      std::set<std::tuple<ActionKind, int, int, int>> done;
      const auto after = [&](std::size_t i, const Action& needed) -> Refusal {
        if (done.contains({needed.kind, needed.stage, needed.microbatch, needed.peer})) return std::nullopt;
        return place(rank, i) + " comes before " + action_text(needed) + ", which it needs";
      };
      for (std::size_t i = 0; i < list.size(); ++i) {
        const Action& a = list[i];
        for (const Action& needed : needs(a)) {
          if (Refusal refusal = after(i, needed)) return refusal;
        }
        if (a.microbatch >= 0) done.insert({a.kind, a.stage, a.microbatch, a.peer});
      }
    }
    return std::nullopt;
  }
  /// Actions of the same rank that must come before `a`.
  std::vector<Action> needs(const Action& a) const {
    const auto of = [&a](ActionKind kind, int stage) { return Action{kind, stage, a.microbatch, -1}; };
    std::vector<Action> out;
    if (const auto before = traits_of(a.kind).needs) out.push_back(of(*before, a.stage));
    for (const Passage& input : bound_.inputs(a))
      out.push_back(bound_.is_message(a, input) ? receive_of(a, input) : of(a.kind, input.peer));
    return out;
  }

  /// A rank computes with gathered parameters only, and holds few of them; the replicas of a position gather and reduce
  /// in one order.
  Refusal whole() {
    for (int rank = 0; rank < to_int(lists_.size()); ++rank) {
      const auto& list = lists_[to_index(rank)];
      std::set<int> held;
      std::set<int> updated;
      for (std::size_t i = 0; i < list.size(); ++i) {
        const Action& a = list[i];
        const bool gathers = bound_.gathers(a.stage);
        if (is_residence(a.kind) && !gathers) return place(rank, i) + ": the stage keeps its parameters whole";
        if (a.kind == ActionKind::Update) updated.insert(a.stage);
        if (a.kind == ActionKind::Gather) {
          if (updated.contains(a.stage)) return place(rank, i) + " comes after the update";
          if (!held.insert(a.stage).second) return place(rank, i) + ": the parameters are gathered already";
          if (to_int(held.size()) > kWholeStages)
            return place(rank, i) + ": " + std::to_string(kWholeStages) +
                   " other stages are gathered, the most allowed";
        } else if (a.kind == ActionKind::Free) {
          if (held.erase(a.stage) == 0) return place(rank, i) + ": the parameters are not gathered";
        } else if (gathers && is_compute(a.kind) && !held.contains(a.stage)) {
          return place(rank, i) + " comes before the parameters are gathered";
        }
      }
      if (!held.empty())
        return rank_text(rank) + " never frees the parameters of stage " + std::to_string(*held.begin());
      if (Refusal refusal = same_order(rank)) return refusal;
    }
    return std::nullopt;
  }
  /// Against replica 0 of the rank's position.
  Refusal same_order(int rank) {
    const int first = bound_.first_rank(roles_[to_index(rank)].stages.front());
    std::size_t other = 0;
    const auto& others = lists_[to_index(first)];
    const auto joins = [&](const Action& a) {
      return a.kind == ActionKind::Gather || (a.kind == ActionKind::Reduce && bound_.reduces_early(a.stage));
    };
    for (std::size_t i = 0; i < lists_[to_index(rank)].size(); ++i) {
      const Action& a = lists_[to_index(rank)][i];
      if (!joins(a)) continue;
      while (other < others.size() && !joins(others[other])) ++other;
      if (other == others.size()) return place(rank, i) + ": " + rank_text(first) + " has ended without it";
      if (others[other] != a) return place(rank, i) + " is " + place(first, other) + " there";
      ++other;
    }
    for (; other < others.size(); ++other) {
      if (joins(others[other])) return place(first, other) + ": " + rank_text(rank) + " ends without it";
    }
    return std::nullopt;
  }

  /// Every gradient goes into its Update, and every microbatch finds its parameters.
  Refusal applied() {
    if (!schedule_.trains) {
      for (int rank = 0; rank < to_int(lists_.size()); ++rank) {
        for (std::size_t i = 0; i < lists_[to_index(rank)].size(); ++i) {
          if (lists_[to_index(rank)][i].microbatch < 0)
            return place(rank, i) + " is not allowed in schedule \"" + plan_.schedule + "\"";
        }
      }
      return std::nullopt;
    }
    for (int rank = 0; rank < to_int(lists_.size()); ++rank) {
      for (const int stage : roles_[to_index(rank)].stages) {
        if (Refusal refusal = applied(rank, stage)) return refusal;
      }
    }
    return std::nullopt;
  }
  Refusal applied(int rank, int stage) {
    const auto& list = lists_[to_index(rank)];
    const int wanted = update_of(schedule_, shape_, stage, table_.microbatches() - 1) + 1;
    const auto number = [](int n) { return "update " + std::to_string(n); };
    int updates = 0;
    bool reduced = false;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Action& a = list[i];
      if (a.stage != stage) continue;
      if (a.kind == ActionKind::Reduce) {
        if (!bound_.reduces(stage)) return place(rank, i) + ": the stage has neither replicas nor tied parameters";
        if (reduced) return place(rank, i) + " appears twice before " + number(updates);
        reduced = true;
      } else if (a.kind == ActionKind::Update) {
        if (updates == wanted) return place(rank, i) + " exceeds the " + std::to_string(wanted) + " expected";
        if (bound_.reduces(stage) && !reduced) return place(rank, i) + ": missing reduce before " + number(updates);
        reduced = false;
        ++updates;
      } else if (is_compute(a.kind)) {
        const int due_update = update_of(schedule_, shape_, stage, a.microbatch);
        if (is_gradient(a) && (due_update != updates || reduced)) {
          return place(rank, i) + " belongs to " + number(due_update) + " but comes " +
                 (reduced ? "between the reduce and " + number(updates) : "before " + number(updates));
        }
        // A schedule with two versions keeps those of the last two updates.
        const bool early = schedule_.weights == Weights::StepBefore && updates < due_update - 1;
        const bool late = schedule_.weights != Weights::Newest && updates > due_update;
        if (early || late) {
          return place(rank, i) + " comes after " + count_text(to_index(updates), "update") + ", too " +
                 (early ? "few" : "many") + " for its step " + std::to_string(a.microbatch / plan_.microbatches);
        }
      }
    }
    if (updates == wanted) return std::nullopt;
    return rank_text(rank) + " lacks " + std::to_string(wanted - updates) + " of " +
           count_text(to_index(wanted), "update") + " of stage " + std::to_string(stage);
  }

  /// Both ends of each edge see the messages in the same order.
  Refusal edges() {
    // (boundary, gradient, from rank, to rank) -> microbatches as sent, as received.
    std::map<std::tuple<int, bool, int, int>, std::pair<std::vector<int>, std::vector<int>>> orders;
    for (const auto& list : lists_) {
      for (const Action& a : list) {
        if (!is_transfer(a.kind)) continue;
        const int message = table_.message(a);
        const Action send = table_.send(message);
        const Action receive = table_.receive(message);
        auto& order =
            orders[{*bound_.boundary(a.stage, a.peer), message % 2 == 1, bound_.runner(send.stage, send.microbatch),
                    bound_.runner(receive.stage, receive.microbatch)}];
        (a == send ? order.first : order.second).push_back(a.microbatch);
      }
    }
    for (const auto& [edge, order] : orders) {
      const auto [sent, received] =
          std::mismatch(order.first.begin(), order.first.end(), order.second.begin(), order.second.end());
      if (sent == order.first.end()) continue;
      const auto& [boundary, gradient, from, to] = edge;
      const Action send = table_.send(table_.message(boundary, gradient, *sent));
      const Action receive = table_.receive(table_.message(boundary, gradient, *received));
      return "on the edge from " + rank_text(from) + " to " + rank_text(to) + " message " +
             std::to_string(sent - order.first.begin() + 1) + " is " + action_text(send) + " at one end and " +
             action_text(receive) + " at the other";
    }
    return std::nullopt;
  }

  Refusal ending() { return find_deadlock(table_, lists_, options_.queues, groups_); }

  /// Microbatches and versions are within the schedule's bounds.
  Refusal bounded() {
    for (int rank = 0; rank < to_int(lists_.size()); ++rank) {
      RankProof& proof = proof_.ranks[to_index(rank)];
      const int position = bound_.position_of(roles_[to_index(rank)].stages.front());
      proof.in_flight_bound = schedule_.in_flight_bound(shape_, position);
      proof.versions_bound = weight_versions_bound(schedule_, shape_, position);
      std::map<std::pair<int, int>, int> versions_in_flight;  // (stage, microbatch) -> version
      int updates = 0;
      for (const Action& a : lists_[to_index(rank)]) {
        if (a.kind == ActionKind::Forward) {
          const int before = update_of(schedule_, shape_, a.stage, a.microbatch) - 1;
          versions_in_flight[{a.stage, a.microbatch}] =
              schedule_.weights == Weights::StepBefore ? std::max(before, 0) : updates;
          proof.in_flight = std::max(proof.in_flight, to_int(versions_in_flight.size()));
        }
        if (is_gradient(a) || !schedule_.trains) versions_in_flight.erase({a.stage, a.microbatch});
        if (a.kind == ActionKind::Update) ++updates;
        if (schedule_.weights == Weights::Flushed) continue;
        std::set<int> versions{updates};
        for (const auto& [microbatch, version] : versions_in_flight) versions.insert(version);
        proof.versions = std::max(proof.versions, to_int(versions.size()));
      }
      if (proof.in_flight > proof.in_flight_bound) {
        return rank_text(rank) + " holds " + std::to_string(proof.in_flight) + " microbatches at once, schedule \"" +
               plan_.schedule + "\" allows " + std::to_string(proof.in_flight_bound);
      }
      if (proof.versions > proof.versions_bound) {
        return rank_text(rank) + " holds " + std::to_string(proof.versions) + " weight versions at once, schedule \"" +
               plan_.schedule + "\" allows " + std::to_string(proof.versions_bound);
      }
    }
    return std::nullopt;
  }

  const BoundPlan& bound_;
  const Plan& plan_;
  const std::vector<std::vector<Action>>& lists_;
  const VerifyOptions& options_;
  const ScheduleEntry& schedule_;
  const PipelineShape shape_;
  const std::vector<RankRole>& roles_;
  MessageTable table_;
  const std::vector<int>& groups_;
  std::set<std::pair<int, int>> split_;  // (stage, microbatch), if the schedule does not split all backwards
  Verified proof_;
};

}  // namespace

namespace {

/// Proves all, for the parameters of the graph or, without a graph, for those that the plan lists.
std::variant<Verified, Infeasible> verify_lists(const BoundPlan& plan, const std::vector<std::vector<Action>>& lists,
                                                const std::optional<HeldParameters>& held,
                                                const VerifyOptions& options) {
  auto result = Verifier(plan, lists, options).run();
  if (!std::holds_alternative<Verified>(result) || !held || !plan.schedule().trains) return result;
  if (options.progress) options.progress("every gradient is summed by its holders");
  if (auto wrong = wrong_sum(plan, *held, gradient_sums(plan, *held), lists))
    return Infeasible{std::move(*wrong), ErrorKind::Unprovable};
  return result;
}

}  // namespace

std::variant<Verified, Infeasible> verify(const BoundPlan& plan, const std::vector<std::vector<Action>>& lists,
                                          const VerifyOptions& options) {
  return verify_lists(plan, lists, held_parameters(plan.plan()), options);
}

std::variant<Verified, Infeasible> verify(const BoundPlan& plan, const std::vector<std::vector<Action>>& lists,
                                          const Graph& graph, const Topology& topology, const VerifyOptions& options) {
  auto result = verify_lists(plan, lists, held_parameters(graph, plan.plan()), options);
  auto* const proof = std::get_if<Verified>(&result);
  if (!proof) return result;
  if (options.progress) options.progress("memory of every rank");
  const std::vector<MemoryReplay> needs = replay_memory(graph, topology, plan, lists);
  std::size_t neediest = 0;
  for (std::size_t rank = 0; rank < needs.size(); ++rank) {
    const Bytes peak = needs[rank].peak.total;
    proof->ranks[rank].peak = peak;
    const std::optional<Bytes>& memory = device_at(topology, plan.ranks()[rank].device).memory;
    if (memory && needs[rank].bound > *memory) {
      return Infeasible{rank_text(to_int(rank)) + " needs up to " + format_bytes(needs[rank].bound) +
                            ", its device has " + format_bytes(*memory),
                        ErrorKind::DoesNotFit};
    }
    if (peak > *proof->ranks[neediest].peak) neediest = rank;
  }
  const std::optional<Bytes>& memory = device_at(topology, plan.ranks()[neediest].device).memory;
  proof->summary += ", at most " + format_bytes(*proof->ranks[neediest].peak) +
                    (memory ? " of its " + format_bytes(*memory) : std::string());
  return result;
}

}  // namespace stagecraft

#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/plan.h"
#include "costmodel/schedule.h"

namespace stagecraft {

/// One rank: replica `replica` of the stages `stages` (one, unless chunks > 1), on `device`.
struct RankRole {
  int device = 0;
  int replica = 0;
  std::vector<int> stages;
};

/// Steps that show an asynchronous schedule's steady state: the pipeline has long been full as step `first` ends, and
/// is not yet emptied as step `last` ends; between them every replica runs equally often. {0, 0, 1} for a synchronous
/// schedule.
struct StepWindow {
  int first = 0;
  int last = 0;
  int steps = 1;  ///< to replay
};

/// The stages that a boundary joins, and whether anything comes back over it.
struct BoundaryEnds {
  int source = 0;
  int destination = 0;
  bool gradient = false;
};

/// What a Forward or Backward gets or gives over a boundary of the plan.
struct Passage {
  int boundary = 0;
  int peer = 0;  ///< the stage at the other end
  bool gradient = false;
};

/// The transfers with which a Forward or Backward on another rank than the peer's gets or gives it.
[[nodiscard]] constexpr Action receive_of(const Action& consumer, const Passage& passage) {
  return {passage.gradient ? ActionKind::ReceiveGradient : ActionKind::ReceiveActivation, consumer.stage,
          consumer.microbatch, passage.peer};
}
[[nodiscard]] constexpr Action send_of(const Action& producer, const Passage& passage) {
  return {passage.gradient ? ActionKind::SendGradient : ActionKind::SendActivation, producer.stage, producer.microbatch,
          passage.peer};
}
/// The Forward or Backward whose result a send carries.
[[nodiscard]] constexpr Action producer_of(const Action& send) {
  return {*traits_of(send.kind).needs, send.stage, send.microbatch, -1};
}

/// A tied parameter of a plan, and its stages and ranks.
struct TiedHolders {
  std::string parameter;
  int tag = 0;              ///< its index in Plan::tied: the same number on every rank
  std::vector<int> stages;  ///< ascending, each once; a single one if all its layers are in one stage
  std::vector<int> ranks;   ///< all replicas of these stages, ascending, each once
  friend bool operator==(const TiedHolders&, const TiedHolders&) = default;
};

// Bindings that need no plan, for searches that go through many splits. BoundPlan uses them too.

/// The rank of each stage's replica 0: ranks are numbered position by position, replica by replica. `replicas`: of each
/// stage; those of a position's first stage count. `positions` divides their number.
[[nodiscard]] std::vector<int> first_ranks(const std::vector<int>& replicas, int positions, Placement placement);

/// The rank that runs `microbatch` of a stage with these ranks.
[[nodiscard]] constexpr int runner_of(int first_rank, int replicas, int microbatch) {
  return first_rank + replica_of(microbatch, replicas);
}

/// The computation of each rank, by its number: see ScheduleEntry::compute_actions.
[[nodiscard]] std::vector<std::vector<Action>> compute_lists(const ScheduleEntry& schedule, const PipelineShape& shape);

/// The groups of `stages` stages that share no parameter: see BoundPlan::reduce_groups.
[[nodiscard]] std::vector<int> separate_reduce_groups(int stages);

/// Joins the groups of all stages that hold one parameter; there is at least one.
void join_reduce_groups(std::vector<int>& groups, const std::set<int>& holders);

/// A valid plan with everything derived from it. Code that predicts, verifies, runs or exports a plan uses it instead
/// of deriving this again. Stage, rank and boundary numbers that are passed in must exist.
class BoundPlan {
 public:
  /// Throws std::invalid_argument as validate(plan).
  explicit BoundPlan(Plan plan);

  [[nodiscard]] const Plan& plan() const { return plan_; }
  /// As schedule_of.
  [[nodiscard]] const ScheduleEntry& schedule() const { return schedule_; }
  /// Whether the schedule is asynchronous: its lists cover several steps and are replayed once.
  [[nodiscard]] bool asynchronous() const { return schedule_.weights != Weights::Flushed; }
  /// The shape for the schedule's functions, with lists of `steps` steps. It refers to the plan's `listed`: valid until
  /// this object moves or ends.
  [[nodiscard]] PipelineShape shape(int steps = 1) const;

  [[nodiscard]] int stages() const { return to_int(replicas_.size()); }
  /// Number of pipeline positions, whose ranks run one stage or, with chunks, several.
  [[nodiscard]] int positions() const { return stages() / plan_.chunks; }
  /// The position whose ranks run the stage.
  [[nodiscard]] int position_of(int stage) const {
    return stagecraft::position_of(stage, positions(), schedule_.placement);
  }
  /// The stages of a position, ascending: one, unless chunks > 1.
  [[nodiscard]] const std::vector<int>& stages_at(int position) const {
    return ranks_[to_index(first_rank(position))].stages;
  }
  /// The stage of the layer with this id; absent for an input and any other layer that is not in the plan.
  [[nodiscard]] std::optional<int> stage_of(const std::string& layer) const;
  [[nodiscard]] int replicas(int stage) const { return replicas_[to_index(stage)]; }

  /// The ranks by number: for each pipeline position in order, its replicas in order.
  [[nodiscard]] const std::vector<RankRole>& ranks() const { return ranks_; }
  /// Rank of the stage's replica 0; the other replicas have the next ranks.
  [[nodiscard]] int first_rank(int stage) const { return first_rank_[to_index(stage)]; }
  /// The stage's ranks, by replica.
  [[nodiscard]] std::vector<int> ranks_of(int stage) const;
  /// The devices of these ranks, ascending.
  [[nodiscard]] std::vector<int> devices_of(const std::vector<int>& ranks) const;
  /// The replica of `stage` that runs `microbatch`. With an asynchronous schedule, microbatch numbers continue from
  /// step to step, see ScheduleEntry.
  [[nodiscard]] int replica_of(int stage, int microbatch) const {
    return stagecraft::replica_of(microbatch, replicas(stage));
  }
  /// The rank that runs `microbatch` of `stage`.
  [[nodiscard]] int runner(int stage, int microbatch) const {
    return runner_of(first_rank(stage), replicas(stage), microbatch);
  }
  /// Of the `count` microbatches from `first` on, those that `rank` runs of `stage`, ascending.
  [[nodiscard]] std::vector<int> microbatches_of(int stage, int rank, int count, int first = 0) const;

  /// Index in Plan::boundaries of the boundary between two stages, in either order; absent if there is none.
  [[nodiscard]] std::optional<int> boundary(int stage, int peer) const {
    for (const int b : stage < peer ? outgoing(stage) : incoming(stage)) {
      if ((stage < peer ? ends(b).destination : ends(b).source) == peer) return b;
    }
    return std::nullopt;
  }
  /// The ends of a boundary of the plan.
  [[nodiscard]] const BoundaryEnds& ends(int boundary) const { return ends_[to_index(boundary)]; }
  /// Indices of the boundaries into the stage, in the plan's order.
  [[nodiscard]] const std::vector<int>& incoming(int stage) const { return incoming_[to_index(stage)]; }
  /// Indices of the boundaries out of the stage, in the plan's order.
  [[nodiscard]] const std::vector<int>& outgoing(int stage) const { return outgoing_[to_index(stage)]; }
  /// What a Forward or Backward needs before it begins, in the plan's order: activations over the boundaries into its
  /// stage, or gradients over those out of it over which any come back. Nothing for other actions.
  [[nodiscard]] const std::vector<Passage>& inputs(const Action& action) const { return passages(inputs_, action); }
  /// What a Forward or Backward makes for other stages, in the plan's order. Nothing for other actions.
  [[nodiscard]] const std::vector<Passage>& outputs(const Action& action) const { return passages(outputs_, action); }
  /// Whether a passage of the action is a message: the other stage's microbatch runs on another rank.
  [[nodiscard]] bool is_message(const Action& compute, const Passage& passage) const {
    return runner(passage.peer, compute.microbatch) != runner(compute.stage, compute.microbatch);
  }
  /// Whether any gradient comes back over the boundary.
  [[nodiscard]] bool has_gradient(int boundary) const { return ends(boundary).gradient; }
  /// Number of message tags.
  [[nodiscard]] int tags() const { return tags_; }
  /// Tag, from 0 to tags(), for tensor `tensor` over a boundary in one direction; `gradient`: back.
  [[nodiscard]] int tag(int boundary, std::size_t tensor, bool gradient) const {
    return first_tag_[to_index(boundary)] + 2 * to_int(tensor) + (gradient ? 1 : 0);
  }

  /// In the order of Plan::tied.
  [[nodiscard]] const std::vector<TiedHolders>& tied() const { return tied_; }
  /// Indices in tied() of the stage's parameters that other stages or replicas hold too, ascending. Their gradients are
  /// summed one parameter after the other, each over its own TiedHolders::ranks.
  [[nodiscard]] const std::vector<int>& shared(int stage) const { return shared_[to_index(stage)]; }
  /// A number for each stage, the same for stages that share a tied parameter, directly or through others: the lowest
  /// stage number among them. Their Reduces wait for each other; who sums what is up to shared().
  [[nodiscard]] const std::vector<int>& reduce_groups() const { return reduce_groups_; }
  /// Whether the stage sums gradients with other ranks: with its replicas, or for tied parameters with other stages.
  [[nodiscard]] bool reduces(int stage) const { return replicas(stage) > 1 || !shared(stage).empty(); }
  /// Whether its ranks gather its parameters before they use them: those that it does not share.
  [[nodiscard]] bool gathers(int stage) const;
  /// Whether it sums its gradients right after its last backward of a step, to keep a part of them only. A stage that
  /// shares a parameter does so at the end of the step.
  [[nodiscard]] bool reduces_early(int stage) const;

  /// The full action list of each rank: the schedule's compute actions with receives placed at most `prefetch`
  /// microbatches ahead of their consumer on each directed edge (at least 1, which is just before it), sends right
  /// after their producer, and Update of each stage, with Reduce before it where the stage reduces: of a synchronous
  /// schedule once, at the end, of an asynchronous one where the schedule puts the Update; none where nothing is
  /// trained. Schedule "listed": if any list holds a transfer, all transfers are where the lists say, else they are
  /// placed as above; a Reduce is where a list says, is dropped where none is needed and added at the end where one is
  /// missing.
  /// `steps`: how many steps the lists cover. Those of a synchronous schedule cover 1 step and every step replays them;
  /// those of an asynchronous one are replayed once, see ScheduleEntry for their microbatch numbers and parameters.
  /// Throws std::invalid_argument for other steps.
  [[nodiscard]] std::vector<std::vector<Action>> action_lists(int steps = 1, int prefetch = 2) const;
  [[nodiscard]] StepWindow step_window() const;

 private:
  /// By stage: of its Forward and of its Backward.
  using StagePassages = std::vector<std::array<std::vector<Passage>, 2>>;
  [[nodiscard]] static const std::vector<Passage>& passages(const StagePassages& all, const Action& action) {
    static const std::vector<Passage> none;
    if (action.kind != ActionKind::Forward && action.kind != ActionKind::Backward) return none;
    return all[to_index(action.stage)][action.kind == ActionKind::Backward ? 1 : 0];
  }
  void bind_ranks();
  void bind_boundaries();
  void bind_tied();

  Plan plan_;
  ScheduleEntry schedule_;
  std::vector<RankRole> ranks_;
  std::vector<int> replicas_, first_rank_;             // by stage
  std::unordered_map<std::string, int> stage_of_;      // by layer
  std::vector<std::vector<int>> incoming_, outgoing_;  // by stage
  StagePassages inputs_, outputs_;
  std::vector<BoundaryEnds> ends_;  // by boundary
  std::vector<int> first_tag_;      // by boundary
  int tags_ = 0;
  std::vector<TiedHolders> tied_;
  std::vector<std::vector<int>> shared_;  // by stage
  std::vector<int> reduce_groups_;        // by stage
};

/// A value that a stage beyond the next one reads.
struct FarReader {
  std::string layer;  ///< that produces it
  int stage = 0;      ///< the layer's
  int reader = 0;     ///< stage
};

/// The first value that crosses more than one stage; absent if every stage reads only the one before it.
[[nodiscard]] std::optional<FarReader> far_reader(const BoundPlan& plan);

/// Throws std::invalid_argument as validate(plan, graph, topology).
void validate(const BoundPlan& plan, const Graph& graph, const Topology& topology);

}  // namespace stagecraft

#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stagecraft {

/// A rank's actions. Backward is the whole backward, unless the schedule splits it: then it is the gradient of the
/// inputs, and WeightGradient follows.
enum class ActionKind {
  Forward,
  Backward,
  WeightGradient,
  SendActivation,
  ReceiveActivation,
  SendGradient,
  ReceiveGradient,
  Gather,
  Free,
  Reduce,
  Update,
};

/// Whether it is a Forward, Backward or WeightGradient.
[[nodiscard]] constexpr bool is_compute(ActionKind kind) { return kind <= ActionKind::WeightGradient; }
[[nodiscard]] constexpr bool is_send(ActionKind kind) {
  return kind == ActionKind::SendActivation || kind == ActionKind::SendGradient;
}
[[nodiscard]] constexpr bool is_receive(ActionKind kind) {
  return kind == ActionKind::ReceiveActivation || kind == ActionKind::ReceiveGradient;
}
[[nodiscard]] constexpr bool is_transfer(ActionKind kind) { return is_send(kind) || is_receive(kind); }
/// Whether a transfer is of gradients.
[[nodiscard]] constexpr bool carries_gradient(ActionKind kind) {
  return kind == ActionKind::SendGradient || kind == ActionKind::ReceiveGradient;
}

/// Whether it is a Gather or a Free.
[[nodiscard]] constexpr bool is_residence(ActionKind kind) {
  return kind == ActionKind::Gather || kind == ActionKind::Free;
}

/// How tables and pictures show an action: one colour and one sign for each.
enum class ActionLook { Forward, Backward, WeightGradient, Reduce, Update, Wait, Hidden };

/// What a kind of action is.
struct ActionTraits {
  ActionKind kind = ActionKind::Forward;
  const char* word = "";   ///< in files and messages
  const char* cell = "";   ///< in the notation of torch.distributed.pipelining
  bool microbatch = true;  ///< it belongs to one microbatch, otherwise to an update
  int peer = 0;            ///< of a transfer between adjacent stages: the other stage minus its own
  ActionLook look = ActionLook::Hidden;
  /// What must have run before, of the same stage and microbatch on the same rank.
  std::optional<ActionKind> needs = {};
};

/// All kinds, in the order of ActionKind.
inline constexpr std::array<ActionTraits, 11> kActions{{
    {ActionKind::Forward, "forward", "F", true, 0, ActionLook::Forward},
    {ActionKind::Backward, "backward", "B", true, 0, ActionLook::Backward, ActionKind::Forward},
    {ActionKind::WeightGradient, "weight-gradient", "W", true, 0, ActionLook::WeightGradient, ActionKind::Backward},
    {ActionKind::SendActivation, "send-activation", "SEND_F", true, 1, ActionLook::Hidden, ActionKind::Forward},
    {ActionKind::ReceiveActivation, "receive-activation", "RECV_F", true, -1, ActionLook::Wait},
    {ActionKind::SendGradient, "send-gradient", "SEND_B", true, -1, ActionLook::Hidden, ActionKind::Backward},
    {ActionKind::ReceiveGradient, "receive-gradient", "RECV_B", true, 1, ActionLook::Wait},
    {ActionKind::Gather, "gather", "UNSHARD", false, 0, ActionLook::Wait},
    {ActionKind::Free, "free", "RESHARD", false, 0, ActionLook::Hidden},
    {ActionKind::Reduce, "reduce", "REDUCE_GRAD", false, 0, ActionLook::Reduce},
    {ActionKind::Update, "update", "UPDATE", false, 0, ActionLook::Update},
}};
[[nodiscard]] constexpr const ActionTraits& traits_of(ActionKind kind) {
  return kActions[static_cast<std::size_t>(kind)];
}

/// "forward", "backward", "weight-gradient", "send-activation", ...; the name in files and messages.
[[nodiscard]] const char* to_string(ActionKind kind);
/// The inverse. Throws std::invalid_argument listing the names.
[[nodiscard]] ActionKind action_kind(const std::string& word);

/// One entry of a rank's list. `peer` is the other stage of a transfer, -1 otherwise; the peer's replica follows from
/// the microbatch. `microbatch` is -1 for Gather, Free, Reduce and Update. A Receive only posts: the compute action
/// that needs its data waits for it. A Send only enqueues, on the lane of its directed edge. A Gather only begins to
/// gather the stage's parameters from its replicas: the next compute action of the stage waits for them. Free releases
/// them.
struct Action {
  ActionKind kind = ActionKind::Forward;
  int stage = 0;
  int microbatch = -1;
  int peer = -1;
  friend bool operator==(const Action&, const Action&) = default;
};

/// The action at the other end of a transfer: the receive of a send, and the send of a receive.
[[nodiscard]] Action other_end(const Action& transfer);

/// The action in the notation of torch.distributed.pipelining, stage first: "1F0", "1B0", "1W0", "1SEND_F0",
/// "1RECV_F0", "1SEND_B0", "1RECV_B0", "1UNSHARD", "1RESHARD", "1REDUCE_GRAD"; and "1UPDATE". A peer that is not
/// adjacent follows: "0SEND_F3 to stage 2".
[[nodiscard]] std::string action_text(const Action& action);

/// The most microbatches that a step of a plan can have.
inline constexpr int kMostMicrobatches = 1 << 20;

/// Which stages a pipeline position has, of p positions.
enum class Placement {
  Loop,  ///< position d has the stages d, d + p, d + 2 p, ...
  V,     ///< position d has the stages d and 2 p - 1 - d
};

/// The input of a schedule. There are `positions = stages / chunks` pipeline positions, each with `chunks` stages.
struct PipelineShape {
  int stages = 1;
  int microbatches = 1;
  int chunks = 1;
  int steps = 1;                                ///< covered by the lists of an asynchronous schedule
  std::vector<int> replicas;                    ///< one number per stage
  std::vector<int> warmups;                     ///< see warmup_counts; one number per stage
  std::span<const std::vector<Action>> listed;  ///< for schedule "listed", one per rank
};

/// The replica that runs `microbatch` of a stage with `replicas` replicas: they take turns.
[[nodiscard]] constexpr int replica_of(int microbatch, int replicas) { return microbatch % replicas; }

/// The pipeline position of a stage, one of `positions`.
[[nodiscard]] constexpr int position_of(int stage, int positions, Placement placement) {
  const int place = stage % positions;
  return placement == Placement::V && stage / positions % 2 == 1 ? positions - 1 - place : place;
}
/// Its stages, ascending, of `stages` in all.
[[nodiscard]] std::vector<int> stages_at(int position, int stages, int positions, Placement placement);
/// How lists place the stages that they contain: V if one of them has the first stage and the last, and no other.
[[nodiscard]] Placement placement_of(std::span<const std::vector<Action>> lists);

/// Microbatches that replica `replica` of a stage with `replicas` replicas runs: those for which it is the replica_of.
[[nodiscard]] std::vector<int> own_microbatches(int microbatches, int replicas, int replica);

/// Forwards that each stage runs before its first backward under 1F1B:
/// w_s = ceil(((w_(s+1) + 1) r_(s+1) + 2 hop / period) / r_s), w = 0 at the last stage. The one rule that simulator,
/// memory model and executor share. `hop_over_period` is the transfer time of a hop over the slowest stage's period,
/// 0 if transfers should not add warm-up. With r = 1 and 0, w_s is S-1-s. Throws std::invalid_argument for a replica
/// count below 1. Source: derived; PipeDream's ceil(sum of later replicas / r_s) starves uneven replicas.
[[nodiscard]] std::vector<int> warmup_counts(const std::vector<int>& replicas, double hop_over_period = 0);

/// Which version of the parameters a microbatch uses, in forward and backward alike.
enum class Weights {
  Flushed,     ///< those after the previous step; a step ends before the next begins: one version
  Newest,      ///< the newest at its forward: a version for each microbatch in flight
  StepBefore,  ///< in step t those after the Update of step t - 2, in steps 0 and 1 the initial ones: two versions
};

/// A schedule. If `weights` is Flushed it is synchronous: its lists are those of one step, and every step replays them.
/// Else it is asynchronous: steps overlap and the lists cover `PipelineShape::steps` of them, after which the pipeline
/// is empty. Microbatch numbers then continue: microbatch m of step t is t * microbatches + m, and runs on replica (t *
/// microbatches + m) % replicas.
struct ScheduleEntry {
  std::string name;
  std::string help = {};  ///< the order of work, for --help and docs/planning.md
  /// Forward, Backward and WeightGradient of replica `replica` at `position`, in order. With an asynchronous schedule
  /// also Update: it applies the mean of the gradients that all replicas of the stage computed since their last Update,
  /// to the newest parameters. Every replica has the same number of Updates; a replica may have computed no gradient
  /// for its last.
  std::function<std::vector<Action>(const PipelineShape&, int position, int replica)> compute_actions;
  /// Largest number of microbatches that a rank at `position` holds at once, over all its stages.
  std::function<int(const PipelineShape&, int position)> in_flight_bound;
  bool equal_replicas = false;  ///< all positions need the same number of replicas
  bool chunked = false;         ///< runs several stages per rank; with Placement::V two, else also one
  Placement placement = Placement::Loop;
  bool splits_backward = false;  ///< emits WeightGradient
  bool mixes_backwards = false;  ///< no WeightGradient follows some backwards: these are whole
  bool trains = true;            ///< has backwards and updates
  Weights weights = Weights::Flushed;
  /// Every list is PipelineShape::warmups forwards, then a forward and a backward in turn, then the remaining
  /// backwards, and nothing else. So backward i of a replica comes before its forward i + warmups + 1, and the replica
  /// holds at most warmups + 1 microbatches, as lower bounds of the step assume.
  bool alternates = false;
  bool needs_lists = false;  ///< runs PipelineShape::listed, so that users cannot choose it by name alone
  /// Throws std::invalid_argument for a shape that it cannot run although the fields above allow it; may be empty.
  std::function<void(const PipelineShape&)> check = nullptr;
};

/// Largest number of parameter versions that a rank at `position` holds at once, including the newest.
[[nodiscard]] int weight_versions_bound(const ScheduleEntry& schedule, const PipelineShape& shape, int position);

/// Number of the Update, from 0, that applies the gradient of `microbatch` of `stage`.
[[nodiscard]] int update_of(const ScheduleEntry& schedule, const PipelineShape& shape, int stage, int microbatch);

/// All schedules; `help` says what each is. In pipedream, the gradients of a round are late by the microbatches in
/// flight; pipedream-2bw needs microbatches >= (w_s + 1) r_s at every stage.
[[nodiscard]] const std::vector<ScheduleEntry>& schedules();
/// The schedule called `name`. Throws std::invalid_argument listing the names.
[[nodiscard]] const ScheduleEntry& schedule_by_name(const std::string& name);
/// Whether the schedule runs so many stages per rank.
[[nodiscard]] bool runs_chunks(const ScheduleEntry& schedule, int chunks);
/// The fewest that it runs.
[[nodiscard]] int least_chunks(const ScheduleEntry& schedule);
/// The first schedule that runs several stages per rank, which messages suggest.
[[nodiscard]] const ScheduleEntry& chunked_schedule();
/// Throws std::invalid_argument if `schedule` cannot run `shape`, and names what it can run.
void check_shape(const ScheduleEntry& schedule, const PipelineShape& shape);

}  // namespace stagecraft

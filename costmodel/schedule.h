#pragma once

#include <functional>
#include <string>
#include <vector>

namespace stagecraft {

/// What a rank can do. Backward is the whole backward where the schedule does not part it; otherwise it is the
/// gradient of the inputs and WeightGradient follows.
enum class ActionKind {
  Forward,
  Backward,
  WeightGradient,
  SendActivation,
  ReceiveActivation,
  SendGradient,
  ReceiveGradient,
  Reduce,
  Update,
};

/// "forward", "backward", "weight-gradient", "send-activation", ...; the word used in files and messages.
[[nodiscard]] const char* to_string(ActionKind kind);
/// The inverse. Throws std::invalid_argument listing the words.
[[nodiscard]] ActionKind action_kind(const std::string& word);

/// One entry of a rank's list. `peer` is the other stage of a transfer, -1 otherwise; the peer's replica follows from
/// the microbatch. `microbatch` is -1 for Reduce and Update. A Receive only posts: the compute action that needs its
/// data waits for it. A Send only enqueues, on the lane of its directed edge.
struct Action {
  ActionKind kind = ActionKind::Forward;
  int stage = 0;
  int microbatch = -1;
  int peer = -1;
  friend bool operator==(const Action&, const Action&) = default;
};

/// What a schedule needs to know of a pipeline. Stage s runs on `positions = stages / chunks` ranks' columns:
/// position d holds stages d, d + positions, d + 2 positions, ... (chunks > 1 is interleaving).
struct PipelineShape {
  int stages = 1;
  int microbatches = 1;
  int chunks = 1;
  std::vector<int> replicas;  ///< one number a stage; all 1 where a schedule does not know replicas
  std::vector<int> warmups;   ///< see warmup_counts; one number a stage
};

/// Microbatches that replica `replica` of a stage with `replicas` replicas runs: those with m mod replicas == replica.
[[nodiscard]] std::vector<int> own_microbatches(int microbatches, int replicas, int replica);

/// Forwards that each stage runs before its first backward under 1F1B:
/// w_s = ceil(((w_(s+1) + 1) r_(s+1) + 2 hop / period) / r_s), w = 0 at the last stage. The one rule that simulator,
/// memory model and executor share. `hop_over_period` is the transfer time of a hop over the slowest stage's period,
/// 0 where transfers are not to buy more warm-up. For r = 1 and 0 it gives S-1-s. Throws std::invalid_argument for a
/// replica count below 1. Source: derived; PipeDream's ceil(sum of later replicas / r_s) starves uneven replicas.
[[nodiscard]] std::vector<int> warmup_counts(const std::vector<int>& replicas, double hop_over_period = 0);

/// A schedule: the compute actions (Forward, Backward, WeightGradient) of replica `replica` at `position`, in order.
struct ScheduleEntry {
  std::string name;
  bool replicated = false;       ///< knows replicas
  bool chunked = false;          ///< runs several stages on a rank
  bool splits_backward = false;  ///< emits WeightGradient
  std::function<std::vector<Action>(const PipelineShape&, int position, int replica)> compute_actions;
};

/// All schedules: "gpipe", "1f1b", "interleaved-1f1b", "zb-h1".
[[nodiscard]] const std::vector<ScheduleEntry>& schedules();
/// The one called `name`. Throws std::invalid_argument listing the names.
[[nodiscard]] const ScheduleEntry& schedule_by_name(const std::string& name);
/// Throws std::invalid_argument if `schedule` cannot run `shape`, saying what it can.
void check_shape(const ScheduleEntry& schedule, const PipelineShape& shape);

}  // namespace stagecraft

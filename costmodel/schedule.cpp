#include "costmodel/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"

namespace stagecraft {
namespace {

/// What an action is called: in files and messages, and in torch's cells.
struct Word {
  ActionKind kind;
  const char* word;
  const char* cell;
};
constexpr std::array<Word, 9> kWords{{
    {ActionKind::Forward, "forward", "F"},
    {ActionKind::Backward, "backward", "B"},
    {ActionKind::WeightGradient, "weight-gradient", "W"},
    {ActionKind::SendActivation, "send-activation", "SEND_F"},
    {ActionKind::ReceiveActivation, "receive-activation", "RECV_F"},
    {ActionKind::SendGradient, "send-gradient", "SEND_B"},
    {ActionKind::ReceiveGradient, "receive-gradient", "RECV_B"},
    {ActionKind::Reduce, "reduce", "REDUCE_GRAD"},
    {ActionKind::Update, "update", "UPDATE"},
}};

Action compute(ActionKind kind, int stage, int microbatch) { return {kind, stage, microbatch, -1}; }

int replicas_of(const PipelineShape& shape, int stage) {
  return shape.replicas.empty() ? 1 : shape.replicas[static_cast<std::size_t>(stage)];
}

int all_microbatches(const PipelineShape& shape) { return shape.microbatches * shape.steps; }

std::vector<int> own_of(const PipelineShape& shape, int stage, int replica) {
  return own_microbatches(all_microbatches(shape), replicas_of(shape, stage), replica);
}

/// Microbatches of the stage's first replica, which has the most.
int most_own(const PipelineShape& shape, int stage) {
  const int replicas = replicas_of(shape, stage);
  return (all_microbatches(shape) + replicas - 1) / replicas;
}

std::vector<Action> forward_only(const PipelineShape& shape, int position, int replica) {
  std::vector<Action> out;
  for (const int m : own_of(shape, position, replica)) out.push_back(compute(ActionKind::Forward, position, m));
  return out;
}

std::vector<Action> gpipe(const PipelineShape& shape, int position, int replica) {
  const std::vector<int> own = own_of(shape, position, replica);
  std::vector<Action> out;
  for (const int m : own) out.push_back(compute(ActionKind::Forward, position, m));
  for (const int m : own) out.push_back(compute(ActionKind::Backward, position, m));
  return out;
}

std::vector<Action> one_forward_one_backward(const PipelineShape& shape, int position, int replica) {
  const std::vector<int> own = own_of(shape, position, replica);
  const std::size_t warmup =
      std::min(own.size(), static_cast<std::size_t>(shape.warmups[static_cast<std::size_t>(position)]));
  std::vector<Action> out;
  for (std::size_t i = 0; i < own.size() + warmup; ++i) {
    if (i < own.size()) out.push_back(compute(ActionKind::Forward, position, own[i]));
    if (i >= warmup) out.push_back(compute(ActionKind::Backward, position, own[i - warmup]));
  }
  return out;
}

/// 1F1B over the microbatches of all steps, with the Updates that `update_of` says.
std::vector<Action> without_flush(const ScheduleEntry& schedule, const PipelineShape& shape, int position,
                                  int replica) {
  std::vector<Action> out;
  int updates = 0;
  const auto update_up_to = [&](int number) {
    for (; updates < number; ++updates) out.push_back({ActionKind::Update, position, -1, -1});
  };
  const int replicas = replicas_of(shape, position);
  const int last = update_of(schedule, shape, position, all_microbatches(shape) - 1);
  for (const Action& action : one_forward_one_backward(shape, position, replica)) {
    out.push_back(action);
    if (action.kind != ActionKind::Backward) continue;
    // An Update stands as early as it can, right after the last gradient that goes into it.
    const int next = action.microbatch + replicas;
    update_up_to(next < all_microbatches(shape) ? update_of(schedule, shape, position, next) : last + 1);
  }
  update_up_to(last + 1);
  return out;
}

int warmup_and_one(const PipelineShape& shape, int position) {
  return std::min(most_own(shape, position), shape.warmups[static_cast<std::size_t>(position)] + 1);
}

int interleaved_warmup(const PipelineShape& shape, int position) {
  const int p = shape.stages / shape.chunks;
  const int total = shape.microbatches * shape.chunks;
  return shape.microbatches == p ? total : std::min(2 * (p - position - 1) + (shape.chunks - 1) * p, total);
}

/// Groups of p microbatches go through a rank's v chunks in turn.
/// Source: Narayanan et al., SC 2021, and Megatron-LM's warm-up count.
std::vector<Action> interleaved(const PipelineShape& shape, int position, int /*replica*/) {
  const int v = shape.chunks;
  const int p = shape.stages / v;
  const int total = shape.microbatches * v;
  const int warmup = interleaved_warmup(shape, position);
  const auto action = [&](ActionKind kind, int k) {
    const int g = k % (p * v);
    const int chunk = kind == ActionKind::Forward ? g / p : v - 1 - g / p;
    return compute(kind, chunk * p + position, k / (p * v) * p + g % p);
  };
  std::vector<Action> out;
  for (int k = 0; k < total + warmup; ++k) {
    if (k < total) out.push_back(action(ActionKind::Forward, k));
    if (k >= warmup) out.push_back(action(ActionKind::Backward, k - warmup));
  }
  return out;
}

/// Weight gradients wait while at most `position` of them are pending. Source: Qi et al., ICLR 2024 (ZB-H1).
std::vector<Action> zero_bubble_h1(const PipelineShape& shape, int position, int /*replica*/) {
  std::vector<Action> out;
  std::deque<int> pending;
  for (const Action& action : one_forward_one_backward(shape, position, 0)) {
    out.push_back(action);
    if (action.kind != ActionKind::Backward) continue;
    pending.push_back(action.microbatch);
    if (static_cast<int>(pending.size()) > position) {
      out.push_back(compute(ActionKind::WeightGradient, position, pending.front()));
      pending.pop_front();
    }
  }
  for (const int m : pending) out.push_back(compute(ActionKind::WeightGradient, position, m));
  return out;
}

const std::vector<Action>& listed(const PipelineShape& shape, int position, int replica) {
  int rank = replica;
  for (int d = 0; d < position; ++d) rank += replicas_of(shape, d);
  return shape.listed[static_cast<std::size_t>(rank)];
}

/// The most of the position's replicas, see ScheduleEntry::in_flight_bound.
int listed_in_flight(const PipelineShape& shape, int position) {
  int most = 0;
  for (int replica = 0; replica < replicas_of(shape, position); ++replica) {
    std::map<std::pair<int, int>, ActionKind> release;
    const std::vector<Action>& list = listed(shape, position, replica);
    for (const Action& a : list) {
      if (a.kind == ActionKind::Backward) release.emplace(std::pair(a.stage, a.microbatch), a.kind);
      if (a.kind == ActionKind::WeightGradient) release[{a.stage, a.microbatch}] = a.kind;
    }
    std::set<std::pair<int, int>> held;
    for (const Action& a : list) {
      if (a.kind == ActionKind::Forward) held.insert({a.stage, a.microbatch});
      most = std::max(most, static_cast<int>(held.size()));
      const auto it = release.find({a.stage, a.microbatch});
      if (it == release.end() || it->second == a.kind) held.erase({a.stage, a.microbatch});
    }
  }
  return most;
}

ScheduleEntry asynchronous_entry(const std::string& name, Weights weights) {
  ScheduleEntry entry;
  entry.name = name;
  entry.in_flight_bound = warmup_and_one;
  entry.replicated = true;
  entry.weights = weights;
  const ScheduleEntry rule = entry;
  entry.compute_actions = [rule](const PipelineShape& shape, int position, int replica) {
    return without_flush(rule, shape, position, replica);
  };
  return entry;
}

}  // namespace

const char* to_string(ActionKind kind) {
  for (const Word& each : kWords) {
    if (each.kind == kind) return each.word;
  }
  return "?";
}

ActionKind action_kind(const std::string& word) {
  std::vector<std::string> known;
  for (const Word& each : kWords) {
    if (word == each.word) return each.kind;
    known.emplace_back(each.word);
  }
  throw std::invalid_argument(unknown_name("action", word, known));
}

std::string action_text(const Action& action) {
  std::string out = std::to_string(action.stage);
  for (const Word& each : kWords) {
    if (each.kind == action.kind) out += each.cell;
  }
  const bool transfer = action.kind >= ActionKind::SendActivation && action.kind <= ActionKind::ReceiveGradient;
  if (action.microbatch >= 0) out += std::to_string(action.microbatch);
  if (!transfer || std::abs(action.peer - action.stage) == 1) return out;
  const bool send = action.kind == ActionKind::SendActivation || action.kind == ActionKind::SendGradient;
  return out + (send ? " to stage " : " from stage ") + std::to_string(action.peer);
}

std::vector<int> own_microbatches(int microbatches, int replicas, int replica) {
  std::vector<int> out;
  for (int m = replica; m < microbatches; m += replicas) out.push_back(m);
  return out;
}

std::vector<int> warmup_counts(const std::vector<int>& replicas, double hop_over_period) {
  for (const int r : replicas) {
    if (r < 1) throw std::invalid_argument("a stage has " + std::to_string(r) + " replicas, at least 1 is wanted");
  }
  std::vector<int> out(replicas.size(), 0);
  for (std::size_t s = replicas.size(); s-- > 1;) {
    const double needed = (out[s] + 1.0) * replicas[s] + 2 * hop_over_period;
    // A hair below the quotient, so that rounding never adds a microbatch.
    out[s - 1] = static_cast<int>(std::ceil(needed / replicas[s - 1] - 1e-9));
  }
  return out;
}

const std::vector<ScheduleEntry>& schedules() {
  static const std::vector<ScheduleEntry> table{
      {.name = "gpipe", .compute_actions = gpipe, .in_flight_bound = most_own, .replicated = true},
      {.name = "1f1b",
       .compute_actions = one_forward_one_backward,
       .in_flight_bound = warmup_and_one,
       .replicated = true},
      {.name = "interleaved-1f1b",
       .compute_actions = interleaved,
       .in_flight_bound =
           [](const PipelineShape& shape, int position) {
             return std::min(interleaved_warmup(shape, position) + 1, shape.microbatches * shape.chunks);
           },
       .chunked = true},
      {.name = "zb-h1",
       .compute_actions = zero_bubble_h1,
       .in_flight_bound =
           [](const PipelineShape& shape, int position) {
             return std::min(shape.microbatches, warmup_and_one(shape, position) + position);
           },
       .splits_backward = true},
      asynchronous_entry("pipedream", Weights::Newest),
      asynchronous_entry("pipedream-2bw", Weights::StepBefore),
      {.name = "forward",
       .compute_actions = forward_only,
       .in_flight_bound = [](const PipelineShape&, int) { return 1; },
       .replicated = true,
       .trains = false},
      {.name = "listed",
       .compute_actions = listed,
       .in_flight_bound = listed_in_flight,
       .replicated = true,
       .chunked = true},
  };
  return table;
}

int weight_versions_bound(const ScheduleEntry& schedule, const PipelineShape& shape, int position) {
  if (schedule.weights == Weights::Newest) return schedule.in_flight_bound(shape, position);
  return schedule.weights == Weights::StepBefore ? 2 : 1;
}

int update_of(const ScheduleEntry& schedule, const PipelineShape& shape, int stage, int microbatch) {
  if (schedule.weights == Weights::Newest) return microbatch / replicas_of(shape, stage);
  return schedule.weights == Weights::StepBefore ? microbatch / shape.microbatches : 0;
}

const ScheduleEntry& schedule_by_name(const std::string& name) {
  std::vector<std::string> known;
  for (const ScheduleEntry& entry : schedules()) {
    if (entry.name == name) return entry;
    known.push_back(entry.name);
  }
  throw std::invalid_argument(unknown_name("schedule", name, known));
}

void check_shape(const ScheduleEntry& schedule, const PipelineShape& shape) {
  const std::string who = "schedule \"" + schedule.name + "\"";
  if (shape.microbatches < 1) throw std::invalid_argument(who + ": at least 1 microbatch is wanted");
  if (shape.stages < 1) throw std::invalid_argument(who + ": at least 1 stage is wanted");
  if (shape.chunks < 1 || shape.stages % shape.chunks != 0) {
    throw std::invalid_argument(who + ": " + std::to_string(shape.stages) + " stages cannot be dealt out in " +
                                std::to_string(shape.chunks) + " chunks a device");
  }
  if (shape.chunks > 1 && !schedule.chunked) {
    throw std::invalid_argument(who + " runs one stage a device, interleaved-1f1b runs several");
  }
  const bool replicated = std::any_of(shape.replicas.begin(), shape.replicas.end(), [](int r) { return r > 1; });
  if (replicated && !schedule.replicated) {
    throw std::invalid_argument(who + " runs stages without replicas, gpipe and 1f1b run any");
  }
  for (std::size_t s = 0; schedule.weights == Weights::StepBefore && s < shape.warmups.size(); ++s) {
    const int held = (shape.warmups[s] + 1) * replicas_of(shape, static_cast<int>(s));
    if (shape.microbatches >= held) continue;
    throw std::invalid_argument(who + ": " + std::to_string(shape.microbatches) +
                                " microbatches a step are fewer than the " + std::to_string(held) + " that stage " +
                                std::to_string(s) + " begins before the first ends");
  }
  const int positions = shape.stages / shape.chunks;
  if (schedule.name == "interleaved-1f1b" && shape.chunks > 1 && shape.microbatches % positions != 0) {
    throw std::invalid_argument(who + ": " + std::to_string(shape.microbatches) +
                                " microbatches are not a multiple of " + std::to_string(positions) + " devices");
  }
}

}  // namespace stagecraft

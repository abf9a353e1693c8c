#include "costmodel/scheduling/building_blocks.h"

#include <algorithm>
#include <deque>
#include <stdexcept>
#include <string>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft::scheduling {
namespace {

std::vector<Action> gpipe(const PipelineShape& shape, int position, int replica) {
  const std::vector<int> microbatches = own_of(shape, position, replica);
  std::vector<Action> out;
  for (const int m : microbatches) out.push_back(compute(ActionKind::Forward, position, m));
  for (const int m : microbatches) out.push_back(compute(ActionKind::Backward, position, m));
  return out;
}

}  // namespace

/// All forwards, then all backwards. Source: Huang et al., NeurIPS 2019.
ScheduleEntry gpipe_schedule() {
  return {.name = "gpipe",
          .help = "all forwards, then all backwards",
          .compute_actions = gpipe,
          .in_flight_bound = most_own};
}

namespace {

std::vector<Action> forward_only(const PipelineShape& shape, int position, int replica) {
  std::vector<Action> out;
  for (const int m : own_of(shape, position, replica)) out.push_back(compute(ActionKind::Forward, position, m));
  return out;
}

}  // namespace

ScheduleEntry forward_schedule() {
  return {.name = "forward",
          .help = "forwards only, for evaluation",
          .compute_actions = forward_only,
          .in_flight_bound = [](const PipelineShape&, int) { return 1; },
          .trains = false};
}

ScheduleEntry one_forward_one_backward_schedule() {
  return {.name = "1f1b",
          .help = "warm-up, then one forward and one backward in turn",
          .compute_actions = one_forward_one_backward,
          .in_flight_bound = warmup_and_one,
          .alternates = true};
}

namespace {

int interleaved_warmup(const PipelineShape& shape, int position) {
  const int p = shape.stages / shape.chunks;
  return 2 * (p - position - 1) + (shape.chunks - 1) * p;
}

/// Groups of p of the replica's microbatches go through a rank's v chunks in turn. Source: Narayanan et al., SC 2021.
std::vector<Action> interleaved(const PipelineShape& shape, int position, int replica) {
  const int v = shape.chunks;
  const int p = shape.stages / v;
  const std::vector<int> microbatches = own_of(shape, position, replica);
  const int total = to_int(microbatches.size()) * v;
  const int warmup = std::min(interleaved_warmup(shape, position), total);
  const auto action = [&](ActionKind kind, int k) {
    const int g = k % (p * v);
    const int chunk = kind == ActionKind::Forward ? g / p : v - 1 - g / p;
    return compute(kind, chunk * p + position, microbatches[to_index(k / (p * v) * p + g % p)]);
  };
  std::vector<Action> out;
  for (int k = 0; k < total + warmup; ++k) {
    if (k < total) out.push_back(action(ActionKind::Forward, k));
    if (k >= warmup) out.push_back(action(ActionKind::Backward, k - warmup));
  }
  return out;
}

int interleaved_in_flight(const PipelineShape& shape, int position) {
  return std::min(interleaved_warmup(shape, position) + 1, most_own(shape, position) * shape.chunks);
}

void check_groups(const PipelineShape& shape) {
  const int positions = shape.stages / shape.chunks;
  const int replicas = replicas_of(shape, 0);
  const int group = positions * replicas;
  if (shape.chunks == 1 || shape.microbatches % group == 0) return;
  const int less = shape.microbatches / group * group;
  throw InputError(ErrorKind::ScheduleMismatch,
                   "schedule \"interleaved-1f1b\": " + std::to_string(shape.microbatches) +
                       " microbatches are not a multiple of " + std::to_string(group) + " devices, " +
                       (replicas > 1 ? std::to_string(positions) + " positions of " + std::to_string(replicas) +
                                           " replicas, "
                                     : "") +
                       (less > 0 ? std::to_string(less) + " or " : "") + std::to_string(less + group) + " are");
}

}  // namespace

ScheduleEntry interleaved_schedule() {
  return {.name = "interleaved-1f1b",
          .help = "1f1b with several stages on a rank",
          .compute_actions = interleaved,
          .in_flight_bound = interleaved_in_flight,
          .equal_replicas = true,
          .chunked = true,
          .check = check_groups};
}

namespace {

/// Weight gradients wait while at most `position` of them are pending. Source: Qi et al., ICLR 2024 (ZB-H1).
std::vector<Action> zero_bubble_h1(const PipelineShape& shape, int position, int replica) {
  std::vector<Action> out;
  std::deque<int> pending;
  for (const Action& action : one_forward_one_backward(shape, position, replica)) {
    out.push_back(action);
    if (action.kind != ActionKind::Backward) continue;
    pending.push_back(action.microbatch);
    if (to_int(pending.size()) > position) {
      out.push_back(compute(ActionKind::WeightGradient, position, pending.front()));
      pending.pop_front();
    }
  }
  for (const int m : pending) out.push_back(compute(ActionKind::WeightGradient, position, m));
  return out;
}

int zero_bubble_in_flight(const PipelineShape& shape, int position) {
  return std::min(most_own(shape, position), warmup_and_one(shape, position) + position);
}

}  // namespace

ScheduleEntry zero_bubble_h1_schedule() {
  return {.name = "zb-h1",
          .help = "1f1b with weight gradients moved into idle time (Qi et al., ICLR 2024)",
          .compute_actions = zero_bubble_h1,
          .in_flight_bound = zero_bubble_in_flight,
          .splits_backward = true};
}

}  // namespace stagecraft::scheduling

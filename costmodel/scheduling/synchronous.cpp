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
          .in_flight_bound = most_own,
          .replicated = true};
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
          .replicated = true,
          .trains = false};
}

ScheduleEntry one_forward_one_backward_schedule() {
  return {.name = "1f1b",
          .help = "warm-up, then one forward and one backward in turn",
          .compute_actions = one_forward_one_backward,
          .in_flight_bound = warmup_and_one,
          .replicated = true,
          .alternates = true};
}

namespace {

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

int interleaved_in_flight(const PipelineShape& shape, int position) {
  return std::min(interleaved_warmup(shape, position) + 1, shape.microbatches * shape.chunks);
}

void check_groups(const PipelineShape& shape) {
  const int positions = shape.stages / shape.chunks;
  if (shape.chunks > 1 && shape.microbatches % positions != 0) {
    throw InputError(ErrorKind::ScheduleMismatch,
                     "schedule \"interleaved-1f1b\": " + std::to_string(shape.microbatches) +
                         " microbatches are not a multiple of " + std::to_string(positions) + " devices");
  }
}

}  // namespace

ScheduleEntry interleaved_schedule() {
  return {.name = "interleaved-1f1b",
          .help = "1f1b with several stages on a rank",
          .compute_actions = interleaved,
          .in_flight_bound = interleaved_in_flight,
          .chunked = true,
          .check = check_groups};
}

namespace {

/// Weight gradients wait while at most `position` of them are pending. Source: Qi et al., ICLR 2024 (ZB-H1).
std::vector<Action> zero_bubble_h1(const PipelineShape& shape, int position, int /*replica*/) {
  std::vector<Action> out;
  std::deque<int> pending;
  for (const Action& action : one_forward_one_backward(shape, position, 0)) {
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
  return std::min(shape.microbatches, warmup_and_one(shape, position) + position);
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

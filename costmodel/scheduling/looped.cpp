// Schedules of several stages on a rank, of which position d of p has the stages d, d + p, d + 2 p, ...

#include <algorithm>
#include <string>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/scheduling/building_blocks.h"

namespace stagecraft::scheduling {
namespace {

/// All microbatches through a rank's first stage, then its second, ...; backwards from its last stage to its first.
std::vector<Action> breadth_first(const PipelineShape& shape, int position, int replica) {
  const int p = shape.stages / shape.chunks;
  const std::vector<int> microbatches = own_of(shape, position, replica);
  std::vector<Action> out;
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    for (const int m : microbatches) out.push_back(compute(ActionKind::Forward, chunk * p + position, m));
  }
  for (int chunk = shape.chunks; chunk-- > 0;) {
    for (const int m : microbatches) out.push_back(compute(ActionKind::Backward, chunk * p + position, m));
  }
  return out;
}

int all_chunks(const PipelineShape& shape, int position) { return most_own(shape, position) * shape.chunks; }

/// The microbatches of each replica must go through the ranks in groups of one for each position.
void check_groups(const std::string& name, const PipelineShape& shape) {
  const int positions = shape.stages / shape.chunks;
  const int replicas = replicas_of(shape, 0);
  const int group = positions * replicas;
  if (shape.chunks == 1 || shape.microbatches % group == 0) return;
  const int less = shape.microbatches / group * group;
  throw InputError(
      ErrorKind::ScheduleMismatch,
      "schedule \"" + name + "\": " + std::to_string(shape.microbatches) + " microbatches are not a multiple of " +
          std::to_string(group) + " devices, " +
          (replicas > 1 ? std::to_string(positions) + " positions of " + std::to_string(replicas) + " replicas, "
                        : "") +
          (less > 0 ? std::to_string(less) + " or " : "") + std::to_string(less + group) + " are");
}

/// Groups of p of the replica's microbatches go through a rank's v stages in turn: `warmup` forwards, then a forward
/// and a backward in turn.
std::vector<Action> interleaved(const PipelineShape& shape, int position, int replica, int warmup) {
  const int v = shape.chunks;
  const int p = shape.stages / v;
  const std::vector<int> microbatches = own_of(shape, position, replica);
  const int total = to_int(microbatches.size()) * v;
  warmup = std::min(warmup, total);
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

/// Forwards before the first backward, if those of the last position are followed by `each` more for each position
/// before it.
int interleaved_warmup(const PipelineShape& shape, int position, int each) {
  const int p = shape.stages / shape.chunks;
  return each * (p - position - 1) + (shape.chunks - 1) * p;
}

}  // namespace

/// Source: Lamy-Poirier, MLSys 2023. torch's runs the backwards of a stage in descending order, which takes as long;
/// ascending, gradients are summed in the order of one process.
ScheduleEntry looped_bfs_schedule() {
  return {.name = "looped-bfs",
          .help = "breadth-first: gpipe with several stages on a rank, one after the other (Lamy-Poirier, MLSys 2023)",
          .compute_actions = breadth_first,
          .in_flight_bound = all_chunks,
          .equal_replicas = true,
          .chunked = true};
}

/// Source: Narayanan et al., SC 2021.
ScheduleEntry interleaved_schedule() {
  return {.name = "interleaved-1f1b",
          .help = "1f1b with several stages on a rank",
          .compute_actions =
              [](const PipelineShape& shape, int position, int replica) {
                return interleaved(shape, position, replica, interleaved_warmup(shape, position, 2));
              },
          .in_flight_bound =
              [](const PipelineShape& shape, int position) {
                return std::min(interleaved_warmup(shape, position, 2) + 1, all_chunks(shape, position));
              },
          .equal_replicas = true,
          .chunked = true,
          .check = [](const PipelineShape& shape) { check_groups("interleaved-1f1b", shape); }};
}

/// A rank holds as many microbatches in each of its stages as there are positions: its warm-up, one more and, until
/// their weight gradients, `position`. Source: Qi et al., ICLR 2024, and torch 2.11's ScheduleInterleavedZeroBubble.
ScheduleEntry interleaved_zero_bubble_schedule() {
  return {.name = "interleaved-zb",
          .help = "interleaved-1f1b with weight gradients moved into idle time (Qi et al., ICLR 2024)",
          .compute_actions =
              [](const PipelineShape& shape, int position, int replica) {
                return with_weight_gradients(
                    interleaved(shape, position, replica, interleaved_warmup(shape, position, 1)), position);
              },
          .in_flight_bound = [](const PipelineShape& shape,
                                int position) { return std::min(shape.stages, all_chunks(shape, position)); },
          .equal_replicas = true,
          .chunked = true,
          .splits_backward = true,
          .check = [](const PipelineShape& shape) { check_groups("interleaved-zb", shape); }};
}

}  // namespace stagecraft::scheduling

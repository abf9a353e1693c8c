#include <algorithm>
#include <stdexcept>
#include <string>

#include "costmodel/errors.h"
#include "costmodel/scheduling/building_blocks.h"

namespace stagecraft::scheduling {
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

int most_in_flight(const PipelineShape& shape, int position) {
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
          .in_flight_bound = most_in_flight,
          .chunked = true,
          .check = check_groups};
}

}  // namespace stagecraft::scheduling

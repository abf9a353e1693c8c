#include "costmodel/schedule.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft {
namespace {

static_assert(std::ranges::all_of(kActions,
                                  [](const ActionTraits& traits) { return &traits_of(traits.kind) == &traits; }));

int replicas_of(const PipelineShape& shape, int stage) {
  return shape.replicas.empty() ? 1 : shape.replicas[to_index(stage)];
}

}  // namespace

const char* to_string(ActionKind kind) { return traits_of(kind).word; }

ActionKind action_kind(const std::string& word) {
  std::vector<std::string> known;
  for (const ActionTraits& entry : kActions) {
    if (word == entry.word) return entry.kind;
    known.emplace_back(entry.word);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("action", word, known));
}

Action other_end(const Action& transfer) {
  const bool gradient = carries_gradient(transfer.kind);
  const ActionKind send = gradient ? ActionKind::SendGradient : ActionKind::SendActivation;
  const ActionKind receive = gradient ? ActionKind::ReceiveGradient : ActionKind::ReceiveActivation;
  return {is_send(transfer.kind) ? receive : send, transfer.peer, transfer.microbatch, transfer.stage};
}

std::string action_text(const Action& action) {
  std::string out = std::to_string(action.stage) + traits_of(action.kind).cell;
  if (action.microbatch >= 0) out += std::to_string(action.microbatch);
  if (!is_transfer(action.kind) || std::abs(action.peer - action.stage) == 1) return out;
  return out + (is_send(action.kind) ? " to stage " : " from stage ") + std::to_string(action.peer);
}

std::vector<int> stages_at(int position, int stages, int positions, Placement placement) {
  std::vector<int> out;
  for (int s = 0; s < stages; ++s) {
    if (position_of(s, positions, placement) == position) out.push_back(s);
  }
  return out;
}

Placement placement_of(std::span<const std::vector<Action>> lists) {
  int last = 0;
  for (const auto& list : lists) {
    for (const Action& action : list) last = std::max(last, action.stage);
  }
  const bool is_v = std::ranges::any_of(lists, [&](const std::vector<Action>& list) {
    bool has_first = false;
    bool has_last = false;
    for (const Action& action : list) {
      if (action.stage != 0 && action.stage != last) return false;
      (action.stage == 0 ? has_first : has_last) = true;
    }
    return has_first && has_last;
  });
  return is_v ? Placement::V : Placement::Loop;
}

std::vector<int> own_microbatches(int microbatches, int replicas, int replica) {
  std::vector<int> out;
  for (int m = replica; m < microbatches; m += replicas) out.push_back(m);
  return out;
}

std::vector<int> warmup_counts(const std::vector<int>& replicas, double hop_over_period) {
  for (const int r : replicas) {
    if (r < 1)
      throw InputError(ErrorKind::ScheduleMismatch,
                       "a stage has " + std::to_string(r) + " replicas, must be at least 1");
  }
  std::vector<int> out(replicas.size(), 0);
  for (std::size_t s = replicas.size(); s-- > 1;) {
    const double needed = (out[s] + 1.0) * replicas[s] + 2 * hop_over_period;
    // Slightly below the quotient, so that rounding never adds a microbatch.
    out[s - 1] = static_cast<int>(std::ceil(needed / replicas[s - 1] - 1e-9));
  }
  return out;
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
  throw InputError(ErrorKind::UnknownName, unknown_name("schedule", name, known));
}

bool runs_chunks(const ScheduleEntry& schedule, int chunks) {
  return schedule.placement == Placement::V ? chunks == 2 : chunks == 1 || schedule.chunked;
}

int least_chunks(const ScheduleEntry& schedule) { return runs_chunks(schedule, 1) ? 1 : 2; }

const ScheduleEntry& chunked_schedule() { return *std::ranges::find_if(schedules(), &ScheduleEntry::chunked); }

void check_shape(const ScheduleEntry& schedule, const PipelineShape& shape) {
  const std::string who = "schedule \"" + schedule.name + "\"";
  if (shape.microbatches < 1) throw InputError(ErrorKind::ScheduleMismatch, who + ": microbatches must be at least 1");
  if (shape.stages < 1) throw InputError(ErrorKind::ScheduleMismatch, who + ": stages must be at least 1");
  if (shape.chunks < 1 || shape.stages % shape.chunks != 0) {
    throw InputError(ErrorKind::ScheduleMismatch, who + ": " + std::to_string(shape.stages) +
                                                      " stages cannot be divided into " + std::to_string(shape.chunks) +
                                                      " chunks per device");
  }
  if (!runs_chunks(schedule, shape.chunks)) {
    throw InputError(ErrorKind::ScheduleMismatch,
                     schedule.chunked
                         ? who + " runs 2 stages per device, found " + std::to_string(shape.chunks)
                         : who + " runs one stage per device; " + chunked_schedule().name + " runs several");
  }
  for (int s = 0; schedule.equal_replicas && s < shape.stages; ++s) {
    if (replicas_of(shape, s) == replicas_of(shape, 0)) continue;
    throw InputError(ErrorKind::ScheduleMismatch,
                     who + " needs the same number of replicas at every position, but stage 0 has " +
                         std::to_string(replicas_of(shape, 0)) + " and stage " + std::to_string(s) + " has " +
                         std::to_string(replicas_of(shape, s)) + "; give all " + std::to_string(replicas_of(shape, 0)) +
                         ", or use 1f1b, which takes any numbers");
  }
  for (std::size_t s = 0; schedule.weights == Weights::StepBefore && s < shape.warmups.size(); ++s) {
    const int in_flight = (shape.warmups[s] + 1) * replicas_of(shape, to_int(s));
    if (shape.microbatches >= in_flight) continue;
    throw InputError(ErrorKind::ScheduleMismatch,
                     who + ": " + std::to_string(shape.microbatches) + " microbatches per step are fewer than the " +
                         std::to_string(in_flight) + " that stage " + std::to_string(s) + " has in flight");
  }
  if (schedule.check) schedule.check(shape);
}

}  // namespace stagecraft

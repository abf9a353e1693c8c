#include "costmodel/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"

namespace stagecraft {
namespace {

constexpr std::array<std::pair<ActionKind, const char*>, 9> kWords{{
    {ActionKind::Forward, "forward"},
    {ActionKind::Backward, "backward"},
    {ActionKind::WeightGradient, "weight-gradient"},
    {ActionKind::SendActivation, "send-activation"},
    {ActionKind::ReceiveActivation, "receive-activation"},
    {ActionKind::SendGradient, "send-gradient"},
    {ActionKind::ReceiveGradient, "receive-gradient"},
    {ActionKind::Reduce, "reduce"},
    {ActionKind::Update, "update"},
}};

Action compute(ActionKind kind, int stage, int microbatch) { return {kind, stage, microbatch, -1}; }

int replicas_of(const PipelineShape& shape, int stage) {
  return shape.replicas.empty() ? 1 : shape.replicas[static_cast<std::size_t>(stage)];
}

std::vector<Action> gpipe(const PipelineShape& shape, int position, int replica) {
  const std::vector<int> own = own_microbatches(shape.microbatches, replicas_of(shape, position), replica);
  std::vector<Action> out;
  for (const int m : own) out.push_back(compute(ActionKind::Forward, position, m));
  for (const int m : own) out.push_back(compute(ActionKind::Backward, position, m));
  return out;
}

std::vector<Action> one_forward_one_backward(const PipelineShape& shape, int position, int replica) {
  const std::vector<int> own = own_microbatches(shape.microbatches, replicas_of(shape, position), replica);
  const std::size_t warmup =
      std::min(own.size(), static_cast<std::size_t>(shape.warmups[static_cast<std::size_t>(position)]));
  std::vector<Action> out;
  for (std::size_t i = 0; i < own.size() + warmup; ++i) {
    if (i < own.size()) out.push_back(compute(ActionKind::Forward, position, own[i]));
    if (i >= warmup) out.push_back(compute(ActionKind::Backward, position, own[i - warmup]));
  }
  return out;
}

/// Groups of p microbatches go through a rank's v chunks in turn.
/// Source: Narayanan et al., SC 2021, and Megatron-LM's warm-up count.
std::vector<Action> interleaved(const PipelineShape& shape, int position, int /*replica*/) {
  const int v = shape.chunks;
  const int p = shape.stages / v;
  const int total = shape.microbatches * v;
  const int warmup = shape.microbatches == p ? total : std::min(2 * (p - position - 1) + (v - 1) * p, total);
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

}  // namespace

const char* to_string(ActionKind kind) {
  for (const auto& [value, word] : kWords) {
    if (value == kind) return word;
  }
  return "?";
}

ActionKind action_kind(const std::string& word) {
  std::vector<std::string> known;
  for (const auto& [value, text] : kWords) {
    if (word == text) return value;
    known.emplace_back(text);
  }
  throw std::invalid_argument(unknown_name("action", word, known));
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
      {"gpipe", true, false, false, gpipe},
      {"1f1b", true, false, false, one_forward_one_backward},
      {"interleaved-1f1b", false, true, false, interleaved},
      {"zb-h1", false, false, true, zero_bubble_h1},
  };
  return table;
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
  const int positions = shape.stages / shape.chunks;
  if (schedule.chunked && shape.chunks > 1 && shape.microbatches % positions != 0) {
    throw std::invalid_argument(who + ": " + std::to_string(shape.microbatches) +
                                " microbatches are not a multiple of " + std::to_string(positions) + " devices");
  }
}

}  // namespace stagecraft

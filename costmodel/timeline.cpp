#include "costmodel/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft {
namespace {

/// In the order of MemoryPart.
constexpr std::array<const char*, kMemoryParts> kWords{
    "activations",    "communication", "frozen",     "gradients", "inputs",    "kept gradients", "libraries",
    "older versions", "optimizer",     "parameters", "receiving", "reduction", "sending",        "workspace"};

}  // namespace

const char* to_string(MemoryPart part) { return kWords[static_cast<std::size_t>(part)]; }

MemoryPart memory_part(const std::string& word) {
  for (std::size_t i = 0; i < kWords.size(); ++i) {
    if (word == kWords[i]) return static_cast<MemoryPart>(i);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("part of memory", word, {kWords.begin(), kWords.end()}));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

Seconds step_time(const Timeline& timeline, std::size_t first) {
  std::vector<double> times;
  for (std::size_t i = first; i < timeline.steps.size(); ++i) {
    times.push_back((timeline.steps[i].end - timeline.steps[i].start).value);
  }
  if (times.empty()) {
    throw std::invalid_argument("no steps are left: the timeline has " + std::to_string(timeline.steps.size()) +
                                " and the first " + std::to_string(first) + " are skipped");
  }
  return Seconds(median(std::move(times)));
}

std::size_t warm_up_steps(const Timeline& timeline) {
  constexpr std::size_t kWarmUp = 2;
  return timeline.steps.empty() ? 0 : std::min(kWarmUp, timeline.steps.size() - 1);
}

bool SpanKeeper::keeps(int place) const { return place < kEdge || place > newest_ - kEdge || place % every_ == 0; }

void SpanKeeper::begin(int place) {
  newest_ = place;
  if (place / every_ >= kMiddle) every_ *= 2;
  std::erase_if(spans_, [this](const Span& span) { return !keeps(span.step - first_step_); });
}

void SpanKeeper::add(const Span& span) {
  const int place = span.step - first_step_;
  while (newest_ < place) begin(newest_ + 1);
  if (keeps(place)) spans_.push_back(span);
}

namespace {

std::string quoted(const Action& action) { return '"' + action_text(action) + '"'; }

}  // namespace

std::vector<Action> measured_actions(const BoundPlan& plan, const std::vector<Action>& list) {
  std::vector<Action> out;
  std::set<int> gathering;
  for (const Action& action : list) {
    if (action.kind == ActionKind::Gather) gathering.insert(action.stage);
    if (is_receive(action.kind) || is_residence(action.kind)) continue;
    if (is_compute(action.kind) && gathering.erase(action.stage) > 0)
      out.push_back({ActionKind::Gather, action.stage, -1, -1});
    for (const Passage& input : plan.inputs(action)) out.push_back(receive_of(action, input));
    // A backward takes later stages' gradients first.
    if (action.kind == ActionKind::Backward)
      std::reverse(out.end() - static_cast<std::ptrdiff_t>(plan.inputs(action).size()), out.end());
    out.push_back(action);
  }
  return out;
}

OrderCheck::OrderCheck(const BoundPlan& plan, const std::vector<Action>& list, int rank, int first_step)
    : expected_(measured_actions(plan, list)),
      rank_(rank),
      first_step_(first_step),
      synchronous_(!plan.asynchronous()) {}

std::string OrderCheck::place() const {
  return fmt::format("rank {}, step {}, entry {}: ", rank_, first_step_ + replay_ + 1, entry_ + 1);
}

std::optional<std::string> OrderCheck::next(const Span& span) {
  if (entry_ == expected_.size() && synchronous_) {
    ++replay_;
    entry_ = 0;
  }
  if (entry_ >= expected_.size())
    return fmt::format("rank {}: measured {} after the end of its list", rank_, quoted(span.action));
  if (span.action != expected_[entry_])
    return place() + "measured " + quoted(span.action) + ", the list has " + quoted(expected_[entry_]);
  if (synchronous_ && span.step != first_step_ + replay_)
    return place() + fmt::format("measured {} in step {}", quoted(span.action), span.step + 1);
  ++entry_;
  return std::nullopt;
}

std::optional<std::string> OrderCheck::end(int replays) const {
  const int done = replay_ + (entry_ == expected_.size() ? 1 : 0);
  if (expected_.empty() || done >= replays) return std::nullopt;
  if (entry_ < expected_.size()) return place() + "measured nothing, the list has " + quoted(expected_[entry_]);
  return fmt::format("rank {}, step {}, entry 1: measured nothing, the list has {}", rank_, first_step_ + done + 1,
                     quoted(expected_.front()));
}

}  // namespace stagecraft

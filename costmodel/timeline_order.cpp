#include "costmodel/timeline_order.h"

#include <fmt/format.h>

#include <algorithm>

#include "costmodel/index.h"

namespace stagecraft {
namespace {

std::string quoted(const Action& action) { return '"' + action_text(action) + '"'; }

}  // namespace

std::vector<Action> measured_actions(const BoundPlan& plan, const std::vector<Action>& list) {
  std::vector<Action> out;
  for (const Action& action : list) {
    if (is_receive(action.kind)) continue;
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

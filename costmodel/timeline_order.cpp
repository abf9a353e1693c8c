#include "costmodel/timeline_order.h"

#include <fmt/format.h>

#include <ranges>

namespace stagecraft {
namespace {

std::string quoted(const Action& action) { return '"' + action_text(action) + '"'; }

}  // namespace

std::vector<Action> measured_actions(const Plan& plan, const std::vector<Action>& list) {
  std::vector<Action> out;
  for (const Action& action : list) {
    if (action.kind == ActionKind::ReceiveActivation || action.kind == ActionKind::ReceiveGradient) continue;
    if (action.kind == ActionKind::Forward) {
      for (const Boundary& b : plan.boundaries) {
        if (b.destination == action.stage)
          out.push_back({ActionKind::ReceiveActivation, action.stage, action.microbatch, b.source});
      }
    } else if (action.kind == ActionKind::Backward) {
      for (const Boundary& b : plan.boundaries | std::views::reverse) {
        if (b.source == action.stage && has_gradient(b))
          out.push_back({ActionKind::ReceiveGradient, action.stage, action.microbatch, b.destination});
      }
    }
    out.push_back(action);
  }
  return out;
}

std::optional<std::string> disorder(const Timeline& timeline, const Plan& plan,
                                    const std::vector<std::vector<Action>>& lists, int replays, int first_step) {
  const bool synchronous = schedule_of(plan).weights == Weights::Flushed;
  std::vector<std::vector<const Span*>> found(lists.size());
  for (const Span& span : timeline.spans) {
    if (span.rank < 0 || span.rank >= static_cast<int>(lists.size())) {
      return fmt::format("a span of rank {} was measured, the plan has ranks 0..{}", span.rank,
                         static_cast<int>(lists.size()) - 1);
    }
    found[static_cast<std::size_t>(span.rank)].push_back(&span);
  }
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    const std::vector<Action> expected = measured_actions(plan, lists[rank]);
    const std::vector<const Span*>& spans = found[rank];
    std::size_t next = 0;
    for (int replay = 0; replay < replays; ++replay) {
      for (std::size_t i = 0; i < expected.size(); ++i, ++next) {
        const auto place = [&] {
          return fmt::format("rank {}, step {}, entry {}: ", rank, first_step + replay + 1, i + 1);
        };
        if (next == spans.size()) return place() + "measured nothing, the list says " + quoted(expected[i]);
        const Span& span = *spans[next];
        if (span.action != expected[i])
          return place() + "measured " + quoted(span.action) + ", the list says " + quoted(expected[i]);
        if (synchronous && span.step != first_step + replay) {
          return place() + fmt::format("measured {} as a part of step {}", quoted(span.action), span.step + 1);
        }
      }
    }
    if (next < spans.size()) {
      return fmt::format("rank {}: measured {} after the end of its list", rank, quoted(spans[next]->action));
    }
  }
  return std::nullopt;
}

}  // namespace stagecraft

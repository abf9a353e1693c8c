#include "costmodel/interchange/traces/chrome_trace.h"

#include <fmt/format.h>

#include "costmodel/format/trace_events.h"
#include "costmodel/index.h"

namespace stagecraft::interchange {
namespace {

enum Track { kComputing = 0, kWaiting = 1, kSending = 2 };

Track track_of(ActionKind kind) {
  if (is_receive(kind)) return kWaiting;
  return is_send(kind) ? kSending : kComputing;
}

/// Names from the trace viewer's fixed palette, so that each kind keeps one colour.
const char* colour_of(ActionKind kind) {
  switch (traits_of(kind).look) {
    case ActionLook::Forward:
      return "thread_state_running";
    case ActionLook::Backward:
      return "rail_response";
    case ActionLook::WeightGradient:
      return "rail_idle";
    case ActionLook::Reduce:
      return "rail_animation";
    case ActionLook::Update:
      return "rail_load";
    case ActionLook::Wait:
    case ActionLook::Hidden:
      break;
  }
  return "grey";
}

}  // namespace

std::string chrome_trace(const Timeline& timeline, const std::string& title) {
  format::TraceEvents events(title, "ms");
  for (int rank = 0; rank < timeline.ranks; ++rank) {
    const int stage = rank < to_int(timeline.stage_of_rank.size()) ? timeline.stage_of_rank[to_index(rank)] : -1;
    events.name_process(rank, fmt::format("rank {} (stage {})", rank, stage));
    events.name_track(rank, kComputing, "compute");
    events.name_track(rank, kWaiting, "wait");
    events.name_track(rank, kSending, "send");
  }
  for (const Span& span : timeline.spans) {
    const Action& a = span.action;
    const std::string name = a.microbatch >= 0 ? fmt::format("\"{} {}\"", to_string(a.kind), a.microbatch)
                                               : fmt::format("\"{}\"", to_string(a.kind));
    events.slice(span.rank, track_of(a.kind), span.start, span.end - span.start, name, colour_of(a.kind),
                 R"("step":{},"stage":{},"microbatch":{},"peer":{})", span.step, a.stage, a.microbatch, a.peer);
  }
  return events.take();
}

}  // namespace stagecraft::interchange

#include "costmodel/interchange/traces/chrome_trace.h"

#include <fmt/format.h>

#include <iterator>

#include "costmodel/format/json_string.h"
#include "costmodel/index.h"

namespace stagecraft::interchange {
namespace {

enum Track { kComputing = 0, kWaiting = 1, kSending = 2 };

Track track_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::ReceiveActivation:
    case ActionKind::ReceiveGradient:
      return kWaiting;
    case ActionKind::SendActivation:
    case ActionKind::SendGradient:
      return kSending;
    default:
      return kComputing;
  }
}

/// Names from the trace viewer's fixed palette, so that each kind keeps one colour.
const char* colour_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::Forward:
      return "thread_state_running";
    case ActionKind::Backward:
      return "rail_response";
    case ActionKind::WeightGradient:
      return "rail_idle";
    case ActionKind::Reduce:
      return "rail_animation";
    case ActionKind::Update:
      return "rail_load";
    default:
      return "grey";
  }
}

}  // namespace

std::string chrome_trace(const Timeline& timeline, const std::string& title) {
  std::string out = "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"title\": " + format::json_string(title) +
                    "}, \"traceEvents\": [\n";
  static constexpr const char* kTracks[] = {"compute", "wait", "send"};
  const auto back = std::back_inserter(out);
  for (int rank = 0; rank < timeline.ranks; ++rank) {
    const int stage = rank < to_int(timeline.stage_of_rank.size()) ? timeline.stage_of_rank[to_index(rank)] : -1;
    fmt::format_to(
        back,
        R"j({{"ph": "M", "pid": {0}, "tid": 0, "name": "process_name", "args": {{"name": "rank {0} (stage {1})"}}}},)j"
        "\n",
        rank, stage);
    for (const int track : {kComputing, kWaiting, kSending}) {
      fmt::format_to(back,
                     R"j({{"ph": "M", "pid": {}, "tid": {}, "name": "thread_name", "args": {{"name": "{}"}}}},)j"
                     "\n",
                     rank, track, kTracks[track]);
    }
  }
  for (const Span& span : timeline.spans) {
    const Action& a = span.action;
    std::string name = to_string(a.kind);
    if (a.microbatch >= 0) name += " " + std::to_string(a.microbatch);
    fmt::format_to(
        back,
        R"j({{"ph": "X", "pid": {}, "tid": {}, "ts": {:.3f}, "dur": {:.3f}, "name": "{}", "cname": "{}", "args": {{"step": {}, "stage": {}, "microbatch": {}, "peer": {}}}}},)j"
        "\n",
        span.rank, static_cast<int>(track_of(a.kind)), span.start.value * 1e6, (span.end - span.start).value * 1e6,
        name, colour_of(a.kind), span.step, a.stage, a.microbatch, a.peer);
  }
  if (out.ends_with(",\n")) out.erase(out.size() - 2, 1);
  return out + "]}\n";
}

}  // namespace stagecraft::interchange

#include "costmodel/format/trace_events.h"

#include <fmt/format.h>

#include "costmodel/format/escaping.h"
#include "costmodel/index.h"

namespace stagecraft::format {

TraceEvents::TraceEvents(const std::string& title, std::string_view unit) {
  put(R"({{"displayTimeUnit":"{}","otherData":{{"title":{}}},"traceEvents":[)", unit, json_string(title));
  text_ += '\n';
}

TraceEvents::TraceEvents(const std::string& title, std::string_view unit, const std::string& key,
                         const std::string& value) {
  put(R"({{"displayTimeUnit":"{}","otherData":{{"title":{},{}:{}}},"traceEvents":[)", unit, json_string(title),
      json_string(key), json_string(value));
  text_ += '\n';
}

void TraceEvents::name_process(std::int64_t process, const std::string& name) {
  put_metadata("process_name", process, 0, name);
}

void TraceEvents::name_track(std::int64_t process, int track, const std::string& name) {
  put_metadata("thread_name", process, track, name);
}

void TraceEvents::put_metadata(std::string_view what, std::int64_t process, int track, const std::string& name) {
  put(R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{"name":{}}}}},)", process, track, what, json_string(name));
  text_ += '\n';
}

std::string TraceEvents::take() {
  if (text_.ends_with(",\n")) text_.erase(text_.size() - 2, 1);
  return std::move(text_) + "]}\n";
}

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
  TraceEvents events(title, "ms");
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

}  // namespace stagecraft::format

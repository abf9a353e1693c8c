#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "costmodel/timeline.h"
#include "costmodel/units.h"

namespace stagecraft::format {

/// A document of Chrome trace events, for ui.perfetto.dev and chrome://tracing: processes, each with tracks, on which
/// slices lie. Times are written in microseconds with three decimals; those given in nanoseconds stay exact.
/// Source: Google, "Trace Event Format".
class TraceEvents {
 public:
  /// `title` names the file in the viewer, which shows times in `unit`, "ms" or "ns".
  TraceEvents(const std::string& title, std::string_view unit);
  /// The same, with the further string `value` in otherData under `key`.
  TraceEvents(const std::string& title, std::string_view unit, const std::string& key, const std::string& value);

  void name_process(std::int64_t process, const std::string& name);
  void name_track(std::int64_t process, int track, const std::string& name);

  /// A slice. `name` is a JSON string, `colour` a name of chrome://tracing's palette; `format` makes the JSON members
  /// of the slice's args.
  template <class Time, class... Args>
  void slice(std::int64_t process, int track, Time begin, Time duration, std::string_view name, std::string_view colour,
             fmt::format_string<Args...> format, Args&&... args) {
    put(R"({{"ph":"X","pid":{},"tid":{},"ts":)", process, track);
    put_time(begin);
    text_ += ",\"dur\":";
    put_time(duration);
    put(R"(,"name":{},"cname":"{}","args":{{)", name, colour);
    put(format, std::forward<Args>(args)...);
    text_ += "}},\n";
  }

  /// The ends of an arrow, which have one `id` and bind to the slices that lie at these times on these tracks. `name`
  /// needs no escapes.
  template <class Time>
  void arrow_begin(std::int64_t process, int track, Time at, std::size_t id, std::string_view name) {
    arrow_end_of(R"("ph":"s")", process, track, at, id, name);
  }
  template <class Time>
  void arrow_end(std::int64_t process, int track, Time at, std::size_t id, std::string_view name) {
    arrow_end_of(R"("ph":"f","bp":"e")", process, track, at, id, name);
  }

  /// The document. Nothing can be added afterwards.
  [[nodiscard]] std::string take();

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  template <class Time>
  void arrow_end_of(std::string_view end, std::int64_t process, int track, Time at, std::size_t id,
                    std::string_view name) {
    put(R"({{{},"pid":{},"tid":{},"id":{},"cat":"{}","name":"{}","ts":)", end, process, track, id, name, name);
    put_time(at);
    text_ += "},\n";
  }
  /// Nanoseconds, at least 0.
  void put_time(std::int64_t ns) { put("{}.{:03}", ns / 1000, ns % 1000); }
  void put_time(Seconds time) { put("{:.3f}", time.value * 1e6); }
  void put_metadata(std::string_view what, std::int64_t process, int track, const std::string& name);

  std::string text_;
};

/// The timeline as Chrome trace events (also read by Perfetto): one process per rank, with one track for computation,
/// one for waiting and one for sending; times in microseconds. `title` names the file in the viewer.
[[nodiscard]] std::string chrome_trace(const Timeline& timeline, const std::string& title);

}  // namespace stagecraft::format

#include "costmodel/format/trace_events.h"

#include "costmodel/format/json_string.h"

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

}  // namespace stagecraft::format

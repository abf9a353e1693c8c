#include "costmodel/format/trace_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace stagecraft::format {
namespace {

using ::testing::HasSubstr;

TEST(TraceEvents, AreOneJsonDocument) {
  TraceEvents events("a \"run\"", "ns", "begin_ns", "17");
  events.name_process(3, "device 3");
  events.name_track(3, 1, "layers");
  events.slice(3, 1, std::int64_t{1900}, std::int64_t{1001}, "\"gemm\"", "grey", R"("step":{})", 5);
  events.slice(3, 1, 1.5_s, 0.25_s, "\"update\"", "grey", "");
  events.arrow_begin(3, 0, std::int64_t{100}, 7, "launch");
  events.arrow_end(3, 1, std::int64_t{1900}, 7, "launch");
  const auto expected = nlohmann::json::parse(R"({
    "displayTimeUnit": "ns", "otherData": {"title": "a \"run\"", "begin_ns": "17"},
    "traceEvents": [
      {"ph": "M", "pid": 3, "tid": 0, "name": "process_name", "args": {"name": "device 3"}},
      {"ph": "M", "pid": 3, "tid": 1, "name": "thread_name", "args": {"name": "layers"}},
      {"ph": "X", "pid": 3, "tid": 1, "ts": 1.9, "dur": 1.001, "name": "gemm", "cname": "grey", "args": {"step": 5}},
      {"ph": "X", "pid": 3, "tid": 1, "ts": 1500000.0, "dur": 250000.0, "name": "update", "cname": "grey", "args": {}},
      {"ph": "s", "pid": 3, "tid": 0, "id": 7, "cat": "launch", "name": "launch", "ts": 0.1},
      {"ph": "f", "bp": "e", "pid": 3, "tid": 1, "id": 7, "cat": "launch", "name": "launch", "ts": 1.9}]})");
  EXPECT_EQ(nlohmann::json::parse(events.take()), expected);
}

TEST(TraceEvents, KeepNanosecondsThatADoubleCannotHold) {
  TraceEvents events("", "ns");
  events.slice(0, 0, std::int64_t{9'007'199'254'740'993}, std::int64_t{1}, "\"\"", "grey", "");  // 2^53 + 1
  EXPECT_THAT(events.take(), HasSubstr("\"ts\":9007199254740.993,\"dur\":0.001,"));
}

TEST(TraceEvents, MayBeNone) {
  EXPECT_EQ(nlohmann::json::parse(TraceEvents("none", "ms").take()),
            nlohmann::json::parse(R"({"displayTimeUnit": "ms", "otherData": {"title": "none"}, "traceEvents": []})"));
}

}  // namespace
}  // namespace stagecraft::format

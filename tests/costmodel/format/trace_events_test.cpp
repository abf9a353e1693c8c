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

TEST(ChromeTrace, HasOneCompleteEventForEachSpan) {
  Timeline timeline;
  timeline.ranks = 2;
  timeline.stage_of_rank = {0, 1};
  timeline.spans = {{0, 3, {ActionKind::Forward, 0, 5, -1}, 1_s, 1.5_s},
                    {1, 3, {ActionKind::ReceiveActivation, 1, 5, 0}, 0_s, 2_s},
                    {0, 3, {ActionKind::SendActivation, 0, 5, 1}, 1.5_s, 2_s},
                    {1, 3, {ActionKind::Update, 1, -1, -1}, 4_s, 5_s}};
  const auto json = nlohmann::json::parse(chrome_trace(timeline, "two ranks"));
  EXPECT_EQ(json["otherData"]["title"], "two ranks");
  std::vector<nlohmann::json> events;
  std::vector<std::string> processes;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "X") events.push_back(event);
    if (event["name"] == "process_name") processes.push_back(event["args"]["name"]);
  }
  EXPECT_EQ(processes, (std::vector<std::string>{"rank 0 (stage 0)", "rank 1 (stage 1)"}));
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0]["name"], "forward 5");
  EXPECT_EQ(events[0]["pid"], 0);
  EXPECT_EQ(events[0]["ts"], 1e6);
  EXPECT_EQ(events[0]["dur"], 5e5);
  EXPECT_EQ(events[0]["args"]["step"], 3);
  EXPECT_EQ(events[1]["args"]["peer"], 0);
  EXPECT_EQ(events[3]["name"], "update");
  // Computing, waiting and sending each have a track.
  EXPECT_EQ(events[0]["tid"], events[3]["tid"]);
  EXPECT_NE(events[0]["tid"], events[1]["tid"]);
  EXPECT_NE(events[1]["tid"], events[2]["tid"]);
}

TEST(ChromeTrace, IsJsonWhateverTheTitleAndWithoutSpans) {
  const auto json = nlohmann::json::parse(chrome_trace({}, "a \"name\"\n\\ and ü"));
  EXPECT_EQ(json["otherData"]["title"], "a \"name\"\n\\ and ü");
  EXPECT_TRUE(json["traceEvents"].empty());
}

}  // namespace

}  // namespace stagecraft::format

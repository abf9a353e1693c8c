#include "costmodel/interchange/traces/chrome_trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace stagecraft::interchange {
namespace {

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
}  // namespace stagecraft::interchange

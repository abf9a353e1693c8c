#include "profiler/kernels/writers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

namespace stagecraft::profiler {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kStart = 1'700'000'000'000'000'000;  // as from a real clock: too many ns for a double

Attributed work(std::int64_t begin, std::int64_t end, std::uint32_t stream, Tag tag, std::int64_t launched = 0,
                std::int32_t name = -1) {
  Attributed out;
  out.activity.begin_ns = kStart + begin;
  out.activity.end_ns = kStart + end;
  out.activity.stream = stream;
  out.activity.name = name;
  out.tag = tag;
  out.launched_ns = launched ? kStart + launched : 0;
  return out;
}

/// Two kernels of layer 0 on streams 7 and 13, one of layer 1 that begins while the second still runs.
AttributedTrace small() {
  const Tag first{0, Phase::Forward, 2, 5};
  const Tag second{1, Phase::Backward, 2, 5};
  AttributedTrace trace;
  trace.names = {"gemm", "relu"};
  trace.activities = {work(2000, 3001, 7, first, 100, 0), work(4000, 6500, 13, first, 600, 1),
                      work(6000, 7000, 7, second, 5000, 0)};
  return trace;
}

std::vector<json> events(const json& trace, const std::string& phase) {
  std::vector<json> out;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase) out.push_back(event);
  }
  return out;
}

std::vector<json> on_track(const json& trace, const std::string& track) {
  std::set<std::pair<int, int>> tracks;
  for (const json& event : events(trace, "M")) {
    if (event.at("name") == "thread_name" && event.at("args").at("name") == track)
      tracks.emplace(event.at("pid").get<int>(), event.at("tid").get<int>());
  }
  std::vector<json> out;
  for (const json& event : events(trace, "X")) {
    if (tracks.contains({event.at("pid").get<int>(), event.at("tid").get<int>()})) out.push_back(event);
  }
  return out;
}

TEST(ChromeTraceOfKernels, HasOneTrackPerStreamWithExactTimes) {
  const std::string text = chrome_trace(small(), {"conv", "fc"}, "run");
  const json trace = json::parse(text);
  EXPECT_EQ(trace["otherData"]["title"], "run");
  EXPECT_EQ(trace["otherData"]["begin_ns"], "1700000000000000100");  // the first launch
  const std::vector<json> seven = on_track(trace, "stream 7");
  ASSERT_EQ(seven.size(), 2U);
  EXPECT_EQ(seven[0]["name"], "gemm");
  EXPECT_EQ(seven[0]["args"]["layer"], "conv");
  EXPECT_EQ(seven[0]["args"]["phase"], "forward");
  EXPECT_EQ(seven[0]["args"]["step"], 5);
  EXPECT_EQ(seven[0]["args"]["microbatch"], 2);
  EXPECT_EQ(on_track(trace, "stream 13").size(), 1U);
  // 2000 - 100 and 3001 - 2000 ns, exactly.
  EXPECT_THAT(text, ::testing::HasSubstr("\"ts\":1.900,\"dur\":1.001,\"name\":\"gemm\""));
}

TEST(ChromeTraceOfKernels, GivesALayerOneColour) {
  const json trace = json::parse(chrome_trace(small(), {"conv", "fc"}, ""));
  const auto colour = [&](const std::string& track, std::size_t i) { return on_track(trace, track).at(i).at("cname"); };
  EXPECT_EQ(colour("stream 7", 0), colour("stream 13", 0));
  EXPECT_EQ(colour("stream 7", 0), colour("layers", 0));
  EXPECT_NE(colour("stream 7", 0), colour("stream 7", 1));
}

TEST(ChromeTraceOfKernels, CutsALayerWhereTheNextBegins) {
  const json trace = json::parse(chrome_trace(small(), {"conv", "fc"}, ""));
  const std::vector<json> layers = on_track(trace, "layers");
  ASSERT_EQ(layers.size(), 2U);
  EXPECT_EQ(layers[0]["name"], "conv forward");
  EXPECT_DOUBLE_EQ(layers[0]["ts"], 1.9);
  EXPECT_DOUBLE_EQ(layers[0]["dur"], 4);  // ends at 6000, although its second kernel runs until 6500
  EXPECT_EQ(layers[1]["name"], "fc backward");
  EXPECT_DOUBLE_EQ(layers[1]["dur"], 1);
}

TEST(ChromeTraceOfKernels, DrawsAnArrowFromEachLaunchToItsWork) {
  AttributedTrace trace = small();
  trace.activities[1].launched_ns = 0;  // launch not seen
  const json parsed = json::parse(chrome_trace(trace, {}, ""));
  const std::vector<json> starts = events(parsed, "s");
  const std::vector<json> ends = events(parsed, "f");
  ASSERT_EQ(starts.size(), 2U);
  ASSERT_EQ(ends.size(), 2U);
  const std::vector<json> launches = on_track(parsed, "launches");
  const std::vector<json> kernels = on_track(parsed, "stream 7");
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(starts[i]["id"], ends[i]["id"]);
    EXPECT_EQ(starts[i]["ts"], launches[i]["ts"]);
    EXPECT_EQ(starts[i]["tid"], launches[i]["tid"]);
    EXPECT_EQ(ends[i]["ts"], kernels[i]["ts"]);
    EXPECT_EQ(ends[i]["tid"], kernels[i]["tid"]);
    EXPECT_EQ(ends[i]["bp"], "e");
  }
  EXPECT_NE(starts[0]["id"], starts[1]["id"]);
  EXPECT_DOUBLE_EQ(launches[0]["dur"], 1);
}

TEST(ChromeTraceOfKernels, EndsALaunchWhereTheNextBeginsAndDrawsAGraphsLaunchOnce) {
  AttributedTrace trace = small();
  trace.activities[1].launched_ns = trace.activities[0].launched_ns;
  trace.activities[2].launched_ns = trace.activities[0].launched_ns + 400;
  const json parsed = json::parse(chrome_trace(trace, {}, ""));
  const std::vector<json> launches = on_track(parsed, "launches");
  ASSERT_EQ(launches.size(), 2U);
  EXPECT_DOUBLE_EQ(launches[0]["dur"], 0.4);
  EXPECT_EQ(events(parsed, "s").size(), 3U);
}

TEST(ChromeTraceOfKernels, HasOneProcessPerDevice) {
  AttributedTrace trace = small();
  trace.activities[2].activity.device = 3;
  const json parsed = json::parse(chrome_trace(trace, {}, ""));
  std::vector<std::string> processes;
  for (const json& event : events(parsed, "M")) {
    if (event["name"] == "process_name") processes.push_back(event["args"]["name"]);
  }
  EXPECT_THAT(processes, ElementsAre("device 0", "device 3"));
  EXPECT_EQ(on_track(parsed, "stream 7").at(1)["pid"], 3);
}

TEST(ChromeTraceOfKernels, IsJsonWhateverTheNamesAre) {
  AttributedTrace trace = small();
  const std::string plain = "void at::native::elementwise_kernel<(int)4, \"x\\y\">(T *)\n\t\x01";
  trace.names = {plain, "caf\xe9 \xff\xfe"};
  const json parsed = json::parse(chrome_trace(trace, {"a \"b\"", "\x80"}, "t\"\\"));
  EXPECT_EQ(on_track(parsed, "stream 7").at(0)["name"], plain);
  EXPECT_EQ(on_track(parsed, "stream 13").at(0)["name"], "caf\xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(on_track(parsed, "layers").at(0)["name"], "a \"b\" forward");
  EXPECT_EQ(on_track(parsed, "layers").at(1)["name"], "\xef\xbf\xbd backward");
  EXPECT_EQ(parsed["otherData"]["title"], "t\"\\");
}

TEST(ChromeTraceOfKernels, OfNothingHasNoEvents) {
  EXPECT_THAT(json::parse(chrome_trace(AttributedTrace{}, {}, "")).at("traceEvents"), IsEmpty());
}

TEST(ActivitiesCsv, HasALineForEachActivity) {
  AttributedTrace trace = small();
  trace.activities.resize(2);
  trace.names[1] = "k<int, \"s\">";
  trace.activities[1].tag = {};
  trace.activities[1].activity.bytes = 12;
  trace.activities[1].launched_ns = 0;
  EXPECT_EQ(activities_csv(trace, {"conv"}),
            "step,microbatch,phase,layer,kind,name,stream,begin_ns,end_ns,bytes,launched_ns\n"
            "5,2,forward,conv,kernel,gemm,7,1700000000000002000,1700000000000003001,0,1700000000000000100\n"
            ",,none,,kernel,\"k<int, \"\"s\"\">\",13,1700000000000004000,1700000000000006500,12,\n");
}

TEST(ActivitiesCsv, NamesKindsAndLayersWithoutANameAndQuotesNewLines) {
  AttributedTrace trace;
  trace.names = {"a\nb"};
  for (const ActivityKind kind : {ActivityKind::Copy, ActivityKind::Set}) {
    trace.activities.push_back(work(0, 1, 0, {9, Phase::Optimizer, 0, 0}));
    trace.activities.back().activity.kind = kind;
  }
  trace.activities.push_back(work(0, 1, 0, {0, Phase::Data, 0, 0}, 0, 0));
  const std::string text = activities_csv(trace, {"conv"});
  EXPECT_THAT(text, ::testing::HasSubstr("\n0,0,optimizer,layer 9,copy,copy,0,"));
  EXPECT_THAT(text, ::testing::HasSubstr("\n0,0,optimizer,layer 9,set,set,0,"));
  EXPECT_THAT(text, ::testing::HasSubstr("\n0,0,data,,kernel,\"a\nb\",0,"));
}

}  // namespace
}  // namespace stagecraft::profiler

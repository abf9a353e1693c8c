#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "costmodel/format/topology_json.h"
#include "costmodel/index.h"
#include "tests/profiler/tool_runner.h"
#include "tests/support/run_command.h"

namespace stagecraft::profiler {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using testing::Outcome;
using ::testing::StartsWith;

class LinksTool : public testing::ToolRunner {
 protected:
  [[nodiscard]] Outcome links(const std::string& arguments, const std::string& settings = {}) const {
    return run("links", arguments, settings);
  }
};

TEST_F(LinksTool, MeasuresTheGlooChannelBetweenProcesses) {
  const Outcome o = links("--ranks 2 --channel gloo --max-bytes 4096 --seconds 1 --accept-untrusted -o topology.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, "");
  EXPECT_THAT(o.err, HasSubstr("operations between 2 ranks; --all prints their times\n"));
  EXPECT_THAT(o.err, ::testing::Not(HasSubstr("all_reduce of 2")));
  EXPECT_THAT(o.err, HasSubstr("2 ranks on one host, gloo channel: latency "));
  const Topology topology = format::parse_topology(read("topology.json"), "topology.json");
  ASSERT_EQ(topology.levels.size(), 1U);
  const Link& link = topology.levels.front().link;
  EXPECT_EQ(topology.levels.front().count, 2);
  EXPECT_EQ(link.send_receive.points.size(), 11U);  // 4 = 2^2 to 4096 = 2^12
  EXPECT_EQ(link.all_reduce.at(2).points.back().bytes, Bytes(4096));
  EXPECT_THAT(topology.provenance.tool, StartsWith("stagecraft-links "));
  EXPECT_THAT(topology.provenance.notes.at("command"), StartsWith("stagecraft links --ranks 2 --channel gloo"));
  EXPECT_EQ(topology.provenance.notes.at("channel"), "gloo");
  EXPECT_EQ(link.channel, "gloo");
  ASSERT_TRUE(link.processing);
  const auto bytes_of = [](const Curve& curve) {
    std::vector<std::int64_t> out;
    for (const CurvePoint& point : curve.points) out.push_back(point.bytes.value);
    return out;
  };
  EXPECT_THAT(bytes_of(link.processing->sender), ElementsAre(4, 1024));
  EXPECT_THAT(bytes_of(link.processing->receiver), ElementsAre(4, 1024));
  EXPECT_EQ(topology.device.kind, DeviceKind::Processor);
  EXPECT_EQ(topology.device.host_processors, to_int(std::thread::hardware_concurrency()));
}

TEST_F(LinksTool, MeasuresTheLocalChannelToStandardOutput) {
  const Outcome o = links("--ranks 3 --max-bytes 64 --seconds 1 --accept-untrusted --all -o -");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("all_reduce of 2"));
  const Topology topology = format::parse_topology(o.out, "out");
  EXPECT_EQ(device_count(topology), 3);
  EXPECT_EQ(topology.levels.front().link.all_reduce.size(), 2U);
  EXPECT_EQ(topology.levels.front().link.channel, "local");
  EXPECT_FALSE(topology.levels.front().link.processing) << "its ranks are threads of one process";
}

TEST_F(LinksTool, ExitsWithOneIfOtherProgramsDisturb) {
  // To the tool, a thread of this test on each processor is another program.
  std::atomic<bool> stop = false;
  std::vector<std::jthread> busy;
  for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
    busy.emplace_back([&] {
      volatile double sum = 0;
      while (!stop) sum = sum + 1;
    });
  }
  const Outcome refused = links("--ranks 2 --max-bytes 64 --seconds 1 -o topology.json");
  const Outcome taken = links("--ranks 2 --max-bytes 64 --seconds 1 --accept-untrusted -o taken.json");
  stop = true;
  EXPECT_EQ(refused.status, 1) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("not trusted: other programs kept "));
  EXPECT_THAT(refused.err, EndsWith("so the exit status is 1; with --accept-untrusted it is 0\n"));
  EXPECT_THAT(distrust_text(format::parse_topology(read("topology.json"), "topology.json")),
              HasSubstr("processors busy"));
  EXPECT_EQ(taken.status, 0) << taken.err;
}

TEST_F(LinksTool, RefusesBadInputWithStatusOne) {
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"--max-bytes 64 -o nowhere/topology.json", "nowhere/topology.json: "}}) {
    const Outcome o = links(arguments);
    EXPECT_EQ(o.status, 1) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message)) << arguments;
  }
}

TEST_F(LinksTool, ReplacesTopologiesAlone) {
  ASSERT_EQ(links("--max-bytes 4 --seconds 0.1 --accept-untrusted -o topology.json").status, 0);
  EXPECT_EQ(links("--max-bytes 4 --seconds 0.1 --accept-untrusted -o topology.json").status, 0);
  (void)run("links", "--version | tee notes.txt");
  const Outcome o = links("--max-bytes 4 --seconds 0.1 --accept-untrusted -o notes.txt");
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, StartsWith("stagecraft-links: notes.txt: holds something that stagecraft did not write, so no "
                                "stagecraft.topology replaces it; use another name, or --force"));
}

TEST_F(LinksTool, RefusesAnotherNumberOfRanksThanWereStarted) {
  const Outcome o =
      links("--ranks 2 --channel gloo", "RANK=0 WORLD_SIZE=3 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=1");
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(o.err,
            "stagecraft-links: --ranks is 2, torchrun started 3; start 2, or use --spawn to start them on this machine "
            "without torchrun [SC4105]\n");
}

TEST_F(LinksTool, RefusesALauncherThatStartedMoreProcessesThanThreadsNeed) {
  const Outcome o =
      links("--ranks 2 --channel local", "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=1");
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(
      o.err,
      "stagecraft-links: channel local runs all ranks as threads of one process, torchrun started 2; start one, or "
      "remove --channel local [SC4105]\n");
}

// Port 1 is nobody's: rank 1 waits for rank 0 until its deadline.
TEST_F(LinksTool, EndsWithFourIfARankDoesNotComeInTime) {
  const Outcome o = links("--ranks 2 --channel gloo --timeout 0.5",
                          "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=1");
  EXPECT_EQ(o.status, 4) << o.err;
  EXPECT_THAT(o.err, HasSubstr("stagecraft-links: "));
}

TEST(LinksOfTwoProcesses, AreNotMeasuredWithDifferentOptions) {
  const testing::CommandFolder folder;
  const std::string port = std::to_string(20000 + ::getpid() % 12000);
  const std::string links = "stagecraft-links --ranks 2 --channel gloo --max-bytes 64 --timeout 5 --seconds ";
  (void)folder.run("export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port + "\nRANK=0 LOCAL_RANK=0 " + links +
                   "1 2> zero.txt & zero=$!\nRANK=1 LOCAL_RANK=1 " + links + "2 2> one.txt\nwait $zero");
  for (const char* file : {"zero.txt", "one.txt"}) {
    EXPECT_THAT(folder.read(file), HasSubstr("rank 1 has different options or files than rank 0: --seconds 2 instead "
                                             "of --seconds 1; start all ranks with the same"))
        << file;
  }
}

// A machine without a driver reports cudaErrorInsufficientDriver or cudaErrorNoDevice, a build without CUDA names its
// option.
TEST_F(LinksTool, SaysWhatItFoundAndWhatToDoWithoutAGpu) {
  const Outcome o = links("--channel nccl --max-bytes 4 --seconds 0.1");
  if (o.status == 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(
      o.err,
      AnyOf(MatchesRegex(
                "stagecraft-links: no GPU to measure: cudaGetDeviceCount found cudaError[A-Za-z]+ \\(.+\\), "
                "expected at least one GPU with its driver; to measure processors, use --channel gloo \\[SC4002\\]\n"),
            HasSubstr("build with -DSTAGECRAFT_WITH_CUDA=ON")));
}

TEST_F(LinksTool, EndsWithTwoOnWrongUsage) {
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"--ranks 0", "--ranks: 0 is not an integer from 1 to 1024"},
           {"--ranks two", "--ranks: \"two\" is not an integer from 1 to 1024"},
           {"--ranks 1", "--ranks: is 1, must be at least 2 (1 is enough with --channel nccl)"},
           {"--channel pigeons", "--channel: unknown channel \"pigeons\", known are local, "},
           {"--max-bytes 3apples", "--max-bytes"},
           {"--max-bytes 3", "--max-bytes: the largest message is 3 bytes, must be 4 to 17179869184"},
           {"--sizes-per-octave 65", "--sizes-per-octave: 65 is not an integer from 1 to 64"},
           {"--seconds 0", "--seconds: 0 is not a number above 0"},
           {"--threads 0", "--threads: 0 is not an integer from 1 to 1024"},
           {"--timeout 0", "--timeout: 0 is not a number from 0.001 to 1000000"},
           {"--timeout inf", "--timeout: \"inf\" is not a number from 0.001 to 1000000"},
           {"--magic", "--magic"}}) {
    const Outcome o = links(arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message)) << arguments;
  }
}

TEST_F(LinksTool, ShowsAnExample) {
  const Outcome o = links("--help");
  EXPECT_EQ(o.status, 0);
  EXPECT_THAT(o.out, HasSubstr("stagecraft links --ranks 2 --spawn -o topology.json"));
}

}  // namespace
}  // namespace stagecraft::profiler

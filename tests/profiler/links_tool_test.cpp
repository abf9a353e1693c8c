#include <gmock/gmock.h>

#include "costmodel/format/json.h"
#include "tests/profiler/tool_runner.h"

namespace stagecraft {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class LinksTool : public ToolRunner {
 protected:
  [[nodiscard]] Outcome links(const std::string& arguments, const std::string& settings = {}) const {
    return run("links", arguments, settings);
  }
};

TEST_F(LinksTool, MeasuresTheGlooChannelBetweenProcesses) {
  const Outcome o = links("--ranks 2 --channel gloo --max-bytes 4096 --seconds 1 -o topology.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, "");
  EXPECT_THAT(o.err, HasSubstr("all-reduce of 2"));
  EXPECT_THAT(o.err, HasSubstr("2 ranks on one host, gloo channel: latency "));
  const Topology topology = parse_topology(read("topology.json"), "topology.json");
  ASSERT_EQ(topology.levels.size(), 1U);
  const Link& link = topology.levels.front().link;
  EXPECT_EQ(topology.levels.front().count, 2);
  EXPECT_EQ(link.send_receive.points.size(), 11U);  // 4 = 2^2 to 4096 = 2^12
  EXPECT_EQ(link.all_reduce.at(2).points.back().bytes, Bytes(4096));
  EXPECT_THAT(topology.provenance.tool, StartsWith("stagecraft-links "));
  EXPECT_EQ(topology.provenance.notes.at("channel"), "gloo");
}

TEST_F(LinksTool, MeasuresTheLocalChannelToStandardOutput) {
  const Outcome o = links("--ranks 3 --max-bytes 64 --seconds 1 -o -");
  EXPECT_EQ(o.status, 0) << o.err;
  const Topology topology = parse_topology(o.out, "out");
  EXPECT_EQ(device_count(topology), 3);
  EXPECT_EQ(topology.levels.front().link.all_reduce.size(), 2U);
}

TEST_F(LinksTool, RefusesBadInputWithStatusOne) {
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"--channel pigeons", "unknown channel \"pigeons\", known are local, gloo"},
           {"--max-bytes 3", "the largest message is 3 bytes, wanted 4 to 17179869184"},
           {"--max-bytes 64 -o nowhere/topology.json", "nowhere/topology.json: "}}) {
    const Outcome o = links(arguments);
    EXPECT_EQ(o.status, 1) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message)) << arguments;
  }
}

TEST_F(LinksTool, RefusesAnotherNumberOfRanksThanWereStarted) {
  const Outcome o =
      links("--ranks 2 --channel gloo", "RANK=0 WORLD_SIZE=3 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=1");
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(o.err, "stagecraft-links: --ranks is 2, torchrun started 3\n");
}

TEST_F(LinksTool, EndsWithTwoOnWrongUsage) {
  for (const auto& [arguments, message] :
       std::vector<std::pair<std::string, std::string>>{{"--ranks 1", "--ranks"},
                                                        {"--ranks two", "--ranks"},
                                                        {"--max-bytes 3apples", "--max-bytes"},
                                                        {"--threads 0", "--threads"},
                                                        {"--timeout 0", "--timeout"},
                                                        {"--magic", "--magic"}}) {
    const Outcome o = links(arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message)) << arguments;
  }
}

TEST_F(LinksTool, ShowsAnExample) {
  const Outcome o = links("--help");
  EXPECT_EQ(o.status, 0);
  EXPECT_THAT(o.out, HasSubstr("stagecraft links --ranks 2 --channel gloo -o topology.json"));
}

}  // namespace
}  // namespace stagecraft

#include <gmock/gmock.h>

#include "costmodel/format/topology_json.h"
#include "costmodel/index.h"
#include "tests/profiler/tool_runner.h"

// links --channel nccl over tests/support/fakes/fake_gpus.cpp: tests our side of the calls, without a GPU.

namespace stagecraft::profiler {
namespace {

using ::testing::MatchesRegex;
using testing::Outcome;

class LinksOfFakeGpus : public testing::ToolRunner {
 protected:
  [[nodiscard]] Outcome links(const std::string& arguments, const std::string& settings) const {
    return run("links", "--channel nccl --seconds 2 " + arguments, settings + " LD_PRELOAD='" FAKE_GPUS_LIBRARY "'");
  }
};

/// Time of the fake operation on `bytes`: 2^-17 s plus 2^-33 s per byte.
double fake_time(std::int64_t bytes) { return 0x1p-17 + 0x1p-33 * static_cast<double>(bytes); }

/// Expects the fake time at every point, for bytes rounded up to `ranks` shares of whole floats.
void expect_fake(const Curve& curve, std::int64_t ranks, const std::string& name) {
  EXPECT_EQ(curve.points.size(), 13U) << name;  // 4 = 2^2 to 16 KiB = 2^14
  for (const CurvePoint& point : curve.points) {
    const std::int64_t shares = (point.bytes.value / 4 + ranks - 1) / ranks * ranks * 4;
    const double expected = fake_time(shares);
    EXPECT_NEAR(point.time.value, expected, expected * 1e-5) << name << " at " << point.bytes.value;
  }
}

TEST_F(LinksOfFakeGpus, MatchTheFakeForOneToFour) {
  for (const int gpus : {1, 2, 3, 4}) {
    const Outcome o =
        links("--max-bytes 16KiB --accept-untrusted -o topology.json", "FAKE_GPUS=" + std::to_string(gpus));
    ASSERT_EQ(o.status, 0) << o.err;
    const Topology topology = format::parse_topology(read("topology.json"), "topology.json");
    EXPECT_EQ(topology.device.name, "fake GPU");
    EXPECT_EQ(topology.device.memory, 16_GiB);
    expect_fake(topology.device.host_to_device, 1, "host_to_device");
    expect_fake(topology.device.device_to_host, 1, "device_to_host");
    ASSERT_EQ(device_count(topology), gpus);
    const Link& link = topology.levels.front().link;
    EXPECT_EQ(link.origin, LinkOrigin::Measured);
    expect_fake(link.send_receive, 1, "send_receive");
    for (const auto* curves : {&link.all_reduce, &link.all_gather, &link.reduce_scatter}) {
      EXPECT_EQ(curves->size(), to_index(gpus - 1));
      for (const auto& [ranks, curve] : *curves)
        expect_fake(curve, curves == &link.all_reduce ? 1 : ranks, "a collective of " + std::to_string(ranks));
    }
    const auto& notes = topology.provenance.notes;
    EXPECT_EQ(notes.count("pairs of 4"), gpus == 4 ? 1U : 0U);
    EXPECT_EQ(notes.count("one rank"), gpus == 1 ? 1U : 0U);
    EXPECT_EQ(notes.count("slowest pair"), gpus > 2 ? 1U : 0U);
  }
}

TEST_F(LinksOfFakeGpus, TellCallCodeAndPlaceOfARefusal) {
  const Outcome o = links("--max-bytes 64KiB", "FAKE_GPUS=2 FAKE_MEMORY=65536");
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, MatchesRegex("stagecraft-links: cudaMalloc: cudaErrorMemoryAllocation \\(out of memory\\), at "
                                  "links_nccl_cuda.cpp:[0-9]+ \\[SC4004\\]\n"));
}

TEST_F(LinksOfFakeGpus, EndWithTheErrorOfTheRankThatFailed) {
  const Outcome o = links("--max-bytes 64", "FAKE_GPUS=3 FAKE_FAILURE=1");
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, MatchesRegex("stagecraft-links: ncclAllReduce: ncclResult_t 2 \\(unhandled system error.*\\), at "
                                  "links_nccl_cuda.cpp:[0-9]+ \\[SC4001\\]\n"));
}

TEST_F(LinksOfFakeGpus, AreNotMoreThanThereAre) {
  const Outcome o = links("--ranks 3", "FAKE_GPUS=2");
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(o.err, "stagecraft-links: the number of ranks is 3, must be 1 to 2, one per GPU [SC2001]\n");
}

}  // namespace
}  // namespace stagecraft::profiler

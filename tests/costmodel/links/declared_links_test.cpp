#include "costmodel/links/declared_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>

namespace stagecraft {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::ThrowsMessage;

TEST(PlainBus, IsTheSameHoweverWritersWriteAnAddress) {
  const std::string dump = plain_bus("0000:0a:00.0");
  EXPECT_EQ(plain_bus("0000:0A:00.0"), dump);
  EXPECT_EQ(plain_bus("00000000:0A:00.0"), dump);  // domain of eight digits
  EXPECT_EQ(plain_bus("0A:00.0"), dump);
  EXPECT_NE(plain_bus("0001:0A:00.0"), dump);
  EXPECT_NE(plain_bus("0000:0A:01.0"), dump);
  EXPECT_NE(plain_bus("0000:A0:00.0"), dump);
}

// ncclTopoNVLinkBw: SM60 18, SM70 and SM80 20, SM86 12, SM90 20.6, SM100 40.1 GB/s.
TEST(NvlinkBandwidth, IsNcclsOfEachGeneration) {
  for (const auto& [capability, bandwidth] : std::vector<std::pair<int, double>>{
           {60, 18e9}, {70, 20e9}, {75, 20e9}, {80, 20e9}, {86, 12e9}, {89, 20e9}, {90, 20.6e9}, {100, 40.1e9}}) {
    EXPECT_DOUBLE_EQ(nvlink_bandwidth(capability).value, bandwidth) << capability;
  }
}

// NCCL assumes 0.75 GB/s per lane at 8 GT/s, which carries at most 8 * 128 / 130 / 8 = 0.985 GB/s; other transfer rates
// scale in proportion.
TEST(PciBandwidth, IsInProportionToSpeedAndLanes) {
  for (const double speed : {2.5, 5.0, 8.0, 16.0, 32.0, 64.0}) {
    const double lane = speed == 2.5 ? 0.1875e9 : speed == 5 ? 0.375e9 : 0.75e9 * speed / 8;
    for (const int lanes : {1, 4, 8, 16}) EXPECT_DOUBLE_EQ(pci_bandwidth(speed, lanes).value, lane * lanes);
  }
}

TEST(PciBandwidth, TakesAnUnknownSpeedFor8) {
  EXPECT_EQ(pci_bandwidth(0, 16), pci_bandwidth(8, 16));
  EXPECT_EQ(pci_bandwidth(15.9, 16), pci_bandwidth(8, 16));
}

/// GPUs of compute capability 8.0, whose NVLinks carry 20 GB/s, each on a separate PCI link of 24 GB/s.
std::vector<DeclaredGpu> gpus_of(int count, const std::string& host = "host", int first = 0) {
  std::vector<DeclaredGpu> out;
  for (int i = first; i < first + count; ++i) {
    out.push_back({i, 80, host, std::to_string(i), {{i, BytesPerSecond(24e9)}}, 0, {}});
  }
  return out;
}

void join(std::vector<DeclaredGpu>& gpus, std::size_t a, std::size_t b, int links) {
  gpus[a].links[gpus[b].bus] = links;
  gpus[b].links[gpus[a].bus] = links;
}

std::vector<DeclaredGpu> together(std::vector<DeclaredGpu> a, const std::vector<DeclaredGpu>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Answer {
  std::vector<Level> levels;
  std::map<std::string, std::string> notes;
};

Answer answer(const std::vector<DeclaredGpu>& gpus) {
  Answer out;
  out.levels = declared_levels(gpus, out.notes);
  return out;
}

void expect_level(const Level& level, const std::string& name, int count, double bandwidth) {
  EXPECT_EQ(level.name, name);
  EXPECT_EQ(level.count, count);
  EXPECT_DOUBLE_EQ(level.link.bandwidth.value, bandwidth);
  EXPECT_EQ(level.link.latency, Seconds(5e-6));
}

TEST(DeclaredLevels, OfOneGpuAreANodeOfOne) {
  const Answer found = answer(gpus_of(1));
  ASSERT_EQ(found.levels.size(), 1u);
  expect_level(found.levels[0], "node", 1, 24e9);
  EXPECT_EQ(found.notes.at("node"), "PCI");
}

TEST(DeclaredLevels, TakeTheFewestLinksToASwitch) {
  std::vector<DeclaredGpu> gpus = gpus_of(2);
  gpus[0].switch_links = 12;
  gpus[1].switch_links = 6;
  const Answer found = answer(gpus);
  ASSERT_EQ(found.levels.size(), 1u);
  expect_level(found.levels[0], "node", 2, 120e9);
  gpus[1].switch_links = 0;  // one GPU is not connected to the switch: PCI
  expect_level(answer(gpus).levels.at(0), "node", 2, 24e9);
}

TEST(DeclaredLevels, PutHostsThatASwitchJoinsInOneNode) {
  std::vector<DeclaredGpu> gpus = together(gpus_of(2, "a"), gpus_of(2, "b", 2));
  for (DeclaredGpu& gpu : gpus) gpu.switch_links = 4;
  const Answer found = answer(gpus);
  ASSERT_EQ(found.levels.size(), 1u);
  expect_level(found.levels[0], "node", 4, 80e9);
}

TEST(DeclaredLevels, TakeTheSlowerGpuOfADirectConnection) {
  std::vector<DeclaredGpu> gpus = gpus_of(2);
  gpus[1].compute_capability = 86;  // 12 GB/s
  join(gpus, 0, 1, 4);
  expect_level(answer(gpus).levels.at(0), "node", 2, 48e9);
}

TEST(DeclaredLevels, MakeALevelOfEqualGroupsOfConsecutiveRanks) {
  std::vector<DeclaredGpu> gpus = gpus_of(6);
  for (const std::size_t first : {0u, 3u}) {  // a row of three: the middle joins the ends
    join(gpus, first, first + 1, 4);
    join(gpus, first + 1, first + 2, 2);
  }
  const Answer found = answer(gpus);
  ASSERT_EQ(found.levels.size(), 2u);
  expect_level(found.levels[0], "nvlink", 3, 40e9);
  expect_level(found.levels[1], "node", 2, 24e9);
  EXPECT_EQ(found.notes.at("nvlink"), "NVLinks between GPUs");
}

TEST(DeclaredLevels, TakeTheSlowestOfUnlikeHosts) {
  std::vector<DeclaredGpu> slow = gpus_of(2, "b", 2);
  for (DeclaredGpu& gpu : slow) gpu.path.front().bandwidth = BytesPerSecond(6e9);
  expect_level(answer(together(gpus_of(2, "a"), slow)).levels.at(0), "node", 2, 6e9);
  // The other host's NVLinks do not help, and no note mentions them.
  std::vector<DeclaredGpu> pairs = gpus_of(4, "a");
  join(pairs, 0, 1, 4);
  join(pairs, 2, 3, 4);
  slow = gpus_of(4, "b", 4);
  for (DeclaredGpu& gpu : slow) gpu.path.front().bandwidth = BytesPerSecond(6e9);
  const Answer found = answer(together(pairs, slow));
  ASSERT_EQ(found.levels.size(), 1u);
  expect_level(found.levels[0], "node", 4, 6e9);
  EXPECT_THAT(found.notes, Not(Contains(Key("nvlink"))));
}

TEST(DeclaredLevels, TakeTheSlowerOfEachLevelOfHostsThatAreJoinedAlike) {
  std::vector<DeclaredGpu> a = gpus_of(4, "a");
  join(a, 0, 1, 4);
  join(a, 2, 3, 4);
  for (DeclaredGpu& gpu : a) gpu.path.front().bandwidth = BytesPerSecond(12e9);
  std::vector<DeclaredGpu> b = gpus_of(4, "b", 4);
  join(b, 0, 1, 2);
  join(b, 2, 3, 2);
  // The first host has the wider NVLinks, the second the faster PCI links.
  for (const std::vector<DeclaredGpu>& both : {together(a, b), together(b, a)}) {
    const Answer found = answer(both);
    ASSERT_EQ(found.levels.size(), 2u);
    expect_level(found.levels[0], "nvlink", 2, 40e9);
    expect_level(found.levels[1], "node", 2, 12e9);
    EXPECT_THAT(found.notes, Contains(Key("nvlink")));
  }
}

TEST(DeclaredLevels, CountNoNvlinksThatOneHostHasAlone) {
  std::vector<DeclaredGpu> a = gpus_of(4, "a");
  join(a, 0, 1, 4);
  join(a, 2, 3, 4);
  for (DeclaredGpu& gpu : a) gpu.path.front().bandwidth = BytesPerSecond(12e9);
  // The second host has no NVLinks but faster PCI links.
  const Answer found = answer(together(a, gpus_of(4, "b", 4)));
  ASSERT_EQ(found.levels.size(), 1u);
  expect_level(found.levels[0], "node", 4, 12e9);
  EXPECT_THAT(found.notes, Not(Contains(Key("nvlink"))));
}

TEST(DeclaredLevels, RefuseNoGpusAndHostsOfUnequalNumbers) {
  EXPECT_THAT([] { (void)answer({}); }, ThrowsMessage<std::invalid_argument>(HasSubstr("no GPUs")));
  EXPECT_THAT([] { (void)answer(together(gpus_of(2, "a"), gpus_of(3, "b", 2))); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("2 and 3")));
}

// A random tree of PCI links with GPUs at the leaves. A pair's paths to the root share the links above the node where
// they meet; the slowest of the remaining links sets the pair's bandwidth, and the slowest pair the host's.
TEST(DeclaredLevels, TakeTheSlowestLinkOnTheWayBetweenAnyTwoGpus) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const int elements = 4 + static_cast<int>(random() % 8);
    std::vector<int> above{-1};  // element -> parent; 0 is the processor
    std::vector<double> up{0};   // bandwidth of the link to the parent
    for (int e = 1; e < elements; ++e) {
      above.push_back(static_cast<int>(random() % static_cast<unsigned>(e)));
      up.push_back(1e9 * static_cast<double>(1 + random() % 50));
    }
    std::vector<DeclaredGpu> gpus;
    for (int e = 1; e < elements; ++e) {
      const bool leaf = std::find(above.begin(), above.end(), e) == above.end();
      if (!leaf) continue;
      DeclaredGpu gpu{static_cast<std::int64_t>(gpus.size()), 80, "host", std::to_string(e), {}, 0, {}};
      for (int at = e; at > 0; at = above[static_cast<std::size_t>(at)])
        gpu.path.push_back({at, BytesPerSecond(up[static_cast<std::size_t>(at)])});
      gpus.push_back(gpu);
    }
    if (gpus.size() < 2) continue;
    double slowest = 1e300;
    for (const DeclaredGpu& a : gpus) {
      for (const DeclaredGpu& b : gpus) {
        if (a.rank == b.rank) continue;
        for (const PciHop& hop : a.path) {
          if (std::find(b.path.begin(), b.path.end(), hop) == b.path.end())
            slowest = std::min(slowest, hop.bandwidth.value);
        }
      }
    }
    const Answer found = answer(gpus);
    ASSERT_EQ(found.levels.size(), 1u);
    expect_level(found.levels[0], "node", static_cast<int>(gpus.size()), slowest);
  }
}

// Whatever the NVLinks connect, the levels contain all GPUs of the host, and no link is slower than PCI.
TEST(DeclaredLevels, HoldAllGpusOfAHost) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const std::size_t count = 2 + random() % 7;
    std::vector<DeclaredGpu> gpus = gpus_of(static_cast<int>(count));
    for (unsigned n = random() % 8; n > 0; --n) {
      const std::size_t a = random() % count;
      const std::size_t b = random() % count;
      if (a != b) join(gpus, a, b, 2 + static_cast<int>(random() % 3));
    }
    const Answer found = answer(gpus);
    int all = 1;
    for (const Level& level : found.levels) {
      all *= level.count;
      EXPECT_GE(level.link.bandwidth.value, 24e9) << "seed " << seed;
    }
    EXPECT_EQ(all, static_cast<int>(count)) << "seed " << seed;
    EXPECT_EQ(found.levels.back().name, "node") << "seed " << seed;
    EXPECT_EQ(found.levels.size(), found.notes.size()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace stagecraft

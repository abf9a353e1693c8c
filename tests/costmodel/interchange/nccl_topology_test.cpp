#include "costmodel/interchange/nccl_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "tests/support/places.h"

namespace stagecraft::interchange {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

const std::string kDump = source_folder() + "/tests/golden/nccl/topology.xml";

/// `text` with every `from` replaced by `to`.
std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

/// The dump without its NVLinks.
std::string without_nvlinks() {
  std::string text = format::read_text(kDump);
  for (std::size_t at = 0; (at = text.find("<nvlink", at)) != text.npos;) text.erase(at, text.find("/>", at) + 2 - at);
  return text;
}

/// The same dump with `link` in the GPU of each rank.
std::string with_nvlinks(const std::vector<std::string>& links) {
  std::string text = without_nvlinks();
  for (std::size_t rank = 0; rank < links.size(); ++rank) {
    const std::string gpu = "rank=\"" + std::to_string(rank) + "\" gdr=\"1\">";
    text = replaced(text, gpu, gpu + links[rank]);
  }
  return text;
}

std::string to_gpu(const char* bus, int count) {
  return "<nvlink target=\"0000:" + std::string(bus) + ":00.0\" count=\"" + std::to_string(count) +
         "\" tclass=\"0x030200\"/>";
}

TEST(ParseNcclTopology, CountsDevicesAndAddsUpTheNvlinksToSwitches) {
  const Topology topology = parse_nccl_topology(format::read_text(kDump), "dump.xml");
  ASSERT_EQ(topology.levels.size(), 2U);
  EXPECT_EQ(topology.levels[0].name, "node");
  EXPECT_EQ(topology.levels[0].count, 4);
  EXPECT_DOUBLE_EQ(topology.levels[0].link.bandwidth.value, 240e9);  // 12 links of 20 GB/s at compute capability 8.0
  EXPECT_EQ(topology.levels[0].link.origin, LinkOrigin::Declared);
  EXPECT_EQ(topology.levels[1].name, "cluster");
  EXPECT_EQ(topology.levels[1].count, 1);
  EXPECT_DOUBLE_EQ(topology.levels[1].link.bandwidth.value, 25e9 / 4);  // 200 Gbit/s for four
  EXPECT_EQ(topology.levels[1].link.latency, Seconds(1e-5));
  EXPECT_EQ(topology.device, (Device{"GPU of compute capability 8.0", std::nullopt, {}, {}, DeviceKind::Gpu}));
  EXPECT_EQ(topology.provenance.notes.at("node"), "NVLinks to a switch");
}

TEST(ParseNcclTopology, TakesTheSlowestPciLinkBetweenTwoGpusWithoutNvlink) {
  // 16 GT/s on 16 lanes; NCCL assumes 1.5 GB/s per lane.
  EXPECT_DOUBLE_EQ(parse_nccl_topology(without_nvlinks(), "dump.xml").levels[0].link.bandwidth.value, 24e9);
  // The switch above two of the GPUs has 8 lanes of 8 GT/s: 6 GB/s to the two other GPUs.
  std::string text = without_nvlinks();
  const std::string above = "subsystem_device=\"0xa064\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"";
  text.replace(text.find(above), above.size(), "link_speed=\"8.0 GT/s PCIe\" link_width=\"8\"");
  EXPECT_DOUBLE_EQ(parse_nccl_topology(text, "dump.xml").levels[0].link.bandwidth.value, 6e9);
}

TEST(ParseNcclTopology, TakesPciLinksOfUnknownSpeedAsNcclDoesAndSaysSo) {
  const std::string text = replaced(without_nvlinks(), "link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"",
                                    "link_speed=\"\" link_width=\"0\"");
  const Topology topology = parse_nccl_topology(text, "dump.xml");
  EXPECT_DOUBLE_EQ(topology.levels[0].link.bandwidth.value, 12e9);
  EXPECT_THAT(topology.provenance.notes.at("PCI"), StartsWith("7 links without speed or width"));
}

TEST(ParseNcclTopology, MakesALevelOfPairsThatNvlinksJoin) {
  const std::string text = with_nvlinks({to_gpu("06", 4), to_gpu("05", 4), to_gpu("08", 4), to_gpu("07", 4)});
  const Topology topology = parse_nccl_topology(text, "dump.xml");
  ASSERT_EQ(topology.levels.size(), 3U);
  EXPECT_EQ(topology.levels[0].name, "nvlink");
  EXPECT_EQ(topology.levels[0].count, 2);
  EXPECT_DOUBLE_EQ(topology.levels[0].link.bandwidth.value, 80e9);
  EXPECT_EQ(topology.levels[1].name, "node");
  EXPECT_EQ(topology.levels[1].count, 2);
  EXPECT_DOUBLE_EQ(topology.levels[1].link.bandwidth.value, 24e9);
}

TEST(ParseNcclTopology, TakesTheThinnestOfDirectNvlinksThatReachAll) {
  const std::string text = with_nvlinks(
      {to_gpu("06", 2) + to_gpu("07", 1), to_gpu("05", 2) + to_gpu("08", 2), to_gpu("05", 1), to_gpu("06", 2)});
  const Topology topology = parse_nccl_topology(text, "dump.xml");
  ASSERT_EQ(topology.levels.size(), 2U);
  EXPECT_DOUBLE_EQ(topology.levels[0].link.bandwidth.value, 20e9);
  EXPECT_EQ(topology.provenance.notes.at("node"), "NVLinks between GPUs");
}

TEST(ParseNcclTopology, CountsNoNvlinksThatJoinUnequalOrScatteredGroups) {
  // Ranks 0 and 2, and 1 and 3: groups of two, but not of consecutive ranks.
  const std::string text = with_nvlinks({to_gpu("07", 4), to_gpu("08", 4), to_gpu("05", 4), to_gpu("06", 4)});
  const Topology topology = parse_nccl_topology(text, "dump.xml");
  ASSERT_EQ(topology.levels.size(), 2U);
  EXPECT_DOUBLE_EQ(topology.levels[0].link.bandwidth.value, 24e9);
  EXPECT_THAT(topology.provenance.notes.at("node"), HasSubstr("are not counted"));
}

TEST(ParseNcclTopology, DistinguishesHostsByHash) {
  std::string text = with_nvlinks({});
  text.replace(text.rfind("host_hash=\"0x1\""), 15, "host_hash=\"0x2\"");
  const Topology topology = parse_nccl_topology(text, "dump.xml");
  ASSERT_EQ(topology.levels.size(), 2U);
  EXPECT_EQ(topology.levels[0].count, 2);
  EXPECT_EQ(topology.levels[1].count, 2);
}

TEST(ParseNcclTopology, LeavesOutGpusWithoutARankAndTheClusterWithoutANet) {
  std::string text = replaced(format::read_text(kDump), "rank=\"3\" ", "");
  const std::size_t net = text.find("<net ");
  text.erase(net, text.find("/>", net) + 2 - net);
  const Topology topology = parse_nccl_topology(text, "dump.xml");
  ASSERT_EQ(topology.levels.size(), 1U);
  EXPECT_EQ(topology.levels[0].count, 3);
  EXPECT_EQ(topology.provenance.notes.at("left out"), "1 GPUs without a rank");
}

/// A PCI device of 32 GT/s and 16 lanes, 48 GB/s as NCCL counts it; or of `speed`.
std::string pci(const std::string& bus, const std::string& inside, const std::string& speed = "32.0") {
  return "<pci busid=\"0000:" + bus + ":00.0\" link_speed=\"" + speed + " GT/s PCIe\" link_width=\"16\">" + inside +
         "</pci>";
}

std::string gpu(int rank) { return "<gpu dev=\"0\" sm=\"90\" rank=\"" + std::to_string(rank) + "\" gdr=\"1\"/>"; }

std::string nic(int gigabits) {
  return "<nic><net name=\"n\" speed=\"" + std::to_string(gigabits * 1000) + "\"/></nic>";
}

/// Bandwidth between hosts of GPUs and interfaces at processors.
double cluster_bandwidth(const std::vector<std::string>& processors) {
  std::string text = "<system version=\"1\">";
  for (const std::string& inside : processors) text += "<cpu host_hash=\"0x1\">" + inside + "</cpu>";
  return parse_nccl_topology(text + "</system>", "dump.xml").levels.back().link.bandwidth.value;
}

// Two GPUs share two of 400 Gbit/s, 50 GB/s each; that of a storage port of 100 Gbit/s is not used.
TEST(ParseNcclTopology, DoesNotCountStoragePorts) {
  EXPECT_DOUBLE_EQ(cluster_bandwidth({pci("01", nic(400)) + pci("02", nic(400)) + pci("03", nic(100)) +
                                      pci("10", gpu(0)) + pci("11", gpu(1))}),
                   50e9);
}

TEST(ParseNcclTopology, DividesInterfacesAmongTheGpusThatUseThem) {
  const std::string four = pci("10", gpu(0)) + pci("11", gpu(1)) + pci("12", gpu(2)) + pci("13", gpu(3));
  EXPECT_DOUBLE_EQ(cluster_bandwidth({pci("01", nic(200)) + four}), 25e9 / 4);
  // Several for each GPU: four of 100 Gbit/s for two GPUs.
  EXPECT_DOUBLE_EQ(cluster_bandwidth({pci("01", nic(100)) + pci("02", nic(100)) + pci("03", nic(100)) +
                                      pci("04", nic(100)) + pci("10", gpu(0)) + pci("11", gpu(1))}),
                   25e9);
  // But no more than the GPU's PCI link, 31.5 GB/s at 16 GT/s.
  EXPECT_DOUBLE_EQ(cluster_bandwidth({pci("01", nic(200)) + pci("02", nic(200)) + pci("10", gpu(0), "16.0")}), 31.5e9);
}

// Behind each PCI switch a GPU and its interface; that of the other one is as fast, but farther away.
TEST(ParseNcclTopology, TakesTheNearestOfTheFastest) {
  const auto behind_switch = [](const std::string& bus, int rank, int gigabits) {
    return pci(bus + "0", pci(bus + "1", gpu(rank)) + pci(bus + "2", nic(gigabits)));
  };
  EXPECT_DOUBLE_EQ(cluster_bandwidth({behind_switch("1", 0, 200) + behind_switch("2", 1, 200)}), 25e9);
  EXPECT_DOUBLE_EQ(cluster_bandwidth({behind_switch("1", 0, 200), behind_switch("2", 1, 200)}), 25e9);
  // The GPU without an interface at its processor uses the other's, and both have half.
  EXPECT_DOUBLE_EQ(cluster_bandwidth({behind_switch("1", 0, 200), pci("20", gpu(1))}), 25e9 / 2);
}

// Each of four MI300X joined to the others: 48 GB/s a link, as RCCL counts it.
TEST(ParseNcclTopology, ReadsDumpsOfRccl) {
  std::string text = "<system version=\"2\"><cpu host_hash=\"0x1\">";
  for (int rank = 0; rank < 4; ++rank) {
    std::string links;
    for (int other = 0; other < 4; ++other) {
      if (other != rank)
        links += "<xgmi target=\"0000:1" + std::to_string(other) + ":00.0\" count=\"1\" tclass=\"0x130000\"/>";
    }
    text += pci("1" + std::to_string(rank), "<gpu dev=\"0\" sm=\"94\" gcn=\"gfx942\" arch=\"38911\" rank=\"" +
                                                std::to_string(rank) + "\" gdr=\"1\">" + links + "</gpu>");
  }
  const Topology topology = parse_nccl_topology(text + "</cpu></system>", "dump.xml");
  ASSERT_EQ(topology.levels.size(), 1U);
  EXPECT_DOUBLE_EQ(topology.levels[0].link.bandwidth.value, 48e9);
  EXPECT_EQ(topology.device.name, "AMD GPU");
  EXPECT_EQ(topology.provenance.notes.at("node"), "XGMI links between GPUs");
}

TEST(ParseNcclTopology, ReadsTheMatrixOfNvidiaSmi) {
  const std::string matrix =
      "\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
      "GPU0\t X \tNV12\tPXB\t0-31\t0\n"
      "GPU1\tNV12\t X \tSYS\t0-31\t0\n"
      "NIC0\tPXB\tSYS\t X \n\nLegend:\n\n  X    = Self\n";
  const Topology topology = parse_nccl_topology(matrix, "topo.txt");
  ASSERT_EQ(topology.levels.size(), 1U);
  EXPECT_EQ(topology.levels[0].count, 2);
  EXPECT_DOUBLE_EQ(topology.levels[0].link.bandwidth.value, 12 * 20e9);
  EXPECT_EQ(topology.device.kind, DeviceKind::Gpu);
  EXPECT_THAT([&] { (void)parse_nccl_topology(replaced(matrix, "GPU1\tNV12", "GPU7\tNV12"), "topo.txt"); },
              ThrowsMessage<FormatError>("topo.txt: line 3: found GPU7, expected GPU1"));
  EXPECT_THAT([&] { (void)parse_nccl_topology("no matrix", "topo.txt"); },
              ThrowsMessage<FormatError>(HasSubstr("found no complete matrix of GPUs")));
}

TEST(ParseNcclTopology, NamesTheDamagedElement) {
  const auto refused = [](const std::string& from, const std::string& to, const std::string& message) {
    std::string text = format::read_text(kDump);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, text.npos) << from;
    text.replace(at, from.size(), to);
    EXPECT_THAT([&] { (void)parse_nccl_topology(text, "dump.xml"); },
                ThrowsMessage<FormatError>(AllOf(StartsWith("dump.xml: "), HasSubstr(message))));
  };
  refused("sm=\"80\"", "", "line 5: <gpu>: attribute \"sm\" is missing");
  refused("sm=\"80\"", "sm=\"eighty\"",
          "line 5: <gpu>: attribute \"sm\": found \"eighty\", expected an integer from 10 to 1000");
  refused("count=\"6\"", "count=\"-1\"", "line 6: <nvlink>: attribute \"count\": found \"-1\"");
  refused("rank=\"1\"", "rank=\"0\"", "line 11: <gpu>: rank 0 appears twice");
  refused("link_width=\"16\"", "link_width=\"wide\"", "line 3: <pci>: attribute \"link_width\": found \"wide\"");
  refused("speed=\"200000\"", "speed=\"fast\"", "line 18: <net>: attribute \"speed\": found \"fast\"");
  refused("version=\"1\"", "version=\"3\"", "line 1: <system>: found version \"3\", expected \"1\" (NCCL) or \"2\"");
  refused("</system>", "", "not XML: ");
  refused("<system", "<sistem", "not XML: ");
}

TEST(ParseNcclTopology, SaysWhatNoTopologyCanHold) {
  std::string text = without_nvlinks();
  text.replace(text.rfind("host_hash=\"0x1\""), 15, "host_hash=\"0x2\"");
  EXPECT_THAT([&] { (void)parse_nccl_topology(replaced(text, "rank=\"3\" ", ""), "dump.xml"); },
              ThrowsMessage<FormatError>(HasSubstr("found hosts of 2 and 1 GPUs, expected equal numbers")));
  EXPECT_THAT([&] { (void)parse_nccl_topology(replaced(text, "<net ", "<other "), "dump.xml"); },
              ThrowsMessage<FormatError>(HasSubstr("found several hosts and no <net>")));
  EXPECT_THAT(
      [&] { (void)parse_nccl_topology("<system version=\"1\"/>", "dump.xml"); },
      ThrowsMessage<FormatError>(AllOf(StartsWith("dump.xml: line 1: <system>: found no <gpu> with a rank, as in a "),
                                       HasSubstr("NCCL_TOPO_DUMP_FILE=dump.xml"))));
  std::string deep;
  for (int i = 0; i < 70; ++i) deep += "<pci>";
  for (int i = 0; i < 70; ++i) deep += "</pci>";
  EXPECT_THAT([&] { (void)parse_nccl_topology("<system version=\"1\"><cpu>" + deep + "</cpu></system>", "dump.xml"); },
              ThrowsMessage<FormatError>(HasSubstr("<pci>: elements are nested deeper than 64")));
}

}  // namespace
}  // namespace stagecraft::interchange

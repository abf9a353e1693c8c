#include "costmodel/interchange/nccl_tests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/links/collectives.h"
#include "tests/support/files/nccl_tests_text.h"

namespace stagecraft::interchange {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::nccl_tests_json;
using testing::nccl_tests_text;
using ::testing::Pair;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

const std::vector<std::string> kOneHost = {"alpha", "alpha", "alpha", "alpha"};
const std::vector<std::string> kTwoHosts = {"alpha", "beta"};

Bytes operator""_GB(unsigned long long v) { return Bytes(static_cast<std::int64_t>(v) * 1'000'000'000); }

/// The only test in a log.
NcclTest only_test(const std::string& text, const std::string& file) {
  std::vector<NcclTest> tests = parse_nccl_tests(text, file);
  EXPECT_EQ(tests.size(), 1U);
  return tests.at(0);
}

TEST(ParseNcclTest, ReadsTheOutOfPlaceColumns) {
  const NcclTest test = only_test(nccl_tests_text("all_reduce_perf", kOneHost, {{1024, 20}, {4000000000, 1e5}}), "log");
  EXPECT_EQ(test.operation, "all_reduce");
  EXPECT_EQ(test.device, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(test.hosts, kOneHost);
  EXPECT_EQ(test.curve, (Curve{{{1_KiB, Seconds(20 * 1e-6)}, {4_GB, Seconds(1e5 * 1e-6)}}}));
  EXPECT_THAT(test.versions, ElementsAre(Pair("nccl", "2.28.7"), Pair("nccl-tests", "2.18.3")));
}

TEST(ParseNcclTest, ReadsTheSameFromJson) {
  const NcclTest text = only_test(nccl_tests_text("all_gather_perf", kOneHost, {{1024, 20}, {2048, 30}}), "log");
  NcclTest json = only_test(nccl_tests_json("all_gather_perf", "alpha", 4, {{1024, 20}, {2048, 30}}), "log");
  json.versions["nccl-tests"] = "2.18.3";  // the JSON does not contain it
  EXPECT_EQ(json, text);
}

TEST(ParseNcclTest, LeavesOutRowsOfNoBytesAndCountsThem) {
  const NcclTest test =
      only_test(nccl_tests_text("reduce_scatter_perf_mpi", kOneHost, {{0, 5}, {0, 6}, {1024, 20}}), "log");
  EXPECT_EQ(test.operation, "reduce_scatter");
  EXPECT_EQ(test.left_out, 2);
  EXPECT_EQ(measured_topology({test}).provenance.notes.at("left out of reduce_scatter of 4 ranks"),
            "2 rows of 0 bytes");
}

TEST(ParseNcclTest, SkipsWhatMpirunAndNcclAdd) {
  std::string text = "Warning: a host was added\n";
  std::istringstream in(nccl_tests_text("sendrecv_perf", kTwoHosts, {{1024, 20}, {2048, 30}}));
  for (std::string line; std::getline(in, line);) {
    text += "[1,0]<stdout>:" + line + "\r\nalpha:3442:3442 [0] NCCL INFO Launch mode Parallel\n";
  }
  EXPECT_EQ(only_test(text, "log").curve.points.size(), 2U);
}

std::string with_each_line(const std::string& text, const std::string& label) {
  std::istringstream in(text);
  std::string out;
  for (std::string line; std::getline(in, line);) out += label + line + "\n";
  return out;
}

TEST(ParseNcclTest, SkipsLabelsOfLaunchers) {
  const std::string text = nccl_tests_text("all_reduce_perf", kTwoHosts, {{1024, 20}, {2048, 30}});
  const NcclTest plain = only_test(text, "log");
  for (const std::string label :
       {"[1,0]<stdout>:", "[1,0]<stdout>: ", "[prterun-alpha-77@1,0]<stdout>: ", "0: ", " 0: ", "[0] ",
        "[pod/test-launcher-x/main] ", "Sat Nov 28 18:00:00 2026[1,0]<stdout>:"})
    EXPECT_EQ(only_test(with_each_line(text, label), "log"), plain) << label;
}

// mpirun labels each piece that a rank writes: in a row, also its out-of-place and in-place halves.
TEST(ParseNcclTest, SkipsLabelsAmidARow) {
  const std::string text = nccl_tests_text("all_reduce_perf", kTwoHosts, {{1024, 20}, {2048, 30}});
  std::string labelled = with_each_line(text, "[1,0]<stdout>:");
  for (const std::string half : {"    20.00", "    30.00", "    19.00", "    28.50"})
    labelled.insert(labelled.find(half), "[1,0]<stdout>:");
  EXPECT_EQ(only_test(labelled, "log"), only_test(text, "log"));
}

TEST(ParseNcclTest, ReadsSeveralTestsOfOneLog) {
  const std::string log = "srun: job 7\n" + nccl_tests_text("all_reduce_perf", kOneHost, {{1024, 20}, {2048, 30}}) +
                          "\n" + nccl_tests_text("alltoall_perf", kOneHost, {{1024, 40}}) +
                          nccl_tests_text("broadcast_perf", kOneHost, {{1024, 50}});
  const std::vector<NcclTest> tests = parse_nccl_tests(log, "log");
  ASSERT_EQ(tests.size(), 3U);
  EXPECT_EQ(tests[0].operation, "all_reduce");
  EXPECT_EQ(tests[0].curve.points.size(), 2U);
  EXPECT_EQ(tests[1].operation, "all_to_all");
  EXPECT_EQ(tests[1].hosts, kOneHost);
  EXPECT_EQ(tests[2].operation, "broadcast");
  const Topology topology = measured_topology(tests);
  EXPECT_EQ(topology.levels[0].link.all_to_all.at(4), tests[1].curve);
  EXPECT_EQ(topology.provenance.notes.at("left out"), "tests of broadcast, which no prediction uses");
}

// Before 2.17 a run does not name its test, but scripts echo the command; before 2.11 a column holds the largest error.
TEST(ParseNcclTest, ReadsOldLogs) {
  std::string log;
  for (const std::string program : {"all_reduce_perf", "all_gather_perf"}) {
    std::string text = nccl_tests_text(program, kOneHost, {{1024, 20}});
    const std::size_t at = text.find("# nccl-tests");
    text.erase(at, text.find("# nThread") - at);
    for (std::size_t wrong; (wrong = text.find("#wrong")) != text.npos;) text.replace(wrong, 6, " error");
    text.replace(text.find("      0    19"), 7, "  5e-07");
    log += "+ mpirun -np 4 ./build/" + program + " -b 8\n" + text;
  }
  const std::vector<NcclTest> tests = parse_nccl_tests(log, "log");
  ASSERT_EQ(tests.size(), 2U);
  EXPECT_EQ(tests[0].operation, "all_reduce");
  EXPECT_EQ(tests[1].operation, "all_gather");
}

TEST(ParseNcclTest, TakesTheTestFromTheFilesNameWhereTheTextDoesNotSay) {
  std::string text = nccl_tests_text("all_reduce_perf", kOneHost, {{1024, 20}});
  const std::size_t at = text.find("# Collective test starting");
  text.erase(at, text.find('\n', at) + 1 - at);
  EXPECT_EQ(only_test(text, "logs/all_gather_perf.txt").operation, "all_gather");
  EXPECT_THAT([&] { (void)parse_nccl_tests(text, "log.txt"); },
              ThrowsMessage<FormatError>(
                  HasSubstr("expected a file named after its test: all_gather, all_reduce, all_to_all, ")));
}

/// The text of a test with the first `from` replaced by `to` is refused with `message`.
void expect_refused(const std::string& from, const std::string& to, const std::string& message) {
  std::string text = nccl_tests_text("all_reduce_perf", kOneHost, {{1024, 20}, {2048, 30}});
  const std::size_t at = text.find(from);
  ASSERT_NE(at, text.npos) << from;
  text.replace(at, from.size(), to);
  EXPECT_THAT([&] { (void)parse_nccl_tests(text, "log"); },
              ThrowsMessage<FormatError>(AllOf(StartsWith("log: line "), HasSubstr(message))));
}

TEST(ParseNcclTest, NamesTheLineOfADamage) {
  expect_refused("      0    19", "      3    19",
                 "line 14: found #wrong 3, expected 0 or N/A: the test computed wrong");
  expect_refused("Out of bounds values : 0", "Out of bounds values : 7", "line 16: found 7 values out of bounds");
  expect_refused("      0    19", " 4.2e-7    19", "line 14: found #wrong 4.2e-7, expected a number or N/A");
  expect_refused("all_reduce_perf", "all_reduce",
                 "line 2: found test \"all_reduce\", expected a program such as all_reduce");
  expect_refused("    time", " cputime", "line 12: found column \"cputime\", expected \"time\"");
  expect_refused("#wrong", "#false", "line 12: found column \"#false\", expected \"#wrong\"");
  expect_refused("20.00", "0.00", "line 14: found time 0.00, expected microseconds above 0");
  expect_refused("20.00", "nan", "line 14: found time nan, expected microseconds above 0");
  expect_refused("        2048", "        1024", "line 15: found size 1024 after 1024, expected sizes that ascend");
  expect_refused("        2048", "        -2", "line 15: found size -2, expected bytes");
  expect_refused("Rank  2", "Rank  7", "found no line of rank 2 under");
  expect_refused("Rank  2", "Rank  1", "line 8: rank 1 appears twice");
  expect_refused("Group  0", "Group  1", "line 6: found ranks in several groups");
  expect_refused("float", "", "line 14: found 12 columns, expected 13");
  expect_refused("#       size", "       size", "found no table");
  expect_refused("# Out of bounds", "#       size count\n# Out", "line 16: found no column, expected \"algbw\"");
}

TEST(ParseNcclTest, NamesThePointerOfADamageInJson) {
  const auto refused = [](const std::string& from, const std::string& to, const std::string& message) {
    std::string text = nccl_tests_json("all_reduce_perf", "alpha", 4, {{1024, 20}, {2048, 30}});
    const std::size_t at = text.find(from);
    ASSERT_NE(at, text.npos) << from;
    text.replace(at, from.size(), to);
    EXPECT_THAT([&] { (void)parse_nccl_tests(text, "log"); }, ThrowsMessage<FormatError>(HasSubstr(message)));
  };
  refused("\"version\":2", "\"version\":9", "log: /version: found 9, expected version 1 or 2");
  refused("\"nwrong\":0.0", "\"nwrong\":4.0", "log: /results/0/out_of_place/nwrong: found 4.0, expected 0 or null");
  refused("\"time\":20.0", "\"cpu_time\":20.0", "log: /results/0/out_of_place: key \"time\" is missing");
  refused("\"size\":2048", "\"size\":1024", "log: /results/1/size: found 1024, expected sizes that ascend");
  refused("\"okay\":\"true\"", "\"okay\":\"false\"", "log: /out_of_bounds/okay: found \"false\", expected \"true\"");
  refused("all_reduce_perf", "python", "log: /args: found [\"./build/python\"], expected a program of");
}

TEST(MeasuredTopology, InvertsTheRingForBandwidthAndLatency) {
  // 4 ranks, 4 GB in 0.1 s: 2 * 3/4 of 4 GB in 0.1 s is 60 GB/s; 6 steps of 20 us / 6 each.
  const NcclTest test = only_test(nccl_tests_text("all_reduce_perf", kOneHost, {{1024, 20}, {4000000000, 1e5}}), "log");
  const Topology topology = measured_topology({test});
  ASSERT_EQ(topology.levels.size(), 1U);
  const Level& node = topology.levels[0];
  EXPECT_EQ(node.name, "node");
  EXPECT_EQ(node.count, 4);
  EXPECT_EQ(node.link.origin, LinkOrigin::Measured);
  EXPECT_NEAR(node.link.bandwidth.value, 60e9, 1);
  EXPECT_NEAR(node.link.latency.value, 20e-6 / 6, 1e-12);
  EXPECT_EQ(node.link.all_reduce.at(4), test.curve);
  EXPECT_EQ(topology.device.name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(topology.device.kind, DeviceKind::Gpu);
  EXPECT_EQ(topology.name, "4 x NVIDIA H100 80GB HBM3, nccl-tests");
}

// 30 us and 10 us fall: both take the lower median, 10 us. Without 2 KiB the fit is 10 us at 1 and 4 KiB, so 20 us at 2
// KiB was twice as much; without 4 KiB the line from 20 us at 2 KiB to 40 us at 8 KiB passes 4 KiB at 80 / 3 us, and 10
// us was measured: the largest error is a factor of 8 / 3.
TEST(MeasuredTopology, FitsCurvesThatNeverFall) {
  const NcclTest test =
      only_test(nccl_tests_text("all_reduce_perf", kOneHost, {{1024, 10}, {2048, 20}, {4096, 10}, {8192, 40}}), "log");
  const Topology topology = measured_topology({test});
  const Curve& curve = topology.levels[0].link.all_reduce.at(4);
  const Seconds ten(10 * 1e-6);
  const std::vector<CurvePoint> fitted{{1_KiB, ten}, {2_KiB, ten}, {4_KiB, ten}, {8_KiB, Seconds(40 * 1e-6)}};
  EXPECT_EQ(curve.points, fitted);
  EXPECT_NEAR(*curve.log_spread, std::log(8.0 / 3) / 1.6448536269514722, 1e-9);
  EXPECT_EQ(topology.provenance.notes.at("fit of all_reduce of 4 ranks"),
            "adjusted 1 of 4 times, by up to 50.0 % (at 2048 bytes), so that the curve does not decrease");
}

TEST(MeasuredTopology, PutsTestsOfOneHostBelowTestsBetweenHosts) {
  const auto test = [](const char* program, const std::vector<std::string>& hosts, double microseconds) {
    return only_test(nccl_tests_text(program, hosts, {{8, 4}, {4000000000, microseconds}}), "log");
  };
  const Topology topology =
      measured_topology({test("all_gather_perf", kTwoHosts, 1e6), test("reduce_scatter_perf", kTwoHosts, 2e6),
                         test("all_reduce_perf", {"alpha", "alpha"}, 1e5), test("sendrecv_perf", kOneHost, 2e4)});
  ASSERT_EQ(topology.levels.size(), 2U);
  const Link& node = topology.levels[0].link;
  EXPECT_EQ(topology.levels[0].count, 4);       // the largest single-host test
  EXPECT_NEAR(node.bandwidth.value, 200e9, 1);  // 4 GB in 0.02 s, one way
  EXPECT_NEAR(node.latency.value, 4e-6, 1e-12);
  EXPECT_EQ(node.all_reduce.count(2), 1U);
  EXPECT_EQ(topology.levels[1].name, "cluster");
  EXPECT_EQ(topology.levels[1].count, 2);
  const Link& cluster = topology.levels[1].link;
  EXPECT_NEAR(cluster.bandwidth.value, 2e9, 1);  // from the all-gather: half of 4 GB in 1 s
  EXPECT_EQ(cluster.all_gather.size(), 1U);
  EXPECT_EQ(cluster.reduce_scatter.size(), 1U);
  EXPECT_TRUE(cluster.send_receive.points.empty());
}

// Messages begin at 32 MiB, whose bytes take nearly all of the 1.4 ms: 64 KiB take 10 us and 65536 / 33554432 of the
// remaining 1390 us, 12.7 us.
TEST(MeasuredTopology, TakesTheLatencyOfItsKindOfLinkWhereMessagesBeginLarge) {
  const Topology topology = measured_topology({only_test(
      nccl_tests_text("sendrecv_perf", kTwoHosts, {{33554432, 1400}, {67108864, 2725}, {134217728, 5436}}), "log")});
  const Link& link = topology.levels[0].link;
  EXPECT_EQ(link.latency, Seconds(1e-5));
  EXPECT_NEAR(transfer_time(link, 64_KiB).value, 10e-6 + 1390e-6 / 512, 1e-9);
  EXPECT_EQ(transfer_time(link, 32_MiB), Seconds(1400 * 1e-6));
  EXPECT_EQ(topology.provenance.notes.at("latency of cluster"),
            "not measured, as messages begin at 32.0 MiB; taken as 10.0 us");
}

// Inside a host 2 ranks need 1 ms for 1 GB. Between hosts, rings of 4 ranks carry 3/4 of half the data on each link,
// 0.375 GB. 0.25 s = 0.375 GB / B + 0.1256 * (3/4) / (1/2) * 1 ms, but for some microseconds: B = 1.5011 GB/s.
TEST(MeasuredTopology, FitsTheLinksBetweenHostsToTestsOfSeveralRanksOnEach) {
  const auto test = [](const std::vector<std::string>& on, double microseconds) {
    return only_test(nccl_tests_text("all_gather_perf", on, {{8, 4}, {1000000000, microseconds}}), "log");
  };
  const NcclTest several = test({"alpha", "alpha", "beta", "beta"}, 250000);
  const Topology topology = measured_topology({test({"alpha", "alpha"}, 1000), several});
  ASSERT_EQ(topology.levels.size(), 2U);
  EXPECT_EQ(topology.levels[1].count, 2);
  const Link& cluster = topology.levels[1].link;
  EXPECT_NEAR(cluster.bandwidth.value, 0.375e9 / (0.25 - 0.1256 * 1.5 * 1e-3), 1e5);
  EXPECT_EQ(cluster.spans.at({Collective::AllGather, 4, 2}), several.curve);
  EXPECT_EQ(all_gather_time(1_GB, {0, 1, 2, 3}, topology), several.curve.points.back().time);
  EXPECT_EQ(topology.provenance.notes.at("link of cluster"), "fitted to times of 4 ranks, 2 on each host");
}

TEST(MeasuredTopology, SaysWhatItCannotHold) {
  const auto refused = [](const std::vector<NcclTest>& tests, const char* message) {
    EXPECT_THAT([&] { (void)measured_topology(tests); }, ThrowsMessage<std::invalid_argument>(HasSubstr(message)));
  };
  NcclTest test = only_test(nccl_tests_text("all_reduce_perf", kOneHost, {{1024, 20}}), "log");
  refused({}, "no tests");
  refused({test, test}, "all_reduce of 4 ranks appears twice for level \"node\"");
  NcclTest other = test;
  other.device = "Tesla T4";
  refused({test, other}, "found \"Tesla T4\" and \"NVIDIA H100 80GB HBM3\"");
  other = test;
  other.hosts = {"alpha", "alpha", "beta", "beta"};
  refused({other}, "found tests of 2 ranks on each host, but none inside one host: add its log");
  other.hosts = {"alpha", "alpha", "beta"};
  refused({other}, "all_reduce of 3 ranks: found 2 ranks on alpha and 1 on beta, expected equal numbers");
  other.hosts = kOneHost;
  other.operation = "broadcast";
  refused({other},
          "found only tests of broadcast, expected all_gather, all_reduce, all_to_all, reduce_scatter, sendrecv");
  other.operation = test.operation;
  other.hosts = {"alpha"};
  refused({other}, "all_reduce of 1 ranks, must be at least 2");
}

}  // namespace
}  // namespace stagecraft::interchange

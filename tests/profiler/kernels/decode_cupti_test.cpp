#include "profiler/kernels/decode_cupti.h"

#include <cupti.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "profiler/kernels/attribution.h"

namespace stagecraft::profiler {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

/// A buffer as filled by CUPTI: consecutive records, starting at byte 8.
class Buffer {
 public:
  template <typename Record>
  Buffer& add(const Record& record) {
    const std::size_t at = words_.size();
    words_.resize(at + (sizeof record + 7) / 8);
    std::memcpy(words_.data() + at, &record, sizeof record);
    return *this;
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::as_bytes(std::span(words_)); }
  [[nodiscard]] std::span<std::byte> writable() { return std::as_writable_bytes(std::span(words_)); }

 private:
  std::vector<std::uint64_t> words_;
};

CUpti_ActivityKernel10 kernel(std::uint64_t start, std::uint64_t end, std::uint32_t correlation,
                              const char* name = "gemm") {
  CUpti_ActivityKernel10 out{};
  out.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  out.start = start;
  out.end = end;
  out.correlationId = correlation;
  out.streamId = 7;
  out.deviceId = 1;
  out.name = name;
  return out;
}

CUpti_ActivityAPI call(CUpti_ActivityKind kind, std::uint64_t start, std::uint64_t end, std::uint32_t correlation,
                       std::uint32_t thread) {
  CUpti_ActivityAPI out{};
  out.kind = kind;
  out.start = start;
  out.end = end;
  out.correlationId = correlation;
  out.threadId = thread;
  return out;
}

CUpti_ActivityExternalCorrelation external(std::uint64_t id, std::uint32_t correlation,
                                           CUpti_ExternalCorrelationKind kind) {
  CUpti_ActivityExternalCorrelation out{};
  out.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
  out.externalKind = kind;
  out.externalId = id;
  out.correlationId = correlation;
  return out;
}

const Tag kForward{.layer = 2, .phase = Phase::Forward, .step = 1};

TEST(DecodeCupti, ReadsAKernelWithItsLaunchAndItsId) {
  Buffer buffer;
  buffer.add(external(encode(kForward), 42, CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0))
      .add(call(CUPTI_ACTIVITY_KIND_RUNTIME, 100, 110, 42, 5))
      .add(kernel(120, 150, 42));
  const KernelTrace trace = decode_cupti({buffer.bytes()});
  EXPECT_THAT(trace.activities,
              ElementsAre(DeviceActivity{
                  .begin_ns = 120, .end_ns = 150, .device = 1, .stream = 7, .correlation = 42, .name = 0}));
  EXPECT_THAT(trace.calls, ElementsAre(HostCall{42, 5, 100, 110}));
  EXPECT_THAT(trace.ids, ElementsAre(ExternalId{42, encode(kForward)}));
  EXPECT_THAT(trace.names, ElementsAre("gemm"));
  EXPECT_EQ(trace.unknown, 0);
}

TEST(DecodeCupti, JoinsRecordsOfDifferentBuffers) {
  Buffer one;
  Buffer other;
  one.add(kernel(120, 150, 42));
  other.add(call(CUPTI_ACTIVITY_KIND_DRIVER, 100, 110, 42, 5))
      .add(external(encode(kForward), 42, CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0));
  const AttributedTrace out = attribute(decode_cupti({one.bytes(), other.bytes()}));
  EXPECT_EQ(out.activities.at(0).tag, kForward);
  EXPECT_THAT(distrust(out.quality), IsEmpty());
}

TEST(DecodeCupti, LeavesOtherToolsIdsAlone) {
  Buffer buffer;
  buffer.add(external(7, 42, CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1))
      .add(external(8, 42, CUPTI_EXTERNAL_CORRELATION_KIND_OPENACC));
  EXPECT_THAT(decode_cupti({buffer.bytes()}).ids, IsEmpty());
}

TEST(DecodeCupti, ReadsCopiesSetsAndGraphNodes) {
  CUpti_ActivityMemcpy6 copy{};
  copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
  copy.bytes = 4096;
  copy.start = 10;
  copy.end = 20;
  copy.streamId = 3;
  copy.correlationId = 1;
  CUpti_ActivityMemcpyPtoP4 peer{};
  peer.kind = CUPTI_ACTIVITY_KIND_MEMCPY2;
  peer.bytes = 8;
  peer.correlationId = 2;
  CUpti_ActivityMemset4 set{};
  set.kind = CUPTI_ACTIVITY_KIND_MEMSET;
  set.bytes = 16;
  set.graphNodeId = 77;
  Buffer buffer;
  buffer.add(copy).add(peer).add(set);
  const KernelTrace trace = decode_cupti({buffer.bytes()});
  ASSERT_EQ(trace.activities.size(), 3U);
  EXPECT_EQ(
      trace.activities[0],
      (DeviceActivity{
          .kind = ActivityKind::Copy, .begin_ns = 10, .end_ns = 20, .stream = 3, .correlation = 1, .bytes = 4096}));
  EXPECT_EQ(trace.activities[1].kind, ActivityKind::Copy);
  EXPECT_EQ(trace.activities[1].bytes, 8);
  EXPECT_EQ(trace.activities[2].kind, ActivityKind::Set);
  EXPECT_EQ(trace.activities[2].graph_node, 77U);
}

TEST(DecodeCupti, ReadsWaitsOverheadAndClocks) {
  CUpti_ActivityOverhead3 overhead{};
  overhead.kind = CUPTI_ACTIVITY_KIND_OVERHEAD;
  overhead.start = 5;
  overhead.end = 9;
  CUpti_ActivitySynchronization2 wait{};
  wait.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION;
  wait.start = 11;
  wait.end = 30;
  CUpti_ActivityEnvironment state{};
  state.kind = CUPTI_ACTIVITY_KIND_ENVIRONMENT;
  state.environmentKind = CUPTI_ACTIVITY_ENVIRONMENT_SPEED;
  state.timestamp = 50;
  state.data.speed.smClock = 1980;
  state.data.speed.memoryClock = 3201;
  state.data.speed.clocksThrottleReasons = CUPTI_CLOCKS_THROTTLE_REASON_SW_POWER_CAP;
  Buffer buffer;
  buffer.add(overhead).add(wait).add(state);
  const KernelTrace trace = decode_cupti({buffer.bytes()});
  EXPECT_THAT(trace.overhead, ElementsAre(HostStretch{5, 9}));
  EXPECT_THAT(trace.waits, ElementsAre(HostStretch{11, 30}));
  EXPECT_THAT(trace.states, ElementsAre(DeviceState{50, 0, 1.98e9, 3.201e9, true}));
}

TEST(DecodeCupti, KeepsEachKernelNameOnce) {
  const std::string copy = "gemm";
  Buffer buffer;
  buffer.add(kernel(1, 2, 1))
      .add(kernel(3, 4, 2, "relu"))
      .add(kernel(5, 6, 3, copy.c_str()))
      .add(kernel(7, 8, 4, nullptr));
  const KernelTrace trace = decode_cupti({buffer.bytes()});
  EXPECT_THAT(trace.names, ElementsAre("gemm", "relu"));
  EXPECT_EQ(trace.activities[2].name, 0);
  EXPECT_EQ(trace.activities[3].name, -1);
}

TEST(DecodeCupti, CountsRecordsOfOtherKindsAndBytesThatAreNone) {
  CUpti_ActivityKernel10 unreadable = kernel(1, 2, 1);
  unreadable.kind = static_cast<CUpti_ActivityKind>(60000);
  Buffer buffer;
  buffer.add(kernel(1, 2, 1)).add(unreadable).add(kernel(3, 4, 2));
  const KernelTrace trace = decode_cupti({buffer.bytes()});
  EXPECT_EQ(trace.activities.size(), 1U);
  EXPECT_EQ(trace.unknown, 1);
}

TEST(DecodeCupti, SurvivesDamagedBuffers) {
  std::mt19937_64 random(13);
  for (int round = 0; round < 2000; ++round) {
    Buffer buffer;
    // No kernel records: they contain a pointer, which cannot be checked.
    for (int i = 0; i < 20; ++i) {
      const auto id = static_cast<std::uint32_t>(i);
      buffer.add(external(random(), id, CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0))
          .add(call(CUPTI_ACTIVITY_KIND_RUNTIME, random(), random(), id, 1));
    }
    std::span<std::byte> bytes = buffer.writable();
    for (int i = 0; i < 4; ++i) {
      // Never the kind, which could turn the record into one with a pointer.
      const std::size_t at = random() % bytes.size();
      if (at % 8 < 4) continue;
      bytes[at] = static_cast<std::byte>(random());
    }
    const KernelTrace trace = decode_cupti({buffer.bytes().first(buffer.bytes().size() - random() % 64 / 8 * 8)});
    const AttributedTrace out = attribute(trace);
    EXPECT_LE(trace.calls.size() + trace.ids.size(), 40U);
    EXPECT_FALSE(distrust(out.quality).empty());
  }
}

/// Names that look like a launch, a copy or a set, but put no work on a device.
const std::set<std::string> kOnlyLooksLikeIt{
    // The host's work.
    "cudaLaunchHostFunc_v10000", "cudaLaunchHostFunc_ptsz_v10000", "cuLaunchHostFunc", "cuLaunchHostFunc_ptsz",
    // What a graph will do; its launch does it.
    "cudaGraphAddMemcpyNode_v10000", "cudaGraphAddMemcpyNode1D_v11010", "cudaGraphAddMemcpyNodeFromSymbol_v11010",
    "cudaGraphAddMemcpyNodeToSymbol_v11010", "cudaGraphAddMemsetNode_v10000", "cudaGraphExecMemcpyNodeSetParams_v10020",
    "cudaGraphExecMemcpyNodeSetParams1D_v11010", "cudaGraphExecMemcpyNodeSetParamsFromSymbol_v11010",
    "cudaGraphExecMemcpyNodeSetParamsToSymbol_v11010", "cudaGraphExecMemsetNodeSetParams_v10020",
    "cudaGraphMemcpyNodeGetParams_v10000", "cudaGraphMemcpyNodeSetParams_v10000",
    "cudaGraphMemcpyNodeSetParams1D_v11010", "cudaGraphMemcpyNodeSetParamsFromSymbol_v11010",
    "cudaGraphMemcpyNodeSetParamsToSymbol_v11010", "cudaGraphMemsetNodeGetParams_v10000",
    "cudaGraphMemsetNodeSetParams_v10000", "cuGraphAddMemcpyNode", "cuGraphAddMemsetNode",
    "cuGraphExecMemcpyNodeSetParams", "cuGraphExecMemsetNodeSetParams", "cuGraphMemcpyNodeGetParams",
    "cuGraphMemcpyNodeSetParams", "cuGraphMemsetNodeGetParams", "cuGraphMemsetNodeSetParams",
    // "Mem" and "Set": settings of memory.
    "cuMemSetAccess", "cudaMemSetMemPool_v13000", "cuMemSetMemPool"};

/// The calls that a header of CUPTI numbers, by id.
std::map<std::uint32_t, std::string> calls_in(const std::string& header) {
  std::ifstream in(CUPTI_INCLUDE_DIR "/" + header);
  const std::regex numbered(R"(CUPTI_(?:RUNTIME|DRIVER)_TRACE_CBID_(\w+)\s*=\s*(\d+))");
  std::map<std::uint32_t, std::string> out;
  for (std::string line; std::getline(in, line);) {
    std::smatch found;
    if (std::regex_search(line, found, numbered) && found[1] != "INVALID" && found[1] != "SIZE" &&
        found[1] != "FORCE_INT") {
      out[static_cast<std::uint32_t>(std::stoul(found[2]))] = found[1];
    }
  }
  return out;
}

bool looks_like_work(std::string name) {
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name.find("launch") != std::string::npos || name.find("memcpy") != std::string::npos ||
         name.find("memset") != std::string::npos;
}

/// Ids of calls that do not look like work, or only look like it.
std::vector<std::uint32_t> expected_quiet(const std::map<std::uint32_t, std::string>& calls) {
  std::vector<std::uint32_t> out;
  for (const auto& [id, name] : calls) {
    if (!looks_like_work(name) || kOnlyLooksLikeIt.contains(name)) out.push_back(id);
  }
  return out;
}

TEST(QuietCalls, AreAllButTheHeadersLaunchesCopiesAndSets) {
  const auto runtime = calls_in("cupti_runtime_cbid.h");
  const auto driver = calls_in("cupti_driver_cbid.h");
  ASSERT_GT(runtime.size(), 500U);
  ASSERT_GT(driver.size(), 800U);
  EXPECT_THAT(quiet_runtime_calls(), ElementsAreArray(expected_quiet(runtime)));
  EXPECT_THAT(quiet_driver_calls(), ElementsAreArray(expected_quiet(driver)));
}

TEST(LaunchesWork, KnowsWhatPyTorchAndItsLibrariesCall) {
  for (const char* const name :
       {"cudaLaunchKernel_v7000", "__cudaLaunchKernel_ptsz_v13000", "cudaLaunchKernelExC_v11060",
        "cudaLaunchCooperativeKernel_v9000", "cudaMemcpyAsync_v3020", "cudaMemcpy2DAsync_ptsz_v7000",
        "cudaMemcpyPeerAsync_v4000", "cudaMemcpy3DPeerAsync_v4000", "cudaMemsetAsync_v3020", "cudaGraphLaunch_v10000",
        "cuLaunchKernel", "cuLaunchKernelEx_ptsz", "cuMemcpyDtoDAsync_v2", "cu64MemcpyHtoD", "cuMemsetD8Async",
        "cuGraphLaunch_ptsz"}) {
    EXPECT_TRUE(launches_work(name)) << name;
  }
  for (const char* const name : {"cudaGetDevice_v3020", "cudaEventRecord_v3020", "cudaStreamWaitEvent_v3020",
                                 "cudaMalloc_v3020", "cuCtxGetCurrent", "cudaLaunchHostFunc_v10000", "", "INVALID"}) {
    EXPECT_FALSE(launches_work(name)) << name;
  }
}

}  // namespace
}  // namespace stagecraft::profiler

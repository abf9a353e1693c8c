#include "profiler/kernels/cupti_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace stagecraft::profiler {
namespace {

using ::testing::ElementsAreArray;

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

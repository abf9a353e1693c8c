#include "profiler/links/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "costmodel/errors.h"
#include "costmodel/format/topology_json.h"
#include "profiler/links/links_report.h"

// Needs one GPU. Without one these tests are skipped, or fail under REQUIRE_GPU=1.

namespace stagecraft::profiler {
namespace {

using enum LinkOperation;

class NcclLinks : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      meter_ = make_nccl_meter(1, std::chrono::seconds(60));
    } catch (const DeviceError& error) {
      const char* required = std::getenv("REQUIRE_GPU");
      if (required && std::string(required) == "1") FAIL() << error.what();
      GTEST_SKIP() << error.what();
    }
  }
  [[nodiscard]] double seconds_of(LinkOperation operation, Bytes bytes) {
    const LinkTask task{operation, bytes, 1, 0, 0};
    (void)meter_->seconds_of(task, 2, 1);
    return summarize(meter_->seconds_of(task, 20, 1)).median.value;
  }

  std::unique_ptr<LinkMeter> meter_;
};

TEST_F(NcclLinks, OfOneGpuHaveOneRankAndCopies) {
  EXPECT_EQ(meter_->ranks(), 1);
  EXPECT_TRUE(meter_->copies());
}

// A message twice as large may be faster if NCCL changes its protocol, but not twice as fast; the largest must take
// longer than the smallest. On one GPU, 4 MiB take as long as 4 bytes: an H200 copies them while it launches the next.
TEST_F(NcclLinks, GiveCurvesThatRise) {
  const LinkMeasurement measured = measure_links(*meter_, {.most_bytes = 256_MiB});
  EXPECT_EQ(measured.curves.size(), 6U);
  for (const LinkCurve& curve : measured.curves) {
    const std::string name = curve_name(curve.operation, curve.ranks);
    EXPECT_GT(curve.points.front().time.median, Seconds(0)) << name;
    for (std::size_t i = 1; i < curve.points.size(); ++i) {
      EXPECT_GT(curve.points[i].time.median, curve.points[i - 1].time.median * 0.5)
          << name << " at " << curve.points[i].bytes.value << " bytes";
    }
    EXPECT_GT(curve.points.back().time.median, curve.points.front().time.median) << name;
  }
  const Topology topology = topology_of(measured, "nccl", {"a GPU", 1_GiB}, {});
  EXPECT_EQ(format::parse_topology(format::topology_json(topology), "topology.json"), topology);
}

// At least one lane of PCI Express 3 (8 GT/s * 128/130 / 8 = 0.98 GB/s; 0.8 after packet headers), at most NVLink-C2C's
// 450 GB/s each way, the fastest link to a host; 16 lanes of PCI Express 5 carry 63 GB/s.
TEST_F(NcclLinks, CopyAsFastAsBusesAre) {
  const Bytes bytes = 64_MiB;
  for (const LinkOperation operation : {HostToDevice, DeviceToHost}) {
    const double bandwidth = static_cast<double>(bytes.value) / seconds_of(operation, bytes);
    EXPECT_GT(bandwidth, 0.8e9) << curve_name(operation, 1);
    EXPECT_LT(bandwidth, 450e9) << curve_name(operation, 1);
  }
}

TEST_F(NcclLinks, RefuseMoreRanksThanGpus) {
  EXPECT_THAT([] { (void)make_nccl_meter(1000, std::chrono::seconds(1)); },
              ::testing::ThrowsMessage<std::invalid_argument>(
                  ::testing::HasSubstr("the number of ranks is 1000, must be 1 to ")));
}

}  // namespace
}  // namespace stagecraft::profiler

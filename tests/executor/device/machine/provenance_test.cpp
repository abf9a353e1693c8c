#include "executor/device/machine/provenance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "executor/device/machine/allocator.h"
#include "executor/device/machine/processor.h"

namespace stagecraft::device {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ProvenanceHere, NamesToolProcessorVersionsAndDate) {
  const Provenance provenance = provenance_here("a test");
  EXPECT_THAT(provenance.tool, StartsWith("a test "));
  EXPECT_THAT(provenance.device, ::testing::EndsWith(" processors"));
  EXPECT_THAT(provenance.versions.at("libtorch"), HasSubstr("."));
  EXPECT_THAT(provenance.date, ::testing::MatchesRegex("20..-..-..T..:..:..Z"));
}

TEST(ProvenanceHere, SaysWhatTheLastBitsAndTheSpeedDependOn) {
  const Provenance provenance = provenance_here("a test");
  EXPECT_THAT(provenance.device, StartsWith(processor_name() + ", "));
  EXPECT_EQ(provenance.versions.at("allocator"), allocator_name());
  EXPECT_TRUE(provenance.notes.empty()) << "a GPU has some";
}

using ::testing::AllOf;
using ::testing::ThrowsMessage;

TEST(DeviceHere, SharesTheMemory) {
  const Device whole = device_here(1), third = device_here(3);
  EXPECT_FALSE(whole.name.empty());
  EXPECT_EQ(third.name, whole.name);
  EXPECT_EQ(third.memory->value, whole.memory->value / 3);
  EXPECT_GT(*third.memory, 1_MiB);
}

TEST(DeviceHere, RefusesNoRanks) {
  for (const int ranks : {0, -2}) {
    EXPECT_THAT([&] { (void)device_here(ranks); },
                ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("ranks"), HasSubstr(std::to_string(ranks)))));
  }
}

// A plan for this machine with times measured on it: device_match must find no difference.
TEST(MeasuredDeviceHere, IsTheDeviceOfATopologyOfThisMachine) {
  const Device device = device_here(2);
  const MeasuredDevice measured = measured_device_here(c10::Device(c10::kCPU));
  EXPECT_EQ(measured.name, device.name);
  EXPECT_EQ(measured.kind, DeviceKind::Processor);
  EXPECT_EQ(device.kind, DeviceKind::Processor);
  EXPECT_EQ(measured.host_processors, device.host_processors);
  EXPECT_GE(device.host_processors, 1);
}

}  // namespace

}  // namespace stagecraft::device

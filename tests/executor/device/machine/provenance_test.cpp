#include "executor/device/machine/provenance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace stagecraft::device

#include "executor/device/machine/device_versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stagecraft::device {
namespace {

// The wheel that setup pins brings CUDA 13 and NCCL 2.28; a build without CUDA has neither.
TEST(DeviceVersions, AreThoseOfTheLibrariesThatTheBuildUses) {
  const auto versions = device_library_versions();
  if (versions.empty()) GTEST_SKIP() << "built without CUDA";
  using ::testing::MatchesRegex;
  using ::testing::Pair;
  const auto pinned =
      ::testing::ElementsAre(Pair("cuda runtime", MatchesRegex("13\\.[0-9]+")),
                             Pair("cupti", MatchesRegex("13\\.[0-9]+")), Pair("nccl", MatchesRegex("2\\.28\\.[0-9]+")));
  EXPECT_THAT(versions, pinned);
  EXPECT_THAT(compiled_device_library_versions(), pinned);
}

TEST(DeviceVersions, AreCompiledInWhereTheLibrariesAreLinked) {
  EXPECT_EQ(compiled_device_library_versions().empty(), device_library_versions().empty());
}

}  // namespace
}  // namespace stagecraft::device

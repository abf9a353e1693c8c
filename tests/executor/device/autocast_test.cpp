#include "executor/device/autocast.h"

#include <gtest/gtest.h>

namespace stagecraft::device {
namespace {

/// What this thread's autocast does on CPUs.
struct Settings {
  bool enabled = at::autocast::is_autocast_enabled(c10::kCPU);
  at::ScalarType type = at::autocast::get_autocast_dtype(c10::kCPU);
  bool cache = at::autocast::is_autocast_cache_enabled();
  friend bool operator==(const Settings&, const Settings&) = default;
};

TEST(AutocastScope, RestoresTheOuterScopesSettings) {
  const Settings before;
  {
    const AutocastScope outer(c10::kCPU, true, at::kBFloat16, false);
    const Settings outside{true, at::kBFloat16, false};
    EXPECT_EQ(Settings(), outside);
    {
      const AutocastScope inner(c10::kCPU, false, at::kHalf, true);
      EXPECT_EQ(Settings(), (Settings{false, at::kHalf, true}));
    }
    EXPECT_EQ(Settings(), outside);
  }
  EXPECT_EQ(Settings(), before);
}

TEST(AutocastScope, LeavesWhatItIsNotGiven) {
  const AutocastScope outer(c10::kCPU, true, at::kHalf, false);
  const AutocastScope inner(c10::kCPU, true, std::nullopt);
  EXPECT_EQ(Settings(), (Settings{true, at::kHalf, false}));
}

TEST(AutocastScope, CountsHowDeeplyItIsNested) {
  const int before = at::autocast::increment_nesting();  // the depth including this
  {
    const AutocastScope outer(c10::kCPU, true, std::nullopt);
    const AutocastScope inner(c10::kCPU, true, std::nullopt);
    EXPECT_EQ(at::autocast::increment_nesting(), before + 3);
    EXPECT_EQ(at::autocast::decrement_nesting(), before + 2);
  }
  EXPECT_EQ(at::autocast::decrement_nesting(), before - 1);
}

}  // namespace
}  // namespace stagecraft::device

#include "executor/device/machine/allocator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace stagecraft::device {
namespace {

TEST(HugePages, AreUsedWhereTheSystemAllowsThem) {
  EXPECT_TRUE(allows_huge_pages("always [madvise] never\n"));
  EXPECT_TRUE(allows_huge_pages("[always] madvise never\n"));
  EXPECT_FALSE(allows_huge_pages("always madvise [never]\n"));
  EXPECT_FALSE(allows_huge_pages(""));
}

/// Memory of this process on huge pages, as the kernel counts it, in KiB; -1: it does not say.
std::int64_t huge_kib() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string key;
  for (std::int64_t value = 0; file >> key; file.ignore(200, '\n')) {
    if (key == "AnonHugePages:" && file >> value) return value;
  }
  return -1;
}

TEST(HugePages, HoldWhatMallocGivesOut) {
  reserve_huge_pages();
  if (huge_page_use() != "used") GTEST_SKIP() << "huge pages: " << huge_page_use() << ", " << allocator_name();
  if (huge_kib() < 0) GTEST_SKIP() << "this kernel does not count huge pages";
  constexpr std::size_t kBytes = 64 << 20;
  void* const memory = std::malloc(kBytes);
  ASSERT_NE(memory, nullptr);
  std::memset(memory, 1, kBytes);
  // From anywhere in a huge page 64 MiB fill at least 31; half of that, if memory is too fragmented for all.
  EXPECT_GE(huge_kib(), 16 * 2048);
  std::free(memory);
}

TEST(HugePages, StayOffIfTheEnvironmentSaysSo) {
  ::setenv("STAGECRAFT_HUGE_PAGES", "0", 1);
  reserve_huge_pages();
  EXPECT_EQ(huge_page_use(), "off");
  ::unsetenv("STAGECRAFT_HUGE_PAGES");
}

}  // namespace
}  // namespace stagecraft::device

#include "costmodel/memory_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(MemoryPart, HasANameForEachPartInTheirOrder) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kMemoryParts; ++i) {
    const auto part = static_cast<MemoryPart>(i);
    names.emplace_back(to_string(part));
    EXPECT_EQ(memory_part(names.back()), part);
  }
  EXPECT_STREQ(to_string(MemoryPart::Workspace), "workspace") << "the last one";
  EXPECT_TRUE(std::ranges::is_sorted(names)) << "files list them in this order";
}

TEST(MemoryPart, ListsTheNamesForAWrongOne) {
  EXPECT_THAT([] { (void)memory_part("weights"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("activations, communication, frozen")));
}

}  // namespace
}  // namespace stagecraft

#include <gtest/gtest.h>

#include "executor/channel/channel.h"

namespace stagecraft::channel {
namespace {

/// By hand for 7 values and 3 members: [0, 2), [2, 4), [4, 7).
TEST(ChunkBegin, CoversAllValuesInOrder) {
  EXPECT_EQ(chunk_begin(7, 0, 3), 0);
  EXPECT_EQ(chunk_begin(7, 1, 3), 2);
  EXPECT_EQ(chunk_begin(7, 2, 3), 4);
  EXPECT_EQ(chunk_begin(7, 3, 3), 7);
  EXPECT_EQ(chunk_begin(0, 1, 3), 0);
}

}  // namespace
}  // namespace stagecraft::channel

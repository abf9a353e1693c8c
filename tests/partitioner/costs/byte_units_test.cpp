#include "partitioner/costs/byte_units.h"

#include <gtest/gtest.h>

namespace stagecraft::partitioner {
namespace {

TEST(ByteUnits, FractionalBytesAreSharedAndSent) {
  EXPECT_EQ(fractional(3_B), FractionalBytes(3));
  EXPECT_EQ(FractionalBytes(3) * 0.5, FractionalBytes(1.5));
  EXPECT_EQ(0.5 * FractionalBytes(3), FractionalBytes(1.5));
  EXPECT_EQ(FractionalBytes(3) / 2, FractionalBytes(1.5));
  EXPECT_EQ(FractionalBytes(3) / FractionalBytes(2), 1.5);
  // 3 bytes at 2 bytes per second.
  EXPECT_EQ(FractionalBytes(3) / BytesPerSecond(2), Seconds(1.5));
}

TEST(ByteUnits, CostsOfAByteTimesBytesAreTimes) {
  // 6 s for 4 bytes are 1.5 s for each, 3 s for two.
  const SecondsPerByte cost = Seconds(6) / FractionalBytes(4);
  EXPECT_EQ(cost, SecondsPerByte(1.5));
  EXPECT_EQ(cost * 2_B, Seconds(3));
  EXPECT_EQ(cost * FractionalBytes(0.5), Seconds(0.75));
  EXPECT_EQ(cost * 2, SecondsPerByte(3));
  EXPECT_EQ(2 * cost, SecondsPerByte(3));
  EXPECT_EQ(cost / 3, SecondsPerByte(0.5));
}

}  // namespace
}  // namespace stagecraft::partitioner

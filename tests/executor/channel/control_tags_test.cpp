#include "executor/channel/control_tags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/index.h"
#include "executor/channel/channel_local.h"

namespace stagecraft::channel {
namespace {

TEST(ControlTags, AreApartFromEachOtherAndFromThePlans) {
  constexpr int kSingle[] = {kLossTag, kLengthTag, kResultTag,    kNormTag,  kOverflowTag, kStatisticsTag,
                             kStopTag, kReportTag, kFirstStepTag, kProofTag, kTimesTag,    kBlocksTag};
  for (const int& tag : kSingle) {
    EXPECT_GE(tag, Channel::kControlTag);
    EXPECT_LT(tag, kTiesTag);
    for (const int& other : kSingle) EXPECT_EQ(tag == other, &tag == &other);
  }
  // The tags of ties, buckets and the barrier are consecutive ranges within the allowed tags.
  EXPECT_GT(kBucketsTag, kTiesTag);
  EXPECT_LE(kBucketsTag + kMostBuckets, kBarrierTag);
  EXPECT_LT(kBarrierTag, Channel::kMostTags);
}

TEST(AllRanks, CountsThoseOfTheChannel) {
  for (const int ranks : {1, 3}) {
    const auto channels = make_local_channels(ranks, std::chrono::seconds(20));
    for (const auto& channel : channels) {
      const std::vector<int> all = all_ranks(*channel);
      ASSERT_EQ(to_int(all.size()), ranks);
      for (int i = 0; i < ranks; ++i) EXPECT_EQ(all[to_index(i)], i);
    }
  }
}

}  // namespace
}  // namespace stagecraft::channel

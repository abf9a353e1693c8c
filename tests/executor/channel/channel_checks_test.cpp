#include "executor/channel/channel.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executor/channel/channel_local.h"
#include "tests/support/refused.h"

namespace stagecraft::channel {
namespace {

using stagecraft::testing::refused;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(DescribeSpec, GivesTypeAndShape) {
  EXPECT_EQ(describe(TensorSpec{{4, 8}, at::kFloat}), "float32 [4, 8]");
  EXPECT_EQ(describe(TensorSpec{{}, at::kLong}), "int64 []");
  EXPECT_EQ(describe(TensorSpec{{0}, at::kBFloat16}), "bfloat16 [0]");
}

TEST(SpecOf, IsTheSpecThatTheTensorHas) {
  const at::Tensor tensor = at::empty({2, 3}, at::kHalf);
  EXPECT_EQ(describe(spec_of(tensor)), "float16 [2, 3]");
  EXPECT_TRUE(same_spec(spec_of(tensor), tensor));
  EXPECT_FALSE(same_spec({{2, 3}, at::kBFloat16}, tensor)) << "as many bytes, another type";
  EXPECT_FALSE(same_spec({{3, 2}, at::kHalf}, tensor));
  EXPECT_FALSE(same_spec({{6}, at::kHalf}, tensor));
}

TEST(EdgeKey, DistinguishesPeersAndTags) {
  EXPECT_NE(edge_key(1, 2), edge_key(2, 1));
  EXPECT_NE(edge_key(0, Channel::kMostTags - 1), edge_key(1, 0));
  EXPECT_EQ(edge_key(3, 5) >> 32, 3U);
  EXPECT_EQ(edge_key(3, 5) & 0xffffffffU, 5U);
}

class ChannelChecks : public ::testing::Test {
 protected:
  std::vector<std::unique_ptr<Channel>> channels_ = make_local_channels(3, std::chrono::seconds(20));
  const Channel& own_ = *channels_[1];  // rank 1 of 3
};

TEST_F(ChannelChecks, EdgeIsToAnotherRankUnderAnExistingTag) {
  EXPECT_NO_THROW(check_edge(own_, 0, 0));
  EXPECT_NO_THROW(check_edge(own_, 2, Channel::kMostTags - 1));
  EXPECT_THAT(refused([&] { check_edge(own_, 3, 0); }),
              AllOf(HasSubstr("rank 1"), HasSubstr("3"), HasSubstr("0 to 2")));
  EXPECT_THAT(refused([&] { check_edge(own_, -1, 0); }), HasSubstr("-1"));
  EXPECT_THAT(refused([&] { check_edge(own_, 1, 0); }), HasSubstr("rank 1"));
  EXPECT_THAT(refused([&] { check_edge(own_, 0, -1); }), HasSubstr("tag -1"));
  EXPECT_THAT(refused([&] { check_edge(own_, 0, Channel::kMostTags); }),
              HasSubstr("tag " + std::to_string(Channel::kMostTags)));
}

TEST_F(ChannelChecks, TensorToSendHasNoGapsInItsMemory) {
  EXPECT_NO_THROW(check_sendable(at::empty({2, 3}, at::kLong)));
  EXPECT_NO_THROW(check_sendable(at::empty({2, 3}).t()));
  EXPECT_NO_THROW(check_sendable(at::empty({0, 3})));
  EXPECT_THAT(refused([] { check_sendable(at::empty({2, 3}).narrow(1, 0, 2)); }), HasSubstr("float32 [2, 2]"));
  EXPECT_THAT(refused([] { check_sendable({}); }), HasSubstr("undefined"));
}

TEST_F(ChannelChecks, TensorToSumIsContiguous) {
  EXPECT_NO_THROW(check_contiguous(at::empty({2, 3})));
  EXPECT_THAT(refused([] { check_contiguous(at::empty({2, 3}).t()); }), HasSubstr("float32 [3, 2]"));
  EXPECT_THAT(refused([] { check_contiguous({}); }), HasSubstr("undefined"));
}

TEST(WrongSpec, NamesBothEndsAndBothSpecs) {
  const meeting::PeerError error = wrong_spec(2, {{4, 8}, at::kFloat}, 1, 7, {{4, 9}, at::kFloat});
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 2"), HasSubstr("float32 [4, 8]"),
                                  HasSubstr("from rank 1 under tag 7"), HasSubstr("float32 [4, 9]")));
  EXPECT_EQ(error.cause(), meeting::PeerError::Cause::Found);
}

TEST(LateTensor, IsAMissedDeadline) {
  const meeting::PeerError error = late_tensor(1, std::chrono::milliseconds(5000), 0, 3);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1"), HasSubstr("5.0 s"), HasSubstr("from rank 0 under tag 3")));
  EXPECT_EQ(error.cause(), meeting::PeerError::Cause::Deadline);
}

}  // namespace
}  // namespace stagecraft::channel

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <span>

#include "costmodel/index.h"
#include "executor/channel/channel.h"
#include "tests/executor/channel/channel_suite.h"

// The conformance suite of channels' collectives: every case runs on every channel with 2, 3 and 4 ranks, the parts of
// an all-reduce with 1 to 5.

namespace stagecraft::channel {
namespace {

using ::testing::HasSubstr;

class AllReduceSuite : public ChannelSuite {};

INSTANTIATE_TEST_SUITE_P(Channels, AllReduceSuite,
                         ::testing::Combine(::testing::ValuesIn(suite_channels()), ::testing::Values(2, 3, 4)),
                         name_of);

std::vector<int> all_of(const Channel& channel) {
  std::vector<int> out(to_index(channel.ranks()));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

/// What `member` contributes to an all-reduce: rounding reveals the order of the sum.
std::vector<float> brought(int member, std::int64_t count, int round) {
  std::mt19937 random(static_cast<unsigned>(member * 1000 + round));
  std::vector<float> values(to_index(count));
  for (float& value : values) value = std::ldexp(static_cast<float>(random()), to_int(random() % 20) - 40);
  return values;
}

std::vector<float> sum_in_order(const std::vector<int>& members, std::int64_t count, int round) {
  std::vector<float> sum = brought(members[0], count, round);
  for (std::size_t i = 1; i < members.size(); ++i) {
    const std::vector<float> more = brought(members[i], count, round);
    for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += more[k];
  }
  return sum;
}

using AllReduce = std::function<void(Channel&, at::Tensor&, const std::vector<int>&, int)>;

void expect_sums(Channel& channel, const AllReduce& all_reduce) {
  std::vector<std::vector<int>> groups = {all_of(channel)};
  if (channel.ranks() > 1) groups.push_back({0, channel.ranks() - 1});
  int round = 0;
  for (const auto& members : groups) {
    if (std::find(members.begin(), members.end(), channel.rank()) == members.end()) continue;
    for (const std::int64_t count : {0, 1, 3, 64, 1000, 100003, 400003}) {
      const std::vector<float> mine = brought(channel.rank(), count, round);
      at::Tensor values = at::empty({count}, at::kFloat);
      std::copy(mine.begin(), mine.end(), values.mutable_data_ptr<float>());
      all_reduce(channel, values, members, 9);
      const std::vector<float> sum = sum_in_order(members, count, round);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        wrong += std::bit_cast<std::uint32_t>(values.const_data_ptr<float>()[i]) !=
                 std::bit_cast<std::uint32_t>(sum[to_index(i)]);
      }
      EXPECT_EQ(wrong, 0) << count << " values, rank " << channel.rank() << ", " << members.size() << " members";
      ++round;
    }
    round = 100;
  }
}

TEST_P(AllReduceSuite, AllReduceSumsInMemberOrderBitForBit) {
  on_ranks([](Channel& channel) {
    expect_sums(channel, [](Channel& on, at::Tensor& values, const std::vector<int>& members, int tag) {
      on.all_reduce(values, members, tag);
    });
  });
}

TEST_P(AllReduceSuite, TheOrderedAllReduceHasTheSameBits) {
  on_ranks([](Channel& channel) {
    expect_sums(channel, [](Channel& on, at::Tensor& values, const std::vector<int>& members, int tag) {
      start_ordered_all_reduce(on, values, members, tag)->wait();
    });
  });
}

TEST_P(AllReduceSuite, SeveralAllReducesCanBeInProgress) {
  on_ranks([](Channel& channel) {
    const std::vector<int> members = all_of(channel);
    const std::vector<std::int64_t> counts{3, 20000, 64};
    std::vector<at::Tensor> values;
    std::vector<std::unique_ptr<Reducing>> under_way;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const std::vector<float> mine = brought(channel.rank(), counts[i], to_int(i));
      values.push_back(at::empty({counts[i]}, at::kFloat));
      std::copy(mine.begin(), mine.end(), values.back().mutable_data_ptr<float>());
      under_way.push_back(channel.start_all_reduce(values.back(), members, 20 + to_int(i)));
    }
    for (std::size_t i = 0; i < counts.size(); ++i) {
      under_way[i]->wait();
      const std::vector<float> sum = sum_in_order(members, counts[i], to_int(i));
      EXPECT_TRUE(std::ranges::equal(std::span(values[i].const_data_ptr<float>(), to_index(counts[i])), sum))
          << counts[i];
    }
  });
}

TEST_P(AllReduceSuite, AllReduceOfOneMemberChangesNothing) {
  on_ranks([](Channel& channel) {
    at::Tensor values = numbered({{5}, at::kFloat}, channel.rank(), 0, 0);
    channel.all_reduce(values, {channel.rank()}, 0);
    EXPECT_TRUE(same(values, numbered({{5}, at::kFloat}, channel.rank(), 0, 0)));
  });
}

TEST_P(AllReduceSuite, AllReduceOfDifferentCountsFails) {
  if (is_of_gpus()) GTEST_SKIP() << "messages carry no counts";
  on_ranks([](Channel& channel) {
    if (channel.rank() > 1) return;
    at::Tensor values = at::empty({4 + channel.rank()}, at::kFloat);
    const std::string error = error_of([&] { channel.all_reduce(values, {0, 1}, 7); });
    EXPECT_THAT(error, HasSubstr("under tag 7"));
    channel.abort(error);
  });
}

TEST_P(AllReduceSuite, AnAllReduceNamesTheMissingMember) {
  if (is_of_gpus()) GTEST_SKIP() << "the watching thread tells, see NcclChannel.NamesTheLateTransfer";
  on_ranks(
      [](Channel& channel) {
        if (channel.rank() != 0) return;
        at::Tensor values = at::empty({4}, at::kFloat);
        const std::string error = error_of([&] { channel.all_reduce(values, {0, 1}, 7); });
        EXPECT_THAT(error, HasSubstr("rank 0 waited 0.3 s for"));
        EXPECT_THAT(error, HasSubstr("rank 1"));
      },
      kShort);
}

TEST_P(AllReduceSuite, RefusesWhatCannotBeReduced) {
  on_ranks([](Channel& channel) {
    at::Tensor whole = at::empty({4}, at::kLong);
    EXPECT_THROW(channel.all_reduce(whole, {0, 1}, 0), std::invalid_argument);
    at::Tensor reducible = at::empty({4}, at::kFloat);
    EXPECT_THROW(channel.all_reduce(reducible, {1, 0}, 0), std::invalid_argument);
  });
}

// ---- the parts of an all-reduce

class PartsOfAllReduce : public ChannelSuite {};

INSTANTIATE_TEST_SUITE_P(Channels, PartsOfAllReduce,
                         ::testing::Combine(::testing::ValuesIn(suite_channels()), ::testing::Values(1, 2, 3, 4, 5)),
                         name_of);

constexpr std::array<std::int64_t, 7> kCounts = {0, 1, 3, 64, 1000, 5003, 100003};

at::Tensor tensor_of(const std::vector<float>& values) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(values.size())}, at::kFloat);
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<float>());
  return out;
}

TEST_P(PartsOfAllReduce, ReduceScatterSumsTheOwnChunkInMemberOrderAndLeavesTheRest) {
  on_ranks([](Channel& channel) {
    const std::vector<int> members = all_of(channel);
    for (const std::int64_t count : kCounts) {
      at::Tensor values = tensor_of(brought(channel.rank(), count, 0));
      ordered_reduce_scatter(channel, values, members, 9);
      std::vector<float> expected = brought(channel.rank(), count, 0);
      const std::vector<float> sum = sum_in_order(members, count, 0);
      const std::int64_t begin = chunk_begin(count, channel.rank(), channel.ranks());
      const std::int64_t end = chunk_begin(count, channel.rank() + 1, channel.ranks());
      std::copy(sum.begin() + begin, sum.begin() + end, expected.begin() + begin);
      EXPECT_TRUE(same(values, tensor_of(expected))) << count << " values, rank " << channel.rank();
    }
  });
}

TEST_P(PartsOfAllReduce, AllGatherBringsEveryMembersChunkToAll) {
  on_ranks([](Channel& channel) {
    for (const std::int64_t count : kCounts) {
      for (const auto dtype : {at::kFloat, at::kLong}) {
        const TensorSpec spec{{count}, dtype};
        at::Tensor values = numbered(spec, channel.rank(), 2, 1);
        all_gather(channel, values, all_of(channel), 9);
        at::Tensor expected = at::empty(spec.shape, spec.dtype);
        for (int member = 0; member < channel.ranks(); ++member) {
          const std::int64_t begin = chunk_begin(count, member, channel.ranks());
          const std::int64_t numel = chunk_begin(count, member + 1, channel.ranks()) - begin;
          expected.narrow(0, begin, numel).copy_(numbered(spec, member, 2, 1).narrow(0, begin, numel));
        }
        EXPECT_TRUE(same(values, expected)) << count << " values, rank " << channel.rank();
      }
    }
  });
}

TEST_P(PartsOfAllReduce, AreTheAllReduceOneAfterTheOther) {
  on_ranks([](Channel& channel) {
    expect_sums(channel, [](Channel& on, at::Tensor& values, const std::vector<int>& members, int tag) {
      ordered_reduce_scatter(on, values, members, tag);
      all_gather(on, values, members, tag);
    });
  });
}

TEST_P(PartsOfAllReduce, NameWhatCannotBeDone) {
  on_ranks([](Channel& channel) {
    const auto refused = [](const std::function<void()>& body) -> std::string {
      try {
        body();
      } catch (const std::invalid_argument& error) { return error.what(); }
      return "nothing was refused";
    };
    at::Tensor whole = at::empty({4}, at::kLong);
    EXPECT_EQ(refused([&] { ordered_reduce_scatter(channel, whole, {channel.rank()}, 0); }),
              "reduce-scatter takes float32, got int64 [4]");
    EXPECT_EQ(refused([&] { all_gather(channel, whole, {channel.rank(), channel.rank()}, 0); }),
              fmt::format("all-gather members must ascend and include rank {0}, got [{0}, {0}]", channel.rank()));
    at::Tensor strided = at::empty({4, 4}, at::kFloat).t();
    EXPECT_THAT(refused([&] { all_gather(channel, strided, {channel.rank()}, 0); }), HasSubstr("not contiguous"));
  });
}

}  // namespace
}  // namespace stagecraft::channel

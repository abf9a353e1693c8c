#include "executor/channel.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "tests/support/ranks.h"

// The conformance suite of channels: every case runs on every channel with 2, 3 and 4 ranks, the parts of an all-reduce
// with 1 to 5 as well.

namespace stagecraft {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kLong{20000};
constexpr milliseconds kShort{300};

class ChannelSuite : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  static int ranks() { return std::get<1>(GetParam()); }
  static void on_ranks(const std::function<void(Channel&)>& body, milliseconds deadline = kLong) {
    run_on_ranks(std::get<0>(GetParam()), ranks(), deadline, body);
  }
};

INSTANTIATE_TEST_SUITE_P(Channels, ChannelSuite,
                         ::testing::Combine(::testing::ValuesIn(channel_names()), ::testing::Values(2, 3, 4)),
                         [](const auto& entry) {
                           return std::get<0>(entry.param) + "_" + std::to_string(std::get<1>(entry.param));
                         });

/// Values that no other (rank, tag, message, index) has, as far as the dtype can tell them apart.
at::Tensor numbered(const TensorSpec& spec, int from, int tag, int message) {
  at::Tensor values = at::empty(spec.shape, at::kLong);
  auto* out = values.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < values.numel(); ++i) out[i] = ((i * 5 + message) * 16 + tag) * 8 + from;
  if (spec.dtype == at::kBool) return values.remainder(3).eq(0);
  return values.to(spec.dtype);
}

bool same(const at::Tensor& a, const at::Tensor& b) { return a.scalar_type() == b.scalar_type() && a.equal(b); }

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const ChannelError& error) { return error.what(); }
  return "no error";
}

TEST_P(ChannelSuite, DeliversEveryElementInBothDirectionsOfEveryPair) {
  const TensorSpec spec{{7, 11}, at::kFloat};
  on_ranks([&](Channel& channel) {
    std::vector<std::unique_ptr<Sending>> sends;
    for (int to = 0; to < channel.ranks(); ++to) {
      if (to != channel.rank()) sends.push_back(channel.send(numbered(spec, channel.rank(), 3, to), to, 3));
    }
    for (int from = 0; from < channel.ranks(); ++from) {
      if (from == channel.rank()) continue;
      const at::Tensor got = channel.receive(spec, from, 3)->wait();
      EXPECT_TRUE(same(got, numbered(spec, from, 3, channel.rank()))) << from << " to " << channel.rank();
    }
    for (auto& sending : sends) sending->wait();
  });
}

TEST_P(ChannelSuite, CarriesEveryDtype) {
  on_ranks([](Channel& channel) {
    int tag = 0;
    for (const auto dtype : {at::kFloat, at::kDouble, at::kLong, at::kBFloat16, at::kBool, at::kHalf, at::kInt}) {
      const TensorSpec spec{{3, 5}, dtype};
      if (channel.rank() == 0) channel.send(numbered(spec, 0, tag, 0), 1, tag)->wait();
      if (channel.rank() == 1) {
        EXPECT_TRUE(same(channel.receive(spec, 0, tag)->wait(), numbered(spec, 0, tag, 0))) << tag;
      }
      ++tag;
    }
  });
}

TEST_P(ChannelSuite, KeepsTheOrderOfEachTagWhenTagsInterleave) {
  constexpr int kTags = 3, kMessages = 10;
  on_ranks([&](Channel& channel) {
    // Every tag has its own shape. The receiver takes the tags in another order than the sender.
    const auto spec = [](int tag) { return TensorSpec{{tag + 2, 4}, at::kFloat}; };
    std::vector<std::unique_ptr<Sending>> sends;
    if (channel.rank() == 0) {
      for (int message = 0; message < kMessages; ++message) {
        for (int tag = 0; tag < kTags; ++tag) {
          sends.push_back(channel.send(numbered(spec(tag), 0, tag, message), 1, tag));
        }
      }
    }
    if (channel.rank() == 1) {
      for (int tag = kTags - 1; tag >= 0; --tag) {
        for (int message = 0; message < kMessages; ++message) {
          EXPECT_TRUE(same(channel.receive(spec(tag), 0, tag)->wait(), numbered(spec(tag), 0, tag, message)))
              << "tag " << tag << " message " << message;
        }
      }
    }
    for (auto& sending : sends) sending->wait();
  });
}

TEST_P(ChannelSuite, MatchesReceivesInTheOrderTheyWerePosted) {
  const TensorSpec spec{{4}, at::kLong};
  on_ranks([&](Channel& channel) {
    if (channel.rank() == 0) {
      auto first = channel.send(numbered(spec, 0, 1, 0), 1, 1);
      auto second = channel.send(numbered(spec, 0, 1, 1), 1, 1);
      first->wait();
      second->wait();
    }
    if (channel.rank() == 1) {
      auto first = channel.receive(spec, 0, 1);
      auto second = channel.receive(spec, 0, 1);
      EXPECT_TRUE(same(second->wait(), numbered(spec, 0, 1, 1)));
      EXPECT_TRUE(same(first->wait(), numbered(spec, 0, 1, 0)));
    }
  });
}

TEST_P(ChannelSuite, ASendIsDoneOnceItWasReceived) {
  const TensorSpec spec{{1 << 20}, at::kFloat};
  on_ranks([&](Channel& channel) {
    if (channel.rank() == 0) {
      auto sending = channel.send(numbered(spec, 0, 2, 0), 1, 2);
      const auto end = std::chrono::steady_clock::now() + kLong;
      while (!sending->done() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      EXPECT_TRUE(sending->done());
      sending->wait();
    }
    if (channel.rank() == 1) { EXPECT_TRUE(same(channel.receive(spec, 0, 2)->wait(), numbered(spec, 0, 2, 0))); }
  });
}

TEST_P(ChannelSuite, CarriesEmptyTensors) {
  const TensorSpec spec{{0, 3}, at::kLong};
  on_ranks([&](Channel& channel) {
    for (int message = 0; message < 3; ++message) {
      if (channel.rank() == 0) channel.send(at::empty(spec.shape, spec.dtype), 1, 5)->wait();
      if (channel.rank() == 1) {
        const at::Tensor got = channel.receive(spec, 0, 5)->wait();
        EXPECT_EQ(got.sizes(), at::IntArrayRef(spec.shape));
        EXPECT_EQ(got.scalar_type(), at::kLong);
      }
    }
  });
}

TEST_P(ChannelSuite, FollowsAShapeThatChangesUnderOneTag) {
  on_ranks([](Channel& channel) {
    for (int message = 0; message < 200; ++message) {
      const TensorSpec spec{{message % 3 + 1, 2}, at::kFloat};
      if (channel.rank() == 0) channel.send(numbered(spec, 0, 6, message), 1, 6)->wait();
      if (channel.rank() == 1) {
        EXPECT_TRUE(same(channel.receive(spec, 0, 6)->wait(), numbered(spec, 0, 6, message))) << message;
      }
    }
  });
}

TEST_P(ChannelSuite, NamesBothSpecsWhenTheShapeIsNotTheExpectedOne) {
  on_ranks([](Channel& channel) {
    if (channel.rank() == 0) {
      auto sending = channel.send(numbered({{4, 9}, at::kDouble}, 0, 7, 0), 1, 7);
      error_of([&] { sending->wait(); });
    }
    if (channel.rank() == 1) {
      EXPECT_EQ(error_of([&] { (void)channel.receive({{4, 8}, at::kFloat}, 0, 7)->wait(); }),
                "rank 1 expected float32 [4, 8] from rank 0 under tag 7, got float64 [4, 9]");
      channel.abort("wrong shape");
    }
  });
}

TEST_P(ChannelSuite, ReceivesNothingWrongWhenOnlyTheSenderChangesItsShape) {
  on_ranks(
      [](Channel& channel) {
        const TensorSpec spec{{4}, at::kFloat};
        if (channel.rank() == 0) {
          channel.send(numbered(spec, 0, 7, 0), 1, 7)->wait();
          auto sending = channel.send(numbered({{400}, at::kFloat}, 0, 7, 1), 1, 7);
          error_of([&] { sending->wait(); });
        }
        if (channel.rank() == 1) {
          EXPECT_TRUE(same(channel.receive(spec, 0, 7)->wait(), numbered(spec, 0, 7, 0)));
          EXPECT_NE(error_of([&] { (void)channel.receive(spec, 0, 7)->wait(); }), "no error");
          channel.abort("wrong shape");
        }
      },
      kShort);
}

TEST_P(ChannelSuite, NamesWhoWaitedForWhomWhenTheDeadlinePasses) {
  on_ranks(
      [](Channel& channel) {
        if (channel.rank() != 1) return;
        EXPECT_EQ(error_of([&] { (void)channel.receive({{4}, at::kFloat}, 0, 3)->wait(); }),
                  "rank 1 waited 0.3 s for a tensor from rank 0 under tag 3");
      },
      kShort);
}

TEST_P(ChannelSuite, AnAbortFromAnotherThreadEndsAWait) {
  on_ranks([](Channel& channel) {
    if (channel.rank() != 1) {
      // The others wait for rank 1, which aborts: they are reached too.
      EXPECT_THAT(error_of([&] { (void)channel.receive({{4}, at::kFloat}, 1, 3)->wait(); }),
                  HasSubstr("the plan changed"));
      return;
    }
    auto receiving = channel.receive({{4}, at::kFloat}, 0, 3);
    std::thread aborter([&] { channel.abort("the plan changed"); });
    EXPECT_THAT(error_of([&] { (void)receiving->wait(); }), HasSubstr("the plan changed"));
    aborter.join();
    EXPECT_THAT(error_of([&] { channel.barrier(); }), HasSubstr("the plan changed"));
  });
}

TEST_P(ChannelSuite, RefusesWhatCannotBeSent) {
  on_ranks([](Channel& channel) {
    const at::Tensor values = at::empty({4, 4}, at::kFloat);
    EXPECT_THROW((void)channel.send(values, channel.ranks(), 0), std::invalid_argument);
    EXPECT_THROW((void)channel.send(values, channel.rank(), 0), std::invalid_argument);
    EXPECT_THROW((void)channel.send(values, (channel.rank() + 1) % channel.ranks(), -1), std::invalid_argument);
    EXPECT_THROW((void)channel.send(values, (channel.rank() + 1) % channel.ranks(), Channel::kMostTags),
                 std::invalid_argument);
    EXPECT_THROW((void)channel.send(values.t(), (channel.rank() + 1) % channel.ranks(), 0), std::invalid_argument);
    EXPECT_THROW((void)channel.receive({{4}, at::kFloat}, -1, 0), std::invalid_argument);
    at::Tensor whole = at::empty({4}, at::kLong);
    EXPECT_THROW(channel.all_reduce(whole, {0, 1}, 0), std::invalid_argument);
    at::Tensor reducible = at::empty({4}, at::kFloat);
    EXPECT_THROW(channel.all_reduce(reducible, {1, 0}, 0), std::invalid_argument);
  });
}

std::vector<int> all_of(const Channel& channel) {
  std::vector<int> out(static_cast<std::size_t>(channel.ranks()));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

/// What `member` brings to an all-reduce: rounding makes the order of the sum show.
std::vector<float> brought(int member, std::int64_t count, int round) {
  std::mt19937 random(static_cast<unsigned>(member * 1000 + round));
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 20) - 40);
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
    for (const std::int64_t count : {0, 1, 3, 64, 1000, 5000, 100003}) {
      const std::vector<float> mine = brought(channel.rank(), count, round);
      at::Tensor values = at::empty({count}, at::kFloat);
      std::copy(mine.begin(), mine.end(), values.mutable_data_ptr<float>());
      all_reduce(channel, values, members, 9);
      const std::vector<float> sum = sum_in_order(members, count, round);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        wrong += std::bit_cast<std::uint32_t>(values.const_data_ptr<float>()[i]) !=
                 std::bit_cast<std::uint32_t>(sum[static_cast<std::size_t>(i)]);
      }
      EXPECT_EQ(wrong, 0) << count << " values, rank " << channel.rank() << ", " << members.size() << " members";
      ++round;
    }
    round = 100;
  }
}

TEST_P(ChannelSuite, AllReduceSumsInMemberOrderBitForBit) {
  on_ranks([](Channel& channel) {
    expect_sums(channel, [](Channel& on, at::Tensor& values, const std::vector<int>& members, int tag) {
      on.all_reduce(values, members, tag);
    });
  });
}

TEST_P(ChannelSuite, TheOrderedAllReduceHasTheSameBits) {
  on_ranks([](Channel& channel) { expect_sums(channel, ordered_all_reduce); });
}

TEST_P(ChannelSuite, AllReduceOfOneMemberChangesNothing) {
  on_ranks([](Channel& channel) {
    at::Tensor values = numbered({{5}, at::kFloat}, channel.rank(), 0, 0);
    channel.all_reduce(values, {channel.rank()}, 0);
    EXPECT_TRUE(same(values, numbered({{5}, at::kFloat}, channel.rank(), 0, 0)));
  });
}

TEST_P(ChannelSuite, AllReduceOfDifferentCountsFails) {
  on_ranks([](Channel& channel) {
    if (channel.rank() > 1) return;
    at::Tensor values = at::empty({4 + channel.rank()}, at::kFloat);
    const std::string error = error_of([&] { channel.all_reduce(values, {0, 1}, 7); });
    EXPECT_THAT(error, HasSubstr("under tag 7"));
    channel.abort(error);
  });
}

TEST_P(ChannelSuite, AnAllReduceNamesTheMemberThatDoesNotCome) {
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

// ---- the parts of an all-reduce

class PartsOfAllReduce : public ChannelSuite {};

INSTANTIATE_TEST_SUITE_P(Channels, PartsOfAllReduce,
                         ::testing::Combine(::testing::ValuesIn(channel_names()), ::testing::Values(1, 2, 3, 4, 5)),
                         [](const auto& entry) {
                           return std::get<0>(entry.param) + "_" + std::to_string(std::get<1>(entry.param));
                         });

/// Of 7 values and 3 members by hand: [0, 2), [2, 4), [4, 7).
TEST(ChunkBegin, CoversAllValuesInOrder) {
  EXPECT_EQ(chunk_begin(7, 0, 3), 0);
  EXPECT_EQ(chunk_begin(7, 1, 3), 2);
  EXPECT_EQ(chunk_begin(7, 2, 3), 4);
  EXPECT_EQ(chunk_begin(7, 3, 3), 7);
  EXPECT_EQ(chunk_begin(0, 1, 3), 0);
}

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
              fmt::format("all-gather members must ascend and hold rank {0}, got [{0}, {0}]", channel.rank()));
    at::Tensor strided = at::empty({4, 4}, at::kFloat).t();
    EXPECT_THAT(refused([&] { all_gather(channel, strided, {channel.rank()}, 0); }), HasSubstr("not contiguous"));
  });
}

TEST_P(ChannelSuite, NobodyLeavesABarrierBeforeAllHaveCome) {
  std::atomic<int> came = 0;
  on_ranks([&](Channel& channel) {
    for (int round = 1; round <= 20; ++round) {
      ++came;
      channel.barrier();
      EXPECT_GE(came, round * channel.ranks());
      channel.barrier();
    }
  });
}

}  // namespace
}  // namespace stagecraft

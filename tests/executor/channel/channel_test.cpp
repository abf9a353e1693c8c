#include "executor/channel/channel.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "tests/executor/channel/channel_suite.h"
#include "tests/support/known_names.h"

// The conformance suite of channels: every case runs on every channel with 2, 3 and 4 ranks.

namespace stagecraft::channel {
namespace {

using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Channels, ChannelSuite,
                         ::testing::Combine(::testing::ValuesIn(suite_channels()), ::testing::Values(2, 3, 4)),
                         name_of);

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

TEST_P(ChannelSuite, DeliversTheTensorsOfAMessageUnderTheirTags) {
  const std::vector<TensorSpec> specs{{{3, 5}, at::kFloat}, {{0, 2}, at::kFloat}, {{7}, at::kLong}};
  const std::vector<int> tags{4, 5, 6};
  on_ranks([&](Channel& channel) {
    for (int message = 0; message < 3; ++message) {
      std::vector<at::Tensor> values;
      for (std::size_t i = 0; i < specs.size(); ++i) values.push_back(numbered(specs[i], 0, tags[i], message));
      if (channel.rank() == 0) {
        std::vector<std::unique_ptr<Sending>> sends;
        channel.send_message(values, 1, tags, sends);
        ASSERT_EQ(sends.size(), specs.size());
        for (const auto& sending : sends) sending->wait();
      }
      if (channel.rank() == 1) {
        std::vector<std::unique_ptr<Receiving>> receives;
        channel.receive_message(specs, 0, tags, receives);
        ASSERT_EQ(receives.size(), specs.size());
        for (std::size_t i = 0; i < specs.size(); ++i) EXPECT_TRUE(same(receives[i]->wait(), values[i])) << i;
      }
    }
  });
}

TEST_P(ChannelSuite, KeepsTheOrderOfEachTagWhenTagsInterleave) {
  if (is_of_gpus()) GTEST_SKIP() << "both ends of an edge must see one order of tags";
  constexpr int kTags = 3, kMessages = 10;
  on_ranks([&](Channel& channel) {
    // Every tag has its own shape. The receiver uses a different order of tags than the sender.
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

TEST_P(ChannelSuite, KeepsTheStridesOfTheFirstTensorUnderATag) {
  if (is_of_gpus()) GTEST_SKIP() << "messages carry no strides";
  on_ranks([](Channel& channel) {
    const TensorSpec spec{{3, 4, 5}, at::kFloat};
    const auto message = [&](int number) { return numbered(spec, 0, 4, number); };
    const auto transposed = [&](int number) { return message(number).transpose(0, 2).contiguous().transpose(0, 2); };
    for (int number = 0; number < 3; ++number) {
      if (channel.rank() == 0) channel.send(number == 2 ? message(number) : transposed(number), 1, 4)->wait();
      if (channel.rank() != 1) continue;
      const at::Tensor got = channel.receive(spec, 0, 4)->wait();
      EXPECT_TRUE(same(got, message(number))) << number;
      // The third arrives in the strides that were announced.
      EXPECT_TRUE(number == 2 || got.strides() == transposed(number).strides()) << number;
    }
  });
}

TEST_P(ChannelSuite, NamesBothSpecsWhenTheShapeIsNotTheExpectedOne) {
  if (is_of_gpus()) GTEST_SKIP() << "messages carry no shapes";
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
  if (is_of_gpus()) GTEST_SKIP() << "messages carry no shapes";
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
  if (is_of_gpus()) GTEST_SKIP() << "the watching thread tells, see NcclChannel.NamesTheLateTransfer";
  on_ranks(
      [](Channel& channel) {
        if (channel.rank() != 1) return;
        EXPECT_EQ(error_of([&] { (void)channel.receive({{4}, at::kFloat}, 0, 3)->wait(); }),
                  "rank 1 waited 0.3 s for a tensor from rank 0 under tag 3");
        EXPECT_THAT(channel.activity().text(),
                    ::testing::MatchesRegex("waiting for rank 0 under tag 3 for 0\\.[3-9] s"));
      },
      kShort);
}

TEST_P(ChannelSuite, ASuccessfulWaitIsForgotten) {
  on_ranks([](Channel& channel) {
    const TensorSpec spec{{4}, at::kFloat};
    channel.activity().begin({.action = "update"});
    if (channel.rank() == 0) channel.send(numbered(spec, 0, 3, 0), 1, 3)->wait();
    if (channel.rank() == 1) (void)channel.receive(spec, 0, 3)->wait();
    channel.barrier();
    EXPECT_THAT(channel.activity().text(), ::testing::MatchesRegex("update for [0-9.]+ s"));
  });
}

TEST_P(ChannelSuite, AnAbortFromAnotherThreadEndsAWait) {
  on_ranks([](Channel& channel) {
    if (channel.rank() != 1) {
      // The others wait for rank 1, which aborts: they receive the abort too.
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
    EXPECT_THROW((void)channel.send(values.narrow(1, 0, 2), (channel.rank() + 1) % channel.ranks(), 0),
                 std::invalid_argument);
    EXPECT_THROW((void)channel.receive({{4}, at::kFloat}, -1, 0), std::invalid_argument);
  });
}

TEST_P(ChannelSuite, NobodyLeavesABarrierBeforeAllHaveArrived) {
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

TEST(ChannelByName, ListsTheKnown) {
  EXPECT_THAT([] { (void)channel_by_name("pigeons"); },
              ::testing::ThrowsMessage<std::invalid_argument>("unknown channel \"pigeons\", known are " +
                                                              known_names(channels())));
}

}  // namespace
}  // namespace stagecraft::channel

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/view_as_complex.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>

#include "costmodel/index.h"
#include "executor/channel/channel.h"
#include "executor/channel/collective.h"
#include "executor/channel/control_tags.h"
#include "executor/device/dtype.h"
#include "tests/executor/channel/channel_suite.h"
#include "tests/support/refused.h"

// The conformance suite of channels' collectives: every case runs on every channel with 1 to 4 ranks. Expected values
// come from plain loops over doubles, which know nothing of the channels' sums.

namespace stagecraft::channel {
namespace {

using stagecraft::testing::refused;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Counts = std::vector<std::int64_t>;

constexpr std::array kFractions{at::kFloat,    at::kDouble,       at::kHalf,
                                at::kBFloat16, at::kComplexFloat, at::kComplexDouble};
constexpr std::array kWholes{at::kLong, at::kInt, at::kShort, at::kChar, at::kByte, at::kBool};

class CollectiveSuite : public ChannelSuite {};

INSTANTIATE_TEST_SUITE_P(Channels, CollectiveSuite,
                         ::testing::Combine(::testing::ValuesIn(suite_channels()), ::testing::Values(1, 2, 3, 4)),
                         name_of);

// ---- values

bool is_fraction(at::ScalarType dtype) { return std::ranges::find(kFractions, dtype) != kFractions.end(); }

/// `value` rounded to the nearest number of `dtype`, ties to even. Neither overflow nor underflow occurs here.
double rounded(double value, at::ScalarType dtype) {
  if (dtype == at::kDouble || dtype == at::kComplexDouble) return value;
  if (dtype == at::kFloat || dtype == at::kComplexFloat) return static_cast<double>(static_cast<float>(value));
  const int bits = dtype == at::kHalf ? 11 : 8;
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

std::int64_t components(at::ScalarType dtype) { return at::isComplexType(dtype) ? 2 : 1; }

/// Components of the `count` values that `rank` contributes. Of both signs, at most twelve binary orders apart and with
/// all bits in use: every addition is rounded, and reveals the order of the sum. Any two of at most 24 bits have an
/// exact sum in a double.
std::vector<double> brought(at::ScalarType dtype, std::int64_t count, int rank, int round) {
  std::mt19937_64 random(static_cast<unsigned>(rank * 1000 + round));
  std::vector<double> out(to_index(count * components(dtype)));
  for (double& value : out) {
    const double magnitude = 1 + std::ldexp(static_cast<double>(random() >> 12U), -52);
    value = rounded(std::ldexp(magnitude, to_int(random() % 12) - 4), dtype) * (random() % 2 == 0 ? 1 : -1);
  }
  return out;
}

at::Tensor tensor_of(const std::vector<double>& values, at::ScalarType dtype) {
  const auto count = static_cast<std::int64_t>(values.size()) / components(dtype);
  at::Tensor out = at::empty({count, components(dtype)}, at::kDouble);
  std::ranges::copy(values, out.mutable_data_ptr<double>());
  return (at::isComplexType(dtype) ? at::view_as_complex(out) : out.view({-1})).to(dtype);
}

/// What `rank` contributes as a tensor.
at::Tensor contribution(at::ScalarType dtype, std::int64_t count, int rank, int round) {
  if (is_fraction(dtype)) return tensor_of(brought(dtype, count, rank, round), dtype);
  return numbered({{count}, dtype}, rank, round, 0);
}

at::Tensor sum_of(const std::vector<int>& members, at::ScalarType dtype, std::int64_t count, int round) {
  std::vector<double> sum = brought(dtype, count, members[0], round);
  for (std::size_t i = 1; i < members.size(); ++i) {
    const std::vector<double> more = brought(dtype, count, members[i], round);
    for (std::size_t k = 0; k < sum.size(); ++k) sum[k] = rounded(sum[k] + more[k], dtype);
  }
  return tensor_of(sum, dtype);
}

std::int64_t total(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); }

/// Part `i` of `tensor`.
at::Tensor part(const at::Tensor& tensor, const Counts& counts, std::size_t i) {
  return tensor.narrow(0, total({counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(i)}), counts[i]);
}

// ---- one collective and what it must give

struct Tried {
  CollectiveCall call;
  at::Tensor expected;  ///< values, or received
};

/// Values that member `from` of an all-to-all sends to member `to`: unequal, and none for some.
std::int64_t sent(std::size_t from, std::size_t to, int round) {
  return static_cast<std::int64_t>((from * 5 + to * 3 + to_index(round)) % 7);
}

/// This rank's call of `kind` with parts of `counts` (an all-to-all has its own), and the result by the definition.
Tried tried(int rank, Collective kind, at::ScalarType dtype, const std::vector<int>& members, const Counts& counts,
            int tag, int round) {
  Tried out;
  out.call = {.kind = kind, .members = members, .tag = tag};
  CollectiveCall& call = out.call;
  const std::size_t mine = place_of(rank, call);
  if (kind != Collective::AllReduce) call.counts = counts;
  call.values = contribution(dtype, total(counts), rank, round);
  switch (kind) {
    case Collective::AllReduce:
      out.expected = sum_of(members, dtype, total(counts), round);
      break;
    case Collective::ReduceScatter:
      out.expected = call.values.clone();
      part(out.expected, counts, mine).copy_(part(sum_of(members, dtype, total(counts), round), counts, mine));
      break;
    case Collective::AllGather:
      out.expected = at::empty_like(call.values);
      for (std::size_t i = 0; i < members.size(); ++i)
        part(out.expected, counts, i).copy_(part(contribution(dtype, total(counts), members[i], round), counts, i));
      break;
    case Collective::AllToAll: {
      const auto counts_from = [&](std::size_t from) {
        Counts of_member;
        for (std::size_t to = 0; to < members.size(); ++to) of_member.push_back(sent(from, to, round));
        return of_member;
      };
      call.counts = counts_from(mine);
      call.values = contribution(dtype, total(call.counts), rank, round);
      std::vector<at::Tensor> parts;
      for (std::size_t from = 0; from < members.size(); ++from) {
        const Counts theirs = counts_from(from);
        call.received_counts.push_back(theirs[mine]);
        parts.push_back(part(contribution(dtype, total(theirs), members[from], round), theirs, mine));
      }
      call.received = at::empty({total(call.received_counts)}, dtype);
      out.expected = at::cat(parts);
    }
  }
  return out;
}

/// Waits and checks; then writes to the memory, which must not change what the others get.
void expect_result(const Tried& one, CollectiveInProgress& under_way, int rank) {
  under_way.wait();
  const at::Tensor& result = one.call.received.defined() ? one.call.received : one.call.values;
  const at::Tensor got = result.clone();
  one.call.values.fill_(1);
  result.fill_(1);
  EXPECT_TRUE(same(got, one.expected)) << collective_text(one.call.kind) << " of " << describe(spec_of(got))
                                       << " among " << one.call.members.size() << ", rank " << rank << ", counts "
                                       << fmt::format("[{}]", fmt::join(one.call.counts, ", "));
}

void expect_collective(Channel& channel, Collective kind, at::ScalarType dtype, const std::vector<int>& members,
                       const Counts& counts, int round) {
  if (std::ranges::find(members, channel.rank()) == members.end()) return;
  const Tried one = tried(channel.rank(), kind, dtype, members, counts, 9, round);
  expect_result(one, *channel.start(one.call), channel.rank());
}

/// All ranks, and the first and the last.
std::vector<std::vector<int>> groups_of(const Channel& channel) {
  std::vector<std::vector<int>> out{all_ranks(channel)};
  if (channel.ranks() > 2) out.push_back({0, channel.ranks() - 1});
  return out;
}

/// Equal, unequal and zero counts for `members`.
std::vector<Counts> counts_for(std::size_t members) {
  std::vector<Counts> out{Counts(members, 0), Counts(members, 1), Counts(members, 5)};
  Counts unequal, every_other, last_only(members, 0);
  for (std::size_t i = 0; i < members; ++i) {
    unequal.push_back(static_cast<std::int64_t>((i * 7 + 3) % 11));
    every_other.push_back(i % 2 == 0 ? 0 : 6);
  }
  last_only.back() = 130;
  out.insert(out.end(), {unequal, every_other, last_only});
  return out;
}

TEST_P(CollectiveSuite, SumsOfEveryDtypeAreThoseOfAPlainLoop) {
  on_ranks([](Channel& channel) {
    int round = 0;
    for (const auto& members : groups_of(channel)) {
      for (const Counts& counts : counts_for(members.size())) {
        for (const at::ScalarType dtype : kFractions) {
          expect_collective(channel, Collective::AllReduce, dtype, members, counts, ++round);
          expect_collective(channel, Collective::ReduceScatter, dtype, members, counts, ++round);
        }
      }
    }
  });
}

TEST_P(CollectiveSuite, GathersAndExchangesCarryEveryDtype) {
  on_ranks([](Channel& channel) {
    int round = 0;
    for (const auto& members : groups_of(channel)) {
      for (const Counts& counts : counts_for(members.size())) {
        for (const auto& dtypes : {kFractions, kWholes}) {
          for (const at::ScalarType dtype : dtypes) {
            expect_collective(channel, Collective::AllGather, dtype, members, counts, ++round);
            expect_collective(channel, Collective::AllToAll, dtype, members, counts, ++round);
          }
        }
      }
    }
  });
}

TEST_P(CollectiveSuite, ManyValuesGiveTheSameBits) {
  on_ranks([](Channel& channel) {
    const std::vector<int> all = all_ranks(channel);
    // Of the sizes for which channels have separate ways.
    for (const std::int64_t values : {100003, 400003})
      expect_collective(channel, Collective::AllReduce, at::kFloat, all, {values}, 1);
    expect_collective(channel, Collective::AllReduce, at::kDouble, all, {400003}, 2);
    Counts unequal(all.size(), 0);
    unequal.front() = 30001;
    unequal.back() += 70002;
    for (const Collective kind : {Collective::ReduceScatter, Collective::AllGather})
      expect_collective(channel, kind, at::kFloat, all, unequal, 3);
  });
}

TEST_P(CollectiveSuite, PartsAreEqualWithoutCounts) {
  on_ranks([](Channel& channel) {
    for (const std::int64_t values : {0, 1, 3, 64, 5003}) {
      const Counts even = equal_counts(values, to_index(channel.ranks()));
      for (const Collective kind : {Collective::ReduceScatter, Collective::AllGather}) {
        Tried one = tried(channel.rank(), kind, at::kFloat, all_ranks(channel), even, 9, 1);
        one.call.counts.clear();
        expect_result(one, *channel.start(one.call), channel.rank());
      }
    }
  });
}

TEST_P(CollectiveSuite, ShapesAreKept) {
  on_ranks([](Channel& channel) {
    const at::Tensor values = contribution(at::kFloat, 24, channel.rank(), 0).view({2, 3, 4});
    channel.start({.kind = Collective::AllReduce, .values = values, .members = all_ranks(channel), .tag = 9})->wait();
    EXPECT_TRUE(same(values, sum_of(all_ranks(channel), at::kFloat, 24, 0).view({2, 3, 4})));
  });
}

TEST_P(CollectiveSuite, ReduceScatterAndAllGatherTogetherAreTheAllReduce) {
  on_ranks([](Channel& channel) {
    for (const Counts& counts : counts_for(to_index(channel.ranks()))) {
      const at::Tensor whole = contribution(at::kHalf, total(counts), channel.rank(), 3);
      const at::Tensor parts = whole.clone();
      CollectiveCall call{.kind = Collective::AllReduce, .values = whole, .members = all_ranks(channel), .tag = 9};
      channel.start(call)->wait();
      call.values = parts;
      call.counts = counts;
      for (const Collective kind : {Collective::ReduceScatter, Collective::AllGather}) {
        call.kind = kind;
        channel.start(call)->wait();
      }
      EXPECT_TRUE(same(whole, parts));
    }
  });
}

TEST_P(CollectiveSuite, SeveralCanBeInProgress) {
  on_ranks([](Channel& channel) {
    const std::vector<int> members = all_ranks(channel);
    std::vector<Tried> all;
    std::vector<std::unique_ptr<CollectiveInProgress>> under_way;
    int tag = 0;
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const Collective kind :
           {Collective::AllReduce, Collective::AllToAll, Collective::ReduceScatter, Collective::AllGather}) {
        // 20000 values are enough for the segmented all-reduce of UCX.
        for (const std::int64_t last : {3, 20000}) {
          Counts counts = counts_for(members.size())[3];
          counts.back() = last;
          all.push_back(tried(channel.rank(), kind, dtype, members, counts, tag, tag));
          ++tag;
        }
      }
    }
    for (const Tried& one : all) under_way.push_back(channel.start(one.call));
    for (std::size_t i = 0; i < all.size(); ++i) expect_result(all[i], *under_way[i], channel.rank());
  });
}

TEST_P(CollectiveSuite, OneMemberAloneHasItsOwnValues) {
  on_ranks([](Channel& channel) {
    for (const Collective kind :
         {Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather, Collective::AllToAll})
      expect_collective(channel, kind, at::kFloat, {channel.rank()}, {5}, 4);
  });
}

// ---- failures

class CollectiveFailures : public ChannelSuite {};

INSTANTIATE_TEST_SUITE_P(Channels, CollectiveFailures,
                         ::testing::Combine(::testing::ValuesIn(suite_channels()), ::testing::Values(2, 3, 4)),
                         name_of);

constexpr std::array kKinds{Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather,
                            Collective::AllToAll};

/// A call of `kind` among the ranks `members`, with four values from and to each.
CollectiveCall call_of(Collective kind, const std::vector<int>& members, int tag) {
  const auto values = 4 * static_cast<std::int64_t>(members.size());
  CollectiveCall out{.kind = kind, .values = at::full({values}, 1.0F), .members = members, .tag = tag};
  if (kind == Collective::AllToAll) out.received = at::empty({values}, at::kFloat);
  return out;
}

TEST_P(CollectiveFailures, NameTheMissingMember) {
  for (const Collective kind : kKinds) {
    on_ranks(
        [&](Channel& channel) {
          if (channel.rank() != 0) return;
          // Over NCCL, a later call tells.
          const std::string error = error_of([&] {
            channel.start(call_of(kind, {0, 1}, 7))->wait();
            channel.barrier();
          });
          EXPECT_THAT(error, AllOf(HasSubstr("rank 0 waited 0.3 s for"), HasSubstr("under tag 7")));
          if (!is_of_gpus()) { EXPECT_THAT(error, HasSubstr("rank 1")); }
        },
        kShort);
  }
}

TEST_P(CollectiveFailures, AnAbortEndsTheWait) {
  for (const Collective kind : kKinds) {
    on_ranks([&](Channel& channel) {
      const std::vector<int> all = all_ranks(channel);
      const std::string error = error_of([&] {
        const auto first = channel.rank() == 0 ? nullptr : channel.start(call_of(kind, all, 5));
        if (channel.rank() == 0) channel.abort("the plan changed");
        if (first) first->wait();
        const auto second = channel.start(call_of(kind, all, 6));
        second->wait();
        channel.barrier();
      });
      EXPECT_THAT(error, HasSubstr("the plan changed")) << collective_text(kind) << ", rank " << channel.rank();
    });
  }
}

TEST_P(CollectiveFailures, MembersExpectTheSameCountsAndDtype) {
  if (is_of_gpus()) GTEST_SKIP() << "messages carry neither";
  for (const Collective kind : kKinds) {
    on_ranks([&](Channel& channel) {
      if (channel.rank() > 1) return;
      CollectiveCall call = call_of(kind, {0, 1}, 7);
      const std::int64_t more = channel.rank();
      call.values = at::full({8 + more}, 1.0F);
      if (kind != Collective::AllReduce) call.counts = {4 + more, 4};
      if (kind == Collective::AllToAll) call.received_counts = {4, 4};
      const std::string error = error_of([&] {
        channel.start(call)->wait();
        channel.barrier();
      });
      // The rank that finds out first may tell the other.
      EXPECT_THAT(error, AllOf(HasSubstr(" expected float32 ["), HasSubstr(" under tag 7, got float32 [")));
      channel.abort(error);
    });
    on_ranks([&](Channel& channel) {
      if (channel.rank() > 1) return;
      CollectiveCall call = call_of(kind, {0, 1}, 7);
      if (channel.rank() == 1) call.values = call.values.to(at::kBFloat16);
      if (channel.rank() == 1 && call.received.defined()) call.received = call.received.to(at::kBFloat16);
      const std::string error = error_of([&] { channel.start(call)->wait(); });
      EXPECT_THAT(error, HasSubstr("under tag 7"));
      channel.abort(error);
    });
  }
}

TEST_P(CollectiveFailures, SayWhatIsWrongWithACall) {
  on_ranks([](Channel& channel) {
    const int own = channel.rank();
    const std::vector<int> all = all_ranks(channel);
    const auto with = [&](Collective kind, const auto& change) {
      CollectiveCall call = call_of(kind, all, 7);
      change(call);
      return refused([&] { return channel.start(call); });
    };
    for (const Collective kind : kKinds) {
      const std::string begin = fmt::format("rank {}, {} under tag 7: ", own, collective_text(kind));
      EXPECT_EQ(with(kind, [](CollectiveCall& call) { std::ranges::reverse(call.members); }),
                fmt::format("{}members must ascend and include rank {}, got [{}]", begin, own,
                            fmt::join(std::vector<int>(all.rbegin(), all.rend()), ", ")));
      EXPECT_EQ(with(kind, [&](CollectiveCall& call) { call.members = {own, own}; }),
                fmt::format("{0}members must ascend and include rank {1}, got [{1}, {1}]", begin, own));
      EXPECT_THAT(with(kind, [&](CollectiveCall& call) { std::erase(call.members, own); }),
                  HasSubstr(fmt::format("must ascend and include rank {}, got [", own)));
      EXPECT_EQ(with(kind, [](CollectiveCall& call) { call.members.clear(); }),
                fmt::format("{}members must ascend and include rank {}, got []", begin, own));
      EXPECT_EQ(with(kind, [&](CollectiveCall& call) { call.members = {own, 9}; }),
                fmt::format("{}members must be among ranks 0 to {}, got [{}, 9]", begin, channel.ranks() - 1, own));
      EXPECT_EQ(with(kind, [&](CollectiveCall& call) { call.members = {-1, own}; }),
                fmt::format("{}members must be among ranks 0 to {}, got [-1, {}]", begin, channel.ranks() - 1, own));
      EXPECT_THAT(with(kind, [](CollectiveCall& call) { call.tag = -1; }),
                  HasSubstr(fmt::format("under tag -1: the tag must be in 0 to {}", Channel::kMostTags - 1)));
      EXPECT_EQ(with(kind, [](CollectiveCall& call) { call.values.reset(); }),
                begin + "values must be a tensor, got an undefined one");
      EXPECT_EQ(with(kind, [](CollectiveCall& call) { call.values = at::empty({2, 3}).t(); }),
                begin + "values must be contiguous, got float32 [3, 2] with strides [1, 3]");
      if (kind == Collective::AllReduce) {
        EXPECT_EQ(with(kind, [](CollectiveCall& call) { call.counts = {1, 2}; }),
                  begin + "there must be no counts, got [1, 2]");
      } else {
        const auto ranks = to_index(channel.ranks());
        const std::int64_t values = 4 * channel.ranks();
        const auto sum_is_wrong = [&](const Counts& counts) {
          return fmt::format("{}counts must not be negative and must add up to the {} values of float32 [{}], got [{}]",
                             begin, values, values, fmt::join(counts, ", "));
        };
        Counts less(ranks, 4), negative(ranks, 4), large(ranks, std::int64_t{1} << 62);
        less.back() = 3;
        negative[0] = -1;
        negative[1] = 9;
        for (const Counts& counts : {less, negative, large})
          EXPECT_EQ(with(kind, [&](CollectiveCall& call) { call.counts = counts; }), sum_is_wrong(counts));
        EXPECT_EQ(with(kind, [&](CollectiveCall& call) { call.counts = {4}; }),
                  fmt::format("{}counts must have one entry for each of {} members, got [4]", begin, ranks));
      }
      if (kind != Collective::AllToAll) {
        EXPECT_EQ(with(kind, [](CollectiveCall& call) { call.received = call.values.clone(); }),
                  begin + "received and received_counts must be empty, they are of an all-to-all");
      }
    }
  });
}

TEST_P(CollectiveFailures, SayWhatCannotBeSummed) {
  on_ranks([](Channel& channel) {
    for (const at::ScalarType dtype : kWholes) {
      for (const Collective kind : {Collective::AllReduce, Collective::ReduceScatter}) {
        EXPECT_EQ(
            refused([&] {
              return channel.start(
                  {.kind = kind, .values = at::empty({4}, dtype), .members = all_ranks(channel), .tag = 7});
            }),
            fmt::format("rank {}, {} under tag 7: values must be float32, float64, float16, bfloat16, complex64 or "
                        "complex128 to be summed, got {} [4]",
                        channel.rank(), collective_text(kind), device::dtype_name(dtype)));
      }
    }
  });
}

TEST_P(CollectiveFailures, SayWhatIsWrongWithWhatAnAllToAllReceives) {
  on_ranks([](Channel& channel) {
    const auto with = [&](const auto& change) {
      CollectiveCall call = call_of(Collective::AllToAll, all_ranks(channel), 7);
      change(call);
      return refused([&] { return channel.start(call); });
    };
    const int own = channel.rank();
    const std::string begin = fmt::format("rank {}, all-to-all under tag 7: ", own);
    EXPECT_EQ(with([](CollectiveCall& call) { call.received.reset(); }),
              begin + "received must be a tensor, got an undefined one");
    EXPECT_EQ(with([](CollectiveCall& call) { call.received = at::empty({2, 3}).t(); }),
              begin + "received must be contiguous, got float32 [3, 2] with strides [1, 3]");
    EXPECT_EQ(with([](CollectiveCall& call) { call.received = call.received.to(at::kLong); }),
              begin + "received must be float32 on cpu, as values are, got int64 on cpu");
    EXPECT_EQ(
        with([](CollectiveCall& call) { call.received = at::empty({8}, call.values.options().device(at::kMeta)); }),
        begin + "received must be float32 on cpu, as values are, got float32 on meta");
    EXPECT_EQ(with([](CollectiveCall& call) { call.received = call.values; }),
              begin + "received must be in other memory than values");
    EXPECT_EQ(with([](CollectiveCall& call) {
                const at::Tensor memory = at::empty({2 * call.values.numel() - 1});
                call.values = memory.narrow(0, 0, call.values.numel());
                call.received = memory.narrow(0, call.values.numel() - 1, call.values.numel());
              }),
              begin + "received must be in other memory than values");
    EXPECT_EQ(
        with([](CollectiveCall& call) { call.received_counts = {4}; }),
        fmt::format("{}received_counts must have one entry for each of {} members, got [4]", begin, channel.ranks()));
    EXPECT_EQ(with([&](CollectiveCall& call) {
                call.counts.assign(to_index(channel.ranks()), 4);
                --call.counts[to_index(own)];
                ++call.counts[to_index((own + 1) % channel.ranks())];
              }),
              fmt::format("{0}rank {1} must receive as many values from itself as it sends, got 4 and 3", begin, own));
  });
}

TEST_P(CollectiveFailures, NameADeviceThatTheChannelDoesNotCarry) {
  if (std::get<0>(GetParam()) == "local") GTEST_SKIP() << "it carries tensors on any device";
  on_ranks([](Channel& channel) {
    for (const Collective kind : {Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather}) {
      CollectiveCall call = call_of(kind, all_ranks(channel), 7);
      call.values = at::empty({8}, call.values.options().device(at::kMeta));
      EXPECT_THAT(refused([&] { return channel.start(call); }), HasSubstr("got float32 [8] on meta"));
    }
  });
}

}  // namespace
}  // namespace stagecraft::channel

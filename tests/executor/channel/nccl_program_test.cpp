#include "executor/channel/nccl_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "costmodel/index.h"

namespace stagecraft::channel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NcclCallText, SaysWhatGoesUnderWhichTag) {
  const TensorSpec spec{{4, 8}, at::kFloat};
  EXPECT_EQ(to_string(NcclCall{NcclCall::Kind::Send, 0, 2, spec}), "send of float32 [4, 8] under tag 2");
  EXPECT_EQ(to_string(NcclCall{NcclCall::Kind::Receive, 1, 3, {{}, at::kLong}}), "receive of int64 [] under tag 3");
  EXPECT_EQ(to_string(NcclCall{NcclCall::Kind::AllReduce, 1, 3, spec}), "all-reduce of float32 [4, 8] under tag 3");
}

TEST(NcclReduction, IsFoundByItsMembersAndTag) {
  NcclProgram program;
  program.communicators = {
      {"edge", {0, 1}, {4, 9}, false, 0}, {"sum", {0, 1}, {7, 9}, true, 1}, {"other", {0, 2}, {9}, true, 2}};
  EXPECT_EQ(program.reduction({0, 1}, 9), 1) << "an edge sums nothing";
  EXPECT_EQ(program.reduction({0, 1}, 7), 1);
  EXPECT_EQ(program.reduction({0, 2}, 9), 2);
  EXPECT_EQ(program.reduction({0, 2}, 7), -1);
  EXPECT_EQ(program.reduction({0}, 9), -1);
}

TEST(FindMismatch, NamesTheFirstCallThatFindsNoCounterpart) {
  NcclProgram program;
  program.communicators = {{"edge", {0, 1}, {4}, false, 0}, {"sum", {0, 1}, {9}, true, 1}};
  const TensorSpec spec{{2, 3}, at::kFloat};
  const std::vector<NcclCall> sender{{NcclCall::Kind::Send, 0, 4, spec}, {NcclCall::Kind::AllReduce, 1, 9, spec}};
  const std::vector<NcclCall> receiver{{NcclCall::Kind::Receive, 0, 4, spec}, {NcclCall::Kind::AllReduce, 1, 9, spec}};
  const auto found = [&](const std::vector<NcclCall>& first, const std::vector<NcclCall>& second) {
    program.calls = {first, second};
    return find_mismatch(program);
  };
  EXPECT_EQ(found(sender, receiver), "");
  auto other = receiver;
  other[0].spec.shape = {6};  // NCCL only compares bytes
  EXPECT_EQ(found(sender, other), "");
  other[0].spec.shape = {2, 4};
  EXPECT_EQ(found(sender, other),
            "edge, call 1: rank 0 has a send of float32 [2, 3] under tag 4, rank 1 has a receive of float32 [2, 4] "
            "under tag 4");
  EXPECT_EQ(found(sender, {receiver[1]}), "edge: rank 1 never calls it");
  EXPECT_EQ(found(sender, {receiver[0], receiver[1], receiver[0]}),
            "edge, call 2: rank 0 has nothing, rank 1 has a receive of float32 [2, 3] under tag 4");
  EXPECT_THAT(found({sender[0], sender[1]}, {sender[0], sender[1]}), HasSubstr("edge, call 1: rank 0 has a send"));
  EXPECT_EQ(found({sender[0]}, receiver),
            "sum, call 1: rank 0 has nothing, rank 1 has an all-reduce of float32 [2, 3] under tag 9");
}

TEST(FindMismatch, SeesThatOnlyOneEndGroupsAMessage) {
  NcclProgram program;
  program.communicators = {{"edge", {0, 1}, {4, 5}, false, 0}};
  const TensorSpec spec{{2}, at::kFloat};
  program.calls = {{{NcclCall::Kind::Send, 0, 4, spec}, {NcclCall::Kind::Send, 0, 5, spec, true}},
                   {{NcclCall::Kind::Receive, 0, 4, spec}, {NcclCall::Kind::Receive, 0, 5, spec, true}}};
  EXPECT_EQ(find_mismatch(program), "");
  program.calls[1][1].joins = false;
  EXPECT_EQ(find_mismatch(program),
            "edge, call 2: rank 0 has a send of float32 [2] under tag 5, grouped with the call before it, rank 1 has a "
            "receive of float32 [2] under tag 5");
}

TEST(DistinctMessages, AreTheSameAtBothEndsAndLeaveOutRepeatedBytes) {
  NcclProgram program;
  program.communicators = {{"edge", {0, 1}, {0, 1, 2}, false, 0}, {"sum", {0, 1}, {9}, true, 1}};
  const TensorSpec large{{4}, at::kFloat};  // 16 bytes
  const TensorSpec also_large{{2}, at::kLong};
  const TensorSpec small{{3}, at::kBool};
  for (const bool sends : {true, false}) {
    const auto kind = sends ? NcclCall::Kind::Send : NcclCall::Kind::Receive;
    program.calls.push_back({{kind, 0, 0, large},
                             {kind, 0, 1, small, true},
                             {NcclCall::Kind::AllReduce, 1, 9, large},
                             {kind, 0, 2, also_large},
                             {kind, 0, 0, large},
                             {kind, 0, 1, small, true},
                             {kind, 0, 0, large}});
  }
  for (const int rank : {0, 1}) {
    const auto& calls = program.calls[to_index(rank)];
    // The pair, then the single one; the second pair and the last call repeat them.
    EXPECT_EQ(distinct_messages(program, 0, rank),
              (std::vector<std::vector<NcclCall>>{{calls[0], calls[1]}, {calls[3]}}));
    EXPECT_EQ(distinct_messages(program, 1, rank), (std::vector<std::vector<NcclCall>>{{calls[2]}}));
  }
  EXPECT_TRUE(distinct_messages({}, 0, 0).empty());
}

TEST(FindMismatch, NamesARankThatIsNotInTheCommunicator) {
  NcclProgram program;
  program.communicators = {{"sum", {0, 1}, {9}, true, 0}};
  const NcclCall call{NcclCall::Kind::AllReduce, 0, 9, {{2}, at::kFloat}};
  program.calls = {{call}, {call}, {call}};
  EXPECT_THAT(find_mismatch(program), AllOf(HasSubstr("sum"), HasSubstr("rank 2")));
}

TEST(FindMismatch, SeesThatCallsOfOneCommunicatorChangedPlaces) {
  NcclProgram program;
  program.communicators = {{"sum", {0, 1}, {8, 9}, true, 0}};
  const NcclCall small{NcclCall::Kind::AllReduce, 0, 8, {{2}, at::kFloat}};
  const NcclCall large{NcclCall::Kind::AllReduce, 0, 9, {{3}, at::kFloat}};
  program.calls = {{small, large}, {large, small}};
  EXPECT_THAT(find_mismatch(program), AllOf(HasSubstr("sum, call 1"), HasSubstr("[2]"), HasSubstr("[3]")));
}

TEST(AssignRounds, KeepsTheOrderWithinARoundAndFillsTheFirst) {
  // a and b share rank 1; c and a share no rank.
  std::vector<CommunicatorPlan> edges{
      {"a", {0, 1}, {}, false, 0}, {"b", {1, 2}, {}, false, 0}, {"c", {2, 3}, {}, false, 0}};
  EXPECT_EQ(assign_rounds(edges), 2);
  std::vector<std::pair<std::string, int>> found;
  for (const CommunicatorPlan& edge : edges) found.emplace_back(edge.name, edge.round);
  EXPECT_THAT(found, ::testing::ElementsAre(std::pair("a", 0), std::pair("c", 0), std::pair("b", 1)));
  std::vector<CommunicatorPlan> none;
  EXPECT_EQ(assign_rounds(none), 0);
}

TEST(AssignRounds, UsesNoMoreRoundsThanTheEdgesOfTwoRanksTogether) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<CommunicatorPlan> edges;
    std::vector<int> degree(8);
    for (int i = 0; i < 20; ++i) {
      const int from = to_int(random() % 8);
      const int to = (from + 1 + to_int(random() % 7)) % 8;
      edges.push_back({"", {from, to}, {}, false, 0});
      ++degree[to_index(from)];
      ++degree[to_index(to)];
    }
    const int rounds = assign_rounds(edges);
    EXPECT_LE(rounds, 2 * *std::ranges::max_element(degree) - 1) << "seed " << seed;
    for (int round = 0; round < rounds; ++round) {
      std::vector<int> busy(8);
      for (const CommunicatorPlan& edge : edges) {
        for (const int rank : edge.ranks) busy[to_index(rank)] += edge.round == round ? 1 : 0;
      }
      EXPECT_LE(*std::ranges::max_element(busy), 1) << "seed " << seed;
      EXPECT_GT(std::accumulate(busy.begin(), busy.end(), 0), 0) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace stagecraft::channel

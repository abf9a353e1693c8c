#include "partitioner/bounds/path_stages.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/partitioner/bounds/bounds.h"
#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

constexpr int kAllCuts = 1000;

/// Four layers of 1 + 2 s on four devices, eight microbatches.
class PathStagesOfAChain : public ::testing::Test {
 protected:
  explicit PathStagesOfAChain(Bytes bytes = Bytes(0), Bytes parameters = Bytes(0), double bandwidth = 1e9)
      : graph_(testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2}, bytes, parameters)),
        costs_(graph_, testing::flat_topology(4, bandwidth), settings_of("1f1b", 8)),
        cuts_(costs_, kAllCuts),
        stages_(costs_, cuts_, {}) {}

  /// The stage between two cuts, by the layers before them.
  [[nodiscard]] PathStages::StageBound stage(std::size_t begin, std::size_t end) const {
    return stages_.stage(cuts_.fine()[begin], cuts_.fine()[end]);
  }
  /// Whether every stage of a pipeline that begins at these cuts keeps within `time`, each with so many replicas.
  bool keeps(Seconds time, const std::vector<std::size_t>& cuts, const std::vector<int>& replicas) {
    stages_.ask(time, 4);
    std::vector<PathStages::Suffix> later(replicas.size());
    for (std::size_t s = replicas.size() - 1; s-- > 0;)
      later[s] = stages_.before(stage(cuts[s + 1], cuts[s + 2]), number(replicas[s + 1]), later[s + 1]);
    PathStages::Prefix prefix;
    for (std::size_t s = 0; s < replicas.size(); ++s) {
      const PathStages::StageBound next = stage(cuts[s], cuts[s + 1]);
      if (!stages_.keeps(next, number(replicas[s]), prefix, later[s])) return false;
      prefix = stages_.after(next, number(replicas[s]), prefix);
    }
    return true;
  }
  [[nodiscard]] const PathStages::Replicas& number(int replicas) const {
    return stages_.replicas()[static_cast<std::size_t>(replicas) - 1];
  }

  Graph graph_;
  PipelineCosts costs_;
  PathCuts cuts_;
  PathStages stages_;
};

/// Eight microbatches on 1, 2, 3 and 4 replicas: at most 8, 4, 3 and 2 on one; 1, 2, 2 and 4 of them on replicas that
/// have as many. Waves have 2, 3, 4, ... microbatches.
TEST_F(PathStagesOfAChain, KnowsTheSharesOfReplicas) {
  ASSERT_EQ(stages_.replicas().size(), 4U);
  const std::vector<std::int64_t> shares{8, 4, 3, 2};
  const std::vector<std::int64_t> waves{1, 2, 2, 4};
  const std::vector<int> places{-1, 0, 0, 2};
  for (int r = 1; r <= 4; ++r) {
    const auto i = static_cast<std::size_t>(r) - 1;
    EXPECT_EQ(number(r).first, r);
    EXPECT_EQ(number(r).last, r);
    EXPECT_EQ(number(r).share, shares[i]);
    EXPECT_EQ(number(r).wave, waves[i]);
    EXPECT_EQ(number(r).queue, places[i]);
  }
}

/// A layer computes 8 * 3 s on one replica and 4 * 3 s on two, of which 13 s have room; after 2 s, three are needed.
TEST_F(PathStagesOfAChain, FindsTheFewestReplicasWithTimeToCompute) {
  stages_.ask(Seconds(13), 4);
  EXPECT_EQ(stages_.first_replicas(stage(0, 1), Seconds(0)), 1U);
  EXPECT_EQ(stages_.first_replicas(stage(0, 1), Seconds(2)), 2U);
  EXPECT_EQ(stages_.first_replicas(stage(0, 1), Seconds(11)), 4U);  // not even one microbatch
}

/// Stages of one layer each take (8 + 4 - 1) 3 = 33 s, two of two layers (8 + 1) 6 = 54 s, one 8 * 12 = 96 s.
TEST_F(PathStagesOfAChain, IsTheStepOfEqualStages) {
  EXPECT_TRUE(keeps(Seconds(33), {0, 1, 2, 3, 4}, {1, 1, 1, 1}));
  EXPECT_FALSE(keeps(Seconds(32.99), {0, 1, 2, 3, 4}, {1, 1, 1, 1}));
  EXPECT_TRUE(keeps(Seconds(54), {0, 2, 4}, {1, 1}));
  EXPECT_FALSE(keeps(Seconds(53.99), {0, 2, 4}, {1, 1}));
  EXPECT_TRUE(keeps(Seconds(96), {0, 4}, {1}));
  EXPECT_FALSE(keeps(Seconds(95.99), {0, 4}, {1}));
}

/// The same layers with outputs of 10 bytes at 10 bytes per second: 1 s each way.
class PathStagesWithMessages : public PathStagesOfAChain {
 protected:
  PathStagesWithMessages() : PathStagesOfAChain(Bytes(10), Bytes(0), 10) {}
};

TEST_F(PathStagesWithMessages, AddsTheMessageToTheTrip) {
  const PathStages::StageBound middle = stage(1, 3);
  EXPECT_TRUE(middle.on_path);
  EXPECT_EQ(middle.sums.forward, Seconds(2));
  EXPECT_EQ(middle.sums.back, Seconds(4));
  EXPECT_EQ(middle.sums.least, Seconds(6));
  EXPECT_EQ(middle.trip, Seconds(6 + 2));
  EXPECT_EQ(middle.port, Seconds(1));
  EXPECT_EQ(stage(3, 4).trip, Seconds(3));  // nothing follows
  // What is left of the path: 3 layers, and 1.
  EXPECT_EQ(stages_.way_after(cuts_.fine()[1]), Seconds(9));
  EXPECT_EQ(stages_.way_after(cuts_.fine()[3]), Seconds(3));
}

/// The same layers with 1e9 bytes of parameters at 1e9 bytes per second. Four replicas of one stage compute for 24 s
/// and sum 4e9 bytes in 2 (3 / 4) 4 = 6 s.
class PathStagesWithParameters : public PathStagesOfAChain {
 protected:
  PathStagesWithParameters() : PathStagesOfAChain(Bytes(0), Bytes(1'000'000'000)) {}
};

TEST_F(PathStagesWithParameters, AddsTheReduce) {
  EXPECT_TRUE(keeps(Seconds(30), {0, 4}, {4}));
  EXPECT_FALSE(keeps(Seconds(29.99), {0, 4}, {4}));
}

/// A stage before three devices holds four microbatches under 1F1B, one before four devices five.
TEST_F(PathStagesWithMessages, CountsTheMicrobatchesThatAStageHolds) {
  const PathStages::StageBound first = stage(0, 1);
  ASSERT_EQ(first.sums.bytes.state, Bytes(0));  // without parameters
  ASSERT_GT(first.sums.bytes.per_microbatch, Bytes(0));
  const PathStages limited(costs_, cuts_, costs_.least_peak(first.sums.bytes, 4, 1));
  EXPECT_TRUE(limited.fits(first));
  EXPECT_TRUE(limited.fits(first, number(1), 3));
  EXPECT_FALSE(limited.fits(first, number(1), 4));
}

}  // namespace
}  // namespace stagecraft::partitioner

#include "profiler/concurrent_time.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tests/profiler/row_of_layers.h"

namespace stagecraft::profiler {
namespace {

/// What the threads that run a model record about themselves.
struct Runs {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::set<const void*> parameters;
  std::set<int> intra_op;
  int forwards = 0;
};

model::Model told_model(Runs& runs) {
  return row_of_layers(
      {hand_layer("scale", 256,
                  [&runs](const model::LayerCall& c) {
                    const std::scoped_lock lock(runs.mutex);
                    runs.threads.insert(std::this_thread::get_id());
                    runs.parameters.insert(c.parameters[0].const_data_ptr());
                    runs.intra_op.insert(at::get_num_threads());
                    ++runs.forwards;
                    return std::vector<at::Tensor>{at::mul(c.inputs[0], c.parameters[0])};
                  }),
       hand_layer("sum", 0, [](const model::LayerCall& c) { return std::vector<at::Tensor>{at::sum(c.inputs[0])}; })});
}

ProfileOptions options() {
  ProfileOptions out;
  out.threads = 1;
  out.warmup = 1;
  out.rule.most_seconds = 0;
  return out;
}

TEST(ConcurrentRanks, HaveACopyAndAThreadEach) {
  Runs runs;
  const model::Model model = told_model(runs);
  const auto batch = row_batch();
  const ProfileOptions one = options();
  EXPECT_GT(ranks_as_threads(model, batch, one)->time(3, 60), Seconds(0));
  EXPECT_EQ(runs.threads.size(), 3u);
  EXPECT_EQ(runs.parameters.size(), 3u);
  EXPECT_EQ(runs.intra_op, std::set<int>{1});
  EXPECT_FALSE(runs.threads.contains(std::this_thread::get_id()));
}

TEST(ConcurrentRanks, GiveASampleHoweverLittleTimeThereIs) {
  Runs runs;
  const model::Model model = told_model(runs);
  const auto batch = row_batch();
  ProfileOptions many = options();
  many.warmup = 1000;
  const auto ranks = ranks_as_threads(model, batch, many);
  EXPECT_GT(ranks->time(1, 0), Seconds(0));
  // One warm-up iteration, after which its time is up, and one that counts.
  EXPECT_EQ(runs.forwards, 2);
}

TEST(ConcurrentRanks, AreWarmAfterOneIterationTheSecondTime) {
  Runs runs;
  const model::Model model = told_model(runs);
  const auto batch = row_batch();
  ProfileOptions some = options();
  some.warmup = 20;
  const auto ranks = ranks_as_threads(model, batch, some);
  EXPECT_GT(ranks->time(1, 60), Seconds(0));
  EXPECT_EQ(runs.forwards, 20 + 5);  // 5 samples are enough, as options() takes no longer
  EXPECT_GT(ranks->time(1, 60), Seconds(0));
  EXPECT_EQ(runs.forwards, 20 + 5 + 1 + 5);
  EXPECT_EQ(runs.parameters.size(), 1u);
}

TEST(SlowdownOf, IsTheMedianRatioInsideRounds) {
  // The machine is twice as slow in the second round, which cancels: 1.5 and 2 in each of the two.
  EXPECT_EQ(slowdown_of({{{2_s, 3_s, 4_s}}, {{4_s, 6_s, 8_s}}}), (std::vector<double>{1, 1.5, 2}));
  // Ratios of two ranks 1.5, 4 and 1.75; the last round ended before three ranks: 3 and 2.
  EXPECT_EQ(slowdown_of({{{2_s, 3_s, 6_s}}, {{1_s, 4_s, 2_s}}, {{4_s, 7_s}}}), (std::vector<double>{1, 1.75, 2.5}));
  // No less than one rank fewer.
  EXPECT_EQ(slowdown_of({{{2_s, 1_s, 3_s}}, {{2_s, 1_s, 1_s}}}), (std::vector<double>{1, 1, 1}));
  EXPECT_TRUE(slowdown_of({}).empty());
}

TEST(SlowdownOf, LeavesOutRoundsThatOthersDisturbed) {
  const RoundOfRanks quiet{{2_s, 3_s}};
  const RoundOfRanks disturbed{{2_s, 8_s}, true};
  EXPECT_EQ(slowdown_of({disturbed, quiet, disturbed}), (std::vector<double>{1, 1.5}));
  EXPECT_EQ(slowdown_of({disturbed, disturbed}), (std::vector<double>{1, 4})) << "there is no other";
}

TEST(TimeTogether, AddsRatesWhereProcessorsAreShared) {
  // One rank with a processor to itself, two that share the other one, each for 6 s.
  const std::vector<std::vector<double>> samples = {{1, 1, 1, 1, 1, 1}, {2, 2, 2}, {2, 2, 1, 1}};
  EXPECT_DOUBLE_EQ(time_together(samples, false).value, 1);
  EXPECT_DOUBLE_EQ(time_together(samples, true).value, 3 / (1 + 3.0 / 6 + 4.0 / 6));
  EXPECT_DOUBLE_EQ(time_together({{}, {2}}, true).value, 4) << "the other one did not end an iteration";
}

}  // namespace
}  // namespace stagecraft::profiler

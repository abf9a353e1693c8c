#include "executor/run/step_reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/index.h"
#include "executor/channel/channel_local.h"
#include "tests/support/channels/recording_channel.h"
#include "tests/support/models/scaling_model.h"

namespace stagecraft::run {
namespace {

using stagecraft::testing::ForwardingChannel;
using stagecraft::testing::RecordingChannel;
using stagecraft::testing::scaling_model;
using stagecraft::testing::scaling_plan;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A LossGathering for each rank of a plan, all in this thread: local sends never block.
struct Ranks {
  Ranks(const std::string& schedule, int microbatches, const std::vector<int>& replicas)
      : plan(scaling_plan(schedule, microbatches, replicas)), bound(bind_model(plan, model)) {
    const int count = to_int(plan.ranks().size());
    channels = channel::make_local_channels(count, std::chrono::seconds(20));
    for (int rank = 0; rank < count; ++rank)
      gatherings.push_back(std::make_unique<LossGathering>(bound, rank, *channels[to_index(rank)]));
  }
  model::Model model = scaling_model();
  BoundPlan plan;
  BoundModel bound;
  std::vector<std::unique_ptr<channel::Channel>> channels;
  std::vector<std::unique_ptr<LossGathering>> gatherings;
};

TEST(LossGathering, BringsTheReplicasLossesTogetherByMicrobatch) {
  Ranks ranks("1f1b", 3, {1, 2});
  ranks.gatherings[1]->send({{0, 0.5}, {2, 2.5}});
  ranks.gatherings[2]->send({{1, 1.5}});
  EXPECT_THAT(ranks.gatherings[0]->receive(0), ElementsAre(0.5, 1.5, 2.5));
}

TEST(LossGathering, FollowsMicrobatchesThatCountOnOverTheSteps) {
  Ranks ranks("pipedream", 3, {1, 2});
  // The replicas take turns over the steps: microbatches 0, 2 and 4 belong to the first, 1, 3 and 5 to the second.
  ranks.gatherings[1]->send({{0, 0.5}, {2, 2.5}});
  ranks.gatherings[2]->send({{1, 1.5}});
  ranks.gatherings[1]->send({{4, 4.5}});
  ranks.gatherings[2]->send({{3, 3.5}, {5, 5.5}});
  EXPECT_THAT(ranks.gatherings[0]->receive(0), ElementsAre(0.5, 1.5, 2.5));
  EXPECT_THAT(ranks.gatherings[0]->receive(3), ElementsAre(3.5, 4.5, 5.5));
}

TEST(LossGathering, KeepsTheLossesOfRankZeroItself) {
  Ranks ranks("1f1b", 3, {2});
  for (const double step : {10.0, 20.0}) {
    ranks.gatherings[0]->send({{0, step}, {2, step + 2}});
    ranks.gatherings[1]->send({{1, step + 1}});
  }
  EXPECT_THAT(ranks.gatherings[0]->receive(0), ElementsAre(10, 11, 12));
  EXPECT_THAT(ranks.gatherings[0]->receive(0), ElementsAre(20, 21, 22));
}

TEST(LossGathering, NeedsNothingOfAReplicaWithoutMicrobatches) {
  Ranks ranks("1f1b", 1, {1, 2});
  ranks.gatherings[1]->send({{0, 0.5}});
  ranks.gatherings[2]->send({});
  EXPECT_THAT(ranks.gatherings[0]->receive(0), ElementsAre(0.5));
}

TEST(LossGathering, StageWithoutTheLossSendsNothing) {
  Ranks ranks("1f1b", 2, {2, 1});
  RecordingChannel channel(*ranks.channels[1]);
  LossGathering first(ranks.bound, 1, channel);
  first.send({});
  first.finish();
  EXPECT_THAT(channel.notes, ElementsAre());
}

TEST(LossGathering, KeepsTheOrderOfManyStepsThatNobodyHasReceivedYet) {
  Ranks ranks("1f1b", 1, {1, 1});
  for (int step = 0; step < 20; ++step) ranks.gatherings[1]->send({{0, step}});
  ranks.gatherings[1]->finish();
  for (int step = 0; step < 20; ++step) EXPECT_THAT(ranks.gatherings[0]->receive(0), ElementsAre(step));
}

TEST(LossGathering, PostsReceivesWhenStepsAreExpected) {
  Ranks ranks("1f1b", 3, {1, 2});
  RecordingChannel channel(*ranks.channels[0]);
  LossGathering gathering(ranks.bound, 0, channel);
  gathering.expect(0);
  gathering.expect(0);
  EXPECT_EQ(channel.notes.size(), 4U);  // two replicas, two steps
  for (const double step : {10.0, 20.0, 30.0}) {
    ranks.gatherings[1]->send({{0, step}, {2, step + 2}});
    ranks.gatherings[2]->send({{1, step + 1}});
  }
  EXPECT_THAT(gathering.receive(0), ElementsAre(10, 11, 12));
  EXPECT_THAT(gathering.receive(0), ElementsAre(20, 21, 22));
  EXPECT_EQ(channel.notes.size(), 4U);
  // Not expected before.
  EXPECT_THAT(gathering.receive(0), ElementsAre(30, 31, 32));
}

TEST(LossGathering, SaysWhichRankCouldNotSendItsLosses) {
  struct Broken : ForwardingChannel {
    using ForwardingChannel::ForwardingChannel;
    struct Failed : channel::Sending {
      bool done() override { return false; }
      void wait() override { throw meeting::PeerError("no route", meeting::PeerError::Cause::Deadline); }
    };
    std::unique_ptr<channel::Sending> send(const at::Tensor&, int, int) override { return std::make_unique<Failed>(); }
  };
  Ranks ranks("1f1b", 1, {1, 1});
  Broken channel(*ranks.channels[1]);
  LossGathering gathering(ranks.bound, 1, channel);
  gathering.send({{0, 0.5}});
  EXPECT_THAT([&] { gathering.finish(); }, ThrowsMessage<meeting::PeerError>(
                                               AllOf(HasSubstr("rank 1"), HasSubstr("losses"), HasSubstr("no route"))));
}

TEST(LossReport, GivesTheMeanOfAStep) {
  LossReport report(/*evaluates=*/false, std::nullopt);
  EXPECT_EQ(report.add({1, 2, 6}), 3);
  EXPECT_EQ(report.add({4}), 4) << "each step on its own";
  EXPECT_FALSE(report.evaluation());
}

TEST(LossReport, WeighsEachMicrobatchOfAnEvaluationTheSame) {
  LossReport report(/*evaluates=*/true, std::nullopt);
  EXPECT_EQ(report.evaluation()->microbatches, 0);
  (void)report.add({1, 2, 6});
  (void)report.add({3});
  EXPECT_EQ(report.evaluation()->microbatches, 4);
  EXPECT_EQ(report.evaluation()->loss, 12.0 / 4) << "not the mean of the steps' means";
}

TEST(LossReport, LeavesOutMicrobatchesPastTheEndOfTheData) {
  LossReport report(/*evaluates=*/true, WholePass{.microbatches = 5, .steps = 2});
  EXPECT_EQ(report.add({1, 2, 6}), 3);
  EXPECT_EQ(report.add({4, 2, 1000}), 3) << "the third begins the next pass";
  EXPECT_EQ(report.evaluation()->microbatches, 5);
  EXPECT_EQ(report.evaluation()->loss, 15.0 / 5);
}

TEST(LossReport, TrainingContinuesPastTheEndOfTheData) {
  LossReport report(/*evaluates=*/false, WholePass{.microbatches = 2, .steps = 1});
  EXPECT_EQ(report.add({1, 2, 6}), 3);
}

TEST(StepClock, GivesTheTimesOfStepsWithoutThePausesBetweenThem) {
  double now = 0;
  const std::function<double()> clock = [&] { return now; };
  StepClock steps(clock, 5);
  now = 10;
  steps.begin();
  now = 12;
  steps.end_until(6);
  EXPECT_EQ(steps.time_of(5), Seconds(2));
  steps.pause_before(6, Seconds(1.5));  // from 12 to 13.5
  now = 14;
  steps.end_until(7);
  EXPECT_EQ(steps.time_of(5), Seconds(2));
  EXPECT_EQ(steps.time_of(6), Seconds(0.5));
}

// A rank without a microbatch of a step notices its end with that of the next one.
TEST(StepClock, EndsSeveralStepsAtOnceAndNoneTwice) {
  double now = 1;
  const std::function<double()> clock = [&] { return now; };
  StepClock steps(clock, 0);
  steps.begin();
  now = 4;
  steps.end_until(3);
  now = 9;
  steps.end_until(3);
  EXPECT_EQ(steps.time_of(0), Seconds(3));
  EXPECT_EQ(steps.time_of(1), Seconds(0));
  EXPECT_EQ(steps.time_of(2), Seconds(0));
  steps.end_until(4);
  EXPECT_EQ(steps.time_of(3), Seconds(5));
}

}  // namespace

}  // namespace stagecraft::run

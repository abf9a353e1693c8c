#include "executor/run/worker/stage_transfers.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/index.h"
#include "executor/channel/channel_local.h"
#include "tests/support/channels/forwarding_channel.h"

namespace stagecraft::run {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Two stages of `replicas` replicas; layer "a" sends its outputs 0 [2], output 1 [3] int64 without a gradient and
/// output 2 [4].
BoundPlan two_stages(const std::vector<int>& replicas) {
  Plan plan;
  plan.microbatches = 4;
  plan.warmups = warmup_counts(replicas);
  int device = 0;
  for (const int count : replicas) {
    Stage& stage = plan.stages.emplace_back();
    for (int i = 0; i < count; ++i) stage.devices.push_back(device++);
  }
  plan.stages[0].layers = {"a"};
  plan.stages[1].layers = {"b"};
  plan.boundaries = {{0,
                      1,
                      {{"a", 0, Bytes(8), {2}, "float32", true},
                       {"a", 1, Bytes(24), {3}, "int64", false},
                       {"a", 2, Bytes(16), {4}, "float32", true}}}};
  return BoundPlan(plan);
}

/// The three tensors of a microbatch, in the order of the stage's slots: those of the boundary are at 2, 0 and 1.
std::vector<at::Tensor> made(double value) {
  return {at::full({3}, value, at::kLong), at::full({4}, value, at::kFloat), at::full({2}, value, at::kFloat)};
}

/// What crosses boundary 0 to stage 1 and back to stage 0.
constexpr Passage kForth{0, 1, false};
constexpr Passage kBack{0, 0, true};
const std::vector<int> kSlots{2, 0, 1};

std::vector<std::unique_ptr<channel::Channel>> channels(int ranks) {
  return channel::make_local_channels(ranks, std::chrono::seconds(20));
}

std::vector<double> firsts(const std::vector<at::Tensor>& tensors) {
  std::vector<double> out;
  for (const at::Tensor& tensor : tensors) out.push_back(tensor[0].item<double>());
  return out;
}

TEST(StageTransfers, BringActivationsInTheOrderOfThePlan) {
  const BoundPlan plan = two_stages({1, 1});
  const auto both = channels(2);
  StageTransfers from(plan, 0, *both[0], 4), to(plan, 1, *both[1], 4);
  for (const int m : {0, 1}) from.send({ActionKind::SendActivation, 0, m, 1}, kSlots, made(5 + m));
  for (const int m : {0, 1}) to.post({ActionKind::ReceiveActivation, 1, m, 0});
  for (const int m : {0, 1}) {
    std::vector<at::Tensor> got{at::ones({1})};
    to.take(kForth, m, got);
    ASSERT_EQ(got.size(), 4U) << "what was there stays";
    EXPECT_EQ(got[1].sizes(), at::IntArrayRef({2}));
    EXPECT_EQ(got[2].sizes(), at::IntArrayRef({3}));
    EXPECT_EQ(got[2].scalar_type(), at::kLong);
    EXPECT_EQ(got[3].sizes(), at::IntArrayRef({4}));
    EXPECT_THAT(firsts(got), ElementsAre(1, 5 + m, 5 + m, 5 + m));
  }
}

TEST(StageTransfers, BringBackOnlyGradientsThatThePlanWants) {
  const BoundPlan plan = two_stages({1, 1});
  const auto both = channels(2);
  StageTransfers back(plan, 1, *both[1], 4), to(plan, 0, *both[0], 4);
  back.send({ActionKind::SendGradient, 1, 0, 0}, kSlots, made(5));
  to.post({ActionKind::ReceiveGradient, 0, 0, 1});
  std::vector<at::Tensor> got;
  to.take(kBack, 0, got);
  ASSERT_EQ(got.size(), 2U);
  EXPECT_EQ(got[0].sizes(), at::IntArrayRef({2}));
  EXPECT_EQ(got[1].sizes(), at::IntArrayRef({4}));
}

TEST(StageTransfers, ReachTheReplicaThatRunsTheMicrobatch) {
  const BoundPlan plan = two_stages({1, 3});  // rank 0, then ranks 1, 2, 3, which run microbatches 0, 1, 2 and again 3
  const auto all = channels(4);
  StageTransfers from(plan, 0, *all[0], 4);
  for (int m = 0; m < 4; ++m) from.send({ActionKind::SendActivation, 0, m, 1}, kSlots, made(m));
  for (int m = 0; m < 4; ++m) {
    const int rank = 1 + m % 3;
    StageTransfers to(plan, rank, *all[to_index(rank)], 4);
    to.post({ActionKind::ReceiveActivation, 1, m, 0});
    std::vector<at::Tensor> got;
    to.take(kForth, m, got);
    EXPECT_THAT(firsts(got), ElementsAre(m, m, m)) << "microbatch " << m;
  }
}

TEST(StageTransfers, SendTensorsWithoutGapsOrAGraph) {
  const BoundPlan plan = two_stages({1, 1});
  const auto both = channels(2);
  StageTransfers from(plan, 0, *both[0], 4), to(plan, 1, *both[1], 4);
  std::vector<at::Tensor> tensors = made(5);
  tensors[1] = at::full({4, 2}, 6.0).requires_grad_(true).mul(1).select(1, 1);
  ASSERT_FALSE(tensors[1].is_contiguous());
  from.send({ActionKind::SendActivation, 0, 0, 1}, kSlots, tensors);
  to.post({ActionKind::ReceiveActivation, 1, 0, 0});
  std::vector<at::Tensor> got;
  to.take(kForth, 0, got);
  EXPECT_TRUE(got[2].is_contiguous());
  EXPECT_FALSE(got[2].requires_grad());
  EXPECT_THAT(firsts(got), ElementsAre(5, 5, 6));
}

TEST(StageTransfers, HandOverToAStageOfTheSameRank) {
  Plan plan = two_stages({1, 1}).plan();
  plan.schedule = "interleaved-1f1b";
  plan.chunks = 2;
  plan.stages[1].devices = plan.stages[0].devices;
  const BoundPlan bound(plan);
  const auto one = channels(1);
  StageTransfers transfers(bound, 0, *one[0], 4);
  transfers.hand_over({ActionKind::Forward, 0, 3, -1}, kForth, kSlots, made(5));
  transfers.hand_over({ActionKind::Backward, 1, 3, -1}, kBack, kSlots, made(7));
  std::vector<at::Tensor> got;
  transfers.take(kForth, 3, got);
  EXPECT_THAT(firsts(got), ElementsAre(5, 5, 5));
  got.clear();
  transfers.take(kBack, 3, got);
  EXPECT_THAT(firsts(got), ElementsAre(7, 7));
  got.clear();
  transfers.take(kBack, 3, got);
  EXPECT_TRUE(got.empty()) << "taken once";
}

TEST(StageTransfers, HandNothingOverToAStageOfAnotherRank) {
  const BoundPlan plan = two_stages({1, 1});
  const auto both = channels(2);
  StageTransfers from(plan, 0, *both[0], 4);
  from.hand_over({ActionKind::Forward, 0, 0, -1}, kForth, kSlots, made(5));
  std::vector<at::Tensor> got;
  from.take(kForth, 0, got);
  EXPECT_TRUE(got.empty());
}

TEST(StageTransfers, NameLayerAndBothShapesOfATensorThatThePlanDoesNotExpect) {
  const BoundPlan plan = two_stages({1, 1});
  const auto both = channels(2);
  StageTransfers from(plan, 0, *both[0], 4);
  std::vector<at::Tensor> tensors = made(5);
  tensors[1] = at::ones({5});
  EXPECT_THAT([&] { from.send({ActionKind::SendActivation, 0, 2, 1}, kSlots, tensors); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("rank 0, stage 0, send-activation of microbatch 2: layer \"a\""),
                        HasSubstr("float32 [5]"), HasSubstr("float32 [4]"))));
  tensors[1] = at::ones({4}, at::kDouble);
  EXPECT_THAT([&] { from.send({ActionKind::SendActivation, 0, 2, 1}, kSlots, tensors); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("float64 [4]")));
}

/// Sends that complete when the test says so.
class SlowChannel : public testing::ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  std::unique_ptr<channel::Sending> send(const at::Tensor&, int, int) override {
    ++alive;
    return std::make_unique<Slow>(*this);
  }
  struct Slow : channel::Sending {
    explicit Slow(SlowChannel& c) : channel(c) {}
    ~Slow() override { --channel.alive; }
    bool done() override { return channel.finished; }
    void wait() override { ++channel.waited; }
    SlowChannel& channel;
  };
  bool finished = false;
  int alive = 0;
  int waited = 0;
};

TEST(StageTransfers, KeepSendsUntilTheyAreDone) {
  const BoundPlan plan = two_stages({1, 1});
  const auto both = channels(2);
  SlowChannel channel(*both[0]);
  StageTransfers from(plan, 0, channel, 20);
  for (int m = 0; m < 20; ++m) from.send({ActionKind::SendActivation, 0, m, 1}, kSlots, made(m));
  EXPECT_EQ(channel.alive, 60);
  from.reap_sends();
  EXPECT_EQ(channel.alive, 60) << "none is done";
  channel.finished = true;
  from.reap_sends();
  EXPECT_EQ(channel.alive, 0);
  EXPECT_EQ(channel.waited, 0) << "reaping waits for nothing";
  from.send({ActionKind::SendActivation, 0, 0, 1}, kSlots, made(1));
  from.finish_sends();
  EXPECT_EQ(channel.waited, 3);
  EXPECT_EQ(channel.alive, 0);
}

TEST(StageTransfers, KeepFewBytesOfSendsThatAreDone) {
  Plan plan = two_stages({1, 1}).plan();
  plan.boundaries = {{0, 1, {{"a", 0, Bytes(150'000), {37'500}, "float32", true}}}};
  const BoundPlan bound(plan);
  const auto both = channels(2);
  SlowChannel channel(*both[0]);
  StageTransfers from(bound, 0, channel, 20);
  const auto send = [&] {
    from.send({ActionKind::SendActivation, 0, 0, 1}, {0}, {at::ones({37'500})});
    from.reap_sends();
  };
  send();
  send();
  send();
  EXPECT_EQ(channel.alive, 3) << "none is done";
  channel.finished = true;
  from.reap_sends();
  EXPECT_EQ(channel.alive, 0) << "450 kB were held";
  send();
  EXPECT_EQ(channel.alive, 1) << "150 kB are not worth a query";
  send();
  EXPECT_EQ(channel.alive, 0);
}

TEST(DescribeAction, NamesTheMicrobatchWhereThereIsOne) {
  EXPECT_EQ(describe(1, {ActionKind::Backward, 2, 3, -1}), "rank 1, stage 2, backward of microbatch 3");
  EXPECT_EQ(describe(0, {ActionKind::Update, 4, -1, -1}), "rank 0, stage 4, update");
}

}  // namespace
}  // namespace stagecraft::run

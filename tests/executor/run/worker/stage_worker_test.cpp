#include "executor/run/worker/stage_worker.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/channel/channel_local.h"
#include "tests/support/channels/recording_channel.h"
#include "tests/support/models/scaling_model.h"

// Tests one rank of two; the test acts as the other. Local sends never block, so everything that the rank needs is sent
// before it runs.

namespace stagecraft::run {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Told {
  explicit Told(stage::OnNonfinite what) {
    guard.set(what, [this](const std::string& text) { texts.push_back(text); });
  }
  NonfiniteGuard guard{3};
  std::vector<std::string> texts;
};

TEST(NonfiniteGuard, StopsUnlessItIsToldOtherwise) {
  NonfiniteGuard guard(3);
  EXPECT_FALSE(guard.skips_steps());
  // Steps count from 0 but are reported from 1.
  EXPECT_THAT([&] { guard.found(6, "the loss"); },
              ThrowsMessage<stage::NonfiniteError>(AllOf(HasSubstr("step 7"), HasSubstr("the loss"))));
  EXPECT_EQ(guard.steps(), 0);
}

TEST(NonfiniteGuard, StoppingTellsByItsErrorAlone) {
  Told told(stage::OnNonfinite::Stop);
  EXPECT_THROW(told.guard.found(0, "the loss"), stage::NonfiniteError);
  EXPECT_THAT(told.texts, ElementsAre());
}

TEST(NonfiniteGuard, WarnsOncePerStepAndCountsTheSteps) {
  Told told(stage::OnNonfinite::Warn);
  told.guard.found(0, "the loss");
  told.guard.found(0, "a gradient");
  told.guard.found(2, "a gradient");
  EXPECT_THAT(told.texts, ElementsAre(AllOf(HasSubstr("rank 3"), HasSubstr("step 1"), HasSubstr("the loss")),
                                      AllOf(HasSubstr("rank 3"), HasSubstr("step 3"), HasSubstr("a gradient"))));
  EXPECT_EQ(told.guard.steps(), 2);
  EXPECT_FALSE(told.guard.skips_steps());
}

TEST(NonfiniteGuard, CountsASkippedStepOnceAllRanksKnow) {
  Told told(stage::OnNonfinite::Skip);
  EXPECT_TRUE(told.guard.skips_steps());
  told.guard.found(4, "the loss");
  EXPECT_EQ(told.guard.steps(), 0) << "not yet skipped";
  told.guard.count_skipped();
  told.guard.count_skipped();  // found by another rank
  EXPECT_EQ(told.guard.steps(), 2);
  EXPECT_EQ(told.texts.size(), 1U);
}

TEST(NonfiniteGuard, KnowsTheStepInWhichItFoundSomething) {
  Told told(stage::OnNonfinite::Warn);
  EXPECT_FALSE(told.guard.found_in(0));
  told.guard.found(4, "the loss");
  EXPECT_TRUE(told.guard.found_in(4));
  EXPECT_FALSE(told.guard.found_in(5));
}

TEST(NonfiniteGuard, NeedsNobodyToTell) {
  NonfiniteGuard guard(0);
  guard.set(stage::OnNonfinite::Warn, nullptr);
  guard.found(0, "the loss");
  EXPECT_EQ(guard.steps(), 1);
}

using stagecraft::testing::CountedData;
using stagecraft::testing::crossing;
using stagecraft::testing::RecordingChannel;
using stagecraft::testing::scaling_model;
using stagecraft::testing::scaling_plan;
using ::testing::Pair;

constexpr int kActivationTag = 0;
constexpr int kGradientTag = 1;

/// Runs a list once and records the hooks that are called.
class NotingWorker : public StageWorker {
 public:
  NotingWorker(const BoundModel& bound, int rank, channel::Channel& channel, const data::DataSource& data,
               const WorkerOptions& options)
      : StageWorker(bound, rank, channel, data, options, 1) {}

  void compute(std::int64_t step) {
    for (std::size_t i = 0; i < actions().size(); ++i) perform(i, step);
    losses().end_step(step);
  }

  std::vector<std::string> notes;

 private:
  void note(const std::string& what, const Action& action) {
    notes.push_back(what + " " + std::to_string(action.microbatch));
  }
  void before_forward(ResidentStage&, const Action& action) override { note("before forward", action); }
  void after_forward(ResidentStage&, const Action& action) override { note("after forward", action); }
  double before_backward(ResidentStage&, const Action& action) override {
    note("before backward", action);
    return 1;
  }
  void after_backward(ResidentStage&, const Action& action, bool last) override {
    note(last ? "after last part" : "after first part", action);
  }
  void reduce(const Action& action) override { notes.push_back("reduce " + std::to_string(action.stage)); }
  void update(const Action& action) override { notes.push_back("update " + std::to_string(action.stage)); }
};

/// Rank `rank` of a pipeline of two stages, "first" on rank 0 and "loss" on rank 1.
struct Half {
  explicit Half(int rank, int microbatches, const std::string& schedule = "1f1b", WorkerOptions options = {},
                model::Model made = scaling_model())
      : model(std::move(made)),
        plan(scaling_plan(schedule, microbatches, {1, 1})),
        bound(bind_model(plan, model)),
        channel(*channels[to_index(rank)]),
        other(*channels[to_index(1 - rank)]),
        worker(bound, rank, channel, data, options) {}

  void send(double value) { (void)other.send(crossing(value), channel.rank(), tag(true)); }
  /// The next value that the rank sent.
  [[nodiscard]] double received() {
    return other.receive({{1, 1}, at::kFloat}, channel.rank(), tag(false))->wait().item<double>();
  }
  [[nodiscard]] int tag(bool to_rank) const { return (channel.rank() == 1) == to_rank ? kActivationTag : kGradientTag; }
  [[nodiscard]] double gradient() const { return worker.parameters().front().value.grad().item<double>(); }

  model::Model model;
  BoundPlan plan;
  BoundModel bound;
  CountedData data;
  std::vector<std::unique_ptr<channel::Channel>> channels = channel::make_local_channels(2, std::chrono::seconds(20));
  RecordingChannel channel;
  channel::Channel& other;
  NotingWorker worker;
};

TEST(StageWorker, SendsItsForwardsValuesAndTakesTheirGradients) {
  WorkerOptions options;
  options.first_step = 3;
  Half half(0, 2, "1f1b", options);
  half.send(5);  // gradients of h for microbatches 0 and 1
  half.send(7);
  half.worker.compute(3);
  // x is 10 * 3 + 1 and 10 * 3 + 2, a is 2.
  EXPECT_EQ(half.received(), 2 * 31);
  EXPECT_EQ(half.received(), 2 * 32);
  EXPECT_EQ(half.gradient(), 31 * 5 + 32 * 7);
}

TEST(StageWorker, TakesActivationsAndSendsTheirGradients) {
  Half half(1, 2);
  half.send(5);  // h for microbatches 0 and 1
  half.send(7);
  half.worker.compute(0);
  EXPECT_EQ(half.received(), 3);  // b
  EXPECT_EQ(half.received(), 3);
  EXPECT_EQ(half.gradient(), 5 + 7);
  EXPECT_THAT(half.worker.take_losses(0), ElementsAre(Pair(0, 3 * 5), Pair(1, 3 * 7)));
  EXPECT_THAT(half.worker.take_losses(0), ElementsAre()) << "they were taken";
}

TEST(StageWorker, CallsTheChannelInTheOrderOfItsList) {
  // 1f1b of two stages: the first one warms up with one forward; receives are posted two microbatches ahead.
  Half first(0, 2);
  first.send(5);
  first.send(7);
  first.worker.compute(0);
  EXPECT_THAT(first.channel.notes, ElementsAre("send 2 to 1 under 0", "send 4 to 1 under 0", "receive from 1 under 1",
                                               "receive from 1 under 1"));
  Half last(1, 3);
  for (const double h : {5, 7, 9}) last.send(h);
  last.worker.compute(0);
  EXPECT_THAT(last.channel.notes, ElementsAre("receive from 0 under 0", "receive from 0 under 0", "send 3 to 0 under 1",
                                              "receive from 0 under 0", "send 3 to 0 under 1", "send 3 to 0 under 1"));
}

TEST(StageWorker, CallsWhatADerivedWorkerDoesAroundForwardsAndBackwards) {
  Half half(0, 2);
  half.send(5);
  half.send(7);
  half.worker.compute(0);
  EXPECT_THAT(half.worker.notes, ElementsAre("before forward 0", "after forward 0", "before forward 1",
                                             "after forward 1", "before backward 0", "after last part 0",
                                             "before backward 1", "after last part 1", "update 0"));
}

TEST(StageWorker, SendsGradientsBeforeItComputesThoseOfItsWeights) {
  Half half(1, 1, "zb-h1");
  half.send(5);
  half.worker.compute(0);
  EXPECT_THAT(half.worker.notes, ElementsAre("before forward 0", "after forward 0", "before backward 0",
                                             "after first part 0", "after last part 0", "update 1"));
  const std::vector<Action>& actions = half.worker.actions();
  const auto sent = std::ranges::find(actions, ActionKind::SendGradient, &Action::kind);
  const auto weights = std::ranges::find(actions, ActionKind::WeightGradient, &Action::kind);
  EXPECT_LT(sent - actions.begin(), weights - actions.begin());
  EXPECT_EQ(half.received(), 3);
  EXPECT_EQ(half.gradient(), 5);
}

TEST(StageWorker, RecordsEachWaitAndEachActionOnce) {
  WorkerOptions options;
  double time = 0;
  options.now = [&time] { return time++; };
  Half half(1, 1, "1f1b", options);
  half.send(5);
  half.worker.compute(4);
  const auto span = [](const Action& action, double start) {
    return Span{1, 4, action, Seconds(start), Seconds(start + 1)};
  };
  EXPECT_THAT(half.worker.take_all_spans(),
              ElementsAre(span({ActionKind::ReceiveActivation, 1, 0, 0}, 0), span({ActionKind::Forward, 1, 0, -1}, 2),
                          span({ActionKind::Backward, 1, 0, -1}, 4), span({ActionKind::SendGradient, 1, 0, 0}, 6),
                          span({ActionKind::Update, 1, -1, -1}, 8)));
  EXPECT_TRUE(half.worker.take_all_spans().empty());
}

TEST(StageWorker, NamesRankStageAndActionOfAPeersFailure) {
  Half half(1, 2);
  half.send(5);
  half.other.abort("rank 0 ran out of paper");
  EXPECT_THAT(
      [&] { half.worker.compute(0); },
      ThrowsMessage<meeting::PeerError>(AllOf(HasSubstr("rank 1, stage 1"), HasSubstr("rank 0 ran out of paper"))));
}

TEST(StageWorker, NamesTheMicrobatchWhoseActivationHasAnotherShape) {
  Half half(1, 2);
  half.send(5);
  (void)half.other.send(at::zeros({2, 1}), 1, kActivationTag);
  EXPECT_THAT([&] { half.worker.compute(0); },
              ThrowsMessage<meeting::PeerError>(AllOf(HasSubstr("rank 1, stage 1, forward of microbatch 1: "),
                                                      HasSubstr("float32 [1, 1]"), HasSubstr("float32 [2, 1]"))));
}

TEST(StageWorker, NamesWhereMemoryRanOut) {
  model::Model model = scaling_model();
  model.layers.back().forward = [](const model::LayerCall& call) -> std::vector<at::Tensor> {
    if (call.inputs[0].item<double>() == 7) return {at::zeros({std::int64_t{1} << 44})};
    return {call.inputs[0].mul(call.parameters[0]).mean()};
  };
  Half half(1, 2, "1f1b", {}, model);
  half.send(5);
  half.send(7);
  EXPECT_THAT([&] { half.worker.compute(2); }, ThrowsMessage<DeviceError>(::testing::StartsWith(
                                                   "rank 1, stage 1, forward of microbatch 1, step 3: layer "
                                                   "\"loss\", forward: out of memory, 64.0 TiB more")));
}

TEST(StageWorker, ReportsWhatItIsAboutToDo) {
  model::Model model = scaling_model();
  channel::Activity* activity = nullptr;
  std::vector<std::string> seen;
  for (model::LayerSpec& layer : model.layers) {
    layer.forward = [&activity, &seen, inner = layer.forward](const model::LayerCall& call) {
      seen.push_back(activity->text());
      return inner(call);
    };
  }
  Half half(1, 2, "1f1b", {}, model);
  activity = &half.channel.activity();
  half.send(5);
  half.send(7);
  half.worker.compute(6);
  EXPECT_THAT(seen, ElementsAre(HasSubstr("forward of microbatch 0 of stage 1 in step 7"),
                                HasSubstr("forward of microbatch 1 of stage 1 in step 7")));
  EXPECT_THAT(activity->text(), HasSubstr("update of stage 1 in step 7"));
}

TEST(StageWorker, StopsAtALossThatIsNotFinite) {
  Half half(1, 2);
  half.send(5);
  half.send(std::numeric_limits<double>::infinity());
  EXPECT_THAT([&] { half.worker.compute(2); },
              ThrowsMessage<stage::NonfiniteError>(AllOf(HasSubstr("step 3"), HasSubstr("loss of microbatch 1"))));
}

TEST(StageWorker, ContinuesAfterANonfiniteLossIfAskedTo) {
  Half half(1, 2);
  std::vector<std::string> told;
  half.worker.on_nonfinite(stage::OnNonfinite::Warn, [&](const std::string& text) { told.push_back(text); });
  half.send(std::numeric_limits<double>::infinity());
  half.send(7);
  half.worker.compute(2);
  EXPECT_THAT(told, ElementsAre(AllOf(HasSubstr("rank 1"), HasSubstr("step 3"), HasSubstr("loss of microbatch 0"))));
  EXPECT_EQ(half.worker.nonfinite_steps(), 1);
  EXPECT_EQ(half.worker.take_losses(2).at(1), 3 * 7);
}

TEST(StageWorker, HandsValuesBetweenItsStagesWithoutTheChannel) {
  Plan plan = scaling_plan("gpipe", 2, {1, 1});
  plan.schedule = "interleaved-1f1b";
  plan.chunks = 2;
  plan.stages[1].devices = plan.stages[0].devices;
  const BoundPlan bound_plan(plan);
  const model::Model model = scaling_model();
  const BoundModel bound = bind_model(bound_plan, model);
  const CountedData data;
  const auto channels = channel::make_local_channels(1, std::chrono::seconds(20));
  RecordingChannel channel(*channels.front());
  NotingWorker worker(bound, 0, channel, data, {});
  worker.compute(0);
  EXPECT_THAT(channel.notes, ElementsAre());
  // x is 1 and 2; the loss is b a x.
  EXPECT_THAT(worker.take_losses(0), ElementsAre(Pair(0, 6), Pair(1, 12)));
  const std::vector<stage::Parameter> parameters = worker.parameters();
  ASSERT_EQ(parameters.size(), 2U);
  EXPECT_EQ(parameters[0].value.grad().item<double>(), 3 * (1 + 2));
  EXPECT_EQ(parameters[1].value.grad().item<double>(), 2 * (1 + 2));
}

TEST(StageWorker, ReplicaReadsTheDataOfItsOwnMicrobatches) {
  const BoundPlan plan(scaling_plan("forward", 4, {2, 1}));
  const model::Model model = scaling_model();
  const BoundModel bound = bind_model(plan, model);
  const CountedData data;
  const auto channels = channel::make_local_channels(3, std::chrono::seconds(20));
  WorkerOptions options;
  options.first_step = 5;
  NotingWorker worker(bound, 1, *channels[1], data, options);
  worker.compute(5);
  worker.compute(6);
  // The second of two replicas runs microbatches 1 and 3: x is 52, 54, then 62, 64.
  for (const double x : {52, 54, 62, 64})
    EXPECT_EQ(channels[2]->receive({{1, 1}, at::kFloat}, 1, kActivationTag)->wait().item<double>(), 2 * x);
}

TEST(StageWorker, EvaluationKeepsNoGraphAndSendsNoGradient) {
  Half half(1, 1, "forward");
  half.send(5);
  half.worker.compute(0);
  EXPECT_THAT(half.worker.take_losses(0), ElementsAre(Pair(0, 15)));
  EXPECT_FALSE(half.worker.parameters().front().value.grad().defined());
  EXPECT_THAT(half.channel.notes, ElementsAre("receive from 0 under 0"));
  EXPECT_THAT(half.worker.notes, ElementsAre("before forward 0", "after forward 0"));
}

TEST(StageWorker, RefusesAnActionOfAStageThatItDoesNotHold) {
  struct Asking : NotingWorker {
    using NotingWorker::NotingWorker;
    using StageWorker::resident;
  };
  Half half(1, 1);
  Asking worker(half.bound, 1, half.channel, half.data, {});
  EXPECT_EQ(worker.resident(1).stage, 1);
  EXPECT_THROW((void)worker.resident(0), std::logic_error);
}

}  // namespace

}  // namespace stagecraft::run

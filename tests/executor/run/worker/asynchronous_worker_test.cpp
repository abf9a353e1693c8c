#include "executor/run/worker/asynchronous_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "costmodel/index.h"
#include "executor/channel/channel_local.h"
#include "tests/support/channels/recording_channel.h"
#include "tests/support/models/scaling_model.h"

// Tests the first of two ranks, whose stage is h = a x; the test acts as the second. The gradient that it sends for h
// is always 1, so a's gradient is x.

namespace stagecraft::run {
namespace {

using stagecraft::testing::CountedData;
using stagecraft::testing::crossing;
using stagecraft::testing::RecordingChannel;
using stagecraft::testing::scaling_model;
using stagecraft::testing::scaling_plan;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

WorkerOptions settings(int steps, double learning_rate = 0.5) {
  WorkerOptions out;
  out.optimizer.learning_rate = learning_rate;
  out.steps = steps;
  return out;
}

/// Data whose x is always 1.
class Ones : public data::DataSource {
 public:
  std::vector<at::Tensor> batch(std::int64_t, int, int, std::int64_t, std::span<const int>) const override {
    return {crossing(1)};
  }
};

struct First {
  First(const std::string& schedule, int microbatches, const WorkerOptions& options, const data::DataSource& data)
      : plan(scaling_plan(schedule, microbatches, {1, 1})),
        bound(bind_model(plan, model)),
        channel(*channels[0]),
        worker(bound, 0, channel, data, options) {
    for (int m = 0; m < microbatches * options.steps; ++m) (void)channels[1]->send(crossing(1), 0, /*tag=*/1);
  }
  /// Runs all steps and returns the values sent as h, in order.
  std::vector<double> replay() {
    worker.replay([&](std::int64_t step) { done.push_back(step); });
    std::vector<double> out;
    for (const std::string& note : channel.notes) {
      if (note.starts_with("send"))
        out.push_back(channels[1]->receive({{1, 1}, at::kFloat}, 0, /*tag=*/0)->wait().item<double>());
    }
    return out;
  }
  [[nodiscard]] double a() const { return worker.parameters().front().value.item<double>(); }

  model::Model model = scaling_model();
  BoundPlan plan;
  BoundModel bound;
  std::vector<std::unique_ptr<channel::Channel>> channels = channel::make_local_channels(2, std::chrono::seconds(20));
  RecordingChannel channel;
  std::vector<std::int64_t> done;
  AsynchronousWorker worker;
};

TEST(AsynchronousWorker, MicrobatchInFlightKeepsTheParametersItBeganWith) {
  const CountedData data;
  First first("pipedream", 4, settings(1), data);
  // F0 F1, then alternately a backward with its update and a forward. x is 1, 2, 3, 4 and each update subtracts x / 2
  // from a: 2 until the first update, then 1.5, then 0.5. Microbatch 1's backward runs after an update but does not use
  // it.
  EXPECT_THAT(first.replay(), ElementsAre(2 * 1, 2 * 2, 1.5 * 3, 0.5 * 4));
  EXPECT_EQ(first.a(), 2 - 0.5 * (1 + 2 + 3 + 4));
}

TEST(AsynchronousWorker, WarmUpChangesNoUpdate) {
  const CountedData data;
  First first("pipedream", 4, settings(1), data);
  first.worker.warm_up(data);
  EXPECT_THAT(first.channel.notes, ::testing::IsEmpty());
  EXPECT_THAT(first.replay(), ElementsAre(2 * 1, 2 * 2, 1.5 * 3, 0.5 * 4)) << "as without";
  EXPECT_EQ(first.a(), 2 - 0.5 * (1 + 2 + 3 + 4));
}

TEST(AsynchronousWorker, LaterStepSeesTheUpdateBeforeLast) {
  const Ones data;
  First first("pipedream-2bw", 2, settings(4), data);
  // An update after each step's two microbatches subtracts half of their mean gradient of 1 from a. Step t computes
  // with the a after the update of step t - 2: 2, 2, 1.5, 1.
  EXPECT_THAT(first.replay(), ElementsAre(2, 2, 2, 2, 1.5, 1.5, 1, 1));
  EXPECT_EQ(first.a(), 2 - 4 * 0.5) << "every update is applied in the end";
}

TEST(AsynchronousWorker, ReportsEachStepAfterItsLastBackward) {
  const Ones data;
  WorkerOptions options = settings(3);
  options.first_step = 10;
  First first("pipedream", 2, options, data);
  (void)first.replay();
  EXPECT_THAT(first.done, ElementsAre(10, 11, 12));
}

TEST(AsynchronousWorker, ReadsTheSamplesOfItsStepAndMicrobatch) {
  const CountedData data;
  WorkerOptions options = settings(2, 0);
  options.first_step = 10;
  First first("pipedream", 2, options, data);
  // x is 10 step + microbatch + 1 and a stays 2.
  EXPECT_THAT(first.replay(), ElementsAre(2 * 101, 2 * 102, 2 * 111, 2 * 112));
}

TEST(AsynchronousWorker, UpdateFollowsTheRateOfItsMicrobatchsStep) {
  const Ones data;
  WorkerOptions options = settings(2);
  options.optimizer.rate.warmup = 2;
  First first("pipedream", 2, options, data);
  (void)first.replay();
  // Two updates at half the rate in step 0, two at the full rate in step 1.
  EXPECT_EQ(first.a(), 2 - 0.25 - 0.25 - 0.5 - 0.5);
}

TEST(AsynchronousWorker, NamesTheParameterWhoseGradientIsNotFinite) {
  const Ones data;
  const BoundPlan plan(scaling_plan("pipedream", 1, {1, 1}));
  const model::Model model = scaling_model();
  const BoundModel bound = bind_model(plan, model);
  const auto channels = channel::make_local_channels(2, std::chrono::seconds(20));
  (void)channels[1]->send(crossing(std::numeric_limits<double>::infinity()), 0, 1);
  AsynchronousWorker worker(bound, 0, *channels[0], data, settings(1));
  EXPECT_THAT([&] { worker.replay([](std::int64_t) {}); },
              ThrowsMessage<stage::NonfiniteError>(HasSubstr("step 1: the gradient of \"a\"")));
  EXPECT_EQ(worker.parameters().front().value.item<double>(), 2) << "nothing was updated";
}

TEST(AsynchronousWorker, ReplicasApplyTheMeanOfTheirRound) {
  // One stage on two replicas: each update takes the mean of two microbatches, one from each replica.
  const BoundPlan plan(scaling_plan("pipedream", 4, {2}));
  const model::Model model = scaling_model();
  const BoundModel bound = bind_model(plan, model);
  const Ones data;
  const auto channels = channel::make_local_channels(2, std::chrono::seconds(20));
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      AsynchronousWorker worker(bound, rank, *channels[to_index(rank)], data, settings(1, 0.25));
      worker.replay([](std::int64_t) {});
      // Gradients are b and a for x = 1. First update: a = 2 - 3/4, b = 3 - 2/4. Second: a = 1.25 - 2.5/4,
      // b = 2.5 - 1.25/4.
      EXPECT_EQ(worker.parameters()[0].value.item<double>(), 1.25 - 0.625) << "rank " << rank;
      EXPECT_EQ(worker.parameters()[1].value.item<double>(), 2.5 - 0.3125) << "rank " << rank;
    });
  }
}

TEST(AsynchronousWorker, RefusesToSkipOverlappingSteps) {
  const Ones data;
  First first("pipedream", 2, settings(1), data);
  EXPECT_THAT([&] { first.worker.on_nonfinite(stage::OnNonfinite::Skip, nullptr); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("\"pipedream\"")));
}

TEST(AsynchronousWorker, RefusesToClip) {
  const Ones data;
  WorkerOptions options = settings(1);
  options.optimizer.clip_norm = 1;
  EXPECT_THAT([&] { First("pipedream", 2, options, data); }, ThrowsMessage<std::invalid_argument>(HasSubstr("clip")));
}

TEST(AsynchronousWorker, RefusesParametersThatSeveralLayersHold) {
  model::Model model = scaling_model();
  model.layers[1].parameters[0].name = "a";
  Plan shared = scaling_plan("pipedream", 2, {1, 1});
  shared.tied = {{"a", {"first", "loss"}}};
  const BoundPlan plan(shared);
  const BoundModel bound = bind_model(plan, model);
  const Ones data;
  const auto channels = channel::make_local_channels(2, std::chrono::seconds(20));
  EXPECT_THAT([&] { AsynchronousWorker(bound, 0, *channels[0], data, settings(1)); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("\"a\"")));
}

}  // namespace
}  // namespace stagecraft::run

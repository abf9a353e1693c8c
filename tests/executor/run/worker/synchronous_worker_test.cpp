#include "executor/run/worker/synchronous_worker.h"

#include <ATen/ops/sqrt.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "costmodel/index.h"
#include "executor/channel/channel_local.h"
#include "tests/support/channels/forwarding_channel.h"
#include "tests/support/channels/recording_channel.h"
#include "tests/support/models/scaling_model.h"

// One rank with the whole model: x is 10 step + microbatch + 1, the gradients are b x for a and a x for b. All numbers
// are exact in float32.

namespace stagecraft::run {
namespace {

using stagecraft::testing::CountedData;
using stagecraft::testing::RecordingChannel;
using stagecraft::testing::scaling_model;
using stagecraft::testing::scaling_plan;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

WorkerOptions rate(double learning_rate) {
  WorkerOptions out;
  out.optimizer.learning_rate = learning_rate;
  return out;
}

struct Alone {
  explicit Alone(const WorkerOptions& options, model::Model made = scaling_model(),
                 const std::string& schedule = "1f1b", int microbatches = 2)
      : model(std::move(made)),
        plan(scaling_plan(schedule, microbatches, {1})),
        bound(bind_model(plan, model)),
        channel(*channels.front()),
        worker(bound, 0, channel, data, options) {}
  void step(std::int64_t number) {
    worker.compute(number);
    worker.update_step(number);
  }
  [[nodiscard]] std::vector<double> values() const {
    std::vector<double> out;
    for (const stage::Parameter& parameter : worker.parameters()) out.push_back(parameter.value.item<double>());
    return out;
  }
  [[nodiscard]] std::vector<double> gradients() const {
    std::vector<double> out;
    for (const stage::Parameter& parameter : worker.parameters()) out.push_back(parameter.value.grad().item<double>());
    return out;
  }

  model::Model model;
  BoundPlan plan;
  BoundModel bound;
  CountedData data;
  std::vector<std::unique_ptr<channel::Channel>> channels = channel::make_local_channels(1, std::chrono::seconds(20));
  RecordingChannel channel;
  SynchronousWorker worker;
};

TEST(SynchronousWorker, UpdatesByTheMeanOfTheMicrobatchesGradients) {
  Alone alone(rate(0.5));
  alone.worker.compute(0);
  EXPECT_THAT(alone.gradients(), ElementsAre(3 * (1 + 2), 2 * (1 + 2))) << "sums until the update";
  EXPECT_THAT(alone.values(), ElementsAre(2, 3)) << "no update yet";
  alone.worker.update_step(0);
  // Half of 9 and of 6, times the rate.
  EXPECT_THAT(alone.values(), ElementsAre(2 - 0.5 * 4.5, 3 - 0.5 * 3));
}

TEST(SynchronousWorker, WarmUpChangesNoUpdate) {
  for (const char* schedule : {"1f1b", "forward"}) {
    Alone alone(rate(0.5), scaling_model(), schedule);
    alone.worker.warm_up(alone.data);
    alone.step(0);
    const bool trains = alone.plan.schedule().trains;
    EXPECT_THAT(alone.values(), ElementsAre(trains ? 2 - 0.5 * 4.5 : 2, trains ? 3 - 0.5 * 3 : 3)) << "as without";
    EXPECT_EQ(alone.worker.take_losses(0).size(), 2U);
  }
}

TEST(SynchronousWorker, BeginsEachStepWithoutTheLastOnesGradients) {
  Alone alone(rate(0));
  alone.step(0);
  alone.worker.compute(1);
  EXPECT_THAT(alone.gradients(), ElementsAre(3 * (11 + 12), 2 * (11 + 12)));
}

TEST(SynchronousWorker, UpdateFollowsTheRateScheduleOfItsStep) {
  WorkerOptions options = rate(0.5);
  options.optimizer.rate.warmup = 4;
  Alone alone(options);
  alone.step(0);  // the first of four warm-up steps: a quarter of the rate
  EXPECT_THAT(alone.values(), ElementsAre(2 - 0.125 * 4.5, 3 - 0.125 * 3));
}

TEST(SynchronousWorker, ClipsTheGradientToTheNorm) {
  WorkerOptions options = rate(0.5);
  options.optimizer.clip_norm = 2.5;
  Alone alone(options, scaling_model(4, 3), "1f1b", 1);
  alone.step(0);  // x is 1: the gradient (3, 4) has norm 5, so half of it is applied
  EXPECT_NEAR(alone.values()[0], 4 - 0.5 * 1.5, 1e-5);
  EXPECT_NEAR(alone.values()[1], 3 - 0.5 * 2, 1e-5);
  EXPECT_EQ(alone.worker.take_gradient_norm(0), 5) << "before clipping";
  EXPECT_EQ(alone.worker.take_gradient_norm(0), std::nullopt) << "taken";
}

TEST(SynchronousWorker, LeavesAGradientBelowTheNormAsItIs) {
  WorkerOptions options = rate(0.5);
  options.optimizer.clip_norm = 6;
  Alone alone(options, scaling_model(4, 3), "1f1b", 1);
  alone.step(0);
  EXPECT_THAT(alone.values(), ElementsAre(4 - 0.5 * 3, 3 - 0.5 * 4));
}

TEST(SynchronousWorker, LossScaleMultipliesGradientsAndLeavesTheUpdate) {
  Alone alone(rate(0.5));
  alone.worker.scale_loss(stage::LossScaler({.fixed = 1024}));
  alone.worker.compute(0);
  EXPECT_THAT(alone.gradients(), ElementsAre(1024 * 9, 1024 * 6));
  EXPECT_EQ(alone.worker.take_losses(0).at(1), 3 * 2 * 2) << "the loss itself has no scale";
  alone.worker.update_step(0);
  EXPECT_THAT(alone.values(), ElementsAre(2 - 0.5 * 4.5, 3 - 0.5 * 3));
}

TEST(SynchronousWorker, OverflowUnderALossScaleChangesNoParameterAndHalvesTheScale) {
  for (const double clip_norm : {0.0, 1.0}) {
    WorkerOptions options = rate(0.5);
    options.optimizer.clip_norm = clip_norm;
    Alone alone(options);
    const double most = std::ldexp(1.0, 127);  // 9 times this exceeds the largest float32
    alone.worker.scale_loss(stage::LossScaler({.first = most}));
    alone.step(0);
    EXPECT_THAT(alone.values(), ElementsAre(2, 3)) << "clip_norm " << clip_norm;
    ASSERT_TRUE(alone.worker.loss_scaler());
    EXPECT_EQ(alone.worker.loss_scaler()->scale(), most / 2) << "clip_norm " << clip_norm;
    EXPECT_EQ(alone.worker.nonfinite_steps(), 0) << "under a scale it is no error";
  }
}

/// scaling_model whose gradient of a is infinite in step 1 although the loss is finite: the slope of sqrt at 0 is
/// infinite.
model::Model steep_model() {
  model::Model model = scaling_model();
  model.layers.front().forward = [inner = model.layers.front().forward](const model::LayerCall& call) {
    std::vector<at::Tensor> out = inner(call);
    if (call.step == 1) out[0] = out[0].add(call.parameters[0].sub(call.parameters[0].detach()).sqrt());
    return out;
  };
  return model;
}

TEST(SynchronousWorker, StopsBeforeAnUpdateByAGradientThatIsNotFinite) {
  Alone alone(rate(0.5), steep_model());
  alone.step(0);
  const std::vector<double> before = alone.values();
  alone.worker.compute(1);
  EXPECT_THAT([&] { alone.worker.update_step(1); },
              ThrowsMessage<stage::NonfiniteError>(AllOf(HasSubstr("step 2"), HasSubstr("gradient of \"a\""))));
  EXPECT_EQ(alone.values(), before);
}

/// scaling_model whose first layer counts its forwards in a buffer.
model::Model counting_forwards(model::Model model) {
  model::LayerSpec& first = model.layers.front();
  model::ParameterSpec count = model::zeros("count", {1});
  count.trainable = false;
  count.decay = 1;
  first.parameters.push_back(count);
  first.forward = [inner = first.forward](const model::LayerCall& call) {
    if (call.training) call.buffers[0].add_(1);
    return inner(call);
  };
  return model;
}

double count_of(SynchronousWorker& worker) {
  double out = -1;
  worker.visit_stages([&](int, stage::StageProgram& program, stage::Optimizer&) {
    out = program.buffers().front().value.item<double>();
  });
  return out;
}

TEST(SynchronousWorker, SkippedStepChangesNeitherParametersNorBuffers) {
  Alone alone(rate(0.5), counting_forwards(steep_model()));
  std::vector<std::string> told;
  alone.worker.on_nonfinite(stage::OnNonfinite::Skip, [&](const std::string& text) { told.push_back(text); });
  alone.step(0);
  const std::vector<double> before = alone.values();
  EXPECT_EQ(count_of(alone.worker), 2) << "one forward for each microbatch";
  alone.step(1);
  EXPECT_EQ(alone.values(), before);
  EXPECT_EQ(count_of(alone.worker), 2);
  EXPECT_EQ(alone.worker.nonfinite_steps(), 1);
  EXPECT_THAT(told, ElementsAre(AllOf(HasSubstr("rank 0"), HasSubstr("step 2"), HasSubstr("gradient of \"a\""))));
  alone.step(2);
  EXPECT_NE(alone.values(), before) << "the next step is like any other";
  EXPECT_EQ(count_of(alone.worker), 4);
}

TEST(SynchronousWorker, EvaluationChangesNothing) {
  Alone alone(rate(0.5), counting_forwards(scaling_model()), "forward");
  alone.step(0);
  EXPECT_THAT(alone.values(), ElementsAre(2, 3));
  EXPECT_EQ(count_of(alone.worker), 0);
  for (const stage::Parameter& parameter : alone.worker.parameters()) EXPECT_FALSE(parameter.value.grad().defined());
  EXPECT_THAT(alone.worker.take_losses(0), ElementsAre(std::pair(0, 6), std::pair(1, 12)));
}

TEST(SynchronousWorker, UsesNoChannelAlone) {
  WorkerOptions options = rate(0.5);
  options.optimizer.clip_norm = 1;
  Alone alone(options);
  alone.step(0);
  EXPECT_THAT(alone.channel.notes, ElementsAre());
}

TEST(SynchronousWorker, RecordsAnUpdateOfEachStageAtTheStepsEnd) {
  WorkerOptions options = rate(0.5);
  double time = 0;
  options.now = [&time] { return time++; };
  Alone alone(options, scaling_model(), "1f1b", 1);
  alone.step(7);
  const auto span = [](const Action& action, double start) {
    return Span{0, 7, action, Seconds(start), Seconds(start + 1)};
  };
  EXPECT_THAT(alone.worker.take_spans(),
              ElementsAre(span({ActionKind::Forward, 0, 0, -1}, 0), span({ActionKind::Backward, 0, 0, -1}, 2),
                          span({ActionKind::Update, 0, -1, -1}, 4)));
}

/// Lets a second pass in each send and eight in each sum over ranks; nothing else takes time.
class SlowChannel : public stagecraft::testing::ForwardingChannel {
 public:
  SlowChannel(channel::Channel& channel, double& time) : ForwardingChannel(channel), time_(time) {}
  std::unique_ptr<channel::Sending> send(const at::Tensor& tensor, int to, int tag) override {
    time_ += 1;
    return ForwardingChannel::send(tensor, to, tag);
  }

 protected:
  std::unique_ptr<channel::CollectiveInProgress> begin(const channel::CollectiveCall& call) override {
    time_ += 8;
    return ForwardingChannel::begin(call);
  }

 private:
  double& time_;
};

/// Runs two steps of `plan`, each rank in a thread on a SlowChannel, and calls `check` with the spans of each rank and
/// the time that passed.
template <class Check>
void on_slow_channels(const Plan& plan, const model::Model& model, double clip_norm, const Check& check) {
  const BoundPlan bound_plan(plan);
  const BoundModel bound = bind_model(bound_plan, model);
  const CountedData data;
  const int ranks = to_int(bound_plan.ranks().size());
  const auto channels = channel::make_local_channels(ranks, std::chrono::seconds(20));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      double time = 0;
      SlowChannel slow(*channels[to_index(rank)], time);
      WorkerOptions options = rate(0.5);
      options.optimizer.clip_norm = clip_norm;
      options.now = [&time] { return time; };
      SynchronousWorker worker(bound, rank, slow, data, options);
      for (int step = 0; step < 2; ++step) {
        worker.compute(step);
        worker.update_step(step);
      }
      check(rank, worker.take_spans(), time);
    });
  }
}

double length(const std::vector<Span>& spans, std::optional<ActionKind> kind = {}) {
  Seconds out;
  for (const Span& span : spans) {
    if (!kind || span.action.kind == *kind) out += span.end - span.start;
  }
  return out.value;
}

TEST(SynchronousWorker, CountsSumsOfTiedParametersAsTheReduce) {
  Plan plan = scaling_plan("1f1b", 2, {1, 1});
  plan.tied = {{"a", {"first", "loss"}}};
  model::Model model = scaling_model(2, 2);
  model.layers[1].parameters[0].name = "a";
  on_slow_channels(plan, model, 0, [](int rank, const std::vector<Span>& spans, double time) {
    EXPECT_EQ(length(spans, ActionKind::Reduce), 2 * 8) << "rank " << rank;
    EXPECT_EQ(time, 2 * (8 + 2)) << "a sum and two messages a step";
    EXPECT_EQ(length(spans), time);
  });
}

TEST(SynchronousWorker, CountsTheExchangeOfNormsAsTheUpdate) {
  on_slow_channels(scaling_plan("1f1b", 2, {2}), scaling_model(), 1,
                   [](int rank, const std::vector<Span>& spans, double time) {
                     EXPECT_GT(length(spans, ActionKind::Update), 0) << "rank " << rank;
                     EXPECT_EQ(length(spans), time);
                   });
}

/// Runs `body` with the worker of each rank of a stage with `replicas` replicas, each rank in a thread.
template <class Body>
void on_replicas(int replicas, int microbatches, const WorkerOptions& options, const model::Model& model,
                 const Body& body, std::optional<Bytes> bucket = {}) {
  Plan plan = scaling_plan("1f1b", microbatches, {replicas});
  plan.gradient_bucket_bytes = bucket;
  const BoundPlan bound_plan(plan);
  const BoundModel bound = bind_model(bound_plan, model);
  const CountedData data;
  const auto channels = channel::make_local_channels(replicas, std::chrono::seconds(20));
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < replicas; ++rank) {
    ranks.emplace_back([&, rank] {
      SynchronousWorker worker(bound, rank, *channels[to_index(rank)], data, options);
      body(rank, worker);
    });
  }
}

TEST(SynchronousWorker, ReplicasSumTheirGradientsBeforeTheUpdate) {
  for (const std::optional<Bytes> bucket : {std::optional<Bytes>(), std::optional<Bytes>(Bytes(4))}) {
    // Three microbatches: x is 1, 2, 3, and replica 0 has the first and the last.
    on_replicas(
        2, 3, rate(0.5), scaling_model(),
        [](int rank, SynchronousWorker& worker) {
          worker.compute(0);
          const std::vector<stage::Parameter> parameters = worker.parameters();
          EXPECT_EQ(parameters[0].value.grad().item<double>(), 3 * (1 + 2 + 3)) << "rank " << rank;
          EXPECT_EQ(parameters[1].value.grad().item<double>(), 2 * (1 + 2 + 3)) << "rank " << rank;
          worker.update_step(0);
          EXPECT_EQ(parameters[0].value.item<double>(), 2 - 0.5 * 6) << "rank " << rank;
          EXPECT_EQ(parameters[1].value.item<double>(), 3 - 0.5 * 4) << "rank " << rank;
        },
        bucket);
  }
}

TEST(SynchronousWorker, ReplicasReplayEachOthersBuffers) {
  on_replicas(2, 3, rate(0.5), counting_forwards(scaling_model()), [](int rank, SynchronousWorker& worker) {
    worker.compute(0);
    worker.update_step(0);
    EXPECT_EQ(count_of(worker), 3) << "rank " << rank;
  });
}

TEST(SynchronousWorker, InfiniteGradientOfOneReplicaSkipsTheUpdateOfBoth) {
  model::Model model = scaling_model();
  // Only microbatch 1, of replica 1, has such a steep loss.
  model.layers.front().forward = [inner = model.layers.front().forward](const model::LayerCall& call) {
    std::vector<at::Tensor> out = inner(call);
    if (call.microbatch == 1) out[0] = out[0].add(call.parameters[0].sub(call.parameters[0].detach()).sqrt());
    return out;
  };
  on_replicas(2, 2, rate(0.5), model, [](int rank, SynchronousWorker& worker) {
    worker.on_nonfinite(stage::OnNonfinite::Skip, nullptr);
    worker.compute(0);
    worker.update_step(0);
    EXPECT_EQ(worker.parameters()[0].value.item<double>(), 2) << "rank " << rank;
    EXPECT_EQ(worker.parameters()[1].value.item<double>(), 3) << "rank " << rank;
    EXPECT_EQ(worker.nonfinite_steps(), 1) << "rank " << rank;
  });
}

}  // namespace
}  // namespace stagecraft::run

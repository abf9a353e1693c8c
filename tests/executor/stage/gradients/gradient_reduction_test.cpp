#include "executor/stage/gradients/gradient_reduction.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <thread>

#include "costmodel/index.h"
#include "executor/channel/channel_local.h"
#include "executor/channel/control_tags.h"
#include "tests/support/channels/recording_channel.h"
#include "tests/support/models/scaling_model.h"

namespace stagecraft::stage {
namespace {

using stagecraft::testing::RecordingChannel;
using ::testing::ElementsAre;

/// The sums over two replicas of a stage of one layer with parameters of these numbers of values.
std::vector<GradientSum> sums_of(const std::vector<std::int64_t>& values, std::optional<Bytes> bucket_bytes) {
  Plan plan;
  plan.stages = {{{"layer"}, {0, 1}}};
  plan.warmups = {1};
  plan.gradient_bucket_bytes = bucket_bytes;
  std::vector<HeldParameter> held;
  for (const std::int64_t count : values) held.push_back({"", 0, Bytes(4 * count)});
  return gradient_sums(BoundPlan(plan), {held}).front();
}

std::vector<GradientBucket> buckets_of(const std::vector<std::int64_t>& values, std::optional<Bytes> bucket_bytes) {
  return gradient_buckets(values, sums_of(values, bucket_bytes));
}

TEST(GradientBuckets, TakeTheLastParametersFirstUntilTheyHoldEnough) {
  // Bytes of the parameters: 40, 8, 16, 24.
  EXPECT_THAT(buckets_of({10, 2, 4, 6}, Bytes(24)),
              ElementsAre(GradientBucket{3, 4, 16, 22}, GradientBucket{1, 3, 10, 16}, GradientBucket{0, 1, 0, 10}));
  EXPECT_THAT(buckets_of({10, 2, 4, 6}, Bytes(25)),
              ElementsAre(GradientBucket{2, 4, 12, 22}, GradientBucket{0, 2, 0, 12}));
  EXPECT_THAT(buckets_of({10, 2, 4, 6}, std::nullopt), ElementsAre(GradientBucket{0, 4, 0, 22}));
  EXPECT_THAT(buckets_of({1, 1}, Bytes(1)), ElementsAre(GradientBucket{1, 2, 1, 2}, GradientBucket{0, 1, 0, 1}));
  EXPECT_TRUE(buckets_of({}, Bytes(1)).empty());
  EXPECT_EQ((GradientBucket{1, 3, 10, 16}).message(), 6 + 2);
}

/// Counts reductions started and waited for; does not reduce.
class CountingChannel : public channel::Channel {
 public:
  int rank() const override { return 0; }
  int ranks() const override { return 2; }
  std::unique_ptr<channel::Sending> send(const at::Tensor&, int, int) override { return nullptr; }
  std::unique_ptr<channel::Receiving> receive(const channel::TensorSpec&, int, int) override { return nullptr; }
  void barrier() override {}
  void abort(const std::string&) override {}
  channel::Activity& activity() override { return activity_; }

  struct Wait : channel::CollectiveInProgress {
    explicit Wait(CountingChannel& c) : channel(c) {}
    void wait() override { ++channel.waited; }
    CountingChannel& channel;
  };
  std::vector<std::pair<int, std::int64_t>> started;  // bucket, values
  std::vector<double> sums;                           // of the values at the start of each
  int waited = 0;

 protected:
  std::unique_ptr<channel::CollectiveInProgress> begin(const channel::CollectiveCall& call) override {
    started.emplace_back(call.tag - channel::kBucketsTag, call.values.numel());
    sums.push_back(call.values.sum().item<double>());
    return std::make_unique<Wait>(*this);
  }

 private:
  channel::Activity activity_;
};

/// A chain y = (((x w0) w1) w2): its backward computes the gradient of w2 first.
struct Chain {
  std::vector<at::Tensor> weights;
  Chain() {
    for (int i = 0; i < 3; ++i) weights.push_back(at::ones({2, 2}).requires_grad_(true));
  }
  void backward(std::size_t first = 0) const {
    at::Tensor y = at::ones({1, 2});
    for (std::size_t i = first; i < weights.size(); ++i) y = y.matmul(weights[i]);
    torch::autograd::backward({y.sum()}, {});
  }
};

TEST(GradientReduction, StartsBucketsDuringTheLastBackwardOnly) {
  const Chain chain;
  CountingChannel channel;
  GradientReduction reduction(channel, chain.weights, sums_of({4, 4, 4}, Bytes(16)));
  for (int step = 0; step < 2; ++step) {
    channel.started.clear();
    channel.sums.clear();
    channel.waited = 0;
    reduction.begin_step();
    chain.backward();
    EXPECT_EQ(reduction.started(), 0U);
    reduction.last_backward();
    chain.backward();
    EXPECT_THAT(channel.started, ElementsAre(std::pair(0, 5), std::pair(1, 5), std::pair(2, 5)));
    // Every element of each weight's gradient is 4 after one backward: the inputs of w0, w1, w2 are 1, 2, 4 and the
    // gradients of their outputs 4, 2, 1. Two backwards add up: 4 elements of 8. One replica has the gradient.
    EXPECT_THAT(channel.sums, ElementsAre(32 + 1, 32 + 1, 32 + 1));
    reduction.finish();
    EXPECT_EQ(channel.waited, 3);
  }
}

TEST(GradientReduction, KeepsTheOrderOfTheBucketsWhenOneIsNeverReady) {
  const Chain chain;
  CountingChannel channel;
  GradientReduction reduction(channel, {chain.weights[1], chain.weights[2], chain.weights[0]},
                              sums_of({4, 4, 4}, Bytes(16)));
  reduction.begin_step();
  reduction.last_backward();
  chain.backward(1);  // the weight of the first bucket has no gradient
  EXPECT_EQ(reduction.started(), 0U);
  reduction.finish();
  EXPECT_THAT(channel.started, ElementsAre(std::pair(0, 5), std::pair(1, 5), std::pair(2, 5)));
  EXPECT_EQ(channel.sums.front(), 0);
  EXPECT_EQ(channel.waited, 3);
}

TEST(GradientReduction, ForgetsTheGradientsOfTheStepBefore) {
  const Chain chain;
  CountingChannel channel;
  GradientReduction reduction(channel, chain.weights, sums_of({4, 4, 4}, {}));
  // All three weights, then two, whose backward gives ones times 2; and their number.
  for (const double sum : {3 * 16.0 + 3, 2 * 8.0 + 2}) {
    reduction.begin_step();
    reduction.last_backward();
    chain.backward(sum == 51 ? 0 : 1);
    reduction.finish();
    EXPECT_EQ(channel.sums.back(), sum);
  }
  EXPECT_FALSE(chain.weights[0].grad().defined());
}

TEST(GradientReduction, KeepsTheLayoutOfEachParameter) {
  const auto leaf = [](const at::Tensor& value) { return value.requires_grad_(true); };
  const std::vector<at::Tensor> weights{leaf(at::ones({2, 3})), leaf(at::ones({3, 2}).t()),
                                        leaf(at::ones({2, 4, 4, 3}).permute({0, 3, 1, 2}))};
  CountingChannel channel;
  GradientReduction reduction(channel, weights, sums_of({6, 6, 96}, {}));
  reduction.begin_step();
  for (const at::Tensor& weight : weights) torch::autograd::backward({weight.sum()}, {});  // ones
  reduction.finish();
  EXPECT_THAT(channel.sums, ElementsAre(6 + 6 + 96 + 3));  // each element is in the buffer once
  for (const at::Tensor& weight : weights) {
    EXPECT_EQ(weight.grad().sizes(), weight.sizes());
    EXPECT_EQ(weight.grad().strides(), weight.strides());
    EXPECT_EQ(weight.grad().storage().data_ptr().get(), weights[0].grad().storage().data_ptr().get());
  }
}

TEST(GradientReduction, SumsOverTheReplicasOfAChannel) {
  auto channels = channel::make_local_channels(2, std::chrono::seconds(20));
  std::vector<Chain> chains(2);
  {
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        GradientReduction reduction(*channels[rank], chains[rank].weights, sums_of({4, 4, 4}, Bytes(20)));
        reduction.begin_step();
        // Rank 1 has two microbatches, rank 0 one.
        if (rank == 1) chains[rank].backward();
        reduction.last_backward();
        chains[rank].backward();
        reduction.finish();
        for (const at::Tensor& weight : chains[rank].weights) EXPECT_TRUE(weight.grad().eq(12).all().item<bool>());
      });
    }
  }
}

TEST(GradientReduction, HasAGradientOnAllReplicasIfOneHasIt) {
  for (const std::optional<Bytes> bucket_bytes : {std::optional<Bytes>(), std::optional(Bytes(16))}) {
    auto channels = channel::make_local_channels(2, std::chrono::seconds(20));
    std::vector<Chain> chains(2);
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        const std::vector<at::Tensor>& weights = chains[rank].weights;
        GradientReduction reduction(*channels[rank], weights, sums_of({4, 4, 4}, bucket_bytes));
        for (int step = 0; step < 3; ++step) {
          reduction.begin_step();
          reduction.last_backward();
          // Weight 0 has a gradient on rank 0 in step 1 only, weight 1 on rank 1 only, weight 2 on both.
          chains[rank].backward(rank == 0 ? (step == 1 ? 0 : 2) : 1);
          reduction.finish();
          EXPECT_EQ(weights[0].grad().defined(), step == 1) << "rank " << rank << ", step " << step;
          ASSERT_TRUE(weights[1].grad().defined());
          ASSERT_TRUE(weights[2].grad().defined());
          // In step 1, x = 1 1, so that weight 1's gradient is 2 x 2 on rank 0 and 1 x 2 on rank 1.
          EXPECT_TRUE(weights[1].grad().eq(step == 1 ? 4 + 2 : 2).all().item<bool>());
        }
      });
    }
  }
}

/// The sums of sums_of, divided: the first two weights in one bucket, then the third; rank 0 updates `parts` of each.
std::vector<GradientSum> divided_sums(const std::vector<std::int64_t>& first_parts) {
  std::vector<GradientSum> sums = sums_of({4, 4, 4}, Bytes(20));
  for (std::size_t s = 0; s < sums.size(); ++s)
    sums[s].parts = {Bytes(4 * first_parts[s]), sums[s].bytes - Bytes(4 * first_parts[s])};
  return sums;
}

// The weights have 4 values each. Buckets hold weights 1 and 2, then weight 0. Of the first, rank 0 updates weight 1
// and one value of weight 2; of the second nothing.
TEST(GradientReduction, GivesEachReplicaTheSumsOfWhatItUpdates) {
  const std::vector<GradientSum> sums = divided_sums({5, 0});
  const std::vector<std::vector<ValueRange>> owned{{{0, 0}, {0, 4}, {0, 1}}, {{0, 4}, {0, 0}, {1, 3}}};
  auto channels = channel::make_local_channels(2, std::chrono::seconds(20));
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const Chain chain;
      RecordingChannel channel(*channels[rank]);
      std::vector<at::Tensor> updated;
      for (std::size_t i = 0; i < 3; ++i)
        updated.push_back(in_memory_order(chain.weights[i]).narrow(0, owned[rank][i].first, owned[rank][i].count));
      GradientReduction reduction(channel, chain.weights, sums, {.updated = updated});
      for (int step = 0; step < 2; ++step) {
        channel.notes.clear();
        reduction.begin_step();
        reduction.last_backward();
        // Weight 0 has a gradient on rank 0 in step 1 only.
        chain.backward(rank == 0 && step == 1 ? 0 : 1);
        reduction.finish();
        const std::string bucket = std::to_string(channel::kBucketsTag);
        const std::string second = std::to_string(channel::kBucketsTag + 1);
        EXPECT_THAT(channel.notes, ElementsAre("reduce-scatter under " + bucket, "reduce-scatter under " + second,
                                               "all-reduce under " + std::to_string(channel::kBucketsTag + 2)));
        // As in HasAGradientOnAllReplicasIfOneHasIt: in step 0, weights 1 and 2 have gradients of 2 on each rank; in
        // step 1, rank 0's are 4.
        const double each = step == 0 ? 2 + 2 : 4 + 2;
        for (std::size_t i = 1; i < 3; ++i) {
          EXPECT_EQ(updated[i].grad().defined(), owned[rank][i].count > 0) << "rank " << rank << ", weight " << i;
          if (!updated[i].grad().defined()) continue;
          EXPECT_EQ(updated[i].grad().sizes(), updated[i].sizes());
          EXPECT_TRUE(updated[i].grad().eq(each).all().item<bool>()) << "rank " << rank << ", weight " << i;
        }
        EXPECT_EQ(updated[0].grad().defined(), rank == 1 && step == 1) << "rank " << rank;
        reduction.gather_gradients();
        for (std::size_t i = 1; i < 3; ++i) EXPECT_TRUE(chain.weights[i].grad().eq(each).all().item<bool>());
        EXPECT_EQ(chain.weights[0].grad().defined(), step == 1);
        // An update, and what the other replica has updated.
        const at::NoGradGuard no_graph;
        for (const at::Tensor& part : updated) part.add_(1);
        reduction.gather_parameters();
        for (const at::Tensor& weight : chain.weights) {
          EXPECT_TRUE(weight.eq(2).all().item<bool>()) << "rank " << rank << ", step " << step;
          at::Tensor(weight).fill_(1);
        }
      }
    });
  }
}

}  // namespace

// Both layers of scaling_model hold "a" = 2: h = a x, loss = a h. The gradients of a are a x in the first layer and h
// in the second, 2 a x = 4 x in total.

namespace {

using stagecraft::testing::crossing;
using stagecraft::testing::scaling_model;

model::Model tied_model() {
  model::Model model = scaling_model(2, 2);
  model.layers[1].parameters[0].name = "a";
  return model;
}

double gradient(StageProgram& program, std::size_t i) { return program.parameters()[i].value.grad().item<double>(); }

/// Both layers in one stage.
struct OneStage {
  OneStage() : channel(*channels.front()), tied(channel, {{"a", 0, {}, {0}}}, {&program}) {}
  void run(int microbatch, double x) {
    (void)program.backward(program.forward({}, {crossing(x)}, 0, microbatch), {});
    tied.add_copies(0, microbatch, true);
  }
  model::Model model = tied_model();
  StageProgram program{model, {0, 1}, {}, {}, 1};
  std::vector<std::unique_ptr<channel::Channel>> channels = channel::make_local_channels(1, std::chrono::seconds(20));
  RecordingChannel channel;
  TiedGradients tied;
};

TEST(TiedGradients, SumOverTheLayersAndMicrobatchesOfAStage) {
  OneStage stage;
  stage.run(0, 1);
  stage.run(1, 2);
  stage.tied.reduce();
  ASSERT_EQ(stage.program.parameters().size(), 1U) << "one tensor";
  EXPECT_EQ(gradient(stage.program, 0), 4 * (1 + 2));
  EXPECT_THAT(stage.channel.notes, ElementsAre()) << "no other rank holds it";
}

TEST(TiedGradients, BeginAgainAfterAStep) {
  OneStage stage;
  stage.run(0, 1);
  stage.tied.reduce();
  for (Parameter& parameter : stage.program.parameters()) parameter.value.mutable_grad() = at::Tensor();
  stage.run(0, 5);
  stage.tied.reduce();
  EXPECT_EQ(gradient(stage.program, 0), 4 * 5);
}

TEST(TiedGradients, TakeABackwardInTwoPartsForOne) {
  OneStage stage;
  std::vector<SplitBackward> rests(2);
  for (int m : {0, 1}) {
    (void)stage.program.backward_of_inputs(stage.program.forward({}, {crossing(m + 1)}, 0, m), {}, rests[to_index(m)]);
    stage.tied.add_copies(0, m, false);
  }
  for (int m : {0, 1}) {
    rests[to_index(m)].of_weights();
    stage.tied.add_copies(0, m, true);
  }
  stage.tied.reduce();
  EXPECT_EQ(gradient(stage.program, 0), 4 * (1 + 2));
}

TEST(TiedGradients, DoNotExistWithoutABackward) {
  OneStage stage;
  stage.tied.reduce();
  EXPECT_FALSE(stage.program.parameters()[0].value.grad().defined());
}

TEST(TiedGradients, ExistOnAllRanksIfOneHasThem) {
  const model::Model model = tied_model();
  const std::vector<TiedHolders> wanted{{"a", 0, {}, {0, 1}}};
  for (const bool first_has_one : {true, false}) {
    const auto channels = channel::make_local_channels(2, std::chrono::seconds(20));
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        StageProgram program(model, {0}, {}, {{.layer = 0}}, 1);
        TiedGradients tied(*channels[rank], wanted, {&program});
        if (rank == 0 && first_has_one) (void)program.backward(program.forward({}, {crossing(3)}, 0, 0), {crossing(2)});
        tied.reduce();
        EXPECT_EQ(program.parameters()[0].value.grad().defined(), first_has_one) << "rank " << rank;
        if (first_has_one) { EXPECT_EQ(gradient(program, 0), 2 * 3) << "rank " << rank; }
      });
    }
  }
}

TEST(TiedGradients, KnowWhichParametersAreTied) {
  model::Model model = tied_model();
  model.layers[1].parameters.push_back(model::ones("c", {1}));
  StageProgram first(model, {0}, {}, {{.layer = 0}}, 1);
  StageProgram second(model, {1}, {{.value = {.layer = 0}}}, {}, 1);
  const auto channels = channel::make_local_channels(1, std::chrono::seconds(20));
  const TiedGradients tied(*channels[0], {{"a", 0, {}, {0}}}, {&first, &second});
  EXPECT_TRUE(tied.is_tied("a"));
  EXPECT_FALSE(tied.is_tied("c"));
}

TEST(TiedGradients, SumOverTwoStagesOfARank) {
  const model::Model model = tied_model();
  StageProgram first(model, {0}, {}, {{.layer = 0}}, 1);
  StageProgram second(model, {1}, {{.value = {.layer = 0}}}, {}, 1);
  const auto channels = channel::make_local_channels(1, std::chrono::seconds(20));
  RecordingChannel channel(*channels[0]);
  TiedGradients tied(channel, {{"a", 0, {}, {0}}}, {&first, &second});
  Flight flight = first.forward({}, {crossing(3)}, 0, 0);
  const at::Tensor h = flight.sent.front().detach();
  const std::vector<at::Tensor> back = second.backward(second.forward({h}, {}, 0, 0), {});
  tied.add_copies(1, 0, true);
  (void)first.backward(std::move(flight), back);
  tied.add_copies(0, 0, true);
  EXPECT_EQ(gradient(first, 0), 2 * 3) << "its own part only until the sum";
  tied.reduce();
  EXPECT_EQ(gradient(first, 0), 4 * 3);
  EXPECT_EQ(gradient(second, 0), 4 * 3);
  EXPECT_THAT(channel.notes, ElementsAre());
}

TEST(TiedGradients, SumOverTheRanksThatHoldThem) {
  const model::Model model = tied_model();
  const auto channels = channel::make_local_channels(2, std::chrono::seconds(20));
  const std::vector<TiedHolders> wanted{{"a", 3, {}, {0, 1}}};
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      RecordingChannel channel(*channels[rank]);
      const bool is_first = rank == 0;
      StageProgram program = is_first ? StageProgram(model, {0}, {}, {{.layer = 0}}, 1)
                                      : StageProgram(model, {1}, {{.value = {.layer = 0}}}, {}, 1);
      TiedGradients tied(channel, wanted, {&program});
      // x is 3: h is 6, and the gradient of h is 2.
      if (is_first) {
        (void)program.backward(program.forward({}, {crossing(3)}, 0, 0), {crossing(2)});
      } else {
        (void)program.backward(program.forward({crossing(6)}, {}, 0, 0), {});
      }
      tied.add_copies(0, 0, true);
      tied.reduce();
      EXPECT_EQ(gradient(program, 0), 4 * 3) << "rank " << rank;
      EXPECT_THAT(channel.notes, ElementsAre("all-reduce under " + std::to_string(channel::kTiesTag + 3)));
    });
  }
}

// "a" of tied_model has one value, which rank 1 updates.
TEST(TiedGradients, SumWhatEachRankUpdates) {
  const model::Model model = tied_model();
  const auto channels = channel::make_local_channels(2, std::chrono::seconds(20));
  const std::vector<TiedHolders> wanted{{"a", 3, {}, {0, 1}}};
  const GradientSums sums{{{{0, 1}, Bytes(4), 3, {0}, 0, {Bytes(0), Bytes(4)}}}};
  for (const bool has_gradient : {true, false}) {
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        RecordingChannel channel(*channels[rank]);
        StageProgram program(model, {0}, {}, {{.layer = 0}}, 1);
        const at::Tensor part = in_memory_order(program.parameters()[0].value).narrow(0, 0, rank == 0 ? 0 : 1);
        TiedGradients tied(channel, wanted, {&program}, sums, {{part}});
        // x is 3, and the gradient of h 2 on rank 0; rank 1 has no backward.
        if (rank == 0 && has_gradient) (void)program.backward(program.forward({}, {crossing(3)}, 0, 0), {crossing(2)});
        tied.add_copies(0, 0, true);
        tied.reduce();
        EXPECT_EQ(part.grad().defined(), has_gradient && rank == 1);
        if (part.grad().defined()) { EXPECT_EQ(part.grad().item<double>(), 2 * 3); }
        tied.gather_gradients();
        EXPECT_EQ(program.parameters()[0].value.grad().defined(), has_gradient);
        if (has_gradient) { EXPECT_EQ(gradient(program, 0), 2 * 3) << "rank " << rank; }
        const at::NoGradGuard no_graph;
        part.sub_(1.5);
        tied.gather_parameters();
        EXPECT_EQ(program.parameters()[0].value.item<double>(), 0.5) << "rank " << rank;
        const std::string tag = " under " + std::to_string(channel::kTiesTag + 3);
        EXPECT_EQ(channel.notes.front(), "reduce-scatter" + tag);
        EXPECT_EQ(channel.notes.back(), "all-gather" + tag);
      });
    }
  }
}

}  // namespace

}  // namespace stagecraft::stage

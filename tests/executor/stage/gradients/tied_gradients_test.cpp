#include "executor/stage/gradients/tied_gradients.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "costmodel/index.h"
#include "executor/channel/channel_local.h"
#include "executor/channel/control_tags.h"
#include "tests/support/channels/recording_channel.h"
#include "tests/support/models/scaling_model.h"

// Both layers of scaling_model hold "a" = 2: h = a x, loss = a h. The gradients of a are a x in the first layer and h
// in the second, 2 a x = 4 x in total.

namespace stagecraft::stage {
namespace {

using stagecraft::testing::crossing;
using stagecraft::testing::RecordingChannel;
using stagecraft::testing::scaling_model;
using ::testing::ElementsAre;

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

}  // namespace
}  // namespace stagecraft::stage

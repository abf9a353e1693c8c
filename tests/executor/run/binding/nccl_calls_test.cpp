#include "executor/run/binding/nccl_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "costmodel/index.h"
#include "executor/channel/control_tags.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/schedule_shapes.h"

namespace stagecraft::run {
namespace {

channel::NcclProgram program_of(const Plan& plan, const model::Model& model, int steps = 1) {
  const BoundPlan bound(plan);
  return nccl_program(bind_model(bound, model), steps);
}

using stagecraft::testing::cut_plan;
using stagecraft::testing::even_cuts;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;
using ::testing::ElementsAre;

std::vector<std::string> texts(const channel::NcclProgram& program, std::size_t rank) {
  std::vector<std::string> out;
  for (const channel::NcclCall& call : program.calls[rank]) {
    const channel::CommunicatorPlan& on = program.communicators[to_index(call.communicator)];
    out.push_back(on.name + ": " + to_string(call));
  }
  return out;
}

const PlannedModel& mlp() {
  static const PlannedModel planned = planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "4"}}, 3);
  return planned;
}

TEST(NcclProgram, HasACommunicatorForEachDirectedEdgeAndReduction) {
  // Two replicas, then one: microbatches 0 and 2 on rank 0, 1 on rank 1. 1f1b with w = (1, 0): rank 0 has F0 F2 B0 B2
  // (it posts receives at most two microbatches ahead), rank 2 has F0 B0 F1 B1 F2 B2.
  const Plan plan = cut_plan(mlp(), {2}, {2, 1}, "1f1b", 3);
  const channel::NcclProgram program = program_of(plan, mlp().model);
  EXPECT_EQ(channel::find_mismatch(program), "");
  std::vector<std::string> names;
  for (const channel::CommunicatorPlan& communicator : program.communicators) names.push_back(communicator.name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre(
                         "boundary 0, activations from rank 0 to rank 2", "boundary 0, gradients from rank 2 to rank 0",
                         "boundary 0, activations from rank 1 to rank 2", "boundary 0, gradients from rank 2 to rank 1",
                         "gradients of ranks 0, 1"));
  const std::string activation = "boundary 0, activations from rank 1 to rank 2: ";
  const std::string gradient = "boundary 0, gradients from rank 2 to rank 1: ";
  // Layers 0 and 1 of rank 1's stage: a Linear with 12 x 16 weights and 16 biases, and its activation; for
  // each of its two parameters, the sum says how many replicas have a gradient.
  EXPECT_THAT(texts(program, 1), ElementsAre(activation + "send of float32 [3, 16] under tag 0",
                                             gradient + "receive of float32 [3, 16] under tag 1",
                                             "gradients of ranks 0, 1: all-reduce of float32 [210] under tag " +
                                                 std::to_string(program.communicators.back().reduces
                                                                    ? program.communicators.back().tags.front()
                                                                    : program.calls[1].back().tag)));
}

TEST(NcclProgram, MatchesForEveryScheduleReplicaVectorAndNumberOfMicrobatches) {
  const PlannedModel gpt = planned_model(
      "gpt", {{"layers", "2"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "32"}, {"sequence", "8"}}, 2);
  int programs = 0;
  for (const PlannedModel* planned : {&mlp(), &gpt}) {
    const int layers = to_int(planned->model.layers.size());
    for (const ScheduleEntry& schedule : schedules()) {
      if (schedule.weights != Weights::Flushed && planned == &gpt) continue;  // it ties a parameter
      for (const std::vector<int>& replicas :
           std::vector<std::vector<int>>{{1}, {3}, {1, 1}, {2, 1}, {1, 2}, {3, 2}, {1, 1, 1}, {2, 3, 1}, {1, 2, 2}}) {
        for (const int microbatches : {1, 2, 5, 12}) {
          if (!testing::runs_one_stage_per_rank(schedule, replicas, microbatches)) continue;
          Plan plan =
              cut_plan(*planned, even_cuts(layers, to_int(replicas.size())), replicas, schedule.name, microbatches);
          if (microbatches == 2 && schedule.weights == Weights::Flushed) plan.sharding = StateSharding::Optimizer;
          if (microbatches == 12 && schedule.weights == Weights::Flushed) plan.sharding = StateSharding::Parameters;
          const channel::NcclProgram program = program_of(plan, planned->model, 4);
          EXPECT_EQ(channel::find_mismatch(program), "") << schedule.name;
          ++programs;
          for (std::size_t a = 0; a < program.communicators.size(); ++a) {
            for (std::size_t b = 0; b < a; ++b) {
              const channel::CommunicatorPlan& one = program.communicators[a];
              const channel::CommunicatorPlan& other = program.communicators[b];
              EXPECT_LE(other.round, one.round);
              if (one.round != other.round) continue;
              for (const int rank : one.ranks) EXPECT_EQ(std::ranges::count(other.ranks, rank), 0) << one.name;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(programs, 100);
}

TEST(NcclProgram, GroupsTheTensorsOfAMessageOnly) {
  // In the decoder, the encoder's output and the decoder's state cross together.
  const PlannedModel gnmt = planned_model(
      "gnmt",
      {{"layers", "2"}, {"hidden", "8"}, {"vocabulary", "16"}, {"source_sequence", "4"}, {"target_sequence", "4"}}, 2);
  int grouped = 0;
  for (int cut = 1; cut < to_int(gnmt.model.layers.size()); ++cut) {
    const Plan plan = cut_plan(gnmt, {cut}, {1, 1}, "gpipe", 2);
    const std::size_t tensors = plan.boundaries.at(0).tensors.size();
    const channel::NcclProgram program = program_of(plan, gnmt.model);
    std::size_t sends = 0;
    for (const channel::NcclCall& call : program.calls[0]) {
      if (call.kind != channel::NcclCall::Kind::Send) {
        EXPECT_FALSE(call.kind == channel::NcclCall::Kind::AllReduce && call.joins);
        continue;
      }
      EXPECT_EQ(call.joins, sends++ % tensors != 0) << "cut before layer " << cut;
      grouped += call.joins ? 1 : 0;
    }
    EXPECT_EQ(sends, 2 * tensors);
  }
  EXPECT_GT(grouped, 0);
}

TEST(NcclProgram, KeepsEachBucketsPlace) {
  Plan plan = cut_plan(mlp(), {}, {2}, "1f1b", 2);
  plan.gradient_bucket_bytes = Bytes(1000);
  const channel::NcclProgram program = program_of(plan, mlp().model);
  std::int64_t values = 0;
  for (const channel::NcclCall& call : program.calls[1]) {
    EXPECT_EQ(call.kind, channel::NcclCall::Kind::AllReduce);
    values += call.spec.shape[0];
  }
  EXPECT_GT(program.calls[1].size(), 2U);
  // After its gradients, a bucket says for each parameter how many replicas have one.
  std::size_t parameters = 0;
  for (const model::LayerSpec& layer : mlp().model.layers) parameters += layer.parameters.size();
  EXPECT_EQ(values, model::parameter_count(mlp().model) + to_int(parameters));
  EXPECT_EQ(program.communicators.size(), 1U);
  EXPECT_EQ(program.communicators[0].tags.size(), program.calls[1].size());
  EXPECT_EQ(program.reduction({0, 1}, program.calls[1].front().tag), 0);
  EXPECT_EQ(program.reduction({0, 2}, program.calls[1].front().tag), -1);
}

TEST(NcclProgram, ScattersGradientsAndGathersParametersWhereReplicasDivideTheState) {
  Plan plan = cut_plan(mlp(), {2}, {2, 1}, "1f1b", 2);
  plan.sharding = StateSharding::Optimizer;
  const auto collectives = [&] {
    const channel::NcclProgram program = program_of(plan, mlp().model);
    EXPECT_EQ(channel::find_mismatch(program), "");
    std::vector<std::string> out;
    for (const channel::NcclCall& call : program.calls[1])
      if (channel::is_collective(call.kind)) out.push_back(to_string(call));
    return out;
  };
  // A Linear with 12 x 16 weights and 16 biases: less than a block, so rank 0 updates the weights.
  const std::string bucket = " under tag " + std::to_string(channel::kBucketsTag);
  EXPECT_THAT(collectives(),
              ElementsAre("reduce-scatter of float32 [208] in parts of 192, 16" + bucket,
                          "all-reduce of float32 [2] under tag " + std::to_string(channel::kBucketsTag + 1),
                          "all-gather of float32 [208] in parts of 192, 16" + bucket));
  plan.dtype = "bfloat16";
  plan.types.parameters = StateType::Bfloat16;
  EXPECT_THAT(collectives(),
              ElementsAre("reduce-scatter of float32 [208] in parts of 192, 16" + bucket,
                          "all-reduce of float32 [2] under tag " + std::to_string(channel::kBucketsTag + 1),
                          "all-gather of bfloat16 [208] in parts of 192, 16" + bucket));
  plan.types.gradients = StateType::Bfloat16;
  EXPECT_THAT(collectives(),
              ElementsAre("reduce-scatter of bfloat16 [208] in parts of 192, 16" + bucket,
                          "all-reduce of bfloat16 [2] under tag " + std::to_string(channel::kBucketsTag + 1),
                          "all-gather of bfloat16 [208] in parts of 192, 16" + bucket));
}

}  // namespace
}  // namespace stagecraft::run

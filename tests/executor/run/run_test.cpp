#include "executor/run/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <thread>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "costmodel/interchange/chakra.h"
#include "costmodel/prediction/predict.h"
#include "executor/channel/channel_local.h"
#include "executor/channel/control_tags.h"
#include "executor/device/machine/processor.h"
#include "tests/support/channels/forwarding_channel.h"
#include "tests/support/models/closure_layers.h"
#include "tests/support/models/laid_out_model.h"
#include "tests/support/models/planned_models.h"

namespace stagecraft::run {
namespace {

using stagecraft::testing::cut_plan;
using stagecraft::testing::even_cuts;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;
using std::chrono::milliseconds;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using ::testing::ThrowsMessage;

RunOptions checked(std::int64_t steps, const std::string& optimizer = "sgd") {
  RunOptions options;
  options.steps = steps;
  options.check = true;
  options.optimizer.name = optimizer;
  options.optimizer.learning_rate = 0.01;
  options.optimizer.momentum = optimizer == "sgd" ? 0.9 : 0;
  return options;
}

void expect_bit_equal(const PlannedModel& planned, const Plan& plan, const RunOptions& options,
                      const std::string& what) {
  const RunResult result = run_local(plan, planned.model, *planned.data, options, milliseconds(60000));
  ASSERT_TRUE(result.check.has_value());
  EXPECT_GT(result.check->values, 0) << what;
  EXPECT_EQ(result.check->different, 0) << what << ", largest error " << result.check->largest_error;
  EXPECT_EQ(result.check->losses, options.steps * plan.microbatches) << what;
  EXPECT_EQ(result.check->losses_different, 0) << what;
}

TEST(Run, EqualsASingleProcessBitForBitForEveryScheduleAndReplicaVector) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "4"}}, 3);
  const int layers = to_int(planned.model.layers.size());
  for (const char* schedule : {"gpipe", "1f1b"}) {
    for (const std::vector<int>& replicas :
         std::vector<std::vector<int>>{{1}, {3}, {1, 1}, {2, 1}, {1, 2}, {3, 2}, {1, 1, 1}, {2, 3, 1}}) {
      for (const int microbatches : {1, 2, 5}) {
        const Plan plan =
            cut_plan(planned, even_cuts(layers, to_int(replicas.size())), replicas, schedule, microbatches);
        std::string what = std::string(schedule) + " M=" + std::to_string(microbatches) + " replicas";
        for (const int r : replicas) what += " " + std::to_string(r);
        expect_bit_equal(planned, plan, checked(2), what);
      }
    }
  }
}

TEST(Run, EqualsASingleProcessUnderEveryOptimizer) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "3"}}, 2);
  for (const char* optimizer : {"sgd", "adam", "adamw"}) {
    expect_bit_equal(planned, cut_plan(planned, {3}, {2, 1}, "1f1b", 3), checked(4, optimizer), optimizer);
  }
}

/// `plan` with recomputation in every stage, in segments of `every` layers; 0: the whole stage.
Plan recomputing(Plan plan, int every) {
  for (Stage& stage : plan.stages) {
    stage.recompute = true;
    stage.recompute_every = every;
  }
  return plan;
}

TEST(Run, EqualsASingleProcessWithTheBackwardInTwoParts) {
  for (const auto& [name, set] : std::vector<std::pair<std::string, std::map<std::string, std::string>>>{
           {"mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "4"}}},
           {"convnet", {{"channels", "4"}}},
           {"resnet18", {{"image", "32"}, {"channels", "4"}, {"classes", "10"}}},
           {"gpt", {{"layers", "2"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "32"}, {"sequence", "8"}}}}) {
    const PlannedModel planned = planned_model(name, set, 2);
    const int layers = to_int(planned.model.layers.size());
    for (const std::vector<int>& replicas : std::vector<std::vector<int>>{{1}, {1, 1}, {1, 1, 1}, {2, 1}, {1, 3}}) {
      const int stages = to_int(replicas.size());
      for (const int microbatches : {1, 2, 5}) {
        const Plan plan = cut_plan(planned, even_cuts(layers, stages), replicas, "zb-h1", microbatches);
        expect_bit_equal(planned, plan, checked(2),
                         name + " S=" + std::to_string(stages) + " of " + std::to_string(replicas.back()) +
                             " replicas, M=" + std::to_string(microbatches));
      }
    }
  }
}

TEST(Run, EqualsASingleProcessCutBetweenAnyOperatorsOfABuiltinModel) {
  const std::map<std::string, std::string> small{{"width", "8"},    {"heads", "2"},     {"vocabulary", "16"},
                                                 {"sequence", "4"}, {"layers", "1,op"}, {"dropout_percent", "30"}};
  std::map<std::string, std::string> dropped = small;
  dropped["attention_dropout_percent"] = "30";
  dropped["feedforward"] = "8";
  for (const auto& [name, set] : {std::pair("gpt", small), std::pair("transformer", dropped)}) {
    const PlannedModel planned = planned_model(name, set, 2);
    for (int cut = 1; cut < to_int(planned.model.layers.size()); ++cut) {
      const Plan plan = cut_plan(planned, {cut}, {1, 1}, "1f1b", 2);
      expect_bit_equal(planned, plan, checked(2), std::string(name) + " cut at " + std::to_string(cut));
    }
  }
}

TEST(Run, EqualsASingleProcessWithSeveralStagesOnARank) {
  for (const auto& [name, set] : std::vector<std::pair<std::string, std::map<std::string, std::string>>>{
           {"mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "5"}}},
           {"gpt", {{"layers", "3"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "32"}, {"sequence", "8"}}}}) {
    const PlannedModel planned = planned_model(name, set, 2);
    const int layers = to_int(planned.model.layers.size());
    for (const ScheduleEntry& schedule : schedules()) {
      if (!schedule.chunked || schedule.needs_lists) continue;
      int compared = 0;
      for (const auto& [positions, chunks, replicas, microbatches] : std::vector<std::array<int, 4>>{
               {1, 2, 1, 3}, {2, 2, 1, 2}, {2, 2, 1, 6}, {2, 3, 1, 4}, {3, 2, 1, 6}, {1, 2, 2, 5}, {2, 2, 2, 8}}) {
        const int stages = positions * chunks;
        if (stages > layers) continue;
        // A rank sums a tied parameter's gradients over its stages before the ranks do, the reference the other way
        // round.
        if (replicas > 1 && name == "gpt") continue;
        const std::vector<int> all(to_index(stages), replicas);
        Plan plan;
        try {
          plan = cut_plan(planned, even_cuts(layers, stages), all, schedule.name, microbatches, chunks);
        } catch (const std::invalid_argument&) { continue; }  // the schedule cannot run this shape
        const std::string what = name + " " + schedule.name + " " + std::to_string(positions) + " positions of " +
                                 std::to_string(replicas) + " ranks with " + std::to_string(chunks) +
                                 " stages, M=" + std::to_string(microbatches);
        expect_bit_equal(planned, plan, checked(2), what);
        if (schedule.splits_backward)
          expect_bit_equal(planned, recomputing(plan, 0), checked(1), what + ", recomputed");
        ++compared;
      }
      EXPECT_GT(compared, 2) << schedule.name;
    }
  }
}

TEST(Run, ClipsByTheWholeModelsNormUnderEveryPlan) {
  const PlannedModel planned = planned_model(
      "gpt", {{"layers", "2"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "32"}, {"sequence", "8"}}, 2);
  const int layers = to_int(planned.model.layers.size());
  RunOptions options = checked(4);
  options.optimizer.clip_norm = 0.05;  // far below the gradient's norm
  options.optimizer.rate = {.name = "cosine", .warmup = 2, .steps = 4, .last = 0.1};
  for (const std::vector<int>& replicas : std::vector<std::vector<int>>{{1}, {1, 1}, {2, 1}, {1, 2, 1}}) {
    const Plan plan = cut_plan(planned, even_cuts(layers, to_int(replicas.size())), replicas, "1f1b", 4);
    expect_bit_equal(planned, plan, options, std::to_string(replicas.size()) + " stages");
  }
}

TEST(Run, MeasuresTimelinesThatBecomeChakraTraces) {
  const PlannedModel mlp = planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "4"}}, 3);
  const PlannedModel gpt = planned_model(
      "gpt", {{"layers", "2"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "32"}, {"sequence", "8"}}, 2);
  const int half = to_int(gpt.model.layers.size()) / 2;
  const std::vector<std::pair<const PlannedModel*, Plan>> runs{{&mlp, cut_plan(mlp, {4}, {2, 1}, "1f1b", 5)},
                                                               {&gpt, cut_plan(gpt, {half}, {2, 1}, "gpipe", 3)}};
  for (const auto& [planned, plan] : runs) {
    RunOptions options;
    options.steps = 2;
    const RunResult result = run_local(plan, planned->model, *planned->data, options, milliseconds(60000));
    const interchange::ChakraTrace trace =
        interchange::chakra_trace(result.measurement.timeline, BoundPlan(plan), planned->graph);
    std::size_t nodes = 0;
    for (const std::vector<interchange::ChakraNode>& rank : trace.ranks) {
      nodes += rank.size();
      for (const interchange::ChakraNode& node : rank) {
        for (const auto* ids : {&node.control_dependencies, &node.data_dependencies}) {
          for (const std::uint64_t id : *ids) EXPECT_LE(rank.at(id).start_us + rank.at(id).duration_us, node.start_us);
        }
      }
    }
    // The replicated stage of gpt reduces among its replicas and with the holder of the tied embedding: one more node
    // on each of two ranks in each of two steps.
    const std::size_t extra = planned == &gpt ? 2 * 2 : 0;
    EXPECT_EQ(nodes, result.measurement.timeline.spans.size() + extra);
    EXPECT_EQ(trace.groups.size(), planned == &gpt ? 2U : 1U);
  }
}

TEST(Run, CarriesResidualsDropoutAndBatchNormAcrossStages) {
  const PlannedModel convnet = planned_model("convnet", {}, 4);
  const int n = to_int(convnet.model.layers.size());
  expect_bit_equal(convnet, cut_plan(convnet, {n / 3, 2 * n / 3}, {1, 1, 1}, "1f1b", 4), checked(2), "convnet");
  const PlannedModel gpt = planned_model(
      "gpt", {{"layers", "2"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "32"}, {"sequence", "8"}}, 2);
  // The embedding and the head share a parameter across the two stages.
  expect_bit_equal(gpt, cut_plan(gpt, {to_int(gpt.model.layers.size()) / 2}, {1, 1}, "1f1b", 3), checked(3), "gpt");
  expect_bit_equal(gpt, cut_plan(gpt, {to_int(gpt.model.layers.size()) / 2}, {2, 1}, "1f1b", 3), checked(2),
                   "gpt replicated");
  const PlannedModel transformer = planned_model("transformer",
                                                 {{"layers", "2"},
                                                  {"width", "16"},
                                                  {"heads", "2"},
                                                  {"vocabulary", "32"},
                                                  {"sequence", "8"},
                                                  {"feedforward", "32"}},
                                                 2);
  expect_bit_equal(transformer, cut_plan(transformer, {2}, {1, 2}, "gpipe", 3), checked(2), "transformer");
}

TEST(Run, TiedParametersInOneStageEqualASingleProcess) {
  const PlannedModel gpt = planned_model(
      "gpt", {{"layers", "1"}, {"width", "8"}, {"heads", "2"}, {"vocabulary", "16"}, {"sequence", "4"}}, 2);
  expect_bit_equal(gpt, cut_plan(gpt, {}, {1}, "1f1b", 2), checked(2), "gpt in one stage");
  expect_bit_equal(gpt, cut_plan(gpt, {}, {2}, "1f1b", 3), checked(2), "gpt replicated in one stage");
}

/// Counts the values in a rank's sums of gradients.
class CountingSums : public testing::ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  [[nodiscard]] std::int64_t values() const { return values_; }

 protected:
  std::unique_ptr<channel::CollectiveInProgress> begin(const channel::CollectiveCall& call) override {
    if (call.tag >= channel::kTiesTag) values_ += call.values.numel();
    return ForwardingChannel::begin(call);
  }

 private:
  std::int64_t values_ = 0;
};

TEST(Run, SumsATiedParameterOfAStageOnceAsPredicted) {
  const PlannedModel gpt = planned_model(
      "gpt", {{"layers", "1"}, {"width", "8"}, {"heads", "2"}, {"vocabulary", "16"}, {"sequence", "4"}}, 2);
  std::set<std::string> names;
  for (const model::LayerSpec& layer : gpt.model.layers)
    for (const model::ParameterSpec& parameter : layer.parameters) names.insert(parameter.name);
  const std::int64_t values = model::parameter_count(gpt.model);
  for (const std::optional<Bytes> bucket : {std::optional<Bytes>(), std::optional(Bytes(512))}) {
    Plan plan = cut_plan(gpt, {}, {2}, "1f1b", 2);
    plan.gradient_bucket_bytes = bucket;
    const BoundPlan bound_plan(plan);
    const BoundModel bound = bind_model(bound_plan, gpt.model);

    const auto prediction = std::get<Prediction>(predict(gpt.graph, testing::flat_topology(2), bound_plan));
    Bytes predicted;
    const interchange::ChakraTrace trace = interchange::chakra_trace(prediction.timeline, bound_plan, gpt.graph);
    for (const interchange::ChakraNode& node : trace.ranks[0])
      if (node.kind == interchange::ChakraKind::AllReduce) predicted += node.bytes;
    EXPECT_EQ(predicted.value, 4 * values);

    const auto channels = channel::make_local_channels(2, milliseconds(20000));
    RunOptions options;
    options.steps = 1;
    const auto run = [&](int rank, channel::Channel& channel) {
      return run_rank(bound, *gpt.data, options, rank, channel, [] { return 0.0; });
    };
    std::jthread peer([&] { (void)run(1, *channels[1]); });
    CountingSums counting(*channels[0]);
    (void)run(0, counting);
    // Each parameter has one more value, which says whether it has a gradient.
    EXPECT_EQ(counting.values(), values + to_int(names.size()));
  }
}

TEST(Run, TrainsParametersOfAnyLayoutAsItTrainsContiguousOnes) {
  for (const auto& [name, set] : std::vector<std::pair<std::string, std::map<std::string, std::string>>>{
           {"convnet", {{"channels", "4"}}},
           {"gpt", {{"layers", "2"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "32"}, {"sequence", "8"}}}}) {
    const PlannedModel plain = planned_model(testing::contiguous_model(intake::build_model(name, set)), 2);
    const PlannedModel planned = planned_model(testing::laid_out_model(intake::build_model(name, set)), 2);
    const int layers = to_int(planned.model.layers.size());
    for (const char* optimizer : {"sgd", "adam", "adamw"}) {
      for (const std::vector<int>& replicas : std::vector<std::vector<int>>{{1}, {2}, {2, 1}, {1, 2}}) {
        const Plan plan = cut_plan(planned, even_cuts(layers, to_int(replicas.size())), replicas, "1f1b", 4);
        const std::string what = name + " " + optimizer + " first of " + std::to_string(replicas.size()) +
                                 " stages on " + std::to_string(replicas.front());
        const RunOptions options = checked(4, optimizer);
        expect_bit_equal(planned, plan, options, what);
        const auto losses = [&](const PlannedModel& model) {
          return run_local(plan, model.model, *model.data, options, milliseconds(60000)).measurement.losses;
        };
        // Kernels may add in a different order.
        EXPECT_THAT(losses(planned), Pointwise(DoubleNear(1e-5F), losses(plain))) << what;
      }
    }
  }
}

/// conv, batch norm, two axes swapped, then per position layer norm or a sum over positions. The backward of a swap
/// gives gradients another layout than the values have, that of a sum repeats them, and batch norm's kernels differ by
/// layout.
model::Model swapped_axes(bool sums) {
  using model::LayerCall;
  model::Model model;
  const model::ValueRef x = model::append(model, model::ModelInput{"x", "float32", {3, 9, 7}});
  const model::ValueRef images =
      testing::closure_batch_norm2d(model, "norm", testing::closure_conv2d(model, "conv", x, 3, 8), 8);
  const auto layer = [&](const std::string& name, model::ValueRef in, auto forward) {
    return testing::closure_layer(model, name, in, {},
                                  [forward](const LayerCall& call) { return forward(call.inputs[0]); });
  };
  model::ValueRef y = layer("swap", images, [](const at::Tensor& v) { return v.flatten(2).transpose(1, 2); });
  y = sums ? layer("sum", y, [](const at::Tensor& v) { return v.sum(1); })
           : testing::closure_layer_norm(model, "each", y, 8);
  y = testing::closure_linear(model, "last", y, 8, 8);
  layer("loss", y, [](const at::Tensor& v) { return v.pow(3).mean(); });
  return model;
}

TEST(Run, HandsOverTheLayoutsOfAnUnsplitBackward) {
  for (const bool sums : {false, true}) {
    const PlannedModel planned = planned_model(swapped_axes(sums), 4);
    for (int cut = 1; cut < to_int(planned.model.layers.size()); ++cut) {
      for (const bool recomputes : {false, true}) {
        Plan plan = cut_plan(planned, {cut}, {1, 1}, "1f1b", 3);
        if (recomputes) plan = recomputing(std::move(plan), 1);
        expect_bit_equal(planned, plan, checked(3), (sums ? "sum cut at " : "norm cut at ") + std::to_string(cut));
      }
    }
  }
}

TEST(Run, RecomputationChangesNothingForAnySegmentsAndReplicas) {
  const PlannedModel mlp = planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "4"}}, 3);
  for (const std::vector<int>& replicas :
       std::vector<std::vector<int>>{{1}, {3}, {1, 1}, {2, 1}, {1, 2}, {3, 2}, {1, 1, 1}, {2, 3, 1}}) {
    const int layers = to_int(mlp.model.layers.size());
    const Plan plan = cut_plan(mlp, even_cuts(layers, to_int(replicas.size())), replicas, "1f1b", 5);
    for (const int every : {0, 1, 2, 100})
      expect_bit_equal(mlp, recomputing(plan, every), checked(2), "mlp every " + std::to_string(every));
  }
}

TEST(Run, RecomputationChangesNothingWithSkipsDropoutAndBatchNorm) {
  for (const auto& [name, set] : std::vector<std::pair<std::string, std::map<std::string, std::string>>>{
           {"convnet", {{"channels", "4"}}},
           {"resnet18", {{"image", "32"}, {"channels", "4"}, {"classes", "10"}}},
           {"gpt", {{"layers", "2"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "32"}, {"sequence", "8"}}},
           {"gnmt",
            {{"hidden", "8"},
             {"layers", "3"},
             {"vocabulary", "16"},
             {"source_sequence", "5"},
             {"target_sequence", "4"}}}}) {
    const PlannedModel planned = planned_model(name, set, 2);
    const int layers = to_int(planned.model.layers.size());
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      for (const int every : {0, 1, 2, 3, 5}) {
        const Plan plan = cut_plan(planned, even_cuts(layers, 2), {1, 1}, schedule, 3);
        expect_bit_equal(planned, recomputing(plan, every), checked(2),
                         name + " " + schedule + " every " + std::to_string(every));
        const Plan one = cut_plan(planned, {}, {1}, schedule, 2);
        expect_bit_equal(planned, recomputing(one, every), checked(1),
                         name + " in one stage, every " + std::to_string(every));
      }
    }
  }
}

TEST(Run, AddsTheGradientsOfAValueAsOneProcessDoesHoweverManyStagesReadIt) {
  // Every layer of the decoder reads the attention's context.
  const PlannedModel planned = planned_model(
      "gnmt",
      {{"hidden", "8"}, {"layers", "5"}, {"vocabulary", "16"}, {"source_sequence", "5"}, {"target_sequence", "4"}}, 2);
  const int layers = to_int(planned.model.layers.size());
  bool passed_on = false;
  for (const int stages : {2, 3, 5}) {
    const std::vector<int> one_each(to_index(stages), 1);
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      const Plan plan = cut_plan(planned, even_cuts(layers, stages), one_each, schedule, 2);
      const std::string what = std::to_string(stages) + " stages, " + schedule;
      expect_bit_equal(planned, plan, checked(1), what);
      expect_bit_equal(planned, recomputing(plan, 1), checked(1), what + ", recomputed");
      for (const Boundary& boundary : plan.boundaries) {
        for (const BoundaryTensor& tensor : boundary.tensors) {
          const std::vector<std::string>& produced = plan.stages[to_index(boundary.source)].layers;
          passed_on = passed_on || std::ranges::find(produced, tensor.layer) == produced.end();
        }
      }
    }
  }
  EXPECT_TRUE(passed_on) << "no plan passes a value on";
}

TEST(Run, RecomputationHoldsLessMemoryAndInSegmentsLessAgain) {
  // Twelve linear layers, each with its relu; an activation of one microbatch has 512 * 64 floats.
  const PlannedModel planned = planned_model("mlp", {{"inputs", "64"}, {"width", "64"}, {"layers", "12"}}, 512);
  constexpr std::int64_t kValue = 512 * 64 * 4;
  const auto peak = [&](const Plan& plan) {
    RunOptions options;
    options.steps = 2;
    return run_local(plan, planned.model, *planned.data, options, milliseconds(60000))
        .measurement.timeline.memory.front()
        .total.value;
  };
  // Each microbatch in flight keeps the outputs of eleven relus. With recomputation only one does, and its backward
  // adds at most two gradients.
  const Plan three_in_flight = cut_plan(planned, {}, {1}, "gpipe", 3);
  EXPECT_GT(peak(three_in_flight) - peak(recomputing(three_in_flight, 0)), (2 * 11 - 2) * kValue);
  // Of the relus' outputs, segments of four layers keep the five that cross and two of the segment being recomputed.
  const Plan one_in_flight = cut_plan(planned, {}, {1}, "gpipe", 1);
  EXPECT_GT(peak(recomputing(one_in_flight, 0)) - peak(recomputing(one_in_flight, 4)), 3 * kValue);
}

/// The samples of step 0 in every step.
class SameSamples : public data::DataSource {
 public:
  explicit SameSamples(const data::DataSource& data) : data_(data) {}
  std::vector<at::Tensor> batch(std::int64_t, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    return data_.batch(0, microbatch, microbatches, samples, inputs);
  }

 private:
  const data::DataSource& data_;
};

// A small step against the gradient of the same samples makes their loss smaller.
TEST(Run, TheLossFallsAndDoesNotDependOnThePlan) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "8"}, {"width", "32"}, {"layers", "3"}}, 4);
  RunOptions options;
  options.steps = 5;
  options.optimizer.learning_rate = 0.1;
  const SameSamples data(*planned.data);
  const auto one = run_local(cut_plan(planned, {}, {1}, "gpipe", 4), planned.model, data, options, milliseconds(60000));
  const auto two =
      run_local(cut_plan(planned, {3}, {1, 1}, "1f1b", 4), planned.model, data, options, milliseconds(60000));
  const std::vector<double>& losses = one.measurement.losses;
  EXPECT_EQ(losses, two.measurement.losses);
  ASSERT_EQ(losses.size(), 5u);
  for (std::size_t step = 1; step < losses.size(); ++step) EXPECT_LT(losses[step], losses[step - 1]) << step;
}

/// Delays the first stage's microbatch 1 for longer than kHurry.
class LateData : public data::DataSource {
 public:
  static constexpr milliseconds kHurry{600};
  explicit LateData(const data::DataSource& data) : data_(data) {}
  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    if (microbatch == 1 && std::ranges::count(inputs, 0) > 0) std::this_thread::sleep_for(2 * kHurry);
    return data_.batch(step, microbatch, microbatches, samples, inputs);
  }

 private:
  const data::DataSource& data_;
};

TEST(Run, ReportsWhatEachRankDoesAfterAMissedDeadline) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "12"}, {"width", "16"}}, 3);
  try {
    (void)run_local(cut_plan(planned, {3}, {1, 1}, "gpipe", 2), planned.model, LateData(*planned.data), RunOptions{},
                    LateData::kHurry);
    FAIL() << "rank 0 does not send in time";
  } catch (const meeting::PeerError& error) {
    EXPECT_EQ(error.cause(), meeting::PeerError::Cause::Deadline);
    EXPECT_THAT(error.what(),
                ::testing::MatchesRegex("rank 1, stage 1, forward of microbatch 1: rank 1 waited [0-9]+\\.[0-9] s for "
                                        "a tensor from rank 0 under tag 0\n"
                                        "  rank 0: forward of microbatch 1 of stage 0 in step 1 for [0-9]+\\.[0-9] s\n"
                                        "  rank 1: forward of microbatch 1 of stage 1 in step 1, waiting for rank 0 "
                                        "under tag 0 for [0-9]+\\.[0-9] s"));
  }
}

/// A rank's channel that announces a wrong length of its result.
class Boasting : public testing::ForwardingChannel {
 public:
  Boasting(channel::Channel& channel, std::int64_t length) : ForwardingChannel(channel), length_(length) {}
  std::unique_ptr<channel::Sending> send(const at::Tensor& tensor, int to, int tag) override {
    if (tag != channel::kLengthTag) return ForwardingChannel::send(tensor, to, tag);
    at::Tensor length = tensor.clone();
    *length.data_ptr<std::int64_t>() = length_;
    return ForwardingChannel::send(length, to, tag);
  }

 private:
  std::int64_t length_;
};

TEST(Run, TakesNoResultThatIsLongerThanThePlanCanGive) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "12"}, {"width", "16"}}, 3);
  const Plan plan = cut_plan(planned, {3}, {1, 1}, "1f1b", 2);
  const BoundPlan bound_plan(plan);
  const BoundModel bound = bind_model(bound_plan, planned.model);
  // 1 MiB; for each of 64 kept steps, 512 bytes per span (each rank's list has 2 forwards, 2 backwards, 2 sends, 2
  // receives and an update; 2 microbatches may wait at 1 boundary in both directions; 2 stages); and 256 bytes for the
  // time of each of 10 steps and of each kept step.
  const std::int64_t most = (1 << 20) + 64 * 512 * (9 + 4 + 2) + 256 * (10 + 64);
  for (const std::int64_t length : {std::int64_t{-1}, most + 1, std::int64_t{1} << 60}) {
    const auto channels = channel::make_local_channels(2, milliseconds(20000));
    const auto run = [&](int rank, channel::Channel& channel) {
      return run_rank(bound, *planned.data, RunOptions{}, rank, channel, [] { return 0.0; });
    };
    std::jthread peer([&] {
      Boasting boasting(*channels[1], length);
      (void)run(1, boasting);
    });
    EXPECT_THAT([&] { (void)run(0, *channels[0]); },
                ThrowsMessage<meeting::PeerError>("rank 1 announces a result of " + std::to_string(length) +
                                                  " bytes, the plan allows at most " + std::to_string(most)));
  }
}

TEST(Run, RecordsTheMachinesConditions) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "3"}}, 2);
  RunOptions options;
  options.steps = 2;
  options.threads = 1;
  // Over a shorter time, a run does not trust the counters of processor time.
  options.save = [](const Measurement& sofar) {
    EXPECT_EQ(sofar.conditions, Conditions{});
    std::this_thread::sleep_for(std::chrono::duration<double>(device::kShortestUse.value));
  };
  const Measurement measured =
      run_local(cut_plan(planned, {3}, {1, 1}, "1f1b", 2), planned.model, *planned.data, options, milliseconds(60000))
          .measurement;
  ASSERT_TRUE(measured.conditions.yardstick);
  EXPECT_EQ(measured.conditions.yardstick->works.size(), 2U);
  for (const YardstickTimes& times : measured.conditions.yardstick->works) EXPECT_EQ(times.readings, 2) << times.work;
  if (!device::processor_moment().machine) GTEST_SKIP() << "no /proc/stat";
  ASSERT_EQ(measured.conditions.hosts.size(), 1U);
  EXPECT_GT(measured.conditions.hosts.front().ours, 0);
}

TEST(Run, RefusesAPlanOfAnotherModel) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "8"}, {"width", "8"}, {"layers", "2"}}, 2);
  const Plan plan = cut_plan(planned, {1}, {1, 1}, "1f1b", 2);
  const model::Model other = intake::build_model("mlp", {{"inputs", "8"}, {"width", "8"}, {"layers", "3"}});
  EXPECT_THAT([&] { (void)run_local(plan, other, *planned.data, {}, milliseconds(5000)); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("is not in any stage of the plan")));
}

TEST(Run, NamesRankActionAndShapesOfATensorThatThePlanDoesNotExpect) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "8"}, {"width", "8"}, {"layers", "2"}}, 2);
  Plan plan = cut_plan(planned, {2}, {1, 1}, "1f1b", 2);
  plan.boundaries[0].tensors[0].shape = {2, 9};
  EXPECT_THAT(
      [&] { (void)run_local(plan, planned.model, *planned.data, {}, milliseconds(5000)); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("rank 0, stage 0, send-activation of microbatch 0: layer")));
}

}  // namespace
}  // namespace stagecraft::run

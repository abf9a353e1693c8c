#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>

#include <chrono>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/gradient_sums.h"
#include "costmodel/index.h"
#include "costmodel/prediction/memory_replay.h"
#include "executor/run/run.h"
#include "executor/run/worker/synchronous_worker.h"
#include "tests/support/channels/ranks.h"
#include "tests/support/models/closure_layers.h"
#include "tests/support/models/finite_data.h"
#include "tests/support/models/laid_out_model.h"
#include "tests/support/models/planned_models.h"

// Replicas that divide the state of training among them (Plan::sharding) train with the bits of replicas that do not.

namespace stagecraft::run {
namespace {

using stagecraft::testing::cut_plan;
using stagecraft::testing::even_cuts;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;

constexpr int kSteps = 3;
constexpr std::chrono::milliseconds kDeadline{60000};

/// "odd" has a gradient in odd microbatches only, so with two replicas on one of them; "never" has none. Another
/// parameter has no values.
model::Model with_missing_gradients() {
  using model::LayerCall;
  model::Model model;
  model::ValueRef x = model::append(model, model::ModelInput{"x", "float32", {40}});
  x = testing::closure_linear(model, "first", x, 40, 40);
  x = testing::closure_layer(model, "odd", x, {model::uniform("odd", {40, 40}, 0.1)}, [](const LayerCall& call) {
    return call.microbatch % 2 == 1 ? call.inputs[0].matmul(call.parameters[0]) : call.inputs[0].mul(2);
  });
  x = testing::closure_layer(model, "never", x, {model::ones("never", {1500}), model::ones("none", {0})},
                             [](const LayerCall& call) { return call.inputs[0].add(call.parameters[1].sum()); });
  x = testing::closure_linear(model, "last", x, 40, 30);
  testing::closure_layer(model, "loss", x, {}, [](const LayerCall& call) { return call.inputs[0].pow(2).mean(); });
  return model;
}

struct Case {
  const PlannedModel* planned = nullptr;
  Plan plan;
  stage::OptimizerOptions optimizer;
  std::optional<int> infinite_step;  ///< in which an input of microbatch 0 is infinite; all ranks then skip the step
  std::string what;
};

/// The samples of `data`, but for the infinite one.
class CaseData : public data::DataSource {
 public:
  explicit CaseData(const Case& c) : case_(c) {}
  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    std::vector<at::Tensor> out = case_.planned->data->batch(step, microbatch, microbatches, samples, inputs);
    if (step != case_.infinite_step || microbatch != 0) return out;
    for (at::Tensor& input : out) {
      if (input.is_floating_point()) input.fill_(std::numeric_limits<float>::infinity());
    }
    return out;
  }

 private:
  const Case& case_;
};

/// By "rank 0, step 1, gradient of NAME": all that a training has made.
using Made = std::map<std::string, at::Tensor>;

Made train(const Case& c, const Plan& plan, const std::string& channels) {
  const BoundPlan bound_plan(plan);
  const BoundModel bound = bind_model(bound_plan, c.planned->model);
  const CaseData data(c);
  Made out;
  std::mutex mutex;
  run_on_ranks(channels, to_int(bound_plan.ranks().size()), kDeadline, [&](channel::Channel& channel) {
    SynchronousWorker worker(bound, channel.rank(), channel, data, {.optimizer = c.optimizer, .steps = kSteps});
    worker.on_nonfinite(c.infinite_step ? stage::OnNonfinite::Skip : stage::OnNonfinite::Stop, nullptr);
    if (plan.dtype == "float16") worker.scale_loss(stage::LossScaler({.first = 0x1p20}));  // overflows at first
    Made made;
    const auto note = [&](const std::string& what, const at::Tensor& tensor) {
      if (tensor.defined()) made["rank " + std::to_string(channel.rank()) + ", " + what] = tensor.detach().clone();
    };
    for (int step = 0; step < kSteps; ++step) {
      const std::string when = "step " + std::to_string(step) + ", ";
      worker.compute(step);
      for (const auto& [microbatch, loss] : worker.take_losses(step))
        note(when + "loss of microbatch " + std::to_string(microbatch), at::scalar_tensor(loss, at::kDouble));
      if (step % 2 == 0) {
        worker.gather_gradients();
        for (const stage::Parameter& parameter : worker.parameters())
          note(when + "gradient of " + parameter.name, parameter.value.grad());
      }
      worker.update_step(step);
      if (const auto norm = worker.take_gradient_norm(step)) note(when + "norm", at::scalar_tensor(*norm, at::kDouble));
      worker.gather_parameters();
      for (const stage::Parameter& parameter : worker.parameters()) note(when + parameter.name, parameter.value);
      worker.free_parameters();
    }
    if (const stage::LossScaler* const scaler = worker.loss_scaler())
      note("loss scale", at::scalar_tensor(scaler->scale(), at::kDouble));
    const std::map<std::string, at::Tensor> gathered = worker.gather_averages();
    worker.visit_stages([&](int, stage::StageProgram& program, stage::Optimizer& optimizer) {
      for (std::size_t i = 0; i < program.parameters().size(); ++i) {
        const std::string& name = program.parameters()[i].name;
        const auto found = gathered.find(name);
        note("average of " + name, found != gathered.end() ? found->second : optimizer.state(i).average);
      }
    });
    channel.barrier();
    const std::lock_guard lock(mutex);
    out.merge(made);
  });
  return out;
}

/// Equal to the bit: NaN equals itself.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bits = [](const at::Tensor& t) {
    return t.view(t.element_size() == 8 ? at::kLong : t.element_size() == 4 ? at::kInt : at::kShort);
  };
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && at::equal(bits(a), bits(b));
}

/// Whether the replicas of each stage have equally many microbatches.
bool shares_are_equal(const Plan& plan) {
  return std::ranges::all_of(plan.stages,
                             [&](const Stage& stage) { return plan.microbatches % to_int(stage.devices.size()) == 0; });
}

void expect_same_training(const Case& c, const Made& expected, StateSharding sharding, const std::string& channels) {
  Plan divided = c.plan;
  divided.sharding = sharding;
  const Made found = train(c, divided, channels);
  SCOPED_TRACE(to_string(sharding));
  for (const auto& [what, tensor] : found) EXPECT_TRUE(expected.contains(what)) << c.what << ": " << what;
  for (const auto& [what, tensor] : expected) {
    const auto it = found.find(what);
    ASSERT_NE(it, found.end()) << c.what << ": " << what << " is missing";
    ASSERT_TRUE(same_bits(it->second, tensor)) << c.what << ": " << what;
  }
}

void expect_same_training(const Case& c, const std::string& channels) {
  const Made expected = train(c, c.plan, "local");
  for (const StateSharding sharding : {StateSharding::Optimizer, StateSharding::Gradients, StateSharding::Parameters}) {
    if (sharding == StateSharding::Parameters && !shares_are_equal(c.plan)) continue;
    expect_same_training(c, expected, sharding, channels);
  }
}

/// With parameters of several blocks, tied ones, moving statistics, other layouts and missing gradients.
const std::vector<PlannedModel>& models() {
  static const std::vector<PlannedModel> all = [] {
    const std::map<std::string, std::string> gpt{
        {"layers", "1"}, {"width", "24"}, {"heads", "2"}, {"vocabulary", "64"}, {"sequence", "8"}};
    std::vector<PlannedModel> out;
    out.push_back(planned_model("mlp", {{"inputs", "30"}, {"width", "50"}, {"layers", "4"}}, 2));
    out.push_back(planned_model("gpt", gpt, 2));
    out.push_back(planned_model(testing::laid_out_model(intake::build_model("convnet", {{"channels", "8"}})), 2));
    out.push_back(planned_model(with_missing_gradients(), 2));
    out.push_back(planned_model("gpt", gpt, 2, at::kHalf));
    constexpr auto kBfloat16 = StateType::Bfloat16;
    for (const StateTypes& types : {StateTypes{.parameters = kBfloat16}, StateTypes{.moments = kBfloat16},
                                    StateTypes{kBfloat16, kBfloat16, kBfloat16}}) {
      out.push_back(planned_model("gpt", gpt, 2, at::kBFloat16, types));
      out.push_back(planned_model(with_missing_gradients(), 2, at::kBFloat16, types));
    }
    return out;
  }();
  return all;
}

/// A random model, pipeline and optimizer.
Case random_case(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  const auto chance = [&] { return below(2) == 0; };
  Case out;
  const std::size_t model = below(models().size());
  out.planned = &models()[model];
  const std::vector<std::vector<int>> replicas{{2}, {3}, {4}, {2, 1}, {1, 2}, {2, 2}, {2, 3}, {1, 2, 1}};
  const std::vector<int>& drawn = replicas[below(replicas.size())];
  const int microbatches = 1 + to_int(below(5));
  const std::string schedule = chance() ? "gpipe" : "1f1b";
  out.plan = cut_plan(*out.planned, even_cuts(to_int(out.planned->model.layers.size()), to_int(drawn.size())), drawn,
                      schedule, microbatches);
  if (chance()) out.plan.gradient_bucket_bytes = Bytes(static_cast<std::int64_t>(1 + below(20000)));
  if (chance()) {
    for (Stage& stage : out.plan.stages) stage.recompute = true;
  }
  stage::OptimizerOptions& o = out.optimizer;
  o.name = stage::optimizer_names()[seed % stage::optimizer_names().size()];
  o.learning_rate = 0.01;
  o.weight_decay = chance() ? 0.1 : 0;
  if (o.name == "sgd" || o.name == "rmsprop") o.momentum = chance() ? 0.9 : 0;
  if (o.name == "sgd" && o.momentum != 0) o.nesterov = chance();
  if (o.name == "adam" || o.name == "adamw") o.amsgrad = chance();
  if (o.name == "rmsprop") o.centered = chance();
  if (chance()) o.ema_decay = 0.9;
  if (chance()) o.clip_norm = 0.01;
  if (chance()) o.groups = {{.pattern = "bias", .weight_decay = 0, .rate_factor = 2}};
  if (model == 0 && chance()) out.infinite_step = 1;
  out.what = "seed " + std::to_string(seed) + ", model " + std::to_string(model) + ", " + schedule + ", " + o.name +
             (o.clip_norm > 0 ? " clipped" : "") + ", " + std::to_string(microbatches) + " microbatches, replicas";
  for (const int r : drawn) out.what += " " + std::to_string(r);
  return out;
}

/// Breadth-first, which gathers each stage at most twice, and other schedules of several stages on a rank.
Case random_chunked_case(unsigned seed) {
  Case out = random_case(seed);
  std::mt19937 random(seed + 1);
  const auto below = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  const std::vector<std::string> names{"looped-bfs",     "looped-bfs", "interleaved-1f1b",
                                       "interleaved-zb", "zb-v",       "v-half"};
  const std::string schedule = names[below(names.size())];
  const int replicas = 2 + to_int(below(2));
  const int chunks = runs_chunks(schedule_by_name(schedule), 3) ? 2 + to_int(below(2)) : 2;
  const int positions = chunks == 2 && below(2) == 0 ? 2 : 1;
  const int layers = to_int(out.planned->model.layers.size());
  const int stages = std::min(positions * chunks, layers / positions * positions);
  const std::optional<Bytes> buckets = out.plan.gradient_bucket_bytes;
  const bool recomputes = out.plan.stages.front().recompute;
  out.plan = cut_plan(*out.planned, even_cuts(layers, stages), std::vector<int>(to_index(stages), replicas), schedule,
                      replicas * positions * (1 + to_int(below(2))), stages / positions);
  out.plan.gradient_bucket_bytes = buckets;
  for (Stage& stage : out.plan.stages) stage.recompute = recomputes;
  out.what = "chunked " + out.what + "; " + schedule + ", " + std::to_string(positions) + " positions, " +
             std::to_string(chunks) + " chunks, " + std::to_string(replicas) + " replicas";
  return out;
}

class DividedState : public ::testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Seeds, DividedState, ::testing::Range(0U, 10U));

TEST_P(DividedState, TrainsWithTheSameBitsUnderEveryOptimizer) {
  for (unsigned seed = 20 * GetParam(); seed < 20 * (GetParam() + 1) && !HasFailure(); ++seed)
    expect_same_training(random_case(seed), "local");
}

TEST_P(DividedState, TrainsWithTheSameBitsInSeveralStagesOnARank) {
  for (unsigned seed = 6 * GetParam(); seed < 6 * (GetParam() + 1) && !HasFailure(); ++seed)
    expect_same_training(random_chunked_case(seed), "local");
}

class DividedStateOverChannels : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Channels, DividedStateOverChannels, ::testing::ValuesIn(suite_channels()),
                         [](const auto& entry) { return entry.param; });

TEST_P(DividedStateOverChannels, TrainsWithTheSameBits) {
  for (unsigned seed = 1000; seed < 1010 && !HasFailure(); ++seed) {
    expect_same_training(random_case(seed), GetParam());
    if (seed % 3 == 0) expect_same_training(random_chunked_case(seed), GetParam());
  }
}

TEST(DividedStateOfARun, IsWholeInChecksAndValidations) {
  for (const std::size_t model : {0U, 1U}) {
    const PlannedModel& planned = models()[model];
    const auto endless = data::make_data_source("synthetic", planned.model, 9);
    const testing::Finite other(*endless, 10);
    RunOptions options;
    options.steps = 4;
    options.optimizer = {.name = "adam", .learning_rate = 0.01, .clip_norm = 0.1, .ema_decay = 0.5};
    options.check = true;
    options.validation = {&other, &planned.model, 2};
    Plan plan = cut_plan(planned, {2}, {2, 1}, "1f1b", 2);
    const RunResult whole = run_local(plan, planned.model, *planned.data, options, kDeadline);
    for (const StateSharding sharding :
         {StateSharding::Optimizer, StateSharding::Gradients, StateSharding::Parameters}) {
      SCOPED_TRACE(to_string(sharding));
      plan.sharding = sharding;
      const RunResult divided = run_local(plan, planned.model, *planned.data, options, kDeadline);
      EXPECT_EQ(divided.check->different, 0) << check_text(*divided.check);
      EXPECT_EQ(divided.check->values, whole.check->values);
      EXPECT_EQ(divided.measurement.losses, whole.measurement.losses);
      ASSERT_EQ(divided.validations.size(), 2U);
      for (const std::int64_t done : {2, 4})
        EXPECT_EQ(divided.validations.at(done).loss, whole.validations.at(done).loss);
    }
    options.optimizer.ema_decay = 0;
    const RunResult without = run_local(plan, planned.model, *planned.data, options, kDeadline);
    EXPECT_NE(whole.validations.at(4).loss, without.validations.at(4).loss) << "averages are other values";
  }
}

TEST(DividedStateOfARun, HoldsTheBytesOfItsTypesAsPredicted) {
  constexpr auto kBfloat16 = StateType::Bfloat16;
  const std::map<std::string, std::string> set{{"inputs", "64"}, {"width", "800"}, {"layers", "4"}};
  for (const StateTypes& types :
       {StateTypes{}, StateTypes{.parameters = kBfloat16}, StateTypes{.parameters = kBfloat16, .gradients = kBfloat16},
        StateTypes{.parameters = kBfloat16, .moments = kBfloat16}}) {
    PlannedModel planned = planned_model("mlp", set, 2, at::kBFloat16, types);
    planned.graph.optimizer_state_values = 2;
    RunOptions options;
    options.steps = 2;
    options.optimizer.name = "adam";
    for (const StateSharding sharding :
         {StateSharding::None, StateSharding::Optimizer, StateSharding::Gradients, StateSharding::Parameters}) {
      Plan plan = cut_plan(planned, {}, {2}, "1f1b", 4);
      if (sharding > StateSharding::Optimizer) {
        const auto cuts = even_cuts(to_int(planned.model.layers.size()), 4);
        plan = cut_plan(planned, cuts, {2, 2, 2, 2}, "looped-bfs", 4, 4);
      }
      plan.sharding = sharding;
      const BoundPlan bound(plan);
      const auto predicted = replay_memory(planned.graph, bound, bound.action_lists());
      const std::vector<RankMemory> found =
          run_local(plan, planned.model, *planned.data, options, kDeadline).measurement.timeline.memory;
      for (std::size_t rank = 0; rank < 2; ++rank) {
        EXPECT_NEAR(found[rank].total / predicted[rank].peak.total, 1, 0.01)
            << to_string(types.parameters) << ' ' << to_string(types.gradients) << ' ' << to_string(types.moments)
            << ", state divided: " << to_string(sharding) << ", rank " << rank;
      }
    }
  }
}

TEST(DividedStateOfARun, HoldsTheStateOfWhatARankUpdates) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "30"}, {"width", "200"}, {"layers", "4"}}, 2);
  const Bytes parameters(4 * model::parameter_count(planned.model));
  RunOptions options;
  options.steps = 2;
  options.optimizer.name = "adam";  // two values for each of a parameter
  for (const int replicas : {2, 3}) {
    Plan plan = cut_plan(planned, {}, {replicas}, "1f1b", 6);
    const auto peaks = [&] {
      return run_local(plan, planned.model, *planned.data, options, kDeadline).measurement.timeline.memory;
    };
    const std::vector<RankMemory> whole = peaks();
    plan.sharding = StateSharding::Optimizer;
    const std::vector<RankMemory> divided = peaks();
    const GradientSums sums = gradient_sums(planned.graph, BoundPlan(plan));
    for (int rank = 0; rank < replicas; ++rank) {
      const Bytes others = parameters - updated_bytes(sums.front(), rank, parameters);
      const Bytes less = whole[to_index(rank)].total - divided[to_index(rank)].total;
      // Besides the state, only the counts of steps of parameters that the rank does not update.
      EXPECT_NEAR(less / (others * 2), 1, 0.01) << "rank " << rank << " of " << replicas;
      EXPECT_GT(others, Bytes(0));
    }
  }
}

}  // namespace
}  // namespace stagecraft::run

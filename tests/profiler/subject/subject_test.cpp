#include "profiler/subject/subject.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "tests/profiler/row_of_layers.h"
#include "tests/profiler/small_models.h"

namespace stagecraft::profiler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<at::Tensor> batch_of(const model::Model& model) { return Whole(model).batch; }

std::vector<at::Tensor> values(Subject& subject) {
  std::vector<at::Tensor> out;
  for (const stage::Parameter& parameter : subject.program().leaves()) out.push_back(parameter.value.detach().clone());
  return out;
}

std::vector<at::Tensor> gradients(Subject& subject) {
  std::vector<at::Tensor> out;
  for (const stage::Parameter& parameter : subject.program().leaves()) out.push_back(parameter.value.grad().clone());
  return out;
}

bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i], b[i])) return false;
  }
  return true;
}

/// A watch that records its calls.
class Diary : public Watch {
 public:
  void begin(int layer) override { lines.push_back("+" + std::to_string(layer)); }
  void end(int layer) override { lines.push_back("-" + std::to_string(layer)); }
  void begin_step(int step) override { lines.push_back("step " + std::to_string(step)); }
  void begin_backward() override { lines.emplace_back("backward"); }
  void end_backward() override { lines.emplace_back("end"); }
  void begin_part(Tag tag) override { lines.push_back(name_of(tag.phase) + " " + std::to_string(tag.layer)); }
  void end_part() override { lines.emplace_back("end"); }
  void end_step() override { lines.emplace_back("end step"); }
  std::vector<StepShares> take() override { return {}; }
  const AttributedTrace& trace() const override { throw std::logic_error("nobody asks"); }
  std::int64_t unmapped() const override { return 0; }
  void pause() override {}
  void resume() override {}

  std::vector<std::string> lines;
};

TEST(Subject, TrainsWithoutMovingTheParameters) {
  for (const char* name : {"sgd", "adam", "adamw"}) {
    const model::Model model = tiny_mlp();
    Subject subject(model, {.name = name, .learning_rate = 1, .weight_decay = 0.5}, 1, {}, false);
    const std::vector<at::Tensor> before = values(subject);
    StepTimer timer(c10::kCPU);
    for (int step = 0; step < 3; ++step) subject.iterate(batch_of(model), step, timer);
    EXPECT_TRUE(same(values(subject), before)) << name;
    EXPECT_THAT(gradients(subject), SizeIs(before.size())) << name;
  }
}

TEST(Subject, KeepsItsGradientsBelowThoseOfOneMicrobatch) {
  const model::Model model = tiny_mlp();
  Subject subject(model, {}, 1, {}, false);
  StepTimer timer(c10::kCPU);
  subject.run_microbatches(batch_of(model), 1, false, timer);
  const std::vector<at::Tensor> alone = gradients(subject);
  for (int step = 0; step < 50; ++step) subject.iterate(batch_of(model), 0, timer);
  // Each update halves what the backward before it added to: the limit of g = (g + alone) / 2 is alone.
  const std::vector<at::Tensor> kept = gradients(subject);
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::allclose(kept[i], alone[i])) << i;
  subject.clear_gradients();
  for (const at::Tensor& gradient : gradients(subject)) EXPECT_EQ(gradient.count_nonzero().item<std::int64_t>(), 0);
}

TEST(Subject, ComputesTheSameWhileProfiled) {
  const model::Model model = tiny_mlp();
  Subject subject(model, {}, 1, {}, true);
  StepTimer timer(c10::kCPU);
  subject.iterate(batch_of(model), 4, timer);
  Subject watched(model, {}, 1, {}, true);
  Diary diary;
  watched.watch(batch_of(model), 4, diary);
  EXPECT_TRUE(same(gradients(watched), gradients(subject)));
}

TEST(Subject, ComputesTheSameGradientsWhereItCreatesThem) {
  const model::Model model = tiny_mlp();
  Subject subject(model, {}, 1, {}, false);
  Diary diary;
  subject.watch(batch_of(model), 4, diary);  // has none to add to
  const std::vector<at::Tensor> first = gradients(subject);
  subject.watch(batch_of(model), 4, diary);
  EXPECT_FALSE(same(gradients(subject), first));
  const at::Tensor old = subject.program().leaves().front().value.grad();
  subject.watch(batch_of(model), 4, diary, /*creates_gradients=*/true);
  EXPECT_TRUE(same(gradients(subject), first));
  EXPECT_NE(subject.program().leaves().front().value.grad().data_ptr(), old.data_ptr());
}

TEST(Subject, AddsTheGradientsOfMicrobatchesInEitherOrder) {
  const model::Model model = tiny_mlp();
  Subject subject(model, {}, 1, {}, false);
  StepTimer timer(c10::kCPU);
  subject.run_microbatches(batch_of(model), 1, false, timer);
  std::vector<at::Tensor> twice;
  for (const at::Tensor& gradient : gradients(subject)) twice.push_back(gradient + gradient);
  for (const bool in_flight : {false, true}) {
    subject.run_microbatches(batch_of(model), 2, in_flight, timer);
    EXPECT_TRUE(same(gradients(subject), twice)) << in_flight;
  }
  EXPECT_THAT(timer.take(), SizeIs(3));
}

TEST(Subject, ReportsTheOrderOfAStepToAWatch) {
  const model::Model model = scale_exp_sum();
  Subject subject(model, {}, 1, {}, false);
  Diary diary;
  subject.watch(row_batch(), 7, diary);
  EXPECT_THAT(diary.lines, ElementsAre("data 0", "end", "step 7", "+0", "-0", "+1", "-1", "+2", "-2", "backward", "end",
                                       "optimizer 0", "end", "end step"));
}

// Layers 0 and 2 have parameters; layer 1 and the sum have none.
TEST(Subject, UpdatesLayerByLayerWhereAsked) {
  const auto scale = [](const model::LayerCall& c) {
    return std::vector<at::Tensor>{at::mul(c.inputs[0], c.parameters[0])};
  };
  const model::Model model = row_of_layers(
      {hand_layer("a", 256, scale),
       hand_layer("b", 0, [](const model::LayerCall& c) { return std::vector<at::Tensor>{at::exp(c.inputs[0])}; }),
       hand_layer("c", 256, scale),
       hand_layer("d", 0, [](const model::LayerCall& c) { return std::vector<at::Tensor>{at::sum(c.inputs[0])}; })});
  Subject subject(model, {}, 1, {}, true);
  Diary diary;
  subject.watch(row_batch(), 0, diary);
  std::vector<std::string> updates;
  for (const std::string& line : diary.lines) {
    if (line.starts_with("optimizer")) updates.push_back(line);
  }
  EXPECT_THAT(updates, ElementsAre("optimizer 0", "optimizer 2"));
}

TEST(Subject, CallsBeforeAndAfterTheBackwardAlone) {
  const model::Model model = scale_exp_sum();
  Subject subject(model, {}, 1, {}, false);
  StepTimer timer(c10::kCPU);
  subject.iterate(row_batch(), 0, timer);
  Diary diary;
  const auto nonzero = [&] { return gradients(subject).front().count_nonzero().item<std::int64_t>(); };
  subject.observe(
      row_batch(), diary,
      [&] {
        EXPECT_EQ(nonzero(), 0);  // the gradients of the previous iteration are cleared
        diary.lines.emplace_back("before");
      },
      [&] {
        EXPECT_EQ(nonzero(), 256);
        diary.lines.emplace_back("after");
      });
  EXPECT_THAT(diary.lines, ElementsAre("+0", "-0", "+1", "-1", "+2", "-2", "before", "after"));
}

TEST(StepTimer, HasATimeForEachIterationSinceItWasAsked) {
  const model::Model model = scale_exp_sum();
  Subject subject(model, {}, 1, {}, false);
  StepTimer timer(c10::kCPU);
  EXPECT_THAT(timer.take(), IsEmpty());
  for (int step = 0; step < 3; ++step) subject.iterate(row_batch(), step, timer);
  EXPECT_THAT(timer.take(), SizeIs(3));
  EXPECT_THAT(timer.take(), IsEmpty());
}

}  // namespace
}  // namespace stagecraft::profiler

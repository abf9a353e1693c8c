#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "executor/data/data_source.h"
#include "executor/intake/layer_sources.h"

namespace stagecraft::data {
namespace {

using ::testing::ElementsAre;

/// Sample i of the step's input k is [100 * k + i, 100 * k + i + 0.5].
class Numbered : public DataSource {
 public:
  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    std::vector<at::Tensor> out;
    const std::int64_t first = (step * microbatches + microbatch) * samples;
    for (const int input : inputs) {
      asked.push_back(input);
      const at::Tensor row = at::arange(0, 1, 0.5, at::TensorOptions().dtype(at::kFloat));
      const at::Tensor sample = at::arange(first, first + samples, at::TensorOptions().dtype(at::kFloat));
      out.push_back(sample.unsqueeze(1).add(row).add(100 * input));
    }
    return out;
  }
  std::optional<std::int64_t> samples() const override { return 12; }
  mutable std::vector<int> asked;
};

std::vector<float> values(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  return {whole.const_data_ptr<float>(), whole.const_data_ptr<float>() + whole.numel()};
}

/// Two given inputs and between them a derived one, their difference; the first has its samples on axis 1, the last has
/// no sample axis.
model::Model mixed() {
  model::Model model;
  model::ModelInput columns{.name = "columns", .dtype = "float32", .shape = {2}};
  columns.batch_axis = 1;
  model::ModelInput difference{.name = "difference", .dtype = "float32", .shape = {}};
  difference.derive = [](std::span<const at::Tensor> sources) { return sources[0].sub(sources[1]).unsqueeze(0); };
  difference.sources = {2, 2};
  model::ModelInput table{.name = "table", .dtype = "float32", .shape = {2}};
  table.batch_axis = std::nullopt;
  model.inputs = {columns, difference, table};
  return model;
}

TEST(ArrangedSource, PutsTheSamplesOnTheirAxis) {
  const auto source = arranged_source(std::make_unique<Numbered>(), mixed());
  EXPECT_EQ(source->samples(), 12);
  const at::Tensor columns = source->batch(1, 1, 2, 3, std::array{0}).front();  // samples 9, 10 and 11
  EXPECT_THAT(columns.sizes().vec(), ElementsAre(2, 3));
  EXPECT_TRUE(columns.is_contiguous());
  EXPECT_THAT(values(columns), ElementsAre(9, 10, 11, 9.5, 10.5, 11.5));
}

TEST(ArrangedSource, GivesTheFirstSampleOfAllWhereThereIsNoAxis) {
  const auto source = arranged_source(std::make_unique<Numbered>(), mixed());
  for (const int microbatch : {0, 1}) {
    const at::Tensor table = source->batch(5, microbatch, 2, 3, std::array{2}).front();
    EXPECT_THAT(table.sizes().vec(), ElementsAre(2));
    EXPECT_THAT(values(table), ElementsAre(100, 100.5));  // the second given input
  }
}

TEST(ArrangedSource, DerivesFromWhatTheLayersRead) {
  model::Model model = mixed();
  model.inputs[1].sources = {0, 2};
  model.inputs[1].derive = [](std::span<const at::Tensor> sources) {
    return sources[1].unsqueeze(1).sub(sources[0]);  // [2, 1] - [2, samples]
  };
  const auto source = arranged_source(std::make_unique<Numbered>(), model);
  const auto batch = source->batch(0, 0, 1, 2, std::array{1, 0});
  EXPECT_THAT(batch[0].sizes().vec(), ElementsAre(2, 2));
  EXPECT_THAT(values(batch[0]), ElementsAre(100, 99, 100, 99));
  EXPECT_THAT(values(batch[1]), ElementsAre(0, 1, 0.5, 1.5));
}

TEST(ArrangedSource, AsksForWhatIsNeededAndOnce) {
  auto inner = std::make_unique<Numbered>();
  const Numbered& numbered = *inner;
  const auto source = arranged_source(std::move(inner), mixed());
  EXPECT_THAT(values(source->batch(0, 0, 1, 2, std::array{1}).front()), ElementsAre(0, 0));
  EXPECT_THAT(numbered.asked, ElementsAre(1));  // although it appears twice in the sources
  numbered.asked.clear();
  (void)source->batch(0, 0, 1, 2, std::array{0});
  EXPECT_THAT(numbered.asked, ElementsAre(0));
}

TEST(ArrangedSource, LeavesAPlainSourceAlone) {
  auto inner = std::make_unique<Numbered>();
  const DataSource* const before = inner.get();
  model::Model model;
  model.inputs = {{"x", "float32", {2}}};
  EXPECT_EQ(arranged_source(std::move(inner), model).get(), before);
}

TEST(MakeDataSource, OpensSourcesForTheGivenInputsAlone) {
  // fashion-mnist provides two inputs: the third is derived and needs no source.
  model::Model model = intake::build_model("mlp", {});
  model::ModelInput doubled{.name = "doubled", .dtype = "", .shape = {}};
  doubled.derive = [](std::span<const at::Tensor> sources) { return sources[0].mul(2); };
  doubled.sources = {1};
  model.inputs.push_back(doubled);
  const auto batch = make_data_source("synthetic", model, 1)->batch(0, 0, 1, 4, std::array{1, 2});
  EXPECT_TRUE(batch[1].equal(batch[0].mul(2)));
  EXPECT_EQ(without_derived(model).inputs.size(), 2U);
}

}  // namespace
}  // namespace stagecraft::data

#include "profiler/layers/isolated.h"

#include <gtest/gtest.h>

#include "profiler/subject/model_graph.h"
#include "tests/profiler/small_models.h"

namespace stagecraft::profiler {
namespace {

class IsolatedOn : public ::testing::TestWithParam<Small> {};

TEST_P(IsolatedOn, RunsEachLayerForwardAndBackward) {
  Whole whole(intake::build_model(GetParam().name, GetParam().set));
  const auto outputs = layer_outputs(whole.model, whole.batch, 1, {});
  std::vector<std::string> told;
  const StoppingRule hasty{.fewest = 4, .least = 4, .most_seconds = 0};
  const std::vector<IsolatedTime> times = isolated_times(whole.model, whole.batch, outputs, 1, {}, Bytes(0), hasty,
                                                         [&](const std::string& layer) { told.push_back(layer); });
  ASSERT_EQ(times.size(), whole.model.layers.size());
  EXPECT_EQ(told.size(), times.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    EXPECT_EQ(told[i], whole.model.layers[i].name);
    EXPECT_GE(times[i].forward.count, 4) << told[i];
    EXPECT_GT(times[i].forward.median, Seconds(0)) << told[i];
    EXPECT_EQ(times[i].backward.count, times[i].forward.count) << told[i];
  }
}

INSTANTIATE_TEST_SUITE_P(EveryModel, IsolatedOn, ::testing::ValuesIn(small_models()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace stagecraft::profiler

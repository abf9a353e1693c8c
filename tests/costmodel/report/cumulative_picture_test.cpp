#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "costmodel/plan.h"
#include "costmodel/report/pictures.h"
#include "tests/costmodel/report/check_picture.h"
#include "tests/support/chains.h"

namespace stagecraft::report {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// Layers of 1, 2, 3, 4 s in all, with 1, 0, 0, 3 KiB of parameters.
Graph four_layers() {
  Graph graph = testing::chain_graph({0.5, 1, 1, 1}, {0.5, 1, 2, 3});
  graph.layers[0].parameter_bytes = 1024_B;
  graph.layers[3].parameter_bytes = 3072_B;
  return graph;
}

Plan plan_of(const Graph& graph, const std::vector<int>& stages) {
  const int count = *std::ranges::max_element(stages) + 1;
  return make_plan(graph, testing::flat_topology(count), {stages, std::vector<int>(static_cast<std::size_t>(count), 1)},
                   {});
}

std::vector<std::string> curves(const Picture& picture) {
  std::vector<std::string> out;
  const pugi::xml_document document = parsed(picture.inner);
  for (const auto& node : document.select_nodes("//path[@fill='none']"))
    out.emplace_back(node.node().attribute("d").value());
  return out;
}

TEST(CumulativePicture, AddsUpTheLayersAndShowsTheCuts) {
  const Graph graph = four_layers();
  const Plan plan = plan_of(graph, {0, 0, 0, 1});
  const Picture picture = cumulative_picture("sums", graph, &plan);
  check_picture(picture);
  // 4 layers are 720 pixels from 86 on: 180 each. The first panel is 150 high from 58 on, and 10 s its last tick: 15
  // pixels a second. The second begins 150 + 16 + 38 below it, and 4 KiB are its last tick.
  EXPECT_EQ(curves(picture).at(0), "M86.00,208.00 L266.00,193.00 L446.00,163.00 L626.00,118.00 L806.00,58.00");
  EXPECT_EQ(curves(picture).at(1), "M86.00,412.00 L266.00,374.50 L446.00,374.50 L626.00,374.50 L806.00,262.00");
  EXPECT_THAT(picture.inner,
              AllOf(HasSubstr("<line x1=\"626.00\" y1=\"58.00\" x2=\"626.00\" y2=\"208.00\" class=\"cut\"/>"),
                    HasSubstr("stage 0: 6.00 s of 10.0 s, 60.0 %"), HasSubstr("stage 1: 3.00 KiB of 4.00 KiB, 75.0 %"),
                    HasSubstr(">forward + backward, s<"), HasSubstr(">parameters, KiB<"), HasSubstr(">stage 1<"),
                    HasSubstr(">l0<"), HasSubstr(">l3<")));
}

TEST(CumulativePicture, HasNoStagesWithoutAPlanAndNoTimesWhereThereAreNone) {
  Graph graph = four_layers();
  for (Layer& layer : graph.layers) layer.forward = layer.backward = {};
  const Picture picture = cumulative_picture("sums", graph, nullptr);
  check_picture(picture);
  EXPECT_EQ(curves(picture).size(), 2U);
  EXPECT_THAT(picture.inner,
              AllOf(Not(HasSubstr("forward + backward")), Not(HasSubstr("stage")), Not(HasSubstr("cut"))));
}

// Two branches, a-b and c-d, whose layers alternate in the graph: 0 and 2, 1 and 3.
TEST(CumulativePicture, ShowsStageByStageWhatAlternatesInTheModel) {
  Graph graph = four_layers();
  graph.edges = {{0, 2, {}}, {1, 3, {}}};
  const Plan plan = plan_of(graph, {0, 1, 0, 1});
  const Picture picture = cumulative_picture("sums", graph, &plan);
  check_picture(picture);
  // 1 and 3 s, then 2 and 4 s.
  EXPECT_EQ(curves(picture).at(0), "M86.00,208.00 L266.00,193.00 L446.00,148.00 L626.00,118.00 L806.00,58.00");
  EXPECT_THAT(picture.inner, AllOf(HasSubstr(">layers, stage by stage<"), HasSubstr("<line x1=\"446.00\"")));
}

TEST(CumulativePicture, LeavesOutLabelsThatHaveNoRoom) {
  const Graph graph = testing::chain_graph(std::vector<double>(300, 1), std::vector<double>(300, 2));
  std::vector<int> stages;
  for (int i = 0; i < 300; ++i) stages.push_back(std::min(i, 127));
  const Plan plan = plan_of(graph, stages);
  const Picture picture = cumulative_picture("sums", graph, &plan);
  check_picture(picture);
  EXPECT_THAT(picture.inner, AllOf(HasSubstr(">stage 127<"), Not(HasSubstr(">stage 126<"))));
  EXPECT_THAT(picture.inner, HasSubstr("stage 126: "));  // in the tooltip
  // Of 300 layers, at most 48 are named.
  EXPECT_THAT(picture.caption, HasSubstr("Every 7 layers, one is named."));
  EXPECT_THAT(picture.inner, AllOf(HasSubstr(">l7<"), Not(HasSubstr(">l8<"))));
}

}  // namespace
}  // namespace stagecraft::report

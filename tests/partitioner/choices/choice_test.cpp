#include "partitioner/choices/choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>

#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A plan of one stage on devices 0, 1, ..., with these merits.
RankedPlan plan_with_merits(const std::string& origin, double step, int devices, std::int64_t memory) {
  RankedPlan out;
  out.origin = origin;
  out.plan.stages = {Stage{{"l0"}, {}, false, 0}};
  for (int d = 0; d < devices; ++d) out.plan.stages[0].devices.push_back(d);
  out.prediction.iteration = Seconds(step);
  out.prediction.samples_per_s = 8 / step;
  out.prediction.timeline.memory = {{0, Bytes(memory / 2), {}}, {1, Bytes(memory), {}}};
  return out;
}

std::vector<std::string> origins(const std::vector<RankedPlan>& plans) {
  std::vector<std::string> out;
  for (const RankedPlan& ranked : plans) out.push_back(ranked.origin);
  return out;
}

TEST(Merits, CountADeviceOnceAndTakeTheLargestRank) {
  RankedPlan ranked = plan_with_merits("a", 4, 3, 100);
  ranked.plan.stages.push_back(ranked.plan.stages[0]);  // two chunks
  const Merits found = merits(ranked);
  EXPECT_EQ(found.devices, 3);
  EXPECT_EQ(found.stages, 2);
  EXPECT_EQ(found.memory, 100_B);
  EXPECT_EQ(found.samples_per_s, 2);
  EXPECT_EQ(device_time(found), 12_s);
}

TEST(SortByGoal, PutsPlansThatMeetTheGoalFirst) {
  // Devices times step: a 24, b 30, c 24, d 20.
  const std::vector<RankedPlan> plans{plan_with_merits("a", 24, 1, 800), plan_with_merits("b", 15, 2, 400),
                                      plan_with_merits("c", 12, 2, 500), plan_with_merits("d", 10, 2, 900)};
  const auto sorted = [&](const Goal& goal) {
    std::vector<RankedPlan> out = plans;
    sort_by_goal(out, goal);
    return origins(out);
  };
  EXPECT_THAT(sorted({}), ElementsAre("d", "c", "b", "a"));
  EXPECT_THAT(sorted({Objective::Cost, {}}), ElementsAre("d", "c", "a", "b"));
  EXPECT_THAT(sorted({Objective::Memory, {}}), ElementsAre("b", "c", "a", "d"));
  // At least 0.6 samples/s: c has 8 / 12, d 8 / 10, the others less.
  EXPECT_THAT(sorted({Objective::Memory, 0.6}), ElementsAre("c", "d", "b", "a"));
  std::vector<RankedPlan> full = plans;
  full[3].fits = false;
  sort_by_goal(full, {});
  EXPECT_THAT(origins(full), ElementsAre("c", "b", "a", "d"));
}

TEST(SortByGoal, TakesFewerDevicesOfEqualSteps) {
  std::vector<RankedPlan> plans{plan_with_merits("many", 12 * (1 - 1e-12), 4, 1), plan_with_merits("few", 12, 2, 9)};
  sort_by_goal(plans, {});
  EXPECT_THAT(origins(plans), ElementsAre("few", "many"));
}

TEST(FrontOf, DropsDominatedPlans) {
  RankedPlan full = plan_with_merits("does not fit", 1, 1, 1);
  full.fits = false;
  EXPECT_THAT(origins(front_of({plan_with_merits("slow", 15, 2, 400), plan_with_merits("least", 24, 1, 300),
                                plan_with_merits("fast", 12, 2, 400), full, plan_with_merits("small", 16, 2, 350),
                                plan_with_merits("equal", 16, 2, 350), plan_with_merits("worst", 30, 2, 500)})),
              ElementsAre("fast", "small", "least"));
}

// Against the definition, on random plans.
TEST(FrontOf, IsTheSetThatNoPlanDominates) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<RankedPlan> plans;
    for (int i = 0; i < 12; ++i) {
      plans.push_back(plan_with_merits(std::to_string(i), 1 + static_cast<double>(random() % 5),
                                       1 + static_cast<int>(random() % 4), 1 + static_cast<int>(random() % 5)));
    }
    const auto better = [](const Merits& a, const Merits& b) {
      return a.step <= b.step && a.devices <= b.devices && a.memory <= b.memory &&
             (a.step < b.step || a.devices < b.devices || a.memory < b.memory);
    };
    const std::vector<RankedPlan> front = front_of(plans);
    for (const RankedPlan& plan : plans) {
      const Merits merit = merits(plan);
      const bool dominated =
          std::ranges::any_of(plans, [&](const RankedPlan& other) { return better(merits(other), merit); });
      const auto equal = [&](const RankedPlan& other) {
        const Merits m = merits(other);
        return m.step == merit.step && m.devices == merit.devices && m.memory == merit.memory;
      };
      EXPECT_EQ(std::ranges::count_if(front, equal), dominated ? 0 : 1) << "seed " << seed << " plan " << plan.origin;
    }
  }
}

TEST(IsSameChoice, ComparesStagesAndDevicesOnlyIfTheyMatter) {
  const Graph graph = testing::chain_graph({1, 1, 1}, {2, 2, 2});
  const Topology topology = testing::flat_topology(4);
  const Plan plan = make_plan(graph, topology, {{0, 0, 1}, {1, 2}}, {});
  Plan moved = plan;
  moved.stages[0].devices = {3};
  EXPECT_TRUE(is_same_choice(plan, moved, false));
  EXPECT_FALSE(is_same_choice(plan, moved, true));
  EXPECT_FALSE(is_same_choice(plan, make_plan(graph, topology, {{0, 1, 1}, {1, 2}}, {}), false));
  EXPECT_FALSE(is_same_choice(plan, make_plan(graph, topology, {{0, 0, 1}, {2, 1}}, {}), false));
  Plan recomputed = plan;
  recomputed.stages[1].recompute = true;
  EXPECT_FALSE(is_same_choice(plan, recomputed, false));
}

std::vector<std::vector<int>> counts(const std::vector<Topology>& parts) {
  std::vector<std::vector<int>> out;
  for (const Topology& part : parts) {
    out.emplace_back();
    for (const Level& level : part.levels) out.back().push_back(level.count);
  }
  return out;
}

TEST(PartsOf, AreTheFirstDevicesAndThenWholeGroups) {
  EXPECT_THAT(counts(parts_of(testing::flat_topology(3))), ElementsAre(ElementsAre(1), ElementsAre(2)));
  EXPECT_THAT(counts(parts_of(testing::flat_topology(1))), ::testing::IsEmpty());
  Topology two = testing::flat_topology(2);
  two.levels.push_back({"cluster", 3, {BytesPerSecond(1e9), 0_s, {}, {}}});
  EXPECT_THAT(counts(parts_of(two)), ElementsAre(ElementsAre(1, 1), ElementsAre(2, 1), ElementsAre(2, 2)));
  // Above 8 by doubling, and the whole group of 12.
  Topology twelve = testing::flat_topology(12);
  EXPECT_EQ(parts_of(twelve).size(), 8U);
  twelve.levels.push_back({"cluster", 2, {BytesPerSecond(1e9), 0_s, {}, {}}});
  EXPECT_THAT(counts(parts_of(twelve)).back(), ElementsAre(12, 1));
  for (const Topology& part : parts_of(twelve)) validate(part);
}

TEST(ObjectiveByName, ListsTheNames) {
  for (const Objective objective : {Objective::Time, Objective::Cost, Objective::Memory})
    EXPECT_EQ(objective_by_name(to_string(objective)), objective);
  EXPECT_THAT([] { (void)objective_by_name("speed"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("known are time, cost, memory")));
}

}  // namespace
}  // namespace stagecraft::partitioner

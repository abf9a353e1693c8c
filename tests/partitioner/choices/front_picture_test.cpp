#include "partitioner/choices/front_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stagecraft::partitioner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

format::PlanList two_plans() {
  format::PlanList list;
  list.plans.resize(2);
  list.plans[0] = {"fast", "", {"a"}, {"0,1"}, {2}, 2, 1, 0, 2_s, 8.0, Bytes(1024), 4_s, {}};
  list.plans[1] = {"small", "", {"a"}, {"0"}, {1}, 1, 1, 0, 4_s, 4.0, Bytes(512), 4_s, {}};
  return list;
}

TEST(FrontPicture, HasAMarkForEachPlanAndALegendOfDevices) {
  const std::string file = picture_file(front_picture("front", two_plans()));
  EXPECT_THAT(file, AllOf(HasSubstr("fast: 2 devices, step 2.00 s, 1.00 KiB"), HasSubstr(">2 devices<"),
                          HasSubstr(">1 device<"), HasSubstr("samples/s"), Not(HasSubstr("steps/s"))));
  // 8 samples/s are the last tick; the plot is 340 high from 20 on, so 4 samples/s lie at 190.
  EXPECT_THAT(file, AllOf(HasSubstr(",20.00 a"), HasSubstr(",190.00 a")));
}

TEST(FrontPicture, ShowsStepsWhereSamplesAreUnknown) {
  format::PlanList list = two_plans();
  for (format::ListedPlan& plan : list.plans) plan.samples_per_s.reset();
  EXPECT_THAT(picture_file(front_picture("front", list)), HasSubstr("steps/s"));
}

TEST(FrontPicture, DrawsPlansWithoutMemory) {
  format::PlanList list = two_plans();
  for (format::ListedPlan& plan : list.plans) plan.memory = Bytes(0);
  EXPECT_THAT(picture_file(front_picture("front", list)), AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

}  // namespace
}  // namespace stagecraft::partitioner

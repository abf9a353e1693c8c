#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/report/pictures.h"
#include "tests/costmodel/report/check_picture.h"

namespace stagecraft::report {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

format::ListedPlan plan_of(const std::string& origin, int devices, double samples_per_s, Bytes memory) {
  format::ListedPlan out;
  out.origin = origin;
  out.first = {"a"};
  out.devices = {"0"};
  out.replicas = {devices};
  out.device_count = devices;
  out.step = Seconds(16 / samples_per_s);
  out.samples_per_s = samples_per_s;
  out.memory = memory;
  return out;
}

format::PlanList two_plans() {
  format::PlanList list;
  list.plans = {plan_of("fast", 2, 8, 1024_B), plan_of("small", 1, 4, 512_B)};
  return list;
}

/// The marks whose tooltip begins with "plan ": its text, and whether only the outline is drawn.
std::vector<std::pair<std::string, bool>> marks(const Picture& picture) {
  std::vector<std::pair<std::string, bool>> out;
  const pugi::xml_document document = parsed(picture.inner);
  for (const auto& node : document.select_nodes("//path")) {
    const std::string words = node.node().child_value("title");
    if (words.starts_with("plan "))
      out.emplace_back(words.substr(0, words.find(',')),
                       std::string(node.node().attribute("fill-opacity").value()) == "0");
  }
  return out;
}

TEST(FrontPicture, HasAMarkForEachPlanAndALegendOfDevices) {
  const Picture picture = front_picture("front", two_plans(), std::nullopt);
  check_picture(picture);
  EXPECT_THAT(picture.inner,
              AllOf(HasSubstr("plan 1, fast: 2 devices, step 2.00 s, 1.00 KiB<"),
                    HasSubstr("plan 2, small: 1 device, step 4.00 s, 512 B<"), HasSubstr(">2 devices<"),
                    HasSubstr(">1 device<"), HasSubstr(">samples/s<"), HasSubstr("peak memory of a device, KiB"),
                    Not(HasSubstr("steps/s")), Not(HasSubstr("limit")), Not(HasSubstr("another is better"))));
  // 8 samples/s and 1 KiB are the last ticks. The plot is 560 by 340 pixels from (86, 26) on: the first plan (a square)
  // lies at (646, 26), the second (a circle, which begins 4.2 to the left) at (366, 196).
  EXPECT_THAT(picture.inner, AllOf(HasSubstr("M641.80,21.80 h"), HasSubstr("M361.80,196.00 a")));
}

/// A plan on each of `counts` numbers of devices, the more the faster.
format::PlanList plans_on(int counts) {
  format::PlanList list;
  for (int i = 1; i <= counts; ++i) list.plans.push_back(plan_of("optimal", 2 * i, 10 * i, Bytes(4096 - 64 * i)));
  return list;
}

/// Shape (the path from its first corner on) and colour of the marks in the order of the plans.
std::vector<std::pair<std::string, std::string>> looks(const Picture& picture) {
  std::vector<std::pair<std::string, std::string>> out;
  const pugi::xml_document document = parsed(picture.inner);
  for (const auto& node : document.select_nodes("//path[title]")) {
    const std::string path = node.node().attribute("d").value();
    out.emplace_back(path.substr(path.find(' ')), node.node().attribute("fill").value());
  }
  return out;
}

/// Relative luminance of "#rrggbb", without the display's gamma: enough for an order.
double lightness(const std::string& colour) {
  const auto part = [&](std::size_t at) { return std::stoi(colour.substr(at, 2), nullptr, 16); };
  return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
}

TEST(FrontPicture, DistinguishesAnyNumberOfDeviceCounts) {
  for (const int counts : {2, 12, 13, 24, 40}) {
    SCOPED_TRACE(counts);
    const Picture picture = front_picture("front", plans_on(counts), std::nullopt);
    check_picture(picture);
    const auto all = looks(picture);
    ASSERT_EQ(all.size(), static_cast<std::size_t>(counts));
    EXPECT_EQ(std::set(all.begin(), all.end()).size(), all.size());
  }
}

TEST(FrontPicture, NamesTheDevicesOfEachPlanWhereShapesWouldRepeat) {
  EXPECT_THAT(front_picture("front", plans_on(12), std::nullopt).inner, Not(HasSubstr(">12 (24)<")));
  const Picture picture = front_picture("front", plans_on(13), std::nullopt);
  EXPECT_THAT(picture.inner, AllOf(HasSubstr(">1 (2)<"), HasSubstr(">13 (26)<")));
  EXPECT_THAT(picture.caption, HasSubstr("In parentheses: its devices, which are more the lighter the mark is."));
  const auto all = looks(picture);
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_GT(lightness(all[i].second), lightness(all[i - 1].second)) << i;
}

TEST(FrontPicture, ShowsStepsWhereSamplesAreUnknown) {
  format::PlanList list = two_plans();
  for (format::ListedPlan& plan : list.plans) plan.samples_per_s.reset();
  EXPECT_THAT(front_picture("front", list, std::nullopt).inner, HasSubstr(">steps/s<"));
}

TEST(FrontPicture, DrawsPlansWithoutMemoryAndTime) {
  format::PlanList list = two_plans();
  for (format::ListedPlan& plan : list.plans) {
    plan.memory = 0_B;
    plan.step = 0_s;
    plan.samples_per_s.reset();
  }
  const Picture picture = front_picture("front", list, std::nullopt);
  check_picture(picture);
  EXPECT_THAT(picture.inner, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

TEST(FrontPicture, DrawsAPlanAsAnOutlineIfAnotherIsBetter) {
  format::PlanList list;
  list.plans = {plan_of("a", 2, 8, 1000_B), plan_of("b", 2, 8, 1001_B),  // as fast as 1 with more memory
                plan_of("c", 2, 6, 400_B),                               // slower with less memory
                plan_of("d", 1, 5, 1000_B),   // slower than 1 with as much memory, but on fewer devices
                plan_of("e", 2, 5, 1000_B),   // as 4, on more devices
                plan_of("f", 1, 5, 1000_B)};  // the same as 4
  const Picture picture = front_picture("front", list, std::nullopt);
  EXPECT_THAT(marks(picture),
              ElementsAre(std::pair("plan 1", false), std::pair("plan 2", true), std::pair("plan 3", false),
                          std::pair("plan 4", false), std::pair("plan 5", true), std::pair("plan 6", false)));
  EXPECT_THAT(picture.inner, HasSubstr(">another is better<"));
  check_picture(picture);
}

TEST(FrontPicture, DrawsTheLimitUnlessItIsFarAway) {
  const Picture near = front_picture("front", two_plans(), 2048_B);
  check_picture(near);
  // 2 KiB are the last tick of the axis, 560 pixels from 86 on.
  EXPECT_THAT(near.inner,
              AllOf(HasSubstr("<line x1=\"646.00\" y1=\"22.00\" x2=\"646.00\" y2=\"366.00\" class=\"limit\""),
                    HasSubstr(">limit 2.00 KiB<")));
  const Picture far = front_picture("front", two_plans(), Bytes(1 << 20));
  EXPECT_THAT(far.inner, Not(HasSubstr("class=\"limit\"")));
  EXPECT_THAT(far.caption, HasSubstr("A plan may use 1.00 MiB of a device."));
}

TEST(FrontPicture, ShowsPlansThatAreCloseToEachOtherFromNearBy) {
  format::PlanList list;
  for (int i = 0; i < 5; ++i)
    list.plans.push_back(plan_of("optimal", 4, 100 - i, Bytes((std::int64_t{1000} + 10 * i) << 20)));
  const Picture picture = front_picture("front", list, std::nullopt);
  check_picture(picture);
  EXPECT_THAT(picture.caption, HasSubstr("The axes do not begin at 0."));
  EXPECT_THAT(picture.inner, AllOf(HasSubstr(">96<"), HasSubstr(">100<"), Not(HasSubstr(">0<"))));
  list.plans.push_back(plan_of("optimal", 4, 10, 1000_B));
  EXPECT_THAT(front_picture("front", list, std::nullopt).caption, Not(HasSubstr("begin at 0")));
}

TEST(FrontPicture, WritesNoNumberOverAMark) {
  format::PlanList list;
  for (int i = 0; i < 60; ++i)
    list.plans.push_back(plan_of("optimal", 1, 10 + (i * 7 % 60) / 10.0, Bytes(1000 + i * 13 % 60 * 9)));
  const Picture picture = front_picture("front", list, 1500_B);
  check_picture(picture);
  EXPECT_EQ(marks(picture).size(), 60U);
  const pugi::xml_document document = parsed(picture.inner);
  std::vector<std::pair<double, double>> middles;
  for (const auto& node : document.select_nodes("//path[title]")) {
    std::istringstream in(std::string(node.node().attribute("d").value()).substr(1));
    double left = 0;
    double y = 0;
    char comma = 0;
    in >> left >> comma >> y;
    middles.emplace_back(left + 4.2, y);  // a circle
  }
  std::size_t numbers = 0;
  for (const auto& node : document.select_nodes("//text[@class='ink' and @font-size='10']")) {
    ++numbers;
    const double left = node.node().attribute("x").as_double();
    const double bottom = node.node().attribute("y").as_double();
    const double right = left + text_width(node.node().child_value(), 10);
    for (const auto& [x, y] : middles) {
      const bool apart = x + 4.2 <= left || right <= x - 4.2 || y + 4.2 <= bottom - 8.5 || bottom <= y - 4.2;
      EXPECT_TRUE(apart) << node.node().child_value() << " over a mark at " << x << ", " << y;
    }
  }
  EXPECT_GT(numbers, 20U);
  EXPECT_LE(numbers, 60U);
  if (numbers < 60) {
    EXPECT_THAT(picture.caption, HasSubstr(std::to_string(60 - numbers) + " numbers have no room."));
  }
}

}  // namespace
}  // namespace stagecraft::report

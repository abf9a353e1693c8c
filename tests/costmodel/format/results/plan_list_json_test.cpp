#include "costmodel/format/results/plan_list_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "costmodel/errors.h"
#include "tests/costmodel/documents.h"

namespace stagecraft::format {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

nlohmann::json full_json() { return nlohmann::json::parse(plan_list_json(full_plan_list())); }

void expect_refused(const nlohmann::json& json, const std::string& message) {
  EXPECT_THAT([&] { (void)parse_plan_list(json.dump(), "plans.json"); },
              ThrowsMessage<FormatError>(HasSubstr("plans.json: " + message)));
}

TEST(PlanListJson, ReadsBackWhatWasWritten) {
  PlanList list = full_plan_list();
  EXPECT_EQ(parse_plan_list(plan_list_json(list), "plans.json"), list);
  list.list = "front";
  list.objective = "memory";
  list.min_samples_per_s.reset();
  list.price_per_device_hour.reset();
  list.memory_limit.reset();
  list.lower_bound.reset();
  list.proven.reset();
  list.relaxations = {{"without --stages 2", {}, false}};
  list.settings = {ListedSetting()};
  list.settings[0].schedule = "1f1b";
  list.settings[0].outcome = "open";
  list.skipped.clear();
  ListedPlan other = list.plans[0];
  other.file.clear();
  other.samples_per_s.reset();
  other.price.reset();
  other.explained = false;
  other.parts->host = 0_s;
  list.plans.push_back(other);
  EXPECT_EQ(parse_plan_list(plan_list_json(list), "plans.json"), list);
}

TEST(PlanListJson, SaysWhetherHostTimeIsKnown) {
  PlanList list = full_plan_list();
  EXPECT_EQ(full_json()["plans"][0]["parts"]["host_s"], 1);
  list.plans[0].explained = false;
  EXPECT_FALSE(nlohmann::json::parse(plan_list_json(list))["plans"][0]["parts"].contains("host_s"));
}

TEST(PlanListJson, ReadsVersionOneWithoutParts) {
  nlohmann::json json = full_json();
  json["version"] = 1;
  json.erase("memory_limit_bytes");
  json.erase("proven");
  json.erase("settings");
  json["plans"][0].erase("parts");
  const PlanList list = parse_plan_list(json.dump(), "plans.json");
  EXPECT_FALSE(list.memory_limit);
  EXPECT_FALSE(list.plans[0].parts);
  EXPECT_FALSE(list.plans[0].explained);
  json["version"] = 6;
  expect_refused(json, "/version: ");
}

TEST(PlanListJson, NamesWhatIsWrong) {
  nlohmann::json json = full_json();
  json["list"] = "bottom";
  expect_refused(json, "/list: unknown list \"bottom\", known are top, front");
  json = full_json();
  json["objective"] = "speed";
  expect_refused(json, "/objective: unknown objective \"speed\", known are time, cost, memory");
  json = full_json();
  json["plans"] = nlohmann::json::array();
  expect_refused(json, "/plans: found [], expected one plan or more");
  json = full_json();
  json["plans"][0]["stages"] = nlohmann::json::array();
  expect_refused(json, "/plans/0/stages: found [], expected one stage or more");
}

}  // namespace
}  // namespace stagecraft::format

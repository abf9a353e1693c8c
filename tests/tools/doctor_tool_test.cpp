#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "costmodel/doctor/doctor.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/topology_json.h"
#include "tests/support/run_command.h"

// stagecraft-doctor as a user runs it.

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using ::testing::StartsWith;

class DoctorTool : public ::testing::Test {
 protected:
  DoctorTool() {
    Topology topology;
    topology.name = "two";
    topology.levels = {{"host", 2, {BytesPerSecond(1e9), Seconds(1e-5), {}, {}}}};
    folder_.write("clean.json", format::topology_json(topology));
    topology.levels.front().link.bandwidth = BytesPerSecond(1);
    folder_.write("slow.json", format::topology_json(topology));
    Plan plan;
    plan.model = "one";
    plan.schedule = "gpipe";
    plan.stages = {{{"a"}, {2}, false}};
    plan.warmups = {0};
    folder_.write("plan.json", format::plan_json(plan));
  }
  Outcome doctor(const std::string& arguments) const { return folder_.run("stagecraft-doctor " + arguments); }

  testing::CommandFolder folder_;
};

TEST_F(DoctorTool, FindsNothingInACleanFile) {
  const Outcome o = doctor("clean.json --strict");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, "1 file: 0 errors, 0 warnings\n");
}

TEST_F(DoctorTool, WarnsAndFailsOnlyWhenStrict) {
  const Outcome o = doctor("slow.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.out, StartsWith("warning SC101 slow.json: /levels/0/bandwidth_bytes_per_s: 1 B/s is slower than any "
                                "network; if it is in GB/s, write 1e+09, if in Gbit/s, 1.25e+08\n1 file: "));
  const Outcome strict = doctor("--strict slow.json");
  EXPECT_EQ(strict.status, 1);
  EXPECT_EQ(strict.out, o.out);
  EXPECT_EQ(strict.err, "");
}

TEST_F(DoctorTool, FailsForAnError) {
  const Outcome o = doctor("plan.json clean.json");
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(o.out,
            "error SC301 plan.json: /stages: device 2 does not exist, clean.json has 0..1: the plan is for another "
            "cluster\n2 files: 1 error, 0 warnings\n");
}

TEST_F(DoctorTool, PrintsJson) {
  const Outcome o = doctor("slow.json --json");
  const auto diagnosis = nlohmann::json::parse(o.out);
  EXPECT_EQ(diagnosis["files"], nlohmann::json::array({"slow.json"}));
  ASSERT_EQ(diagnosis["findings"].size(), 1U);
  EXPECT_EQ(diagnosis["findings"][0]["code"], "SC101");
}

TEST_F(DoctorTool, ListsItsChecks) {
  EXPECT_EQ(doctor("--list").out, doctor::checks_text());
  EXPECT_THAT(doctor("--help").out, HasSubstr(doctor::checks_text()));
}

TEST_F(DoctorTool, RefusesOtherFiles) {
  folder_.write("text.json", "{\"format\": \"stagecraft.prediction\", \"version\": 1}");
  const Outcome other = doctor("text.json");
  EXPECT_EQ(other.status, 1);
  EXPECT_EQ(other.err,
            "stagecraft-doctor: text.json: /format: found \"stagecraft.prediction\", expected stagecraft.graph, "
            "stagecraft.topology, stagecraft.plan or stagecraft.timeline [SC1105]\n");
  const Outcome missing = doctor("nowhere.json");
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.err, HasSubstr("nowhere.json"));
  const Outcome none = doctor("");
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err, StartsWith("stagecraft-doctor: FILE is required"));
}

}  // namespace
}  // namespace stagecraft

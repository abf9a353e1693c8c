#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/format/topology_json.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/run_command.h"

// stagecraft-run --replan as a user starts it, with ranks or hosts that cannot be started again.

namespace stagecraft {
namespace {

using testing::cut_plan;
using ::testing::HasSubstr;
using testing::Outcome;

/// A small mlp on three ranks. A layer takes so long, and its parameters take so long to send, that the best plans have
/// a stage on each device.
class ReplanTool : public ::testing::Test {
 protected:
  ReplanTool() {
    testing::PlannedModel planned = testing::planned_model("mlp", {{"inputs", "12"}, {"width", "16"}}, 3);
    planned.graph.iteration.reset();
    for (Layer& layer : planned.graph.layers) {
      if (layer.kind == kInputKind) continue;
      layer.forward.median = layer.backward.median = Seconds(1);
      layer.backward_parts.reset();
      layer.forward_share = layer.backward_share = layer.update_share = std::nullopt;
    }
    folder_.write("graph.json", format::graph_json(planned.graph));
    folder_.write("topology.json", format::topology_json(testing::flat_topology(3, 100)));
    folder_.write("plan.json", format::plan_json(cut_plan(planned, {2, 4}, {1, 1, 1}, "1f1b", 4)));
    folder_.write("hosts.txt", "127.0.0.1 slots=2\n127.0.0.2\n");
    folder_.write("unreached", "#!/bin/sh\n[ $1 != 127.0.0.2 ] || exit 255\nsh -c \"$2\"\n");
    std::filesystem::permissions(folder_.path() / "unreached", std::filesystem::perms::owner_all);
  }
  std::vector<double> losses(const std::string& file) const {
    return format::parse_measurement(folder_.read(file), file).losses;
  }

  testing::CommandFolder folder_;
};

const std::string kRun = "stagecraft-run plan.json --timeout 5 --learning-rate 0.1 -o ";
const std::string kReplan = " --checkpoint saved --checkpoint-every 5 --restart 3 --replan graph.json topology.json ";

TEST_F(ReplanTool, ContinuesTheTrainingWithoutARankThatIsKilledWheneverItStarts) {
  ASSERT_EQ(folder_.run(kRun + "whole.json --steps 200").status, 0);
  const Outcome o =
      folder_.run(kRun + "rest.json --steps 200 --spawn" + kReplan +
                  "2> run.txt & run=$!\n"
                  "until grep -q 'step 20/' run.txt; do kill -0 $run || exit 9; sleep 0.02; done\n"
                  "while kill -0 $run; do\n"
                  "  for child in $(cat /proc/$run/task/*/children); do\n"
                  "    if tr '\\0' '\\n' < /proc/$child/environ | grep -qx RANK=2; then kill -KILL $child; fi\n"
                  "  done 2> /dev/null\n"
                  "  sleep 0.02\n"
                  "done 2> /dev/null\n"
                  "wait $run");
  const std::string told = folder_.read("run.txt");
  EXPECT_EQ(o.status, 0) << told;
  EXPECT_THAT(told, HasSubstr("stagecraft: rank 2 cannot be started again; 2 ranks instead of 3, 4 microbatches of 3 "
                              "samples as before; predicted step "));
  EXPECT_THAT(told, HasSubstr("; the plan is saved/replanned-1.plan.json\n"));
  EXPECT_THAT(told, HasSubstr("step 200/200"));
  const std::vector<double> whole = losses("whole.json");
  const std::vector<double> rest = losses("rest.json");
  ASSERT_LT(rest.size(), whole.size()) << "it began at a checkpoint";
  ASSERT_GT(rest.size(), 0U);
  // One replica per stage: the same bits.
  EXPECT_EQ(rest, std::vector<double>(whole.end() - static_cast<std::ptrdiff_t>(rest.size()), whole.end()));
  EXPECT_EQ(format::parse_measurement(folder_.read("rest.json"), "rest.json").timeline.ranks, 2);
}

TEST_F(ReplanTool, PlansForTheHostsThatAreReached) {
  const Outcome o = folder_.run(kRun + "rest.json --steps 5 --hosts hosts.txt --remote-shell ./unreached" + kReplan);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("stagecraft: host 127.0.0.2 cannot be started again; 2 ranks instead of 3, "));
  EXPECT_EQ(losses("rest.json").size(), 5U);
}

TEST_F(ReplanTool, RunsTheSamePlanIfTheOtherHostsHaveEnoughSlots) {
  folder_.write("hosts.txt", "127.0.0.1 slots=2\n127.0.0.2\n127.0.0.3\n");
  const Outcome o = folder_.run(kRun + "rest.json --steps 5 --hosts hosts.txt --remote-shell ./unreached" + kReplan);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("stagecraft: host 127.0.0.2 cannot be started again; the other hosts have enough slots "
                               "for plan.json\n"));
  EXPECT_EQ(format::parse_measurement(folder_.read("rest.json"), "rest.json").timeline.ranks, 3);
}

TEST_F(ReplanTool, RefusesAGraphOrTopologyThatIsNotThePlans) {
  const auto refusal = [&](const std::string& graph, const std::string& topology) {
    const Outcome o = folder_.run(
        "stagecraft-run plan.json --steps 5 --spawn --checkpoint saved --restart 2 --replan " + graph + " " + topology);
    EXPECT_EQ(o.status, 1);
    return o.err;
  };
  const testing::PlannedModel other = testing::planned_model("mlp", {{"inputs", "12"}, {"width", "16"}}, 4);
  folder_.write("other.json", format::graph_json(other.graph));
  folder_.write("two.json", format::topology_json(testing::flat_topology(2)));
  EXPECT_THAT(refusal("other.json", "topology.json"),
              HasSubstr("--replan: other.json: found a microbatch of 4 samples, plan.json has 3"));
  EXPECT_THAT(refusal("graph.json", "two.json"), HasSubstr("--replan: two.json: found 2 devices, plan.json needs 3"));
  EXPECT_EQ(folder_.run("stagecraft-run plan.json --replan graph.json topology.json").status, 2);
}

}  // namespace
}  // namespace stagecraft

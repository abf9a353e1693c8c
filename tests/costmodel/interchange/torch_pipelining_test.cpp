#include "costmodel/interchange/torch_pipelining.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/costmodel/interleavings.h"

// tests/scripts/torch_pipelining_test.sh runs the exported program.

namespace stagecraft::interchange {
namespace {

using ::testing::HasSubstr;

std::string refusal(const Plan& plan) {
  try {
    (void)torch_pipelining_script(BoundPlan(plan));
  } catch (const std::invalid_argument& e) { return e.what(); }
  return "";
}

TEST(TorchPipeliningScript, HoldsStagesRanksAndLists) {
  Plan plan = testing::row_plan("gpipe", {1, 1}, 2);
  plan.stages[0].layers = {"stem", "a \"quoted\" {name}"};
  plan.boundaries[0].tensors[0].layer = "stem";
  const std::string script = torch_pipelining_script(BoundPlan(plan));
  EXPECT_THAT(script, HasSubstr("STAGES = [\n    [\"stem\", \"a \\\"quoted\\\" {name}\"],\n    [\"l1\"],\n]\n"
                                "RANKS = 2  # stage s runs on rank s % RANKS\n"
                                "MICROBATCHES = 2\n"
                                "ACTIONS = \"\"\"\\\n0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n\"\"\"\n"));
}

TEST(TorchPipeliningScript, CountsRanksNotStages) {
  EXPECT_THAT(torch_pipelining_script(BoundPlan(testing::row_plan("interleaved-1f1b", {1, 1, 1, 1}, 4, 2))),
              HasSubstr("RANKS = 2  #"));
}

TEST(TorchPipeliningScript, RefusesWhatTorchCannotRunAndSaysWhatWouldBeRight) {
  EXPECT_EQ(
      refusal(testing::row_plan("1f1b", {1, 2}, 4)),
      "stage 1 has 2 replicas, but torch.distributed.pipelining runs a stage on one rank; plan one replica per stage "
      "(--strategy profile --stages N) and replicate the whole pipeline with DistributedDataParallel over a mesh");
  Plan skipping = testing::row_plan("1f1b", {1, 1, 1}, 4);
  skipping.boundaries.push_back({0, 2, {{"l0", 0, Bytes(8), {}, "", true}}});
  EXPECT_EQ(refusal(skipping),
            "layer \"l0\" of stage 0 is read in stage 2, but torch's schedules pass tensors only to the next stage; "
            "use a plan whose stages read only from the previous one (--split-at)");
  EXPECT_EQ(refusal(testing::row_plan("forward", {1, 1}, 4)),
            "schedule \"forward\" does not train, but the program trains");
  EXPECT_EQ(refusal(testing::row_plan("pipedream", {1, 1}, 4)),
            "schedule \"pipedream\" has updates inside its lists, which the CSV format cannot express");
}

}  // namespace
}  // namespace stagecraft::interchange

#include "costmodel/interchange/torch_pipelining.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/prediction/verify.h"
#include "tests/costmodel/interleavings.h"

// tests/scripts/torch_pipelining_test.sh runs the exported program.

namespace stagecraft::interchange {
namespace {

using stagecraft::testing::row_plan;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Lists = std::vector<std::vector<Action>>;

TEST(ActionsCsv, ReadsEveryWord) {
  const Lists lists = parse_actions_csv(
      "0F0, 0SEND_F0,,0RECV_B0 ,0B0,0REDUCE_GRAD\r\n"
      "1UNSHARD,1RECV_F0,1F0,1I0,1SEND_B0,1W0,1RESHARD",
      "s.csv");
  EXPECT_THAT(
      lists,
      ElementsAre(ElementsAre(Action{ActionKind::Forward, 0, 0, -1},  //
                              Action{ActionKind::SendActivation, 0, 0, 1}, Action{ActionKind::ReceiveGradient, 0, 0, 1},
                              Action{ActionKind::Backward, 0, 0, -1},  //
                              Action{ActionKind::Reduce, 0, -1, -1}),
                  ElementsAre(Action{ActionKind::ReceiveActivation, 1, 0, 0}, Action{ActionKind::Forward, 1, 0, -1},
                              Action{ActionKind::Backward, 1, 0, -1}, Action{ActionKind::SendGradient, 1, 0, 0},
                              Action{ActionKind::WeightGradient, 1, 0, -1})));
  EXPECT_EQ(actions_csv(lists),
            "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n"
            "1RECV_F0,1F0,1I0,1SEND_B0,1W0\n");
}

TEST(ActionsCsv, KeepsAnEmptyLineForARankWithNothingToDo) {
  EXPECT_EQ(parse_actions_csv("0F0,0B0\n\n", "s.csv").size(), 2u);
  EXPECT_EQ(actions_csv({{}, {}}), "\n\n");
}

TEST(ActionsCsv, NamesTheCellThatItRefuses) {
  const std::string wanted =
      ", expected a stage, one of F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, REDUCE_GRAD, UNSHARD, RESHARD, and a "
      "microbatch, as in 2F0";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"0F0\n0F1,0X0", "line 2: cell 2: found \"0X0\"" + wanted},
      {"F0", "line 1: cell 1: found \"F0\"" + wanted},
      {"-1F0", "line 1: cell 1: found \"-1F0\"" + wanted},
      {"0UPDATE", "line 1: cell 1: found \"0UPDATE\"" + wanted},
      {"99999999F0", "line 1: cell 1: found \"99999999F0\"" + wanted},
      {"0F", "line 1: cell 1: found \"0F\", expected a microbatch from 0 to 1048575 after F"},
      {"0F1048576", "line 1: cell 1: found \"0F1048576\", expected a microbatch from 0 to 1048575 after F"},
      {"0F0B", "line 1: cell 1: found \"B\" after an action in \"0F0B\""},
      {"0REDUCE_GRAD1", "line 1: cell 1: found \"1\" after an action in \"0REDUCE_GRAD1\""},
      {"0RECV_F0", "line 1: cell 1: found \"0RECV_F0\", there is no stage before stage 0"},
      {"0SEND_B0", "line 1: cell 1: found \"0SEND_B0\", there is no stage before stage 0"},
      {"(0F0;0B0)", "line 1: cell 1: found \"(0F0;0B0)\", expected actions in brackets and then OVERLAP_F_B"},
      {"0F0,0I0", "line 1: cell 2: found 0I0 and no 0W0"},
      {"0F0,0B0,0W0", "line 1: cell 2: found 0B0 together with 0W0, expected 0I0"},
      {"0F0,0W0", "line 1: cell 2: found 0W0 and no 0I0"},
      {"", "no line, expected one for each rank"},
      {std::string(60, '\x01'), "found \"" + std::string(40, '?') + "...\""}};
  for (const auto& [text, message] : cases) {
    EXPECT_THAT([&] { (void)parse_actions_csv(text, "s.csv"); }, ThrowsMessage<FormatError>(HasSubstr(message)));
    EXPECT_THAT([&] { (void)parse_actions_csv(text, "s.csv"); }, ThrowsMessage<FormatError>(HasSubstr("s.csv: ")));
  }
}

TEST(ActionsCsv, GivesBackTheListsOfEverySchedule) {
  for (const Plan& plan : {row_plan("gpipe", {2, 3}, 4), row_plan("1f1b", {1, 2, 1}, 5),
                           row_plan("zb-h1", {1, 1, 1}, 4), row_plan("interleaved-1f1b", {1, 1, 1, 1}, 4, 2),
                           row_plan("interleaved-zb", {2, 2, 2, 2}, 8, 2), row_plan("looped-bfs", {1, 1, 1, 1}, 3, 2),
                           row_plan("zb-v", {1, 1, 1, 1, 1, 1}, 4, 2), row_plan("v-min", {2, 2, 2, 2}, 5, 2),
                           row_plan("dualpipev", {1, 1, 1, 1}, 5, 2), row_plan("forward", {1, 2}, 3)}) {
    for (const bool transfers : {false, true}) {
      Lists lists = BoundPlan(plan).action_lists();
      for (auto& list : lists) {
        std::erase_if(list, [&](const Action& a) {
          return a.kind == ActionKind::Update || (!transfers && (a.peer >= 0 || a.kind == ActionKind::Reduce));
        });
      }
      EXPECT_EQ(parse_actions_csv(actions_csv(lists), "s.csv"), lists) << plan.schedule;
      // The same lists run as the "listed" schedule, with the transfers in the same places, so that nothing changes.
      Plan listed = plan;
      listed.schedule = "listed";
      listed.listed = lists;
      validate(listed);
      EXPECT_EQ(BoundPlan(listed).action_lists(), BoundPlan(plan).action_lists()) << plan.schedule;
      EXPECT_TRUE(std::holds_alternative<Verified>(verify(BoundPlan(listed), BoundPlan(listed).action_lists())))
          << plan.schedule;
      const Plan again = format::parse_plan(format::plan_json(listed), "plan.json");
      EXPECT_EQ(again, listed);
    }
  }
}

TEST(Listed, KeepsReducesWhereTheyAreNeededAndAddsThoseThatAreMissing) {
  const auto texts = [](const Plan& plan) {
    std::string out;
    for (const auto& list : BoundPlan(plan).action_lists()) {
      for (const Action& a : list) out += action_text(a) + " ";
      out += "/ ";
    }
    return out;
  };
  Plan plan = row_plan("listed", {1}, 1);
  plan.listed = parse_actions_csv("0F0,0B0,0REDUCE_GRAD", "s.csv");
  EXPECT_EQ(texts(plan), "0F0 0B0 0UPDATE / ");
  plan = row_plan("listed", {2}, 2);
  plan.listed = parse_actions_csv("0F0,0B0,0REDUCE_GRAD\n0F1,0B1", "s.csv");
  EXPECT_EQ(texts(plan), "0F0 0B0 0REDUCE_GRAD 0UPDATE / 0F1 0B1 0REDUCE_GRAD 0UPDATE / ");
}

TEST(Listed, MayMixWholeAndSplitBackwards) {
  Plan plan = row_plan("listed", {1, 1}, 2);
  plan.listed = parse_actions_csv("0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1B1,1W0", "s.csv");
  const auto proof = std::get<Verified>(verify(BoundPlan(plan), BoundPlan(plan).action_lists()));
  EXPECT_EQ(proof.ranks[1].in_flight, 2);  // microbatch 0 stays in flight for its weight gradient
  EXPECT_TRUE(schedule_of(plan).splits_backward);
  EXPECT_TRUE(schedule_of(plan).trains);
  plan.listed = parse_actions_csv("0F0,0F1\n1F0,1F1", "s.csv");
  EXPECT_FALSE(schedule_of(plan).trains);
  EXPECT_EQ(BoundPlan(plan).action_lists()[0].back(), (Action{ActionKind::SendActivation, 0, 1, 1}));
}

TEST(Listed, IsRefusedByAPlanThatItDoesNotFit) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"0F0", "the schedule lists 1 ranks, the plan has 3"},
      {"0F0\n1F0\n1F1", "rank 1: listed action 1F0: the rank does not have that stage"},
      {"0F0\n0F1\n1F2", "rank 2: listed action 1F2: microbatches are 0..1"},
      {"0F1\n0F1\n1F0", "rank 0: listed action 0F1 belongs to rank 1"},
      {"0F0\n0F1\n1SEND_F0", "rank 2: listed action 1SEND_F0: stages are 0..1"}};
  for (const auto& [text, message] : cases) {
    Plan plan = row_plan("listed", {2, 1}, 2);
    plan.listed = parse_actions_csv(text, "s.csv");
    EXPECT_THAT([&] { validate(plan); }, ThrowsMessage<std::invalid_argument>(message));
  }
  Plan plan = row_plan("1f1b", {1}, 1);
  plan.listed = {{{ActionKind::Forward, 0, 0, -1}}};
  EXPECT_THAT([&] { validate(plan); },
              ThrowsMessage<std::invalid_argument>("actions are only valid with schedule \"listed\", found \"1f1b\""));
  plan.schedule = "listed";
  plan.listed = {{{ActionKind::Update, 0, -1, -1}}};
  EXPECT_THAT([&] { validate(plan); },
              ThrowsMessage<std::invalid_argument>(
                  "rank 0: listed action 0UPDATE: lists do not contain updates; they follow the list"));
}

TEST(PlanOfLists, FindsStagesReplicasAndChunks) {
  const Plan replicated = plan_of_lists(parse_actions_csv("0F0,0B0\n0F1,0B1\n1F0,1B0,1F1,1B1", "s.csv"));
  EXPECT_EQ(replicated.microbatches, 2);
  EXPECT_THAT(replicated.stages[0].devices, ElementsAre(0, 1));
  EXPECT_THAT(replicated.stages[1].devices, ElementsAre(2));
  EXPECT_EQ(replicated.chunks, 1);
  const Plan chunked = plan_of_lists(parse_actions_csv("0F0,2F0\n1F0,3F0", "s.csv"));
  EXPECT_EQ(chunked.chunks, 2);
  EXPECT_THAT(chunked.stages[3].devices, ElementsAre(1));
  const Plan v_shaped = plan_of_lists(parse_actions_csv("0F0,3F0\n1F0,2F0", "s.csv"));
  EXPECT_THAT(v_shaped.stages[2].devices, ElementsAre(1));
  EXPECT_THAT(v_shaped.stages[3].devices, ElementsAre(0));
}

TEST(PlanOfLists, RefusesStagesPlacedDifferently) {
  const auto message = [](const std::string& text) {
    try {
      (void)plan_of_lists(parse_actions_csv(text, "s.csv"));
    } catch (const std::invalid_argument& e) { return std::string(e.what()); }
    return std::string();
  };
  EXPECT_EQ(message("0F0,1F0\n2F0,3F0"),
            "stage 1 is not at position 1 of 2: position d holds the stages d, d + 2, ..., or in a V the stages d and "
            "3 - d");
  EXPECT_EQ(message("0F0\n1F0,2F0"), "the lists hold 3 stages on 2 positions, expected the same number on each");
  EXPECT_THAT(message("16777214F0"), HasSubstr("stage 0 is not at position 0 of 1"));
}

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
                                "RANKS = 2\nRANK_OF_STAGE = [0, 1]\n"
                                "MICROBATCHES = 2\n"
                                "ACTIONS = \"\"\"\\\n0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n\"\"\"\n"));
}

TEST(TorchPipeliningScript, CountsRanksNotStages) {
  EXPECT_THAT(torch_pipelining_script(BoundPlan(testing::row_plan("interleaved-1f1b", {1, 1, 1, 1}, 4, 2))),
              HasSubstr("RANKS = 2\nRANK_OF_STAGE = [0, 1, 0, 1]\n"));
  EXPECT_THAT(torch_pipelining_script(BoundPlan(testing::row_plan("zb-v", {1, 1, 1, 1}, 4, 2))),
              HasSubstr("RANKS = 2\nRANK_OF_STAGE = [0, 1, 1, 0]\n"));
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

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string_view>

#include "costmodel/errors.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/interchange/torch_pipelining.h"
#include "costmodel/plan.h"
#include "tests/costmodel/interleavings.h"
#include "tests/support/refused.h"

namespace stagecraft::format {
namespace {

using stagecraft::testing::row_plan;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(PlanJson, NamesThePlaceOfAWrongAction) {
  Plan plan = row_plan("listed", {1, 1}, 1);
  plan.listed = interchange::parse_actions_csv("0F0,0B0\n1F0,1B0", "s.csv");
  std::string text = plan_json(plan);
  text.replace(text.find("1F0,1B0"), 7, "1F0,1C0");
  EXPECT_THAT([&] { (void)parse_plan(text, "plan.json"); },
              ThrowsMessage<FormatError>(HasSubstr("plan.json: /actions/1: cell 2: found \"1C0\", expected a stage")));
}

TEST(PlanJson, ReadsOlderVersions) {
  const Plan plan = row_plan("1f1b", {1, 1}, 2);
  for (const char* version : {"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}) {
    std::string text = plan_json(plan);
    text.replace(text.find("\"version\": 11") + 11, 2, version);
    EXPECT_EQ(parse_plan(text, "plan.json"), plan);
  }
}

TEST(PlanJson, HoldsTiedParameters) {
  Plan plan = row_plan("1f1b", {1, 1}, 2);
  plan.tied = {{"weight", {"l0", "l1"}}};
  const std::string text = plan_json(plan);
  EXPECT_EQ(parse_plan(text, "plan.json"), plan);
  EXPECT_THAT(text, HasSubstr(R"("tied": [)"));
  std::string wrong = text;
  wrong.replace(wrong.rfind("\"l1\""), 4, "\"l7\"");
  EXPECT_THAT([&] { (void)parse_plan(wrong, "plan.json"); },
              ThrowsMessage<FormatError>("plan.json: /: tied parameter \"weight\": layer \"l7\" is not in any stage"));
}

TEST(PlanJson, HoldsTheParametersOfStages) {
  Plan plan = row_plan("1f1b", {1, 1}, 2);
  plan.stages[0].parameters = {{"l0", {"weight", {2, 3}, "float32"}}};
  plan.stages[1].parameters = {{"l1", {"bias", {}, "float32"}}};
  plan.stages[1].exchanged_buffers = {{"l1", {"mean", {4}, "float64"}}};
  const std::string text = plan_json(plan);
  EXPECT_EQ(parse_plan(text, "plan.json"), plan);
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& message) {
    std::string wrong = text;
    wrong.replace(wrong.find(from), from.size(), to);
    EXPECT_THAT([&] { (void)parse_plan(wrong, "plan.json"); }, ThrowsMessage<FormatError>("plan.json: /: " + message));
  };
  refused("\"layer\": \"l1\"", "\"layer\": \"l0\"",
          "stage 1: parameter \"bias\" of layer \"l0\": the stage does not have the layer");
  refused("\"bias\"", "\"weight\"",
          "stage 1: parameter \"weight\" of layer \"l1\" has another shape or dtype than in another layer");
  refused("float64", "float12", "stage 1: buffer \"mean\" of layer \"l1\" has the unknown dtype \"float12\"");
}

TEST(PlanJson, RefusesSharedParametersThatAreNotTied) {
  Plan plan = row_plan("1f1b", {1, 1}, 2);
  plan.stages[0].parameters = {{"l0", {"weight", {2}, "float32"}}};
  plan.stages[1].parameters = {{"l1", {"weight", {2}, "float32"}}};
  EXPECT_THAT(
      [&] { (void)parse_plan(plan_json(plan), "plan.json"); },
      ThrowsMessage<FormatError>(HasSubstr("layers l0 and l1 share parameter \"weight\", which the plan does not "
                                           "list as tied")));
  plan.tied = {{"weight", {"l0", "l1"}}};
  EXPECT_EQ(parse_plan(plan_json(plan), "plan.json"), plan);
  plan.stages[1].parameters.front().tensor.name = "other";
  EXPECT_THAT(
      [&] { (void)parse_plan(plan_json(plan), "plan.json"); },
      ThrowsMessage<FormatError>(HasSubstr("tied parameter \"weight\" of layers \"l0\", \"l1\": the stages list "
                                           "it for l0")));
}

TEST(PlanJson, LeavesOutWhatIsNotSet) {
  const std::string text = plan_json(row_plan("1f1b", {1}, 2));  // boundary tensors would have a dtype
  for (const char* key : {"dtype", "allow_tf32", "optimizer", "gradient_bucket_bytes", "recompute", "tied",
                          "parameters", "exchanged_buffers", "sharding"})
    EXPECT_EQ(text.find(key), std::string::npos) << key;
}

TEST(PlanJson, RefusesARecomputeEveryWithoutEffect) {
  Plan plan = row_plan("1f1b", {1, 1}, 2);
  plan.stages[1].recompute = true;
  plan.stages[1].recompute_every = 3;
  EXPECT_EQ(parse_plan(plan_json(plan), "plan.json"), plan);
  plan.stages[1].recompute = false;
  EXPECT_THAT(
      [&] { (void)parse_plan(plan_json(plan), "plan.json"); },
      ThrowsMessage<FormatError>("plan.json: /stages/1/recompute_every: has no effect without \"recompute\": true"));
}

using testing::row_plan;

/// 64-bit FNV-1a, with its prime 2^40 + 0x1b3 in two parts.
std::uint64_t other_fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash = (hash << 40) + hash * 0x1b3;
  }
  return hash;
}

// The test vectors of draft-eastlake-fnv, appendix C, check the function above.
TEST(PlanHash, IsFnv1aOfThePlansDocumentAndItsActions) {
  ASSERT_EQ(other_fnv1a(""), 0xcbf29ce484222325);
  ASSERT_EQ(other_fnv1a("a"), 0xaf63dc4c8601ec8c);
  ASSERT_EQ(other_fnv1a("foobar"), 0x85944171f73967e8);
  const Plan plan = row_plan("1f1b", {1, 1}, 1);
  EXPECT_EQ(plan_hash(BoundPlan(plan)), other_fnv1a(plan_json(plan) + "0F0,0SEND_F0,0RECV_B0,0B0,0UPDATE,\n" +
                                                    "1RECV_F0,1F0,1B0,1SEND_B0,1UPDATE,\n"));
}

TEST(PlanHash, CoversWhatIsRunNotWhoMadeIt) {
  const Plan plan = row_plan("1f1b", {1, 1}, 2);
  const auto hash_with = [&](const std::function<void(Plan&)>& change) {
    Plan other = plan;
    change(other);
    return plan_hash(BoundPlan(other));
  };
  const std::uint64_t hash = plan_hash(BoundPlan(plan));
  EXPECT_EQ(hash_with([](Plan& p) { p.provenance.date = "2026-01-02T03:04:05Z"; }), hash);
  EXPECT_NE(hash_with([](Plan& p) { p.options["width"] = "8"; }), hash);
  EXPECT_NE(hash_with([](Plan& p) { p.tied = {{"weight", {"l0", "l1"}}}; }), hash);
  EXPECT_NE(hash_with([](Plan& p) { p.schedule = "gpipe"; }), hash);
}

TEST(PlanHash, CoversTheOrderOfActions) {
  Plan plan = row_plan("listed", {1}, 2);
  plan.listed = {{{ActionKind::Forward, 0, 0, -1}, {ActionKind::Forward, 0, 1, -1}}};
  const std::uint64_t hash = plan_hash(BoundPlan(plan));
  std::swap(plan.listed[0][0], plan.listed[0][1]);
  EXPECT_NE(plan_hash(BoundPlan(plan)), hash);
}

TEST(PlanHash, DistinguishesPlans) {
  std::map<std::uint64_t, std::string> seen;
  for (const char* schedule : {"gpipe", "1f1b", "forward", "pipedream"}) {
    for (int replicas = 1; replicas <= 3; ++replicas) {
      for (int microbatches = 1; microbatches <= 6; ++microbatches) {
        const std::string name =
            std::string(schedule) + " " + std::to_string(replicas) + " " + std::to_string(microbatches);
        const auto [it, fresh] =
            seen.emplace(plan_hash(BoundPlan(row_plan(schedule, {replicas, 1}, microbatches))), name);
        EXPECT_TRUE(fresh) << name << " and " << it->second;
      }
    }
  }
}

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::string refused(const std::string& row) {
  return testing::refused([&] { return parse_actions_row(row); });
}

TEST(ActionsRow, LeavesOutIdleCellsAndWhatIsNotKept) {
  EXPECT_THAT(parse_actions_row(""), IsEmpty());
  EXPECT_THAT(parse_actions_row(" , ,\t"), IsEmpty());
  EXPECT_THAT(parse_actions_row("0UNSHARD,,0F0,0RESHARD"), ElementsAre(Action{ActionKind::Forward, 0, 0, -1}));
}

TEST(ActionsRow, KnowsTheNeighbourThatATransferMeans) {
  EXPECT_THAT(parse_actions_row("2SEND_F7,2RECV_F7,2SEND_B7,2RECV_B7"),
              ElementsAre(Action{ActionKind::SendActivation, 2, 7, 3}, Action{ActionKind::ReceiveActivation, 2, 7, 1},
                          Action{ActionKind::SendGradient, 2, 7, 1}, Action{ActionKind::ReceiveGradient, 2, 7, 3}));
}

TEST(ActionsRow, ReadsABackwardInTwoHalvesInEitherOrderOfCells) {
  const std::vector<Action> halves{{ActionKind::Backward, 1, 4, -1}, {ActionKind::WeightGradient, 1, 4, -1}};
  EXPECT_EQ(parse_actions_row("1I4,1W4"), halves);
  EXPECT_EQ(actions_row(halves), "1I4,1W4");
  EXPECT_EQ(actions_row({halves[0]}), "1B4");  // a full backward if the other half does not follow
}

TEST(ActionsRow, ReadsAnOverlapAsItsPartsInOrder) {
  EXPECT_EQ(parse_actions_row("(1F2; 1B0)OVERLAP_F_B"), parse_actions_row("1F2,1B0"));
}

TEST(ActionsRow, RefusesToWriteWhatItHasNoCellFor) {
  EXPECT_THAT([] { (void)actions_row({{ActionKind::Update, 0, -1, -1}}); },
              ThrowsMessage<std::invalid_argument>("0UPDATE has no cell in the CSV format"));
  EXPECT_THAT([] { (void)actions_row({{ActionKind::SendActivation, 0, 3, 2}}); },
              ThrowsMessage<std::invalid_argument>(
                  "0SEND_F3 to stage 2: the CSV format has transfers between adjacent stages only"));
  EXPECT_THAT([] { (void)actions_row({{ActionKind::WeightGradient, 0, 3, -1}}); },
              ThrowsMessage<std::invalid_argument>("0W3 has no backward in the list"));
}

TEST(ActionsRow, CountsCellsFromOneIncludingIdleOnes) {
  EXPECT_THAT(refused("0X0"), StartsWith("cell 1: "));
  EXPECT_THAT(refused(",0F0,,0X0"), AllOf(StartsWith("cell 4: "), HasSubstr("\"0X0\"")));
  EXPECT_THAT(refused("0F0,(1F2;1X0)OVERLAP_F_B"), AllOf(StartsWith("cell 2: "), HasSubstr("\"1X0\"")));
}

TEST(ActionsRow, BoundsStagesAndMicrobatches) {
  // Stages below 2^24, microbatches below 2^20.
  EXPECT_EQ(parse_actions_row("16777215F1048575").front(), (Action{ActionKind::Forward, 16777215, 1048575, -1}));
  EXPECT_THAT(refused("16777216F0"), HasSubstr("\"16777216F0\""));
  EXPECT_THAT(refused("0F1048576"), HasSubstr("\"0F1048576\""));
  EXPECT_THAT(refused("99999999999999999999F0"), StartsWith("cell 1: "));
}

/// Actions of a few stages that have a cell; each microbatch of a stage has one full backward or two halves.
std::vector<Action> random_list(std::mt19937& random) {
  std::vector<Action> out;
  for (std::mt19937::result_type n = random() % 12; n > 0; --n) {
    const int stage = 1 + static_cast<int>(random() % 3);
    const int microbatch = static_cast<int>(100 * n + random() % 100);  // different each time
    switch (random() % 5) {
      case 0:
        out.push_back({ActionKind::Forward, stage, microbatch, -1});
        break;
      case 1:
        out.push_back({ActionKind::Backward, stage, microbatch, -1});
        if (random() % 2 == 0) out.push_back({ActionKind::WeightGradient, stage, microbatch, -1});
        break;
      case 2:
        out.push_back({random() % 2 == 0 ? ActionKind::SendActivation : ActionKind::ReceiveGradient, stage, microbatch,
                       stage + 1});
        break;
      case 3:
        out.push_back({random() % 2 == 0 ? ActionKind::ReceiveActivation : ActionKind::SendGradient, stage, microbatch,
                       stage - 1});
        break;
      default:
        out.push_back({ActionKind::Reduce, stage, -1, -1});
    }
  }
  std::shuffle(out.begin(), out.end(), random);
  return out;
}

TEST(ActionsRow, ReadsBackWhatItWrote) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const std::vector<Action> list = random_list(random);
    EXPECT_EQ(parse_actions_row(actions_row(list)), list) << "seed " << seed << ": " << actions_row(list);
  }
}

}  // namespace

}  // namespace stagecraft::format

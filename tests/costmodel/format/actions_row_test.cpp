#include "costmodel/format/actions_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/refused.h"

namespace stagecraft::format {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

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

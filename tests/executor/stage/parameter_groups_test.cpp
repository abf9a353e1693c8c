#include "executor/stage/parameter_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace stagecraft::stage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::vector<std::string> kNames{"0.conv.weight", "0.conv.bias", "0.norm.weight", "head.weight"};

TEST(ParameterGroups, AreReadAndWritten) {
  const ParameterGroup group = parse_group("(?:bias|norm):weight_decay=0,lr=1e-3,lr-factor=0.5");
  EXPECT_EQ(group.pattern, "(?:bias|norm)");
  EXPECT_EQ(group.weight_decay, 0);
  EXPECT_EQ(group.learning_rate, 1e-3);
  EXPECT_EQ(group.rate_factor, 0.5);
  EXPECT_EQ(group_text(group), "(?:bias|norm):weight-decay=0,learning-rate=0.001,learning-rate-factor=0.5");
  EXPECT_FALSE(parse_group("bias:lr-factor=0").weight_decay);
}

TEST(ParameterGroups, SayWhatIsWrong) {
  const auto refused = [](const std::string& text, const std::string& why) {
    EXPECT_THAT([&] { (void)parse_group(text); }, ThrowsMessage<std::invalid_argument>(HasSubstr(why))) << text;
  };
  for (const char* text : {"bias", ":weight-decay=0", "bias:", ""}) refused(text, "expected PATTERN:SETTING=VALUE");
  refused("bias:momentum=0",
          "unknown setting \"momentum\", known are weight-decay, learning-rate, learning-rate-factor");
  refused("bias:weight-decay", "weight-decay is \"\", must be a number from 0 to 1e6");
  refused("bias:weight-decay=-1", "weight-decay is \"-1\"");
  refused("bias:lr=nan", "learning-rate is \"nan\"");
  refused("bias:lr=1,learning-rate=2", "learning-rate is set twice");
  refused("(bias:lr=1", "\"(bias\" is not a regular expression");
}

TEST(ParameterGroups, HaveTheParametersThatNoEarlierOneHas) {
  const std::vector<ParameterGroup> groups{parse_group("bias|norm:lr=1"), parse_group("^0\\.:lr=1")};
  EXPECT_THAT(groups_of(groups, kNames), ElementsAre(1, 0, 0, 2));
  EXPECT_NO_THROW(check_groups(groups, kNames));
  EXPECT_THAT([&] { check_groups({parse_group("Bias:lr=1")}, kNames); },
              ThrowsMessage<std::invalid_argument>("group \"Bias\" matches no parameter; the model has 0.conv.bias, "
                                                   "0.conv.weight, 0.norm.weight, head.weight"));
  EXPECT_THAT([&] { check_groups({parse_group("conv:lr=1"), parse_group("bias:lr=1")}, kNames); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("earlier groups have all that match")));
}

}  // namespace
}  // namespace stagecraft::stage

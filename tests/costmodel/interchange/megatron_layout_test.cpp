#include "costmodel/interchange/megatron_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <random>

#include "costmodel/errors.h"
#include "tests/costmodel/interleavings.h"
#include "tests/support/refused.h"

namespace stagecraft::interchange {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> stages_of(const std::string& text) { return parse_megatron_layout(text, "layout"); }

std::string refusal(const std::string& text) {
  try {
    (void)stages_of(text);
  } catch (const FormatError& e) { return e.what(); }
  return "";
}

const std::vector<std::string> kGpt{"wte",     "wpe",  "h.0.attn", "h.0.mlp", "h.1.attn",
                                    "h.1.mlp", "ln_f", "lm_head",  "loss"};

// Megatron-LM's example: DeepSeek-V3 in 16 x 2 stages, 61 decoder layers and one prediction layer.
TEST(MegatronLayout, ReadsAndWritesMegatronsExample) {
  const std::vector<std::string> stages = stages_of("Et*3|(tt|)*29,m|L");
  ASSERT_EQ(stages.size(), 32U);
  EXPECT_EQ(stages[0], "Ettt");
  for (int s = 1; s <= 29; ++s) EXPECT_EQ(stages[static_cast<std::size_t>(s)], "tt");
  EXPECT_EQ(stages[30], "m");
  EXPECT_EQ(stages[31], "L");
  EXPECT_EQ(megatron_layout_text(stages), "Et*3|(tt|)*29,m|L");
}

// From the comments of parse_str_to_list: xy(ab|cd|ef)*2,pq is xyab|cd|efab|cd|efpq, (ab)*3 is ababab.
TEST(MegatronLayout, RepeatsTheContentOfParentheses) {
  EXPECT_THAT(stages_of("E(tt|t)*2,L"), ElementsAre("Ett", "ttt", "tL"));
  EXPECT_THAT(stages_of("E(t*2|t)*2,L\n"), ElementsAre("Ett", "ttt", "tL"));
  EXPECT_THAT(stages_of("E(|t)*2,L"), ElementsAre("E", "t", "tL"));
  EXPECT_THAT(stages_of("E,t,t|*1L"), ElementsAre("Ett", "L"));
}

TEST(MegatronLayout, NamesTheCharacterThatIsWrong) {
  EXPECT_EQ(refusal(""), "layout: character 1: is empty, expected a layout such as Et*3|(tt|)*2,L");
  EXPECT_EQ(refusal("Etx|L"), "layout: character 3: found \"x\", expected E, t, m, L, |, a comma or parentheses");
  EXPECT_EQ(refusal("E t|L"),
            "layout: character 2: found a character without a meaning, expected E, t, m, L, |, a comma or parentheses");
  EXPECT_EQ(refusal("E(t|(t)*2)*2,L"), "layout: character 5: found \"(\" within parentheses, which do not nest");
  EXPECT_EQ(refusal("E(tt|L"), "layout: character 2: found \"(\" without its \")\"");
  EXPECT_EQ(refusal("E()*2L"), "layout: character 2: found nothing in the parentheses");
  EXPECT_EQ(refusal("E(tt|)L"), "layout: character 7: missing *COUNT after \")\"");
  for (const char* text : {"Et*|L", "Et*0|L", "Et*99999999999999999999|L"}) {
    EXPECT_EQ(refusal(text), "layout: character 4: found no repetition from 1 to 65536 after \"*\"") << text;
  }
  EXPECT_EQ(refusal("Et*2*3|L"), "layout: character 5: found a second repetition");
  EXPECT_THAT(refusal("E(t*60000|)*60000,L"), HasSubstr("more than 65536 layers and stages"));
  EXPECT_EQ(refusal("Et||L"), "layout: stage 1 has no layers, a plan's stage has at least one");
  EXPECT_EQ(refusal("tt|L"), "layout: expected one E, as the first letter");
  EXPECT_EQ(refusal("EtE|L"), "layout: expected one E, as the first letter");
  EXPECT_EQ(refusal("Et|t"), "layout: expected one L, as the last letter");
  EXPECT_EQ(refusal("Et|m|tL"), "layout: found an m before a t, decoder layers come before prediction layers");
}

TEST(MegatronLayout, RoundTripsForRandomStages) {
  std::mt19937 random(20260307);
  std::cout << "seed 20260307\n";
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> stages(1 + random() % 12);
    for (std::string& stage : stages) stage.assign(1 + random() % 3, 't');
    stages.front().insert(0, "E");
    stages.back() += "L";
    const std::string text = megatron_layout_text(stages);
    EXPECT_EQ(stages_of(text), stages) << text;
  }
}

TEST(LayoutUnits, AreEmbeddingBlocksAndLoss) {
  EXPECT_THAT(layout_units(kGpt), ElementsAre(LayoutUnit{'E', "the embedding", 0, 2}, LayoutUnit{'t', "h.0", 2, 4},
                                              LayoutUnit{'t', "h.1", 4, 6}, LayoutUnit{'L', "the loss", 6, 9}));
}

// There are more experts than blocks, but they are all inside one block: model.layers.1.
TEST(LayoutUnits, TakesTheContainerOfMostLayers) {
  const auto units =
      layout_units({"model.embed_tokens", "model.layers.0.attn", "model.layers.1.experts.0", "model.layers.1.experts.1",
                    "model.layers.1.experts.2", "model.mtp.0.proj", "model.mtp.1.proj", "model.norm"});
  std::string letters;
  for (const LayoutUnit& unit : units) letters += unit.letter;
  EXPECT_EQ(letters, "EttmmL");
  EXPECT_EQ(units[2].name, "model.layers.1");
}

TEST(LayoutUnits, NamesTheLayerThatHasNoLetter) {
  const auto of = [](const std::vector<std::string>& ids) {
    return testing::refused([&] { return layout_units(ids); });
  };
  EXPECT_THAT(of({"node1", "node2"}), HasSubstr("no layers are numbered blocks such as \"h.0\" and \"h.1.mlp\""));
  EXPECT_THAT(of({"conv1", "layer1.0", "layer1.1", "fc"}),
              HasSubstr("layer \"conv1\" comes before the blocks of \"layer1\" and is not an embedding; a layout "
                        "expresses one embedding (E)"));
  EXPECT_THAT(of({"h.0", "h.1", "loss"}), HasSubstr("no embedding comes before layer \"h.0\""));
  EXPECT_THAT(of({"wte", "h.0", "pool", "h.1", "loss"}),
              HasSubstr("layer \"pool\" is between the blocks \"h.0\" and \"h.1\""));
  EXPECT_THAT(of({"wte", "h.0.a", "h.1.a", "h.0.b", "loss"}),
              HasSubstr("layer \"h.0.b\" is separate from the rest of h.0"));
  EXPECT_THAT(of({"wte", "h.0", "h.1", "pool"}),
              HasSubstr("layer \"pool\" comes after the blocks of \"h\" and is not a norm, output layer or loss"));
  EXPECT_THAT(of({"wte", "h.0", "h.1"}), HasSubstr("no norm, output layer or loss comes after layer \"h.1\""));
}

TEST(MegatronLayout, OfAPlanImportsToTheSamePartition) {
  const Plan plan = testing::plan_of_layers(
      {{"wte", "wpe", "h.0.attn", "h.0.mlp"}, {"h.1.attn", "h.1.mlp"}, {"ln_f", "lm_head", "loss"}});
  const std::string text = megatron_layout_text(megatron_layout(BoundPlan(plan)));
  EXPECT_EQ(text, "Et|t|L");
  EXPECT_THAT(megatron_partition(stages_of(text), testing::graph_of_layers(kGpt)).stage_of_layer,
              ElementsAre(0, 0, 0, 0, 1, 1, 2, 2, 2));
}

TEST(MegatronLayout, RefusesWhatALetterCannotPart) {
  EXPECT_EQ(
      testing::refused([] {
        return megatron_layout(
            BoundPlan(testing::plan_of_layers({{"wte", "h.0.attn"}, {"h.0.mlp", "h.1.attn", "loss"}})));
      }),
      "layer \"h.0.mlp\" of h.0 is in stage 1, its first layer in stage 0; a layout has one letter t for all of it");
  Plan plan = testing::plan_of_layers({{"wte", "h.0"}, {"h.1", "loss"}});
  plan.stages[1].devices = {1, 2};
  EXPECT_EQ(testing::refused([&] { return megatron_layout(BoundPlan(plan)); }),
            "stage 1 has 2 replicas and stage 0 has 1, but Megatron-LM needs the same number for every stage");
}

TEST(MegatronLayout, RefusesAGraphOfOtherLayers) {
  EXPECT_EQ(testing::refused([] { return megatron_partition(stages_of("Ettt|L"), testing::graph_of_layers(kGpt)); }),
            "found 1 E, 3 t, 0 m, 1 L; graph \"net\" has 1 E, 2 t, 0 m, 1 L");
}

}  // namespace
}  // namespace stagecraft::interchange

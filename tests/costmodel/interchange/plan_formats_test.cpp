#include "costmodel/interchange/plan_formats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "costmodel/format/files/outputs.h"
#include "costmodel/interchange/pipedream_conf.h"
#include "tests/costmodel/interleavings.h"
#include "tests/support/known_names.h"
#include "tests/support/table_names.h"

// What every plan format guarantees; each format's own tests check what it writes.

namespace stagecraft::interchange {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

/// wte | h.0 .. h.N | norm, a list of layers that every format can name.
std::vector<std::string> layers_of(int blocks) {
  std::vector<std::string> out{"wte"};
  for (int i = 0; i < blocks; ++i) out.push_back("h." + std::to_string(i));
  out.push_back("norm");
  return out;
}

/// The plan that cuts the list at `bounds`, and the graph it is for.
struct Case {
  Plan plan;
  Graph graph;
};
Case case_of(const std::vector<std::string>& layers, const std::vector<int>& bounds) {
  std::vector<std::vector<std::string>> stages;
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s)
    stages.emplace_back(layers.begin() + bounds[s], layers.begin() + bounds[s + 1]);
  return {testing::plan_of_layers(stages), testing::graph_of_layers(layers)};
}

std::string text_of(const PlanTexts& texts, const std::string& kind) {
  for (const PlanText& text : texts.texts) {
    if (text.kind == kind) return text.text;
  }
  ADD_FAILURE() << "no text " << kind;
  return "";
}

class PlanFormats : public ::testing::TestWithParam<std::string> {
 protected:
  const PlanFormat& format() const { return plan_format(GetParam()); }
};

TEST_P(PlanFormats, WriteTheKindsOfTextThatTheyName) {
  const Case one = case_of(layers_of(3), {0, 2, 5});
  PlanTextOptions options;
  options.graph = one.graph;
  const PlanTexts texts = format().write(BoundPlan(one.plan), options);
  std::vector<std::string> kinds;
  std::set<std::string> files;
  for (const PlanText& text : texts.texts) {
    kinds.push_back(text.kind);
    EXPECT_TRUE(files.insert(text.file).second) << text.file;
    EXPECT_FALSE(text.text.empty());
    EXPECT_NE(format::text_kind(text.text), "") << text.kind << ": outputs.cpp does not know how it begins";
  }
  if (format().kinds.empty()) {
    EXPECT_EQ(kinds.size(), 1u);
  } else {
    EXPECT_EQ(kinds, format().kinds);
  }
  EXPECT_FALSE(format().what.empty());
}

TEST_P(PlanFormats, ReadBackTheStagesOrTheListsOfAnyCut) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    const std::vector<std::string> layers = layers_of(3 + static_cast<int>(random() % 6));
    const int last = static_cast<int>(layers.size());
    std::vector<int> bounds{0};
    while (bounds.back() < last) bounds.push_back(std::min(last, bounds.back() + 1 + static_cast<int>(random() % 4)));
    const Case one = case_of(layers, bounds);
    const PlanTexts texts = format().write(BoundPlan(one.plan), {});
    const SourceFile file{text_of(texts, format().reads), "theirs"};
    const ForeignPlan found = format().read(file, staged_graph(one.graph, one.plan));
    EXPECT_NE(found.partition.has_value(), found.lists.has_value()) << "seed " << seed;
    if (found.partition) {
      std::vector<int> stages;
      for (int s = 0; s + 1 < static_cast<int>(bounds.size()); ++s)
        stages.resize(static_cast<std::size_t>(bounds[static_cast<std::size_t>(s) + 1]), s);
      EXPECT_EQ(found.partition->stage_of_layer, stages) << "seed " << seed;
      EXPECT_EQ(found.partition->replicas, std::vector<int>(bounds.size() - 1, 1)) << "seed " << seed;
    } else {
      EXPECT_EQ(found.lists->stages.size(), bounds.size() - 1) << "seed " << seed;
      EXPECT_EQ(found.lists->microbatches, one.plan.microbatches) << "seed " << seed;
    }
  }
}

TEST_P(PlanFormats, NameTheFileThatTheyCannotRead) {
  const Graph graph = testing::graph_of_layers(layers_of(2));
  EXPECT_THAT([&] { (void)format().read({"\x01", "theirs"}, graph); },
              ::testing::Throws<std::exception>(::testing::Property(&std::exception::what, StartsWith("theirs: "))));
}

TEST_P(PlanFormats, WarnOfRecomputationThatTheyDoNotCarry) {
  Case one = case_of(layers_of(3), {0, 2, 5});
  const std::size_t before = format().write(BoundPlan(one.plan), {}).warnings.size();
  one.plan.stages[1].recompute = true;
  const std::vector<std::string> warnings = format().write(BoundPlan(one.plan), {}).warnings;
  EXPECT_EQ(warnings.size(), before + 1);
  EXPECT_THAT(warnings, Contains(HasSubstr("recomput")));
}

INSTANTIATE_TEST_SUITE_P(Formats, PlanFormats, ::testing::ValuesIn(testing::names_of(plan_formats())),
                         testing::AfterEntry());

TEST(PlanFormatTable, IsSortedByName) { EXPECT_TRUE(std::ranges::is_sorted(testing::names_of(plan_formats()))); }

TEST(PlanFormat, ListsTheKnownNamesWithTheOthersInOrder) {
  std::vector<std::string> known = testing::names_of(plan_formats());
  known.insert(known.end(), {"zeta", "chakra"});
  std::ranges::sort(known);
  EXPECT_THAT([] { (void)plan_format("keras", {"zeta", "chakra"}); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("\"keras\""), HasSubstr("known are " + known_names(known)))));
}

TEST(PlanFormatActions, CarryTransfersWhereAsked) {
  const Case one = case_of(layers_of(1), {0, 1, 3});
  PlanTextOptions options;
  const PlanFormat& actions = plan_format("actions");
  EXPECT_EQ(actions.write(BoundPlan(one.plan), options).texts[0].text.find("SEND"), std::string::npos);
  options.transfers = true;
  EXPECT_THAT(actions.write(BoundPlan(one.plan), options).texts[0].text, HasSubstr("0F0,0SEND_F0,"));
}

TEST(PlanFormatPipedreamConf, StatesReplicasDevicesAndWarmUps) {
  Plan plan = testing::row_plan("pipedream", {2, 1}, 4);
  const Graph graph = staged_graph(testing::graph_of_layers({"l0", "l1"}), plan);
  PlanTextOptions options;
  options.depths = true;
  const PlanFormat& conf = plan_format("pipedream-conf");
  const ForeignPlan found =
      conf.read({text_of(conf.write(BoundPlan(plan), options), conf.reads), "hybrid_conf.json"}, graph);
  EXPECT_THAT(found.partition.value().replicas, ElementsAre(2, 1));
  EXPECT_THAT(found.devices, ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
  EXPECT_EQ(found.warmups, plan.warmups);
}

}  // namespace
}  // namespace stagecraft::interchange

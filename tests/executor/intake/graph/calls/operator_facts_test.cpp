#include "executor/intake/graph/calls/operator_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

/// Value `index`, a tensor.
CallArgument tensor(int index) { return {.tensors = {index}, .value = index}; }
CallArgument constant(c10::IValue value) { return {.constant = std::move(value)}; }
CallArgument unknown() { return {}; }

/// Facts of the call aten::NAME.OVERLOAD(arguments); its results are values 100, 101, ...
NodeFacts facts(const std::string& name, const std::string& overload, const std::vector<CallArgument>& arguments) {
  const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name).c_str(), overload.c_str());
  std::vector<std::vector<int>> results;
  for (std::size_t r = 0; r < op.schema().returns().size(); ++r) results.push_back({100 + to_int(r)});
  return operator_facts(op.schema(), &op, arguments, results, "m.pt2: node \"n\"");
}

TEST(OperatorFacts, WritesAndAliasesComeFromTheSchema) {
  EXPECT_THAT(facts("relu_", "", {tensor(0)}).writes, ElementsAre(0));
  EXPECT_THAT(facts("relu_", "", {tensor(0)}).aliases, ElementsAre(Pair(100, 0)));
  EXPECT_THAT(facts("relu", "", {tensor(0)}).writes, IsEmpty());
  EXPECT_THAT(facts("relu", "", {tensor(0)}).aliases, IsEmpty());
  EXPECT_THAT(facts("t", "", {tensor(0)}).aliases, ElementsAre(Pair(100, 0)));
  EXPECT_THAT(facts("add", "out", {tensor(0), tensor(1), constant(1), tensor(2)}).writes, ElementsAre(2));
}

TEST(OperatorFacts, OperatorsThatMayGiveTheirArgumentCountAsViews) {
  EXPECT_THAT(facts("type_as", "", {tensor(0), tensor(1)}).aliases, UnorderedElementsAre(Pair(100, 0), Pair(100, 1)));
  EXPECT_THAT(facts("reshape", "", {tensor(0), unknown()}).aliases, ElementsAre(Pair(100, 0)));
}

TEST(OperatorFacts, SumIntoABufferKeepsWhatItHeld) {
  EXPECT_THAT(facts("add_", "Tensor", {tensor(0), tensor(1), constant(1)}).decays, ElementsAre(Pair(0, 1)));
  EXPECT_THAT(facts("add_", "Tensor", {tensor(0), tensor(0), constant(1)}).decays, IsEmpty())
      << "what is added follows from what it held";
}

TEST(OperatorFacts, ProductWithANumberKeepsItsShare) {
  EXPECT_THAT(facts("mul_", "Tensor", {tensor(0), constant(0.75)}).decays, ElementsAre(Pair(0, 0.75)));
  EXPECT_THAT(facts("mul_", "Tensor", {tensor(0), constant(std::int64_t{2})}).decays, ElementsAre(Pair(0, 2)));
  EXPECT_THAT(facts("mul_", "Tensor", {tensor(0), tensor(1)}).decays, IsEmpty());
}

TEST(OperatorFacts, OtherWritesKeepNothingKnown) {
  EXPECT_THAT(facts("sigmoid_", "", {tensor(0)}).decays, IsEmpty());
  EXPECT_THAT(facts("sigmoid_", "", {tensor(0)}).writes, ElementsAre(0));
}

std::vector<CallArgument> instance_norm(bool input_statistics) {
  // input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled
  return {tensor(0),      constant({}),   constant({}),   tensor(1), tensor(2), constant(input_statistics),
          constant(0.25), constant(1e-5), constant(false)};
}

TEST(OperatorFacts, NormsMoveStatisticsThatTheirSchemasDoNotMention) {
  const NodeFacts moving = facts("instance_norm", "", instance_norm(true));
  EXPECT_THAT(moving.writes, UnorderedElementsAre(1, 2));
  EXPECT_THAT(moving.decays, UnorderedElementsAre(Pair(1, 0.75), Pair(2, 0.75)));
  EXPECT_THAT(facts("instance_norm", "", instance_norm(false)).decays, IsEmpty());
}

TEST(OperatorFacts, NormWithoutStatisticsMovesNone) {
  std::vector<CallArgument> arguments = instance_norm(true);
  arguments[3] = arguments[4] = constant({});
  EXPECT_THAT(facts("instance_norm", "", arguments).decays, IsEmpty());
}

TEST(OperatorFacts, DrawsUnlessNothingCanBeDropped) {
  const auto dropout = [](const CallArgument& p, const CallArgument& train) {
    return facts("dropout", "", {tensor(0), p, train}).random;
  };
  EXPECT_TRUE(dropout(constant(0.5), constant(true)));
  EXPECT_TRUE(dropout(unknown(), unknown())) << "what is not known may draw";
  EXPECT_FALSE(dropout(constant(0.0), constant(true)));
  EXPECT_FALSE(dropout(constant(0.5), constant(false)));
  EXPECT_TRUE(facts("rand_like", "", {tensor(0), unknown(), unknown(), unknown(), unknown(), unknown()}).random);
  EXPECT_FALSE(facts("relu", "", {tensor(0)}).random);
}

TEST(OperatorFacts, CheapOperatorsThatDrawNothingMayBeRepeated) {
  EXPECT_TRUE(facts("relu", "", {tensor(0)}).repeatable);
  EXPECT_FALSE(facts("mm", "", {tensor(0), tensor(1)}).repeatable);
  EXPECT_FALSE(facts("linear", "", {tensor(0), tensor(1), constant({})}).repeatable);
  EXPECT_FALSE(facts("dropout", "", {tensor(0), constant(0.5), constant(true)}).repeatable);
}

TEST(OperatorFacts, RefusesSparseGradientsWithThePlace) {
  // weight, indices, padding_idx, scale_grad_by_freq, sparse
  const auto embedding = [](bool sparse) {
    return facts("embedding", "",
                 {tensor(0), tensor(1), constant(std::int64_t{-1}), constant(false), constant(sparse)});
  };
  EXPECT_NO_THROW((void)embedding(false));
  EXPECT_THAT([&] { (void)embedding(true); },
              ThrowsMessage<FormatError>(::testing::AllOf(HasSubstr("m.pt2: node \"n\": "), HasSubstr("sparse"))));
}

}  // namespace
}  // namespace stagecraft::intake

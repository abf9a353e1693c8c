#include "executor/intake/torchscript/values/script_value.h"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stagecraft::intake {
namespace {

using ::testing::ElementsAre;
using Kind = ScriptValue::Kind;

ScriptValue list(std::vector<ScriptValue> items) {
  auto made = std::make_shared<ScriptItems>();
  made->element = c10::IntType::get();
  made->items = std::move(items);
  return {.kind = Kind::Items, .items = std::move(made)};
}

/// A number that is 10 in the first run and 20 in the second.
ScriptValue batch() {
  return {.kind = Kind::Number,
          .runs = {c10::IValue(std::int64_t{10}), c10::IValue(std::int64_t{20})},
          .number = std::make_shared<ScriptNumber>()};
}

ScriptValue value() {
  return {.kind = Kind::Value, .value = 4, .runs = {c10::IValue(std::int64_t{1}), c10::IValue(std::int64_t{2})}};
}

TEST(ScriptValue, ListsAndTuplesOfConstantsBecomeItems) {
  const ScriptValue numbers = constant_value_of(c10::List<std::int64_t>({5, 6}));
  ASSERT_EQ(numbers.kind, Kind::Items);
  EXPECT_FALSE(numbers.items->tuple);
  EXPECT_EQ(numbers.items->element->kind(), c10::TypeKind::IntType);
  EXPECT_EQ(numbers.items->items[1].constant.toInt(), 6);
  const ScriptValue tuple =
      constant_value_of(c10::ivalue::Tuple::create({c10::IValue(true), c10::IValue(c10::List<std::int64_t>({7}))}));
  ASSERT_EQ(tuple.kind, Kind::Items);
  EXPECT_TRUE(tuple.items->tuple);
  EXPECT_EQ(tuple.items->items[1].kind, Kind::Items) << "inner ones too";
  EXPECT_EQ(constant_value_of(1.5).kind, Kind::Constant);
  EXPECT_TRUE(constant_value_of(c10::IValue()).is_none());
}

TEST(ScriptValue, IsInEachRunWhatItIsThere) {
  EXPECT_EQ(in_run(constant_value_of(1.5), 1).toDouble(), 1.5);
  EXPECT_EQ(in_run(batch(), 0).toInt(), 10);
  EXPECT_EQ(in_run(batch(), 1).toInt(), 20);
  const c10::IValue found = in_run(list({batch(), constant_value_of(std::int64_t{3})}), 1);
  EXPECT_EQ(found.toIntVector(), (std::vector<std::int64_t>{20, 3}));
}

TEST(ScriptValue, ListOfARunIsAFreshOne) {
  const ScriptValue items = list({constant_value_of(std::int64_t{3})});
  in_run(items, 0).toIntList().push_back(4);  // like an operator that appends
  EXPECT_EQ(in_run(items, 0).toIntVector(), std::vector<std::int64_t>{3});
}

TEST(ScriptValue, ConstantIsWhatIsTheSameInEveryRun) {
  const ScriptValue three = constant_value_of(std::int64_t{3});
  EXPECT_TRUE(is_constant(three));
  EXPECT_TRUE(is_constant(list({three, list({three})})));
  EXPECT_FALSE(is_constant(batch()));
  EXPECT_FALSE(is_constant(list({three, list({batch()})})));
  EXPECT_FALSE(is_constant(value()));
}

TEST(ScriptValue, StaticIsWhatHoldsNoValueOfTheGraph) {
  const ScriptValue three = constant_value_of(std::int64_t{3});
  EXPECT_TRUE(is_static(three));
  EXPECT_TRUE(is_static(list({three, batch()}))) << "a number follows from the batch size";
  EXPECT_FALSE(is_static(value()));
  EXPECT_FALSE(is_static(list({three, list({value()})})));
}

TEST(ScriptValue, VisitsWhatListsHoldInOrder) {
  std::vector<Kind> seen;
  for_each_value(list({batch(), list({value()}), constant_value_of(true)}),
                 [&](const ScriptValue& part) { seen.push_back(part.kind); });
  EXPECT_THAT(seen, ElementsAre(Kind::Number, Kind::Value, Kind::Constant));
}

}  // namespace
}  // namespace stagecraft::intake

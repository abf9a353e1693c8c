#include "executor/intake/torchscript/script_value.h"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "costmodel/errors.h"

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

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

ScriptValue number(std::int64_t value) { return constant_value_of(value); }
ScriptValue none() { return constant_value_of(c10::IValue()); }
ScriptValue numbers_list(const std::vector<std::int64_t>& values) {
  return constant_value_of(c10::List<std::int64_t>(values));
}

std::optional<std::vector<ScriptValue>> call(const std::string& name, const std::vector<ScriptValue>& arguments,
                                             std::size_t results = 1) {
  return on_items(name, arguments, results, "net.pt: node");
}
/// The numbers in the list that a call returns.
std::vector<std::int64_t> numbers(const ScriptValue& value) {
  EXPECT_EQ(value.kind, Kind::Items);
  std::vector<std::int64_t> out;
  for (const ScriptValue& item : value.items->items) out.push_back(item.constant.toInt());
  return out;
}

TEST(OnItems, CountsAndGivesItems) {
  const ScriptValue items = numbers_list({5, 6, 7});
  EXPECT_EQ(call("aten::len", {items})->front().constant.toInt(), 3);
  EXPECT_EQ(call("aten::__getitem__", {items, number(1)})->front().constant.toInt(), 6);
  EXPECT_EQ(call("aten::__getitem__", {items, number(-1)})->front().constant.toInt(), 7);
  EXPECT_EQ(call("prim::TupleIndex", {items, number(-3)})->front().constant.toInt(), 5);
}

TEST(OnItems, NamesAnIndexOutsideTheList) {
  for (const std::int64_t index : {3, -4}) {
    EXPECT_THAT([&] { (void)call("aten::__getitem__", {numbers_list({5, 6, 7}), number(index)}); },
                ThrowsMessage<FormatError>(
                    AllOf(HasSubstr("net.pt: node: "), HasSubstr(std::to_string(index)), HasSubstr("3"))));
  }
}

TEST(OnItems, UnpacksAsManyAsThereAreResults) {
  const auto found = call("prim::ListUnpack", {numbers_list({5, 6})}, 2);
  ASSERT_EQ(found->size(), 2U);
  EXPECT_EQ((*found)[1].constant.toInt(), 6);
  EXPECT_THAT([&] { (void)call("prim::TupleUnpack", {numbers_list({5, 6})}, 3); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr("net.pt: node: "), HasSubstr("2"), HasSubstr("3"))));
}

TEST(OnItems, AppendChangesTheListThatOtherNamesStandFor) {
  const ScriptValue items = numbers_list({5});
  const ScriptValue other = items;
  EXPECT_EQ(call("aten::append", {items, number(6)})->front().items, items.items);
  EXPECT_THAT(numbers(other), ElementsAre(5, 6));
}

TEST(OnItems, CopiesAndSumsAreNewLists) {
  const ScriptValue items = numbers_list({5});
  const ScriptValue copy = call("aten::list", {items})->front();
  const ScriptValue sum = call("aten::add", {items, numbers_list({8})})->front();
  (void)call("aten::append", {items, number(6)});
  EXPECT_THAT(numbers(copy), ElementsAre(5));
  EXPECT_THAT(numbers(sum), ElementsAre(5, 8));
}

TEST(OnItems, SlicesAsPythonDoes) {
  // The items of 0..4 from begin up to but not including end, negative positions counted from the end: by hand, then
  // for all pairs.
  const ScriptValue items = numbers_list({0, 1, 2, 3, 4});
  EXPECT_THAT(numbers(call("aten::slice", {items, number(1), number(3), number(1)})->front()), ElementsAre(1, 2));
  EXPECT_THAT(numbers(call("aten::slice", {items, number(-2), none(), number(1)})->front()), ElementsAre(3, 4));
  EXPECT_THAT(numbers(call("aten::slice", {items, none(), number(-4), none()})->front()), ElementsAre(0));
  for (std::int64_t begin = -8; begin <= 8; ++begin) {
    for (std::int64_t end = -8; end <= 8; ++end) {
      std::vector<std::int64_t> expected;
      for (std::int64_t i = 0; i < 5; ++i) {
        if (i >= (begin < 0 ? begin + 5 : begin) && i < (end < 0 ? end + 5 : end)) expected.push_back(i);
      }
      EXPECT_EQ(numbers(call("aten::slice", {items, number(begin), number(end), number(1)})->front()), expected)
          << begin << " to " << end;
    }
  }
}

TEST(OnItems, LeavesToTheOperatorWhatItDoesNotKnow) {
  const ScriptValue items = numbers_list({5, 6});
  EXPECT_FALSE(call("aten::slice", {items, none(), none(), number(2)})) << "steps of two";
  EXPECT_FALSE(call("aten::reverse", {items}));
  EXPECT_FALSE(call("aten::len", {number(4)})) << "not of a list";
  EXPECT_FALSE(call("aten::__getitem__", {items, {.kind = Kind::Number}})) << "an index that runs differ in";
  EXPECT_FALSE(call("aten::relu", {}));
}

TEST(OnItems, KnowsWhetherSomethingIsNone) {
  const auto is = [](const std::string& name, const ScriptValue& a, const ScriptValue& b) {
    return call(name, {a, b})->front().constant.toBool();
  };
  const ScriptValue value{.kind = Kind::Value, .value = 3};
  EXPECT_TRUE(is("aten::__is__", none(), none()));
  EXPECT_FALSE(is("aten::__is__", value, none()));
  EXPECT_TRUE(is("aten::__isnot__", none(), value));
  EXPECT_FALSE(call("aten::__is__", {value, value})) << "neither is None";
}

TEST(OnItems, AutogradRecords) { EXPECT_TRUE(call("aten::is_grad_enabled", {})->front().constant.toBool()); }

}  // namespace

}  // namespace stagecraft::intake

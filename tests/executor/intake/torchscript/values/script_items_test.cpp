#include "executor/intake/torchscript/values/script_items.h"

#include <ATen/core/List.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "costmodel/errors.h"

namespace stagecraft::intake {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Kind = ScriptValue::Kind;

ScriptValue number(std::int64_t value) { return constant_value_of(value); }
ScriptValue none() { return constant_value_of(c10::IValue()); }
ScriptValue list(const std::vector<std::int64_t>& values) { return constant_value_of(c10::List<std::int64_t>(values)); }

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
  const ScriptValue items = list({5, 6, 7});
  EXPECT_EQ(call("aten::len", {items})->front().constant.toInt(), 3);
  EXPECT_EQ(call("aten::__getitem__", {items, number(1)})->front().constant.toInt(), 6);
  EXPECT_EQ(call("aten::__getitem__", {items, number(-1)})->front().constant.toInt(), 7);
  EXPECT_EQ(call("prim::TupleIndex", {items, number(-3)})->front().constant.toInt(), 5);
}

TEST(OnItems, NamesAnIndexOutsideTheList) {
  for (const std::int64_t index : {3, -4}) {
    EXPECT_THAT([&] { (void)call("aten::__getitem__", {list({5, 6, 7}), number(index)}); },
                ThrowsMessage<FormatError>(
                    AllOf(HasSubstr("net.pt: node: "), HasSubstr(std::to_string(index)), HasSubstr("3"))));
  }
}

TEST(OnItems, UnpacksAsManyAsThereAreResults) {
  const auto found = call("prim::ListUnpack", {list({5, 6})}, 2);
  ASSERT_EQ(found->size(), 2U);
  EXPECT_EQ((*found)[1].constant.toInt(), 6);
  EXPECT_THAT([&] { (void)call("prim::TupleUnpack", {list({5, 6})}, 3); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr("net.pt: node: "), HasSubstr("2"), HasSubstr("3"))));
}

TEST(OnItems, AppendChangesTheListThatOtherNamesStandFor) {
  const ScriptValue items = list({5});
  const ScriptValue other = items;
  EXPECT_EQ(call("aten::append", {items, number(6)})->front().items, items.items);
  EXPECT_THAT(numbers(other), ElementsAre(5, 6));
}

TEST(OnItems, CopiesAndSumsAreNewLists) {
  const ScriptValue items = list({5});
  const ScriptValue copy = call("aten::list", {items})->front();
  const ScriptValue sum = call("aten::add", {items, list({8})})->front();
  (void)call("aten::append", {items, number(6)});
  EXPECT_THAT(numbers(copy), ElementsAre(5));
  EXPECT_THAT(numbers(sum), ElementsAre(5, 8));
}

TEST(OnItems, SlicesAsPythonDoes) {
  // The items of 0..4 from begin up to but not including end, negative positions counted from the end: by hand, then
  // for all pairs.
  const ScriptValue items = list({0, 1, 2, 3, 4});
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
  const ScriptValue items = list({5, 6});
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

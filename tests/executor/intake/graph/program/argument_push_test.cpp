#include "executor/intake/graph/program/argument_push.h"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <complex>

#include "costmodel/errors.h"

namespace stagecraft::intake {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Kind = ProgramValue::Kind;

/// A graph with one value of each kind; value i is in slot 10 + i.
class ArgumentPushes : public ::testing::Test {
 protected:
  ArgumentPushes() {
    for (const auto& [name, kind] : std::vector<std::pair<std::string, Kind>>{
             {"tensor", Kind::Tensor}, {"int", Kind::Int}, {"float", Kind::Float}, {"bool", Kind::Bool}}) {
      ProgramValue& value = graph_.values.emplace_back();
      value.name = name;
      value.kind = kind;
    }
    frame_.slots.resize(14);
    frame_.slots[10] = at::full({2}, 5.0);
    frame_.slots[11] = std::int64_t{6};
    frame_.slots[12] = 1.5;
    frame_.slots[13] = true;
  }
  [[nodiscard]] ArgumentPush made(const c10::TypePtr& type, const ArgumentValue& given,
                                  const std::string& name = "self", std::optional<std::int32_t> count = {}) const {
    return argument_push(graph_, c10::Argument(name, type, type, count), given, "m.pt2: node \"n\"",
                         [](int value) { return value + 10; });
  }
  /// The value on the stack after the push.
  [[nodiscard]] c10::IValue pushed(const c10::TypePtr& type, const ArgumentValue& given,
                                   const std::string& name = "self", std::optional<std::int32_t> count = {}) {
    frame_.stack.clear();
    push(made(type, given, name, count), frame_);
    EXPECT_EQ(frame_.stack.size(), 1U);
    return frame_.stack.back();
  }
  void refuses(const c10::TypePtr& type, const ArgumentValue& given, const std::string& found) const {
    EXPECT_THAT([&] { (void)made(type, given); },
                ThrowsMessage<FormatError>(AllOf(HasSubstr("m.pt2: node \"n\": argument \"self\""), HasSubstr(found),
                                                 HasSubstr(type->str()))));
  }

  static constexpr ValueIndex kTensor{0}, kInt{1}, kFloat{2}, kBool{3};
  ProgramGraph graph_;
  Frame frame_;
};

const c10::TypePtr kTensorType = c10::TensorType::get(), kIntType = c10::IntType::get(),
                   kFloatType = c10::FloatType::get(), kBoolType = c10::BoolType::get(),
                   kNumberType = c10::NumberType::get(), kStringType = c10::StringType::get();
const c10::TypePtr kInts = c10::ListType::create(kIntType), kFloats = c10::ListType::create(kFloatType),
                   kTensors = c10::ListType::create(kTensorType), kBools = c10::ListType::create(kBoolType),
                   kStrings = c10::ListType::create(kStringType),
                   kOptionalTensors = c10::ListType::create(c10::OptionalType::create(kTensorType)),
                   kOptionalInt = c10::OptionalType::create(kIntType);

TEST_F(ArgumentPushes, ValuesComeFromTheirSlots) {
  EXPECT_TRUE(pushed(kTensorType, kTensor).toTensor().is_same(frame_.slots[10].toTensor()));
  EXPECT_EQ(pushed(kIntType, kInt).toInt(), 6);
  EXPECT_EQ(pushed(kFloatType, kFloat).toDouble(), 1.5);
  EXPECT_TRUE(pushed(kBoolType, kBool).toBool());
  EXPECT_EQ(pushed(kNumberType, kFloat).toDouble(), 1.5);
}

TEST_F(ArgumentPushes, IntegerBecomesAFloatWhereOneIsExpected) {
  const c10::IValue value = pushed(kFloatType, kInt);
  ASSERT_TRUE(value.isDouble());
  EXPECT_EQ(value.toDouble(), 6);
  EXPECT_TRUE(pushed(kFloatType, std::int64_t{7}).isDouble());
}

TEST_F(ArgumentPushes, NumberWhereATensorIsWantedYieldsToTheOtherOperandsType) {
  for (const ArgumentValue& given : {ArgumentValue(kInt), ArgumentValue(std::int64_t{6}), ArgumentValue(6.0)}) {
    const at::Tensor value = pushed(kTensorType, given).toTensor();
    EXPECT_EQ(value.dim(), 0);
    EXPECT_EQ(value.item<double>(), 6);
    EXPECT_TRUE(value.unsafeGetTensorImpl()->is_wrapped_number());
  }
}

TEST_F(ArgumentPushes, ListOfIntegersMixesConstantsAndValues) {
  const c10::IValue value = pushed(kInts, std::vector<IntItem>{std::int64_t{2}, kInt, std::int64_t{-1}});
  EXPECT_EQ(value.toIntVector(), (std::vector<std::int64_t>{2, 6, -1}));
  frame_.slots[11] = std::int64_t{9};  // the value in the next call
  EXPECT_EQ(pushed(kInts, std::vector<IntItem>{kInt}).toIntVector(), std::vector<std::int64_t>{9});
  EXPECT_EQ(made(kInts, std::vector<IntItem>{std::int64_t{2}}).form, ArgumentPush::Form::Constant);
}

TEST_F(ArgumentPushes, OneNumberFillsAListOfFixedLength) {
  EXPECT_EQ(pushed(kInts, std::int64_t{3}, "kernel_size", 2).toIntVector(), (std::vector<std::int64_t>{3, 3}));
  EXPECT_EQ(pushed(kInts, std::int64_t{3}).toIntVector(), std::vector<std::int64_t>{3});
  EXPECT_EQ(pushed(kFloats, 0.5, "scale", 2).toDoubleVector(), (std::vector<double>{0.5, 0.5}));
}

TEST_F(ArgumentPushes, ListsKeepTheSchemasElementType) {
  EXPECT_EQ(pushed(kFloats, std::vector<IntItem>{std::int64_t{1}, std::int64_t{2}}).toDoubleVector(),
            (std::vector<double>{1, 2}));
  EXPECT_EQ(pushed(kFloats, std::vector<double>{0.5}).toDoubleVector(), std::vector<double>{0.5});
  EXPECT_TRUE(pushed(kTensors, std::vector<IntItem>{}).isTensorList()) << "an empty list of anything";
  EXPECT_TRUE(pushed(kBools, std::vector<bool>{true, false}).isBoolList());
  EXPECT_EQ(pushed(kStrings, std::vector<std::string>{"a", "b"}).toListRef().size(), 2U);
}

TEST_F(ArgumentPushes, TensorListsMayLackTensorsWhereTheSchemaSaysSo) {
  const std::vector<std::optional<ValueIndex>> given{std::nullopt, kTensor};
  const auto list = pushed(kOptionalTensors, given).toListRef();
  ASSERT_EQ(list.size(), 2U);
  EXPECT_TRUE(list[0].isNone());
  EXPECT_TRUE(list[1].toTensor().is_same(frame_.slots[10].toTensor()));
  refuses(kTensors, given, "None");
}

TEST_F(ArgumentPushes, NothingIsForOptionalsAlone) {
  EXPECT_TRUE(pushed(kOptionalInt, std::monostate()).isNone());
  EXPECT_EQ(pushed(kOptionalInt, std::int64_t{4}).toInt(), 4);
  refuses(kIntType, std::monostate(), "None");
}

TEST_F(ArgumentPushes, DeviceIsTheFrames) {
  frame_.device = c10::Device(c10::kCUDA, 2);
  EXPECT_EQ(pushed(c10::DeviceObjType::get(), c10::Device(c10::kCPU)).toDevice(), frame_.device);
}

TEST_F(ArgumentPushes, CudnnIsEnabledOnAGpuWhateverTheFileSays) {
  EXPECT_FALSE(pushed(kBoolType, true, "cudnn_enabled").toBool());
  frame_.device = c10::Device(c10::kCUDA, 0);
  EXPECT_TRUE(pushed(kBoolType, false, "cudnn_enabled").toBool());
  EXPECT_FALSE(pushed(kBoolType, false, "training").toBool()) << "other arguments are as they were given";
}

TEST_F(ArgumentPushes, TypesAreNumbersToTheDispatcher) {
  EXPECT_EQ(pushed(kIntType, at::kHalf).toInt(), static_cast<std::int64_t>(at::kHalf));
  EXPECT_EQ(pushed(kOptionalInt, c10::MemoryFormat::ChannelsLast).toInt(),
            static_cast<std::int64_t>(c10::MemoryFormat::ChannelsLast));
}

TEST_F(ArgumentPushes, OtherTypesAreRefusedByName) {
  refuses(kIntType, kTensor, "the tensor \"tensor\"");
  refuses(kIntType, kFloat, "\"float\"");
  refuses(kBoolType, kInt, "\"int\"");
  refuses(kFloatType, kTensor, "the tensor \"tensor\"");
  refuses(kIntType, 1.5, "Double");
  refuses(kIntType, std::string("x"), "\"x\"");
  refuses(kBoolType, std::int64_t{1}, "Long");
  refuses(kStringType, true, "True");
  refuses(kFloatType, std::complex<double>(0, 1), "Complex");
  refuses(kTensorType, std::vector<std::optional<ValueIndex>>{kTensor}, "a list of tensors");
  refuses(kTensors, std::vector<std::optional<ValueIndex>>{kInt}, "a number");
  refuses(kInts, std::vector<double>{0.5}, "a list of numbers");
  refuses(kInts, std::vector<IntItem>{kFloat}, "a list");
  refuses(kFloats, std::vector<IntItem>{kInt}, "a list");
  refuses(kInts, std::vector<bool>{true}, "a list");
  refuses(kInts, std::vector<std::string>{"x"}, "a list");
  refuses(kTensorType, c10::Device(c10::kCPU), "a device");
  refuses(kTensorType, at::kHalf, "type");
  refuses(kTensorType, std::make_shared<const ProgramGraph>(), "a graph");
}

}  // namespace
}  // namespace stagecraft::intake

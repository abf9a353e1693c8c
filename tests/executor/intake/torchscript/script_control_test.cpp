#include "executor/intake/torchscript/script_control.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;
using Kind = ScriptValue::Kind;

namespace jit = torch::jit;

/// A module with a weight of threes, a counter and a function forward(x, flag), whose first branch or loop is
/// extracted.
class Control {
 public:
  explicit Control(const std::string& body, model::ModelMode mode = model::ModelMode::Training) : mode_(mode) {
    module_.register_parameter("weight", at::full({2}, 3.0F), /*is_buffer=*/false);
    module_.register_buffer("mean", at::ones({2}));
    module_.register_attribute("training", c10::BoolType::get(), true);
    module_.register_attribute("count", c10::IntType::get(), std::int64_t{4});
    module_.define("def forward(self, x: Tensor, flag: bool):\n" + body);
  }
  /// Outer values are numbered in the order in which they are looked up; the module's tensors from 100 on.
  ScriptControl extract() {
    const auto graph = module_.get_method("forward").graph();
    for (jit::Node* const node : graph->nodes()) {
      if (node->kind() != c10::prim::If && node->kind() != c10::prim::Loop) continue;
      ScriptState state(module_._ivalue(), mode_);
      return script_control(
          node, state, [&](jit::Value* value) { return outer(value); },
          [&](const at::Tensor& tensor) {
            return ScriptValue{.kind = Kind::Value, .value = 100 + state.index_of(tensor, "constant")};
          },
          "m.pt: node \"if\"");
    }
    throw std::logic_error("there is no branch or loop");
  }
  /// The first result, where x is all `x`.
  at::Tensor run(double x, bool flag) {
    const ScriptControl control = extract();
    jit::Stack stack;
    for (const ScriptValue& argument : control.arguments) {
      if (argument.kind == Kind::Constant) {
        stack.push_back(argument.constant);
      } else if (argument.value >= 100) {
        stack.emplace_back(module_.attr("weight").toTensor());
      } else if (types_.at(to_index(argument.value))->kind() == c10::TypeKind::TensorType) {
        stack.emplace_back(at::full({2}, x));
      } else {
        stack.emplace_back(flag);
      }
    }
    control.run(stack);
    return stack.at(0).toTensor();
  }

 private:
  ScriptValue outer(jit::Value* value) {
    if (value->type()->kind() == c10::TypeKind::ClassType) return {.kind = Kind::Module, .constant = module_._ivalue()};
    if (value->type()->kind() == c10::TypeKind::ListType)
      return {.kind = Kind::Items, .items = std::make_shared<ScriptItems>()};
    types_.push_back(value->type());
    return {.kind = Kind::Value, .value = to_int(types_.size()) - 1};
  }

  jit::Module module_{"m"};
  model::ModelMode mode_;
  std::vector<c10::TypePtr> types_;
};

TEST(ScriptControl, RunsABranchWithBothSides) {
  const std::string body = R"(
    if flag:
        y = x + 1
    else:
        y = x * 3
    return y
)";
  EXPECT_TRUE(Control(body).run(2, true).equal(at::full({2}, 2.0 + 1)));
  EXPECT_TRUE(Control(body).run(2, false).equal(at::full({2}, 2.0 * 3)));
  const ScriptControl control = Control(body).extract();
  EXPECT_THAT(control.arguments, SizeIs(2)) << "the condition and x; constants are inside";
  EXPECT_THAT(control.written, IsEmpty());
  EXPECT_FALSE(control.random);
}

TEST(ScriptControl, RunsALoop) {
  const std::string body = R"(
    for i in range(3):
        x = x * 2
    return x
)";
  EXPECT_TRUE(Control(body).run(1, true).equal(at::full({2}, 8.0)));
}

TEST(ScriptControl, TakesTheModulesTensorsAndNumbersInsteadOfTheModule) {
  const std::string body = R"(
    if flag:
        y = x * self.weight + self.count
    else:
        y = x
    return y
)";
  EXPECT_TRUE(Control(body).run(2, true).equal(at::full({2}, 2.0 * 3 + 4)));
  for (const ScriptValue& argument : Control(body).extract().arguments) EXPECT_NE(argument.kind, Kind::Module);
}

TEST(ScriptControl, KnowsTheMode) {
  const std::string body = R"(
    if flag:
        if self.training:
            y = x + 1
        else:
            y = x - 1
    else:
        y = x
    return y
)";
  EXPECT_TRUE(Control(body).run(2, true).equal(at::full({2}, 3.0)));
  EXPECT_TRUE(Control(body, model::ModelMode::Evaluation).run(2, true).equal(at::full({2}, 1.0)));
}

TEST(ScriptControl, TellsWhatItWritesAndWhatSharesMemory) {
  const ScriptControl control = Control(R"(
    if flag:
        y = x.add_(1).view(-1)
    else:
        y = x.clone()
    return y
)")
                                    .extract();
  ASSERT_THAT(control.written, SizeIs(1));
  const std::size_t x = control.written.front();
  EXPECT_THAT(control.aliases, Contains(Pair(0U, x)));
  const ScriptControl copied = Control(R"(
    if flag:
        y = x + 1
    else:
        y = x.clone()
    return y
)")
                                   .extract();
  EXPECT_THAT(copied.aliases, IsEmpty());
}

TEST(ScriptControl, CountsTheStatisticsOfANormalisationAsWrittenInTrainingOnly) {
  // Its schema does not declare them. Two statistics, each read from the module.
  const std::string body = R"(
    if flag:
        y = torch.batch_norm(x, None, None, self.mean, self.mean, False, 0.1, 1e-5, False)
    else:
        y = x
    return y
)";
  const ScriptControl training = Control(body).extract();
  ASSERT_THAT(training.written, SizeIs(2));
  for (const std::size_t written : training.written)
    EXPECT_GE(training.arguments[written].value, 100) << "a tensor of the module";
  EXPECT_THAT(Control(body, model::ModelMode::Evaluation).extract().written, IsEmpty());
}

TEST(ScriptControl, IsRandomIfAnOperatorInsideIs) {
  EXPECT_TRUE(Control(R"(
    if flag:
        y = torch.dropout(x, 0.5, True)
    else:
        y = x
    return y
)")
                  .extract()
                  .random);
}

TEST(ScriptControl, RefusesWhatAStageCannotRun) {
  const auto refuses = [](const std::string& body, const std::string& message) {
    Control control(body);
    EXPECT_THAT([&] { (void)control.extract(); },
                ThrowsMessage<FormatError>(
                    HasSubstr("m.pt: node \"if\": a branch or loop that depends on data or on the batch " + message)));
  };
  refuses(R"(
    if flag:
        self.count = 5
    return x
)",
          "changes the attribute \"count\"");
  refuses(R"(
    items = [x]
    if flag:
        items.append(x)
    return items
)",
          "changes a list made before it");
}

}  // namespace
}  // namespace stagecraft::intake

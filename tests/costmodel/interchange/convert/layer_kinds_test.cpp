#include "costmodel/interchange/convert/layer_kinds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/support/refused.h"

namespace stagecraft::interchange {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

PythonCall call(const std::string& description, const OwnKinds& classes = {}) {
  return layer_call(parse_description(description), classes);
}

std::string refused(const std::string& description, const OwnKinds& classes = {}) {
  return testing::refused([&] { return call(description, classes); });
}

const ValueForm kTensor{ValueForm::Kind::Tensor};

ValueForm tuple(const std::vector<ValueForm>& items) { return {ValueForm::Kind::Tuple, items}; }

TEST(LayerCall, NamesArgumentsInTheConstructorsOrder) {
  const PythonCall conv = call("Conv2d(3, 64, padding=(1, 1), kernel_size=(3, 3), bias=False)");
  EXPECT_EQ(conv.operation, Operation::Module);
  EXPECT_EQ(conv.constructor, "torch.nn.Conv2d");
  EXPECT_THAT(conv.arguments,
              ElementsAre("in_channels=3", "out_channels=64", "kernel_size=(3, 3)", "padding=(1, 1)", "bias=False"));
  EXPECT_EQ(conv.least_inputs, 1);
  EXPECT_EQ(conv.most_inputs, 1);
  EXPECT_EQ(conv.gives, kTensor);
}

TEST(LayerCall, TakesInplaceFromTheConstructor) {
  for (const char* text : {"ReLU(inplace)", "ReLU(inplace=True)", "ReLU(True)"}) {
    EXPECT_TRUE(call(text).inplace) << text;
    EXPECT_THAT(call(text).arguments, IsEmpty()) << text;
  }
  EXPECT_FALSE(call("ReLU()").inplace);
  EXPECT_FALSE(call("ReLU(inplace=False)").inplace);
  EXPECT_THAT(call("Dropout(p=0.5, inplace)").arguments, ElementsAre("p=0.5"));
}

// A ReLU's backward reads its output; only the readers of a convolution's output need that output.
TEST(LayerCall, KnowsWhoseValueMayBeOverwritten) {
  for (const char* text : {"Conv2d(1, 1, 1)", "Linear(1, 1)", "BatchNorm2d(1)", "MaxPool2d(2)", "Add", "Concat(1)"})
    EXPECT_TRUE(call(text).fresh) << text;
  for (const char* text : {"ReLU()", "Sigmoid()", "Softmax(1)", "Identity()", "Flatten()", "Mul", "View(-1)"})
    EXPECT_FALSE(call(text).fresh) << text;
}

TEST(LayerCall, KnowsTheFormOfWhatModulesGive) {
  EXPECT_EQ(call("LSTM(4, 8)").gives, tuple({kTensor, tuple({kTensor, kTensor})}));
  EXPECT_EQ(call("GRU(4, 8)").gives, tuple({kTensor, kTensor}));
  EXPECT_TRUE(call("GRU(4, 8)").recurrent);
  EXPECT_EQ(call("GRU(4, 8)").most_inputs, 2);
  EXPECT_EQ(call("MaxPool2d(2, return_indices=True)").gives, tuple({kTensor, kTensor}));
  EXPECT_EQ(call("MaxPool2d(2, return_indices=False)").gives, kTensor);
  EXPECT_EQ(call("Size(0)").gives.kind, ValueForm::Kind::Number);
  EXPECT_EQ(call("hidden").gives.kind, ValueForm::Kind::Nothing);
}

TEST(LayerCall, TakesTheNumbersOfOperations) {
  EXPECT_THAT(call("Transpose(1, -1)").numbers, ElementsAre(1, -1));
  EXPECT_THAT(call("Concat(2)").numbers, ElementsAre(2));
  EXPECT_THAT(call("__getitem__(3)").numbers, ElementsAre(3));
  EXPECT_THAT(call("View(-1)").numbers, ElementsAre(-1));
  EXPECT_THAT(call("View()").numbers, IsEmpty());
  EXPECT_EQ(call("Add").least_inputs, 2);
  EXPECT_EQ(call("Add(inplace)").most_inputs, kAnyNumber);
  EXPECT_FALSE(call("Add(inplace)").inplace);
  EXPECT_EQ(call("hidden").most_inputs, 0);
}

TEST(LayerCall, RefusesNumbersThatAnOperationCannotTake) {
  EXPECT_THAT(refused("Size()"), AllOf(StartsWith("Size: "), HasSubstr("the axis")));
  EXPECT_THAT(refused("Size(0, 1)"), AllOf(StartsWith("Size: "), HasSubstr("2 numbers")));
  EXPECT_THAT(refused("Transpose(1)"), HasSubstr("two axes"));
  EXPECT_THAT(refused("Concat(dim=1)"), AllOf(StartsWith("Concat: "), HasSubstr("found 1")));
  EXPECT_THAT(refused("Concat(0.5)"), HasSubstr("found 0.5"));
  EXPECT_THAT(refused("__getitem__(-1)"), HasSubstr("item -1"));
  EXPECT_THAT(refused("hidden(1)"), StartsWith("hidden: "));
}

TEST(LayerCall, NamesTheArgumentThatAModuleDoesNotTake) {
  EXPECT_THAT(refused("Linear(1, 2, colour=3)"),
              AllOf(StartsWith("Linear: "), HasSubstr("\"colour\""), HasSubstr("in_features, out_features, bias")));
  EXPECT_THAT(refused("Tanh(1)"), AllOf(StartsWith("Tanh: "), HasSubstr("no arguments")));
  EXPECT_THAT(refused("Linear(1, 2, True, 4)"), AllOf(StartsWith("Linear: "), HasSubstr("4 values")));
  EXPECT_THAT(refused("Linear(1, in_features=2)"), AllOf(HasSubstr("\"in_features\""), HasSubstr("twice")));
  EXPECT_THAT(refused("Linear(1)"), AllOf(StartsWith("Linear: "), HasSubstr("\"out_features\"")));
  EXPECT_THAT(refused("Linear(  (inner): ReLU())"), AllOf(StartsWith("Linear: "), HasSubstr("\"inner\"")));
}

TEST(LayerCall, ListsTheKnownKindsAndTheOptionForAnotherOne) {
  EXPECT_THAT(refused("Sundial(3)"), AllOf(StartsWith("Sundial: "), HasSubstr("\"Sundial\""), HasSubstr("Conv2d"),
                                           HasSubstr("--layer Sundial=MODULE:CLASS")));
}

TEST(LayerCall, ConstructsAUsersKindFromItsArguments) {
  const OwnKinds classes{{"BatchRNN", "my.layers:BatchRNN"}};
  const PythonCall found = call("BatchRNN(3, hidden=(4, 5))", classes);
  EXPECT_EQ(found.constructor, "my.layers.BatchRNN");
  EXPECT_THAT(found.arguments, ElementsAre("3", "hidden=(4, 5)"));
  EXPECT_EQ(found.least_inputs, 0);
  EXPECT_EQ(found.most_inputs, kAnyNumber);
  EXPECT_EQ(found.gives.kind, ValueForm::Kind::Unknown);
  // The class receives the text of a layer with submodules, and may parse it.
  EXPECT_THAT(call("BatchRNN(  (rnn): LSTM(3, 4))", classes).arguments, ElementsAre("\"BatchRNN((rnn): LSTM(3, 4))\""));
}

TEST(LayerCall, PrefersAUsersKind) {
  EXPECT_EQ(call("ReLU()", {{"ReLU", "mine:Rectifier"}}).constructor, "mine.Rectifier");
  EXPECT_EQ(call("Add", {{"Add", "mine:Sum"}}).operation, Operation::Module);
}

TEST(LayerCall, RefusesAnInvalidClassName) {
  for (const char* where : {"", "mine", ":Class", "mine:", "mine:Class:More", "my layers:Class", "mine..x:Class",
                            ".mine:Class", "mine.:Class", "mine:a.b", "import:Class", "mine:None", "os;evil:Class"}) {
    EXPECT_THAT(refused("Kind()", {{"Kind", where}}),
                AllOf(StartsWith("Kind: "), HasSubstr("\"" + std::string(where) + "\""), HasSubstr("MODULE:CLASS")));
  }
  // The package has a file with that name.
  EXPECT_THAT(refused("Kind()", {{"Kind", "layers:Class"}}), HasSubstr("\"layers:Class\""));
  EXPECT_THAT(refused("Kind()", {{"Kind", "layers.sub:Class"}}), HasSubstr("\"layers.sub:Class\""));
  EXPECT_EQ(call("Kind()", {{"Kind", "layers2:Class"}}).constructor, "layers2.Class");
}

const std::string kAttention =
    "RecurrentAttention(  (rnn): LSTM(32, 16)  (attn): BahdanauAttention(    (linear_q): Linear(in_features=16, "
    "out_features=8, bias=False)    (linear_k): Linear(in_features=24, out_features=8, bias=False)    (dropout): "
    "Dropout(p=0.25)  )  (dropout): Dropout(p=0.5))";

TEST(LayerCall, ParsesGnmtsAttention) {
  const PythonCall found = call(kAttention);
  EXPECT_EQ(found.constructor, "layers.RecurrentAttention");
  EXPECT_THAT(found.arguments, ElementsAre("input_size=32", "hidden_size=16", "context_size=24", "units=8",
                                           "dropout=0.5", "attention_dropout=0.25"));
  EXPECT_EQ(found.least_inputs, 4);
  EXPECT_EQ(found.gives, tuple({kTensor, tuple({kTensor, kTensor}), kTensor, kTensor}));
}

TEST(LayerCall, NamesThePartOfGnmtsModulesThatIsNotAsPublished) {
  const auto changed = [](const std::string& from, const std::string& to) {
    std::string text = kAttention;
    return text.replace(text.find(from), from.size(), to);
  };
  EXPECT_THAT(refused(changed("(rnn)", "(run)")), AllOf(StartsWith("RecurrentAttention: "), HasSubstr("\"rnn\"")));
  EXPECT_THAT(refused(changed("(attn)", "(art)")), HasSubstr("\"attn\""));
  EXPECT_THAT(refused(changed("out_features=8", "out_features=9")), AllOf(HasSubstr("9"), HasSubstr("8")));
  EXPECT_THAT(refused(changed("bias=False", "bias=True")), HasSubstr("bias=False"));
  EXPECT_THAT(refused(changed("LSTM(32, 16)", "LSTM(32, 16, bidirectional=True)")), HasSubstr("\"rnn\""));
  EXPECT_THAT(refused("EmuBidirLSTM(  (bidir): LSTM(32, 16))"), HasSubstr("\"bidir\""));
  EXPECT_EQ(call("EmuBidirLSTM(  (bidir): LSTM(32, 16, bidirectional=True))").constructor, "layers.EmuBidirLSTM");
}

TEST(KnownKinds, AreSortedAndEachKnown) {
  const std::vector<std::string> kinds = known_kinds();
  EXPECT_TRUE(std::ranges::is_sorted(kinds));
  EXPECT_EQ(std::set<std::string>(kinds.begin(), kinds.end()).size(), kinds.size());
  for (const std::string& kind : kinds)  // arguments may be missing, but not the kind
    EXPECT_THAT(refused(kind + "()"), ::testing::Not(HasSubstr("MODULE:CLASS"))) << kind;
}

TEST(LayersText, DefinesTheModulesThatCallsConstruct) {
  for (const char* name : {"EmuBidirLSTM", "BahdanauAttention", "RecurrentAttention", "Classifier"})
    EXPECT_THAT(layers_text(), HasSubstr("\nclass " + std::string(name) + "(torch.nn.Module):\n"));
}

}  // namespace
}  // namespace stagecraft::interchange

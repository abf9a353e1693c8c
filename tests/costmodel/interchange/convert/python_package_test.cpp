#include "costmodel/interchange/convert/python_package.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace stagecraft::interchange {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::StartsWith;

/// Stage 0 returns two values, one of which skips stage 1; the first and the last stage return the model's outputs.
PythonPackage skipping() {
  return {"toy",
          {"input0", "input1"},
          {"early", "late"},
          {{{"input0"}, {"a", "early"}, "0\n"}, {{"a"}, {"b"}, "1\n"}, {{"input1", "a", "b"}, {"late"}, "2\n"}},
          {{"layers.py", "x = 1\n"}, {"notes.txt", "text\n"}}};
}

std::string failure(const PythonPackage& package) {
  try {
    (void)package_files(package);
  } catch (const std::invalid_argument& e) { return e.what(); }
  return "nothing was refused";
}

TEST(PackageFiles, HaveOneModulePerStageTheWholeModelAndTheList) {
  const auto files = package_files(skipping());
  EXPECT_THAT(files, ElementsAre(Key("__init__.py"), Key("fused.py"), Key("layers.py"), Key("notes.txt"),
                                 Key("stage0.py"), Key("stage1.py"), Key("stage2.py")));
  EXPECT_EQ(files.at("stage1.py"), std::string(kPackageHeader) + "1\n");
  EXPECT_EQ(files.at("layers.py"), std::string(kPackageHeader) + "x = 1\n");
  EXPECT_EQ(files.at("notes.txt"), "text\n");
  EXPECT_EQ(files.at("__init__.py"), std::string(kPackageHeader) + R"(from .fused import Fused
from .stage0 import Stage0
from .stage1 import Stage1
from .stage2 import Stage2


def arch():
    return "toy"


def model(criterion):
    """Modules in order, each with the names of its input and output tensors; `criterion` computes the loss."""
    return [
        (Stage0(), ["input0"], ["a", "early"]),
        (Stage1(), ["a"], ["b"]),
        (Stage2(), ["input1", "a", "b"], ["late"]),
        (criterion, ["early", "late"], ["loss"]),
    ]


def full_model():
    return Fused()
)");
}

TEST(PackageFiles, ChainTheStagesByName) {
  EXPECT_THAT(package_files(skipping()).at("fused.py"), HasSubstr(R"(    INPUTS = ("input0", "input1")
    OUTPUTS = ("early", "late")

    def __init__(self):
        super().__init__()
        self.stage0 = Stage0()
        self.stage1 = Stage1()
        self.stage2 = Stage2()
        self.register_state_dict_post_hook(_drop_stages)
        self.register_load_state_dict_pre_hook(_add_stages)

    def forward(self, input0, input1):
        a, early = self.stage0(input0)
        b = self.stage1(a)
        late = self.stage2(input1, a, b)
        return (early, late)
)"));
}

TEST(PackageFiles, MakeTiedParametersOne) {
  PythonPackage package = skipping();
  EXPECT_THAT(package_files(package).at("fused.py"), Not(HasSubstr("_tie")));
  package.tied = {{{0, "words.weight"}, {2, "head.weight"}, {2, "scale"}}};
  const std::string text = package_files(package).at("fused.py");
  EXPECT_THAT(text, HasSubstr(R"(

def _tie(stage, name, parameter):
    path, _, name = name.rpartition(".")
    setattr(stage.get_submodule(path), name, parameter)


class Fused(torch.nn.Module):)"));
  EXPECT_THAT(text, HasSubstr(R"(        self.stage2 = Stage2()
        _tie(self.stage2, "head.weight", self.stage0.get_parameter("words.weight"))
        _tie(self.stage2, "scale", self.stage0.get_parameter("words.weight"))
        self.register_state_dict_post_hook(_drop_stages)
)"));
  package.tied = {{{0, "words.weight"}, {3, "head.weight"}}};
  EXPECT_EQ(failure(package), "tied parameter \"head.weight\": there is no stage 3, the package has 3");
}

TEST(PackageFiles, NeedNoCriterionForAModelThatGivesItsLoss) {
  PythonPackage package = skipping();
  package.gives_loss = true;
  const std::string text = package_files(package).at("__init__.py");
  EXPECT_THAT(text, StartsWith(std::string(kPackageHeader) + "import torch\n\nfrom .fused import Fused\n"));
  EXPECT_THAT(text, HasSubstr("def model(criterion=torch.nn.Identity()):\n"));
}

TEST(PackageFiles, NameTheStageWhoseValuesDoNotFit) {
  PythonPackage package = skipping();
  package.stages[1].inputs = {"late"};
  EXPECT_EQ(failure(package), "stage 1: reads value \"late\", which nothing before it produces");
  package = skipping();
  package.stages[2].outputs = {"b"};
  EXPECT_EQ(failure(package), "stage 2: value \"b\" already has a source");
  package = skipping();
  package.stages[0].outputs[1] = "early): evil(";
  EXPECT_EQ(failure(package), "stage 0: \"early): evil(\" is not a Python name");
  package = skipping();
  package.outputs = {"c"};
  EXPECT_EQ(failure(package), "outputs of the model: no stage produces value \"c\"");
  package.inputs = {"lambda"};
  EXPECT_EQ(failure(package), "inputs of the model: \"lambda\" is not a Python name");
  EXPECT_EQ(failure({}), "the package has no stages, expected at least one");
}

TEST(PackageFiles, LetNoNameOfAModelEndItsString) {
  PythonPackage package = skipping();
  package.arch = "a\"\nimport os\\";
  EXPECT_THAT(package_files(package).at("__init__.py"), HasSubstr("    return \"a\\x22\\x0aimport os\\x5c\"\n"));
}

}  // namespace
}  // namespace stagecraft::interchange

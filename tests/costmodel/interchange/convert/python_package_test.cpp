#include "costmodel/interchange/convert/python_package.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <stdexcept>
#include <string>

#include "tests/support/run_command.h"

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

/// The value of a double-quoted Python literal with no escapes other than \xHH; fails for any other text.
std::string python_value(const std::string& literal) {
  std::string out;
  EXPECT_TRUE(literal.size() >= 2 && literal.front() == '"' && literal.back() == '"') << literal;
  for (std::size_t i = 1; i + 1 < literal.size(); ++i) {
    const char c = literal[i];
    EXPECT_TRUE(c >= ' ' && c <= '~' && c != '"' && c != '\'') << literal;
    if (c != '\\') {
      out += c;
      continue;
    }
    EXPECT_EQ(literal.substr(i, 2), "\\x") << literal;
    out += static_cast<char>(std::stoi(literal.substr(i + 2, 2), nullptr, 16));
    i += 3;
  }
  return out;
}

TEST(PythonString, LeavesPlainTextAndEscapesTheRest) {
  EXPECT_EQ(python_string(""), "\"\"");
  EXPECT_EQ(python_string("conv1 (3, 64)"), "\"conv1 (3, 64)\"");
  EXPECT_EQ(python_string("a\"\n\\"), R"("a\x22\x0a\x5c")");
}

TEST(PythonString, CannotBeEndedByAnyText) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    std::string text;
    for (auto n = random() % 20; n > 0; --n)
      text += random() % 2 == 0 ? static_cast<char>(random() % 256) : "\"\\\n\r'{}"[random() % 7];
    EXPECT_EQ(python_value(python_string(text)), text) << "seed " << seed;
  }
}

TEST(PythonNames, AreDifferentAndNoKeywords) {
  EXPECT_THAT(
      python_names({"node7", "forward", "a.b", "a b", "a_b", "class", "node", "node7x", "\xC3\xA9", "layer_a_b"}),
      ElementsAre("node7", "layer_forward", "layer_a_b", "layer_a_b_2", "layer_a_b_3", "layer_class", "layer_node",
                  "layer_node7x", "layer___", "layer_layer_a_b"));
  EXPECT_TRUE(is_python_name("_a1"));
  for (const char* text : {"", "1a", "a b", "a.b", "import", "None", "a\n", "\xC3\xA9"})
    EXPECT_FALSE(is_python_name(text));
}

TEST(PythonText, WritesTuplesOfAnyLength) {
  EXPECT_EQ(python_tuple({}), "()");
  EXPECT_EQ(python_tuple({"a"}), "(a,)");
  EXPECT_EQ(python_result({"a"}), "a");
  EXPECT_EQ(python_result({"a", "b"}), "(a, b)");
}

TEST(PythonNames, AreDifferentPythonNamesForAnyIds) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::string> ids;
    for (auto n = random() % 12; n > 0; --n) {
      // Few different characters, so that many ids differ only in characters that a name cannot contain, or equal a
      // name generated for another id.
      std::string id = random() % 4 == 0 ? "node" : "";
      for (unsigned length = random() % 4; length > 0; --length) id += "a._2"[random() % 4];
      ids.push_back(id);
    }
    const std::vector<std::string> names = python_names(ids);
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), ids.size()) << "seed " << seed;
    for (const std::string& name : names) EXPECT_TRUE(is_python_name(name)) << "seed " << seed << " " << name;
  }
}

TEST(Joined, PutsCommasBetween) {
  EXPECT_EQ(joined({}), "");
  EXPECT_EQ(joined({"a"}), "a");
  EXPECT_EQ(joined({"a", "b", "c"}), "a, b, c");
}

TEST(IsArchive, GoesByTheFirstFourBytes) {
  const testing::CommandFolder folder;
  const auto is = [&](const std::string& text) {
    folder.write("model.pt2", text);
    return is_archive((folder.path() / "model.pt2").string());
  };
  EXPECT_TRUE(is("PK\3\4"));
  EXPECT_TRUE(is("PK\3\4 and more"));
  EXPECT_FALSE(is(""));
  EXPECT_FALSE(is("PK\3"));
  EXPECT_FALSE(is("PK\5\6"));  // an archive without files
  EXPECT_FALSE(is("node1 -- Input0"));
}

TEST(IsArchive, IsFalseForAFolderOrAMissingFile) {
  const testing::CommandFolder folder;
  EXPECT_FALSE(is_archive((folder.path() / "none").string()));
  EXPECT_FALSE(is_archive(folder.path().string()));
  EXPECT_FALSE(is_archive(""));
}

}  // namespace
}  // namespace stagecraft::interchange

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "costmodel/version.h"
#include "tests/support/places.h"
#include "tests/support/run_command.h"

// scripts/stagecraft as a user runs it.

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;

const std::string kFront = "'" + source_folder() + "/scripts/stagecraft' ";

class Front : public ::testing::Test {
 protected:
  Outcome front(const std::string& arguments) const {
    return folder_.run("STAGECRAFT_BIN='" + program_folder() + "' " + kFront + arguments);
  }
  testing::CommandFolder folder_;
};

TEST_F(Front, ListsTheVerbs) {
  const Outcome bare = front("");
  EXPECT_EQ(bare.status, 2);
  const std::string list = "commands: ";
  ASSERT_THAT(bare.out, ::testing::ContainsRegex(
                            "commands: auto calibrate compare .*export export-model graph import.* plan predict"));
  for (const char* word : {"--help", "-h", "help"}) {
    const Outcome o = front(word);
    EXPECT_EQ(o.status, 0);
    EXPECT_THAT(o.out, HasSubstr("usage: stagecraft COMMAND [options]"));
    EXPECT_THAT(o.out, HasSubstr("\n\nPlan and predict\n  plan          divide a model into stages and replicas\n"));
    // Every verb that there is has a line.
    std::istringstream verbs(bare.out.substr(bare.out.find(list) + list.size()));
    for (std::string verb; verbs >> verb;)
      EXPECT_THAT(o.out, ::testing::ContainsRegex("\n  " + verb + " +[a-z].*\n")) << verb;
  }
}

TEST_F(Front, HelpShowsTheHelpOfAVerb) {
  for (const char* words : {"help plan", "--help plan", "-h plan"}) {
    const Outcome o = front(words);
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_EQ(o.out, front("plan --help").out);
    EXPECT_THAT(o.out, HasSubstr("--microbatches"));
  }
  const Outcome unknown = front("help magic");
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, HasSubstr("stagecraft: unknown command \"magic\", known are auto calibrate compare "));
}

TEST_F(Front, SaysTheVersionThatTheProgramsHave) {
  const Outcome o = front("--version");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.out, ::testing::StartsWith(std::string("stagecraft ") + version() + "\nbuilt with"));
  const bool tensors = folder_.run("test -x '" + program_folder() + "/stagecraft-run'").status == 0;
  EXPECT_THAT(o.out, HasSubstr(tensors ? "\nbuilt with LibTorch " : "\nbuilt without LibTorch: plans, "));
  if (tensors) {
    const Outcome run = folder_.run("stagecraft-run --version");
    EXPECT_EQ(o.out.substr(o.out.find("LibTorch")), run.out.substr(run.out.find("LibTorch")));
    EXPECT_THAT(o.out, HasSubstr(", Gloo (c10d), "));
  }
}

TEST_F(Front, SaysTheVersionThatTheScriptsHave) {
  if (folder_.run("command -v python3").status != 0) GTEST_SKIP() << "no python3, which runs the scripts";
  const Outcome script = folder_.run("STAGECRAFT_PYTHON=python3 " + kFront + "export-model --version");
  EXPECT_EQ(script.status, 0) << script.err;
  EXPECT_EQ(script.out, std::string("stagecraft-export-model ") + version() + "\n");
}

TEST_F(Front, RunsTheProgramOfTheVerb) {
  const Outcome o = front("plan --version");
  EXPECT_EQ(o.status, 0);
  EXPECT_THAT(o.out, ::testing::StartsWith("stagecraft-plan "));
  EXPECT_EQ(front("predict").status, 2);  // the program's own status
}

TEST_F(Front, ListsTheVerbsForOneThatIsUnknown) {
  const Outcome o = front("magic --help");
  EXPECT_EQ(o.status, 2);
  EXPECT_THAT(o.err, ::testing::ContainsRegex("stagecraft: unknown command \"magic\", known are auto calibrate compare "
                                              ".*export export-model graph import"));
}

TEST_F(Front, SuggestsTheVerbNearestToAMisspelling) {
  for (const auto& [slip, verb] : {std::pair{"paln", "plan"}, {"perdict", "predict"}, {"what-if", "whatif"}}) {
    const Outcome o = front(slip);
    EXPECT_EQ(o.status, 2);
    EXPECT_THAT(o.err, HasSubstr(std::string("unknown command \"") + slip + "\", did you mean " + verb +
                                 "? known are auto calibrate"));
  }
}

TEST_F(Front, FindsProgramsBesideItselfAndSaysWhenThereAreNone) {
  const Outcome none = folder_.run("cp " + kFront + " . && ./stagecraft plan");
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err, HasSubstr("stagecraft: nothing was built yet, run scripts/setup"));
  EXPECT_EQ(folder_.run("./stagecraft --version").status, 2);
  const Outcome beside = folder_.run(
      "printf '#!/bin/sh\\necho \"$1\" from here' > stagecraft-greet && chmod +x stagecraft-greet"
      " && ln -s \"$PWD/stagecraft\" linked && ./linked greet hello");
  EXPECT_EQ(beside.status, 0) << beside.err;
  EXPECT_EQ(beside.out, "hello from here\n");
}

TEST_F(Front, RunsAScriptWithThePythonThatIsAsked) {
  const std::string python =
      "printf '#!/bin/sh\\necho \"$@\"' > python && chmod +x python && STAGECRAFT_PYTHON=./python ";
  const Outcome o = folder_.run(python + kFront + "export-model one 'two three'");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.out, ::testing::ContainsRegex("export_model.py one two three\n"));
}

}  // namespace
}  // namespace stagecraft

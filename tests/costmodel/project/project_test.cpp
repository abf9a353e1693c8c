#include "costmodel/project/project.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/schedule.h"
#include "tests/support/known_names.h"
#include "tests/support/places.h"

namespace stagecraft::project {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string kModel = "[model]\nname = \"mlp\"\n";

/// The schedules that train and that a name alone gives: all but those of evaluation and of lists in a file.
std::vector<ScheduleEntry> training_schedules() {
  std::vector<ScheduleEntry> out = schedules();
  std::erase_if(out, [](const ScheduleEntry& entry) { return !entry.trains || entry.name == "listed"; });
  return out;
}

TEST(Project, IsReadAsWritten) {
  const Project project = parse_project(
      "[model]\nname = \"gpt\"\noptions = { layers = 4, rate = 0.5, causal = true, kind = \"a b\" }\n"
      "microbatch = 4\nallow_tf32 = true\n"
      "[plan]\nglobal_batch = 64\nreplicas = [2, 1]\nmemory_limit = \"16GiB\"\ntime_limit = 2\n"
      "[cluster]\n[training]\nbetas = [0.8, 1]\neps = 1e-6\nnesterov = false\n[run]\n",
      "p.toml");
  EXPECT_EQ(project.text("model", "name", ""), "gpt");
  EXPECT_EQ(*project.find("model", "options"),
            KeyValue((std::map<std::string, std::string>{
                {"causal", "1"}, {"kind", "a b"}, {"layers", "4"}, {"rate", "0.5"}})));
  EXPECT_EQ(project.integer("plan", "global_batch", 0), 64);
  EXPECT_EQ(*project.find("plan", "replicas"), KeyValue(std::vector<std::string>{"2", "1"}));
  EXPECT_EQ(*project.find("plan", "time_limit"), KeyValue(2.0));
  EXPECT_EQ(*project.find("training", "betas"), KeyValue(std::array{0.8, 1.0}));
  EXPECT_EQ(*project.find("training", "eps"), KeyValue(1e-6));
  EXPECT_FALSE(project.flag("training", "nesterov", true));
  EXPECT_TRUE(project.flag("model", "allow_tf32"));
  EXPECT_TRUE(project.has("run"));       // an empty one runs with defaults
  EXPECT_FALSE(project.has("cluster"));  // an empty one says nothing
  EXPECT_EQ(parse_project(project_text(project), "again.toml"), project);
}

TEST(Project, TakesAnIntegerWhereANumberIsWanted) {
  const std::int64_t inexact = (std::int64_t{1} << 53) + 1;  // as a double, 2^53
  const Project project = parse_project(kModel + "[training]\nclip_norm = " + std::to_string(inexact) + "\n", "p.toml");
  EXPECT_EQ(*project.find("training", "clip_norm"), KeyValue(0x1p53));
}

TEST(Project, NamesLineAndColumnOfWhatIsWrong) {
  const auto says = [](const std::string& text, const std::string& message) {
    EXPECT_THAT([&] { (void)parse_project(text, "p.toml"); }, ThrowsMessage<FormatError>(HasSubstr(message))) << text;
  };
  says("[model\n", "p.toml: line 1 column 7: ");
  says(kModel + "name = \"gpt\"\n", "p.toml: line 3 column ");  // twice
  says(
      kModel + "batch = 4\n",
      "p.toml: line 3 column 1: unknown key of [model] \"batch\", known are name, options, graph, microbatch, dtype, ");
  says(kModel + "[train]\n", "p.toml: line 3 column 2: unknown section \"train\", known are model, data, cluster, ");
  says("steps = 4\n", "p.toml: line 1 column 1: unknown key outside of a section \"steps\", known are model, ");
  says("model = 4\n", "found 4, expected a section [model]");
  says("[[model]]\n", "expected a section [model]");
  says("[plan]\nmicrobatches = 4\n", "p.toml: line 1 column 1: [model] has no name and no graph");
  says(kModel + "microbatch = 0\n", "p.toml: line 3 column 14: found 0, expected an integer of 1 or more");
  says(kModel + "microbatch = \"4\"\n", "found '4', expected an integer of 1 or more");
  says(kModel + "microbatch = 9007199254740993\n", "expected an integer of 1 or more");
  says(kModel + "allow_tf32 = 1\n", "found 1, expected true or false");
  says(kModel + "dtype = \"int8\"\n", "unknown dtype \"int8\", known are float32, bfloat16, float16");
  says(kModel + "dtype = 4\n", "found 4, expected a string");
  says(kModel + "layers = \"\"\n", "expected a non-empty string");
  says(kModel + "layers = \"--force\"\n", "expected a string that does not begin with \"-\"");
  says(kModel + "layers = \"a\\nb\"\n", "found a control character");
  says(kModel + "options = { \"a=b\" = 1 }\n", "\"a=b\" is not the name of an option");
  says(kModel + "options = { a = [1] }\n", "p.toml: line 3 column 17: found [ 1 ], expected a string, a number");
  says(kModel + "options = { a = nan }\n", "expected a string, a number, true or false");
  says(kModel + "inputs = \"a\"\n", "found 'a', expected a list of strings");
  says(kModel + "inputs = [\"a\", 1.5]\n", "p.toml: line 3 column 16: found 1.5, expected a string or an integer");
  says(kModel + "[plan]\nschedule = \"forward\"\n",
       "unknown schedule \"forward\", known are " + known_names(training_schedules()) + ", csv:FILE");
  says(kModel + "[plan]\nmemory_limit = \"much\"\n", "p.toml: line 4 column 16: ");
  says(kModel + "[plan]\nmemory_limit = 1.5\n", "expected bytes, such as 16000000000 or \"16GiB\"");
  says(kModel + "[training]\nlearning_rate = inf\n", "expected a number of 0 or more");
  says(kModel + "[training]\nlearning_rate = -0.1\n", "found -0.1, expected a number of 0 or more");
  says(kModel + "[training]\nbetas = 0.9\n", "found 0.9, expected two numbers of 0 or more");
  says(kModel + "[training]\nbetas = [0.9]\n", "p.toml: line 4 column 9: found [ 0.9 ], expected two numbers");
  says(kModel + "[training]\nbetas = [0.9, 0.99, 0.999]\n", "expected two numbers of 0 or more");
  says(kModel + "[training]\nbetas = [0.9, -0.1]\n", "expected two numbers of 0 or more");
  says(kModel + "[training]\nbetas = [0.9, \"0.99\"]\n", "expected two numbers of 0 or more");
  says(kModel + "[training]\nanneal_strategy = \"sine\"\n", "unknown anneal_strategy \"sine\", known are cos, linear");
  says(kModel + "[training]\nloss_scale = 0\n", "found 0, expected a number above 0");
  says(kModel + "[run]\ntimeout = 0.0\n", "expected a number above 0");
  says(std::string(300, '['), "p.toml: line 1 column ");
  says("[mod\u00e9l]\n", "p.toml: line 1 column 5: ");
  says(kModel + "layers = \"\u00e9\\\"\u00e9\" # \u00e9\n\u00e9 = 1\n", "p.toml: line 4 column 1: ");
  says(kModel + "layers = \u00a0\"a\"\n", "p.toml: line 3 column ");
}

TEST(Project, TakesAnyCharacterInStringsAndComments) {
  const auto layers = [](const std::string& value) {
    return parse_project("\xEF\xBB\xBF# \u00e9 '\n" + kModel + "layers = " + value, "p.toml")
        .text("model", "layers", "");
  };
  EXPECT_EQ(layers("'\u00e9'  # \"\u00e9\n"), "\u00e9");
  EXPECT_EQ(layers("\"\u00e9\\\"\u00e9\"\n"), "\u00e9\"\u00e9");
  EXPECT_EQ(layers("\"\"\"\\\n  \u00e9'\"\"\"\n"), "\u00e9'");
  EXPECT_EQ(layers("'''\u00e9\"'''\n"), "\u00e9\"");
}

TEST(Project, RefusesKeysThatExcludeEachOther) {
  const auto says = [](const std::string& text, const std::string& message) {
    EXPECT_THAT([&] { (void)parse_project(text, "p.toml"); }, ThrowsMessage<FormatError>(HasSubstr(message))) << text;
  };
  says(kModel + "graph = \"g.json\"\n", "p.toml: line 3 column 9: name and graph are mutually exclusive");
  says(kModel + "[plan]\nmicrobatches = 2\nglobal_batch = 8\n", "microbatches and global_batch are mutually exclusive");
  says(kModel + "[run]\nsteps = 2\nepochs = 8\n", "steps and epochs are mutually exclusive");
  says(kModel + "microbatch = 3\n[plan]\nglobal_batch = 8\n", "8 samples are not a multiple of the microbatch's 3");
  says("[model]\ngraph = \"g.json\"\n[plan]\nglobal_batch = 8\n",
       "with a graph, global_batch also needs [model] microbatch");
  says(kModel + "[cluster]\ntopology = \"t.json\"\ndevices = 2\n",
       "devices is only valid with topology = \"this-machine\"");
  says(kModel + "[cluster]\nestimate = \"H200\"\n[run]\n",
       "estimated times are for devices that this machine does not have");
  says(kModel + "[evaluate]\nsource = \"synthetic\"\n", "[evaluate] needs a section [run]");
  says(kModel + "[run]\nvalidate_every = 2\n", "p.toml: line 4 column 18: validate_every needs validate_data");
  says(kModel + "[run]\nvalidate_samples = 2\n", "validate_samples needs validate_data");
  says(kModel + "[plan]\nschedule = \"pipedream\"\n[run]\nvalidate_data = \"synthetic\"\nvalidate_every = 2\n",
       "schedule pipedream validates only after the last step; remove validate_every");
  says(kModel + "[training]\nloss_scale = 8\n", "loss_scale needs [model] dtype = \"float16\"");
  says(kModel + "dtype = \"bfloat16\"\n[training]\nloss_scale_growth_interval = 8\n",
       "loss_scale_growth_interval needs [model] dtype = \"float16\"");
  says(kModel + "[run]\n[evaluate]\n", "p.toml: line 4 column 1: [evaluate] has no source");
  says(kModel + "[run]\ncheckpoint = false\n[evaluate]\nsource = \"synthetic\"\n", "[evaluate] needs checkpoints");
}

TEST(Project, AllowsKeysThatOthersMakePossible) {
  const std::string validation = "validate_data = \"synthetic\"\nvalidate_samples = 4\n";
  for (const std::string& text : {kModel + "[plan]\nschedule = \"1f1b\"\n[run]\n" + validation + "validate_every = 2\n",
                                  kModel + "[plan]\nschedule = \"pipedream\"\n[run]\n" + validation,
                                  kModel + "dtype = \"float16\"\n[training]\nloss_scale = 0.5\n",
                                  std::string("[model]\ngraph = \"g.json\"\n[training]\nloss_scale = 8\n")}) {
    EXPECT_NO_THROW((void)parse_project(text, "p.toml")) << text;
  }
}

TEST(Project, HasExamplesThatAreAllowed) {
  for (const ProjectSection& section : sections()) {
    for (const ProjectKey& key : section.keys) {
      std::string text = "[" + section.name + "]\n" + key.name + " = " + key.example + "\n";
      if (section.name == "model" && key.name != "name" && key.name != "graph") text += "name = \"mlp\"\n";
      if (key.name == "validate_every" || key.name == "validate_samples") text += "validate_data = \"synthetic\"\n";
      if (key.name == "png") text += "pictures = true\n";
      if (section.name != "model") text += kModel;
      if (key.name.starts_with("loss_scale")) text += "dtype = \"float16\"\n";
      if (section.name == "evaluate") text += "[run]\n";
      if (section.name == "evaluate" && key.name != "source")
        text = "[evaluate]\nsource = \"synthetic\"\n" + text.substr(text.find('\n') + 1);
      EXPECT_NO_THROW((void)parse_project(text, "p.toml")) << text;
    }
  }
}

// The table of docs/project.md has a row for every key, and no others.
TEST(Project, IsDocumentedKeyByKey) {
  const std::string page = format::read_text(source_folder() + "/docs/project.md");
  std::size_t rows = 0;
  for (std::size_t at = page.find("\n| `"); at != std::string::npos; at = page.find("\n| `", at + 1)) ++rows;
  std::size_t keys = 0;
  for (const ProjectSection& section : sections()) {
    const std::size_t begin = page.find("\n### `[" + section.name + "]`\n");
    ASSERT_NE(begin, std::string::npos) << section.name;
    const std::string part = page.substr(begin, page.find("\n##", begin + 1) - begin);
    for (const ProjectKey& key : section.keys) {
      EXPECT_THAT(part, HasSubstr("\n| `" + key.name + "` |")) << section.name;
      ++keys;
    }
  }
  EXPECT_EQ(rows, keys);
}

TEST(NewProject, TrainsOnThisMachineOrPlansForAnother) {
  const Project here = new_project({});
  EXPECT_EQ(parse_project(project_text(here), "p.toml"), here);
  EXPECT_EQ(here.text("model", "name", ""), "convnet");
  EXPECT_EQ(here.text("data", "source", ""), "fashion-mnist");
  EXPECT_TRUE(here.has("run"));

  NewProject wanted;
  wanted.model = "gpt";
  wanted.options = {"layers=4", "name=a=b"};
  wanted.topology = "example:dgx-h100";
  wanted.estimate = "H100-SXM";
  const Project there = new_project(wanted);
  EXPECT_EQ(parse_project(project_text(there), "p.toml"), there);
  EXPECT_EQ(*there.find("model", "options"),
            KeyValue((std::map<std::string, std::string>{{"layers", "4"}, {"name", "a=b"}})));
  EXPECT_FALSE(there.has("run"));
  EXPECT_EQ(there.find("cluster", "devices"), nullptr);

  NewProject graph;
  graph.model = "g.json";
  EXPECT_FALSE(new_project(graph).has("run"));
  EXPECT_EQ(new_project(graph).text("model", "graph", ""), "g.json");
}

TEST(NewProject, GivesNoOptionThatOnlySomeOptimizersHave) {
  EXPECT_EQ(new_project({}).find("training", "momentum"), nullptr);
}

TEST(NewProject, RefusesWhatCannotBe) {
  const auto says = [](const NewProject& wanted, const std::string& message) {
    EXPECT_THAT([&] { (void)new_project(wanted); }, ThrowsMessage<std::invalid_argument>(HasSubstr(message)));
  };
  says({.model = "gpt", .options = {"layers"}}, "found \"layers\", expected an option of the model such as layers=4");
  says({.model = "model.pt2", .options = {"layers=4"}}, "only a built-in model has options, not model.pt2");
  says({.model = "my_model.py:MyLM"},
       "my_model.py:MyLM is Python; export the model first: stagecraft export-model "
       "my_model.py:MyLM ... -o model.pt2, then give --from model.pt2");
  says({.model = "lib/my_model.py"}, "stagecraft export-model lib/my_model.py:FUNCTION ... -o model.pt2");
  says({.estimate = "H200"}, "--estimate is for the GPUs of --topology, which is missing");
}

}  // namespace
}  // namespace stagecraft::project

#include "costmodel/format/files/outputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "costmodel/errors.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/format/trace_events.h"
#include "costmodel/interchange/pipedream_conf.h"
#include "costmodel/timeline.h"
#include "tests/support/chains.h"
#include "tests/support/run_command.h"

// The checks of output files before the work begins, and the tools that make them.

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

class Outputs : public ::testing::Test {
 protected:
  Outputs() {
    folder_.write("graph.txt",
                  "node1 -- Linear -- forward_compute_time=1.000, backward_compute_time=2.000, activation_size=10.0, "
                  "parameter_size=20.000\n"
                  "node2 -- Linear -- forward_compute_time=1.000, backward_compute_time=2.000, activation_size=10.0, "
                  "parameter_size=20.000\n"
                  "\tnode1 -- node2\n");
    folder_.write("notes.txt", "buy milk\n");
    EXPECT_EQ(folder_
                  .run("stagecraft-import pipedream graph.txt -o g.json && stagecraft-plan g.json -n 2 --strategy "
                       "uniform -o p.json && mkdir folder && ln -s g.json soft.json && ln g.json hard.json")
                  .status,
              0);
    std::filesystem::remove(folder_.path() / "command.sh");
  }
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  auto refuses(const std::string& path, const std::string& message) const {
    return ThrowsMessage<FormatError>(::testing::AllOf(StartsWith(path + ": "), HasSubstr(message)));
  }
  testing::CommandFolder folder_;
};

TEST_F(Outputs, AreKnownByWhatTheyBeginWith) {
  EXPECT_EQ(format::text_kind(folder_.read("g.json")), "stagecraft.graph");
  EXPECT_EQ(format::text_kind(folder_.read("p.json")), "stagecraft.plan");
  EXPECT_EQ(format::text_kind(folder_.read("graph.txt")), "PipeDream profile");
  EXPECT_EQ(format::text_kind(format::chrome_trace(Timeline{}, "a \"title\"")), "Chrome trace");
  EXPECT_EQ(format::text_kind(interchange::pipedream_conf_text({{0, 0}, {{0}}, {}})), "PipeDream configuration");
  for (const auto& [arguments, kind] : std::vector<std::pair<std::string, std::string>>{
           {"export actions p.json", "schedule CSV"},
           {"export actions p.json --transfers", "schedule CSV"},
           {"export torch-pipelining p.json --kind script", "torch.distributed.pipelining program"},
           {"export torch-pipelining p.json --kind csv", "schedule CSV"},
           {"export deepspeed p.json --kind python", "DeepSpeed module"},
           {"export deepspeed p.json --kind json", "list of DeepSpeed's parts"},
           {"export pipedream g.json", "PipeDream profile"},
           {"graph g.json", "Graphviz picture"}}) {
    const Outcome o = folder_.run("stagecraft-" + arguments);
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_EQ(format::text_kind(o.out), kind) << arguments;
  }
  EXPECT_EQ(format::text_kind("Et*3|(tt|)*29,m|L\n"), "Megatron-LM layout");
  EXPECT_EQ(format::text_kind(
                "<?xml version=\"1.0\"?>\n<!DOCTYPE svg PUBLIC \"a\"\n \"b\">\n<!-- c\n -->\n<svg width=\"1\">"),
            "SVG picture");
  EXPECT_EQ(format::text_kind(std::string("\x40\0\0\0\0\0\0\0{\"weight\":", 17)), "safetensors file");
  for (const char* other : {"", "buy milk\n", "{}", "{\"format\": \"other\"}", "[1, 2]", "a,b\n1,2\n", "PK\x03\x04"})
    EXPECT_EQ(format::text_kind(other), std::string(other) == "{}" ? "list of Chakra groups" : "") << other;
}

TEST_F(Outputs, AreNotWhatIsRead) {
  for (const char* name : {"g.json", "./g.json", "folder/../g.json", "soft.json", "hard.json"}) {
    EXPECT_THAT([&] { format::check_outputs({at("graph.txt"), at("g.json")}, {{at(name), ""}}, false); },
                refuses(at(name), "is also an input"));
    format::check_outputs({at("g.json")}, {{at(name), ""}}, true);
  }
  EXPECT_THAT([&] { format::check_outputs({at("g.json")}, {{at("soft.json"), ""}}, false); },
              refuses(at("soft.json"), "is also an input, as " + at("g.json") +
                                           ", so it is not replaced; use another name, or --force"));
}

TEST_F(Outputs, AreNewEmptyOrOlderOnesOfTheSameKind) {
  folder_.write("empty", "");
  for (const char* name : {"new", "empty", "p.json", "-", ""})
    format::check_outputs({}, {{std::string(name).size() < 2 ? name : at(name), "stagecraft.plan"}}, false);
  format::check_outputs({}, {{"/dev/null", "stagecraft.plan"}}, false);
  EXPECT_THAT([&] { format::check_outputs({}, {{at("g.json"), "stagecraft.plan"}}, false); },
              refuses(at("g.json"), "holds a stagecraft.graph, so no stagecraft.plan replaces it; use another name"));
  EXPECT_THAT([&] { format::check_outputs({}, {{at("notes.txt"), "stagecraft.plan"}}, false); },
              refuses(at("notes.txt"), "holds something that stagecraft did not write, so no stagecraft.plan"));
  format::check_outputs({}, {{at("notes.txt"), "stagecraft.plan"}}, true);
  EXPECT_EQ(folder_.read("notes.txt"), "buy milk\n");
}

TEST_F(Outputs, AreDifferentFiles) {
  for (const auto& [a, b] : std::vector<std::pair<std::string, std::string>>{
           {"new", "folder/../new"}, {"g.json", "hard.json"}, {"new", "new"}}) {
    EXPECT_THAT([&] { format::check_outputs({}, {{at(a), ""}, {at(b), ""}}, true); },
                refuses(at(b), "is named for two outputs"));
  }
  format::check_outputs({}, {{"-", ""}, {"-", ""}, {"/dev/null", ""}, {"/dev/null", ""}}, false);
}

TEST_F(Outputs, CanBeWrittenAndTheProofLeavesNothing) {
  const auto count = [&] { return std::distance(std::filesystem::recursive_directory_iterator(folder_.path()), {}); };
  const auto before = count();
  format::check_outputs({}, {{at("new"), "stagecraft.plan"}, {at("folder/new"), ""}}, false);
  format::check_outputs_in(at("folder/one/two"), {}, {{"a.json", ""}}, false);
  EXPECT_THAT([&] { format::check_outputs({}, {{at("none/new"), ""}}, false); },
              refuses(at("none/new"), "cannot write: No such file or directory"));
  EXPECT_THAT([&] { format::check_outputs({}, {{at("folder"), ""}}, false); }, refuses(at("folder"), "is a directory"));
  EXPECT_THAT([&] { format::check_outputs_in(at("g.json"), {}, {}, false); },
              refuses(at("g.json"), "is a file, expected a directory"));
  EXPECT_THAT([&] { format::check_outputs_in(at("g.json/in"), {}, {}, false); },
              refuses(at("g.json/in"), "cannot write: Not a directory"));
  if (::geteuid() != 0) {  // root may write anywhere
    std::filesystem::permissions(at("folder"), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
    EXPECT_THAT([&] { format::check_outputs({}, {{at("folder/new"), ""}}, false); },
                refuses(at("folder/new"), "cannot write: Permission denied"));
    EXPECT_THAT([&] { format::check_outputs_in(at("folder/one"), {}, {}, false); },
                refuses(at("folder/one"), "cannot write: Permission denied"));
    std::filesystem::permissions(at("folder"), std::filesystem::perms::owner_all);
  }
  EXPECT_EQ(count(), before);
}

// Every verb without LibTorch: none replaces its input or another kind of document, and each reports what it cannot
// write before it reads its inputs, which cannot be read here.
TEST_F(Outputs, HoldForEveryVerb) {
  folder_.write("t.json", format::topology_json(testing::flat_topology(2)));
  const auto refused = [&](const std::string& command, const std::string& message) {
    const std::string kept = "sha256sum *.json *.txt | grep -v -e out.txt -e err.txt";
    const std::string before = folder_.run(kept).out;
    const Outcome o = folder_.run("stagecraft-" + command);
    EXPECT_EQ(o.status, 1) << command;
    EXPECT_THAT(o.err, HasSubstr(message)) << command;
    EXPECT_EQ(folder_.run(kept).out, before) << command;
  };
  refused("plan g.json t.json -o g.json",
          "g.json: is also an input, so it is not replaced; use another name, or --force");
  refused("plan g.json t.json -o ./hard.json", "./hard.json: is also an input, as g.json");
  refused("plan - t.json -o g.json < g.json", "g.json: is also an input, as standard input");
  refused("plan g.json t.json -o notes.txt", "notes.txt: holds something that stagecraft did not write");
  refused("plan g.json t.json --top 2 --top-to notes.txt", "notes.txt: is not a directory");
  refused("predict g.json t.json p.json -o p.json", "p.json: is also an input");
  refused("predict g.json t.json p.json --trace notes.txt", "notes.txt: holds something");
  refused("predict g.json t.json p.json -o new --trace ./new", "./new: is named for two outputs");
  refused("import pipedream graph.txt -o graph.txt", "graph.txt: is also an input");
  refused("import pipedream graph.txt -o p.json", "p.json: holds a stagecraft.plan, so no stagecraft.graph");
  refused("export pipedream g.json -o g.json", "g.json: is also an input");
  refused("export pipedream g.json -o notes.txt", "notes.txt: holds something");
  refused("export actions p.json -o graph.txt", "graph.txt: holds a PipeDream profile, so no schedule CSV");
  refused("graph g.json -o g.json", "g.json: is also an input");
  refused("estimate g.json --device H200 -o g.json", "g.json: is also an input");
  refused("estimate g.json --device H200 -o p.json", "p.json: holds a stagecraft.plan, so no stagecraft.graph");
  refused("report g.json -o g.json", "g.json: is also an input");
  refused("report g.json -o notes.txt", "notes.txt: holds something");
  refused("init g.json", "g.json: already exists, so it is not replaced; use another name, or --force");
  refused("report g.json -o new --pictures p.json", "p.json: is a file, expected a directory");
  refused("graph g.json --plan p.json -o soft.json --dot", "soft.json: is also an input, as g.json");
  for (const std::string command :
       {"plan no t.json", "predict no t.json p.json", "import pipedream no", "export pipedream no", "graph no.json",
        "estimate no --device H200", "report no.json"}) {
    refused(command + " -o none/x", "none/x: cannot write: No such file or directory");
    refused(command + " -o folder", "folder: is a directory, expected a file");
  }
  refused("predict no t.json p.json --trace none/x", "none/x: cannot write");
  refused("predict no t.json p.json --chakra g.json/x", "g.json/x: cannot write: Not a directory");
  refused("export torch-pipelining no -o g.json", "g.json: is a file, expected a directory");
  refused("convert no -o g.json/x", "stagecraft-convert: g.json: is a file, expected a directory");
  refused("convert no -o g.json", "g.json: is not a directory");
  folder_.write("folder/pipeline.py", "print(1)\n");
  refused("export torch-pipelining p.json -o folder", "folder/pipeline.py: holds something");
  EXPECT_EQ(folder_.run("ls folder").out, "pipeline.py\n");
  for (int i = 0; i < 2; ++i) {  // the second replaces older ones of the same kind
    EXPECT_EQ(folder_.run("stagecraft-plan g.json t.json -o plan.json").status, 0);
    EXPECT_EQ(folder_.run("stagecraft-predict g.json t.json p.json -o out.json --trace t1.json --chakra c").status, 0);
    EXPECT_EQ(folder_.run("stagecraft-export torch-pipelining p.json -o torch").status, 0);
    EXPECT_EQ(folder_.run("stagecraft-export pipedream g.json -o again.txt").status, 0);
    EXPECT_EQ(folder_.run("stagecraft-graph g.json -o g.dot").status, 0);
    EXPECT_EQ(folder_.run("stagecraft-report g.json out.json -o r.html --pictures pictures").status, 0);
  }
  EXPECT_EQ(folder_.run("stagecraft-plan g.json t.json -o g.json --force").status, 0);
  EXPECT_EQ(format::text_kind(folder_.read("g.json")), "stagecraft.plan");
}

TEST_F(Outputs, AreThePicturesThatAreNamed) {
  const std::string command = "stagecraft-report g.json p.json -o r.html ";
  EXPECT_EQ(folder_.run(command + "--pictures some --picture layer-bars").status, 0);
  EXPECT_EQ(folder_.run("ls some").out, "layer-bars.svg\n");
  const testing::Outcome unknown = folder_.run(command + "--pictures none --picture graph,layer-bar");
  EXPECT_EQ(unknown.status, 1);
  EXPECT_THAT(unknown.err, HasSubstr("--picture: unknown picture \"layer-bar\", did you mean layer-bars? known are "));
  EXPECT_EQ(folder_.run("ls none").out, "");
  const testing::Outcome alone = folder_.run(command + "--picture graph");
  EXPECT_EQ(alone.status, 2);
  EXPECT_THAT(alone.err, HasSubstr("--picture requires --pictures"));
}

TEST_F(Outputs, ArePicturesOfEveryPixelWhereAsked) {
  const testing::Outcome alone = folder_.run("stagecraft-report g.json p.json -o r.html --png");
  EXPECT_EQ(alone.status, 2);
  EXPECT_THAT(alone.err, HasSubstr("--png requires --pictures"));
  const testing::Outcome none =
      folder_.run("PATH=/nowhere $(command -v stagecraft-report) g.json p.json -o r.html --pictures pictures --png");
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.err, HasSubstr("cannot run rsvg-convert; install the package librsvg2-bin, or leave out --png"));
  if (folder_.run("command -v rsvg-convert").status != 0) GTEST_SKIP() << "no rsvg-convert, of package librsvg2-bin";
  for (int i = 0; i < 2; ++i) {  // the second replaces older ones
    const testing::Outcome o = folder_.run("stagecraft-report g.json p.json -o r.html --pictures pictures --png");
    EXPECT_EQ(o.status, 0) << o.err;
  }
  const std::string svg = folder_.read("pictures/layer-bars.svg");
  const std::string png = folder_.read("pictures/layer-bars.png");
  EXPECT_EQ(format::text_kind(png), "PNG picture");
  // The width in pixels is in bytes 16 to 19 of a PNG, most significant first; it is twice the SVG's.
  int pixels = 0;
  for (std::size_t i = 16; i < 20; ++i) pixels = 256 * pixels + static_cast<unsigned char>(png.at(i));
  const std::size_t width = svg.find("width=\"") + 7;
  EXPECT_EQ(pixels, 2 * std::stoi(svg.substr(width)));
  EXPECT_EQ(folder_.run("ls pictures | grep -c partial").out, "0\n");
}

}  // namespace
}  // namespace stagecraft

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <new>
#include <ostream>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/format/graph_json.h"
#include "tests/support/places.h"
#include "tests/support/run_command.h"

// Every code of the catalogue is reached here, nearly all of them by a command as a user would type it.

namespace stagecraft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// The builds in which a command can be tried.
enum class Builds {
  All,
  Computing,         ///< with LibTorch
  WithoutComputing,  ///< without
};

/// A command, in a folder with the files of the fixture, that ends with `status` and a message with `code`.
struct Reach {
  std::string code;
  std::string command;
  int status = 1;
  Builds builds = Builds::All;
};

/// For the names of tests.
std::ostream& operator<<(std::ostream& out, const Reach& reach) { return out << reach.code; }

const std::vector<Reach>& commands() {
  using enum Builds;
  static const std::vector<Reach> all = {
      {"SC1002", "stagecraft-plan graph.json --colour red", 2},
      {"SC1003", "stagecraft-plan", 2},
      {"SC1004", "stagecraft-errors SC1001 --markdown", 2},
      {"SC1005", "stagecraft-plan graph.json -n many", 2},
      {"SC1006", "STAGECRAFT_BIN=$(dirname $(command -v stagecraft-plan)) bash front paln graph.json", 2},
      {"SC1007", "mkdir -p alone/scripts && cp front alone/scripts && STAGECRAFT_BIN= bash alone/scripts/front plan",
       2},
      {"SC1101", "stagecraft-plan nowhere.json -n 2"},
      {"SC1102", "stagecraft-plan graph.json -n 2 -o nowhere/plan.json"},
      {"SC1103", "stagecraft-plan graph.json -n 2 -o graph.json"},
      {"SC1104", "printf abc > cut.safetensors && stagecraft-run mlp-plan.json --weights cut.safetensors", 1,
       Computing},
      {"SC1105", "stagecraft-plan plan.json -n 2"},
      {"SC1105",
       "sed 's/\"version\": [0-9]*/\"version\": 999/' graph.json > new.json && stagecraft-plan new.json -n 2"},
      {"SC1201",
       "sed 's/\"median_s\": 0.001/\"median_s\": -1/' graph.json > bad.json && stagecraft-plan bad.json -n 2"},
      {"SC1202", "echo '{\"format\": ' > bad.json && stagecraft-plan bad.json -n 2"},
      {"SC1203", "echo '{\"version\": 1}' > bad.json && stagecraft-plan bad.json -n 2"},
      {"SC1204",
       "sed 's/\"median_s\": 0.001,/& \"unit\": \"s\",/' graph.json > bad.json && stagecraft-plan bad.json -n 2"},
      {"SC1205", "printf '[model]\\nnmae = \"mlp\"\\n' > project.toml && stagecraft-auto project.toml"},
      {"SC2001", "stagecraft-plan graph.json -n 2 --strategy uniform --stages 2 --replicas 1 1 1"},
      {"SC2002", "stagecraft-plan graph.json -n 2 --split-at node9"},
      {"SC2003", "stagecraft-plan untrusted.json -n 2"},
      {"SC2004", "stagecraft-plan processor.json dgx.json"},
      {"SC2005", "sed 's/_s\": 0.00[12]/_s\": 0/' graph.json > timeless.json && stagecraft-plan timeless.json -n 2"},
      {"SC2006", "sed 's/node2/node3/' graph.json > other.json && stagecraft-predict other.json cpus.json plan.json"},
      {"SC2006",
       "sed 's/\"devices\": .1./\"devices\": [9]/' plan.json > far.json && stagecraft-predict graph.json cpus.json "
       "far.json"},
      {"SC2007", "stagecraft-plan graph.json -n 3 --strategy uniform --replicas 2,1 --schedule interleaved-1f1b"},
      {"SC2008", "stagecraft-estimate graph.json --device H100-SXM -o estimate.json"},
      {"SC2009",
       "sed 's/\"latency_s\"/\"distrust\": [\"busy\"], &/' cpus.json > busy.json && "
       "stagecraft-plan graph.json busy.json"},
      {"SC2101", "stagecraft-plan graph.json -n 2 --strategy uniform --stages 3"},
      {"SC2102", "stagecraft-plan graph.json -n 2 --memory-limit 1"},
      {"SC2103", "printf '0F0,0B0\\n1F0\\n' > lists.csv && stagecraft-verify lists.csv"},
      {"SC2104", "stagecraft-plan sampled.json -n 2 --min-throughput 1e9"},
      {"SC3001", "stagecraft-profile weights.pt -o p.json", 1, Computing},
      {"SC3002", "stagecraft-profile net.pt2 --loss cross_entropy -o p.json", 1, Computing},
      {"SC3003", "stagecraft-profile net.pt2 --microbatch 1000 -o p.json", 1, Computing},
      {"SC3101", "stagecraft-run mlp-plan.json --data text:plan.json", 1, Computing},
      {"SC3102",
       "mkdir -p photos/cat && echo no > photos/cat/1.png && stagecraft-run convnet-plan.json --data images:photos", 1,
       Computing},
      {"SC3201", "mkdir -p empty && stagecraft-weights empty -o w.safetensors", 1, Computing},
      {"SC3202",
       "stagecraft-run mlp-plan.json --steps 1 --checkpoint damaged && sed -i 's/\"step\": 1/\"step\": 2/' "
       "damaged/step-1/manifest.json && "
       "stagecraft-weights damaged/step-1 -o w.safetensors",
       1, Computing},
      {"SC3203",
       "stagecraft-run mlp-plan.json --steps 1 --checkpoint narrow && stagecraft-weights narrow -o narrow.safetensors "
       "&& "
       "stagecraft-run wide-plan.json --weights narrow.safetensors",
       1, Computing},
      {"SC3204",
       "stagecraft-run mlp-plan.json --steps 1 --checkpoint twice && stagecraft-run mlp-plan.json --steps 1 "
       "--checkpoint twice",
       1, Computing},
      {"SC4001", "TMPDIR=/nowhere stagecraft-graph gpt -o x.svg"},
      {"SC4002", "stagecraft-run mlp-plan.json --device cuda:99", 1, Computing},
      {"SC4003", "stagecraft-convert plan.json --model net.pt2 -o package", 1, WithoutComputing},
      {"SC4004", "stagecraft-profile mlp --set inputs=1000000 --set width=1000000 -o p.json", 1, Computing},
      {"SC4005", "PATH=/nowhere $(command -v stagecraft-graph) graph.json -o x.svg"},
      {"SC4101",
       "RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=nowhere.invalid MASTER_PORT=1 stagecraft-run two-plan.json "
       "--timeout 2",
       1, Computing},
      {"SC4105", "RANK=0 LOCAL_RANK=0 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 stagecraft-run two-plan.json", 1,
       Computing},
      {"SC4106", "stagecraft-run mlp-plan.json --steps 50 --learning-rate 1e6", 1, Computing},
  };
  return all;
}

/// Codes that no short command reaches, and an exception that a program prints with them.
const std::map<std::string, std::function<void()>>& exceptions() {
  static const std::map<std::string, std::function<void()>> all = {
      {"SC9001", [] { throw std::runtime_error("a library failed"); }},
      {"SC4004", [] { throw std::bad_alloc(); }},
      {"SC2001", [] { throw std::invalid_argument("-1 layers, must be at least 1"); }},
  };
  return all;
}

/// Codes that these tests reach, because they take several ranks.
const std::map<std::string, std::string>& reached_elsewhere() {
  static const std::map<std::string, std::string> all = {
      {"SC1001", "RunTool.GivesEachWrongCommandLineItsCode, tool_test.cpp"},
      {"SC4102", "RunLaunch, run_launch_test.cpp"},
      {"SC4103", "RunLaunch, run_launch_test.cpp"},
      {"SC4104", "RunLaunch, run_launch_test.cpp"},
  };
  return all;
}

bool computes() { return std::filesystem::exists(std::filesystem::path(program_folder()) / "stagecraft-run"); }

class ErrorCodes : public ::testing::TestWithParam<Reach> {
 protected:
  void SetUp() override {
    namespace fs = std::filesystem;
    folder_.write("graph.txt",
                  "node1 -- Linear -- forward_compute_time=1.000, backward_compute_time=2.000, activation_size=10.0, "
                  "parameter_size=20.000\n"
                  "node2 -- Linear -- forward_compute_time=1.000, backward_compute_time=2.000, activation_size=10.0, "
                  "parameter_size=20.000\n"
                  "\tnode1 -- node2\n");
    const testing::Outcome made = folder_.run(
        "stagecraft-import pipedream graph.txt -o graph.json && "
        "stagecraft-plan graph.json -n 2 --strategy uniform -o plan.json");
    ASSERT_EQ(made.status, 0) << made.err;
    Graph graph = format::parse_graph(folder_.read("graph.json"), "graph.json");
    graph.microbatch_samples = 4;
    folder_.write("sampled.json", format::graph_json(graph));
    graph.device.name = "AMD EPYC";
    graph.device.kind = DeviceKind::Processor;
    folder_.write("processor.json", format::graph_json(graph));
    graph.quality.emplace();
    graph.quality->trusted = false;
    graph.quality->reasons = {"other programs used 40 % of the processors"};
    folder_.write("untrusted.json", format::graph_json(graph));
    const fs::path source = source_folder();
    fs::copy_file(source / "scripts/stagecraft", folder_.path() / "front");
    fs::copy_file(source / "examples/dgx-h100.json", folder_.path() / "dgx.json");
    fs::copy_file(source / "examples/topology-2-cpus.json", folder_.path() / "cpus.json");
    fs::copy_file(source / "tests/golden/pt2/net.pt2", folder_.path() / "net.pt2");
    fs::copy_file(source / "tests/golden/torch/weights.pt", folder_.path() / "weights.pt");
  }
  /// The plan NAME-plan.json of a built-in model, for a command that runs it.
  void make_plan(const std::string& name, const std::string& model, const std::string& devices) {
    const testing::Outcome made = folder_.run(
        "stagecraft-profile " + model + " --max-seconds 0.5 --microbatch 2 --accept-untrusted -o m.json && " +
        "stagecraft-plan m.json --accept-untrusted --microbatches 2 -n " + devices + " -o " + name);
    ASSERT_EQ(made.status, 0) << made.err;
  }
  testing::CommandFolder folder_;
};

TEST_P(ErrorCodes, IsReached) {
  const Reach& reach = GetParam();
  if (reach.builds == Builds::Computing && !computes()) GTEST_SKIP() << "this build has no LibTorch";
  if (reach.builds == Builds::WithoutComputing && computes()) GTEST_SKIP() << "this build has LibTorch";
  for (const auto& [name, model, devices] :
       std::vector<std::array<std::string, 3>>{{"mlp-plan.json", "mlp --set inputs=12 --set width=16", "1"},
                                               {"wide-plan.json", "mlp --set inputs=12 --set width=32", "1"},
                                               {"two-plan.json", "mlp --set inputs=12 --set width=16", "2 --stages 2"},
                                               {"convnet-plan.json", "convnet", "1"}}) {
    if (reach.command.find(name) != reach.command.npos) make_plan(name, model, devices);
  }
  const testing::Outcome o = folder_.run(reach.command);
  EXPECT_EQ(o.status, reach.status) << reach.command << "\n" << o.err;
  EXPECT_THAT(o.err, HasSubstr(" [" + reach.code + "]\n")) << reach.command;
}

INSTANTIATE_TEST_SUITE_P(Commands, ErrorCodes, ::testing::ValuesIn(commands()), [](const auto& instance) {
  return instance.param.code + "_" + std::to_string(instance.index);
});

TEST(ErrorCatalogue, IsReachedAsAWhole) {
  std::set<std::string> reached;
  for (const Reach& reach : commands()) reached.insert(reach.code);
  for (const auto& [code, raise] : exceptions()) reached.insert(code);
  for (const auto& [code, test] : reached_elsewhere()) reached.insert(code);
  std::set<std::string> all;
  for (const ErrorArea& area : error_catalogue()) {
    for (const ErrorEntry& entry : area.entries) all.insert(entry.code);
  }
  EXPECT_EQ(reached, all);
}

TEST(ErrorCatalogue, NamesTheKindOfAnyException) {
  for (const auto& [code, raise] : exceptions()) {
    try {
      raise();
      ADD_FAILURE() << code;
    } catch (const std::exception& e) { EXPECT_EQ(error_entry(kind_of(e)).code, code); }
  }
}

TEST(ErrorCatalogue, HasEachKindAndCodeOnceInOrder) {
  int next = 0;
  std::string last;
  for (const ErrorArea& area : error_catalogue()) {
    EXPECT_NE(area.title, "");
    for (const ErrorEntry& entry : area.entries) {
      EXPECT_EQ(static_cast<int>(entry.kind), next++) << entry.code << " is out of the enumeration's order";
      EXPECT_GT(entry.code, last);
      last = entry.code;
      EXPECT_EQ(&error_entry(entry.kind), &entry);
      EXPECT_EQ(&error_entry(entry.code), &entry);
      for (const std::string& text : {entry.cause, entry.remedy}) EXPECT_EQ(text.back(), '.') << entry.code;
      EXPECT_NE(entry.title.back(), '.') << entry.code;
      EXPECT_EQ((entry.title + entry.cause + entry.remedy).find('|'), std::string::npos) << "would end a table's cell";
    }
  }
  EXPECT_EQ(next, static_cast<int>(ErrorKind::Unexpected) + 1);
}

TEST(ErrorCatalogue, PutsTheCodeAtTheEndOfTheFirstLine) {
  EXPECT_EQ(with_code("two ranks differ", ErrorKind::RanksDiffer), "two ranks differ [SC4104]");
  EXPECT_EQ(with_code("it hangs\n  rank 0: waits", ErrorKind::DeadlineMissed), "it hangs [SC4103]\n  rank 0: waits");
}

TEST(ErrorsTool, ExplainsCodesAndChecksOfDoctor) {
  const testing::CommandFolder folder;
  const testing::Outcome one = folder.run("stagecraft-errors SC2102 SC305");
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_THAT(one.out, AllOf(StartsWith("SC2102: no plan fits in memory\n\n"), HasSubstr("\nWhat to do:\n"),
                             HasSubstr("\nSC305: found by stagecraft doctor: ")));
  EXPECT_EQ(folder.run("bash '" + source_folder() + "/scripts/stagecraft' help SC2102").out,
            folder.run("stagecraft-errors SC2102").out);
  const testing::Outcome all = folder.run("stagecraft-errors");
  for (const ErrorArea& area : error_catalogue()) {
    for (const ErrorEntry& entry : area.entries)
      EXPECT_THAT(all.out, HasSubstr("  " + entry.code + "  " + entry.title + "\n"));
  }
  const testing::Outcome unknown = folder.run("stagecraft-errors SC1");
  EXPECT_EQ(unknown.status, 1);
  EXPECT_THAT(unknown.err, HasSubstr("unknown error code \"SC1\", known are SC1001, "));
}

TEST(ErrorsTool, PrintsThePageOfTheDocumentation) {
  const testing::CommandFolder folder;
  EXPECT_EQ(folder.run("stagecraft-errors --markdown").out, format::read_text(source_folder() + "/docs/errors.md"));
}

}  // namespace
}  // namespace stagecraft

#include <gmock/gmock.h>

#include <thread>

#include "costmodel/format/graph_json.h"
#include "costmodel/index.h"
#include "tests/profiler/tool_runner.h"
#include "tests/support/places.h"

namespace stagecraft::profiler {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using testing::Outcome;
using ::testing::StartsWith;

class ProfileTool : public testing::ToolRunner {
 protected:
  [[nodiscard]] Outcome profile(const std::string& arguments) const { return run("profile", arguments); }
};

const std::string kTiny = "mlp --set width=8 --set layers=2 --max-seconds 0.01 --warmup 1 ";

TEST_F(ProfileTool, WritesAGraphAndPrintsTheLayers) {
  const Outcome o = profile(kTiny + "--microbatch 3 -o graph.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, "");
  EXPECT_THAT(o.err, HasSubstr("fc1"));
  EXPECT_THAT(o.err, HasSubstr("iteration without the profiler"));
  EXPECT_THAT(o.err, HasSubstr("sum of layers"));
  const Graph graph = format::parse_graph(read("graph.json"), "graph.json");
  EXPECT_EQ(graph.microbatch_samples, 3);
  EXPECT_EQ(graph.options.at("width"), "8");
  EXPECT_THAT(graph.provenance.tool, StartsWith("stagecraft-profile "));
  EXPECT_EQ(graph.device.kind, DeviceKind::Processor);
  EXPECT_FALSE(graph.device.name.empty());
  EXPECT_EQ(graph.device.host_processors, to_int(std::thread::hardware_concurrency()));
}

TEST_F(ProfileTool, GivesEachMicrobatchAGraph) {
  const Outcome o = profile(kTiny + "--microbatch 1,2,4 --concurrent 1 -o graph.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("a sample"));
  for (const std::int64_t samples : {1, 2, 4}) {
    const std::string name = "graph-" + std::to_string(samples) + ".json";
    EXPECT_EQ(format::parse_graph(read(name), name).microbatch_samples, samples);
  }
}

// The first linear layer multiplies 2 x 4 by 4 x 8 values: 2 * 2 * 4 * 8 operations.
TEST_F(ProfileTool, WritesTheStructureWithoutTimes) {
  const Outcome o = profile(kTiny + "--set inputs=4 --structure -o graph.json");
  EXPECT_EQ(o.status, 0) << o.err;
  const Graph graph = format::parse_graph(read("graph.json"), "graph.json");
  EXPECT_EQ(graph.microbatch_samples, 2);
  const Layer& fc1 = graph.layers[to_index(layer_index(graph, "fc1"))];
  EXPECT_EQ(fc1.outputs.at(0).shape, (std::vector<std::int64_t>{2, 8}));
  EXPECT_EQ(fc1.forward, Timing{});
  EXPECT_EQ(fc1.forward_work.value_or(Work{}).flops, Flops(128));
  EXPECT_GT(fc1.backward_work.value_or(Work{}).flops, Flops(128));
  EXPECT_EQ(graph.dtype, "float32");
  for (const Layer& layer : graph.layers) EXPECT_EQ(layer.forward_work.has_value(), !is_input(layer)) << layer.id;
  EXPECT_EQ(profile(kTiny + "--structure --without-work -o bare.json").status, 0);
  for (const Layer& layer : format::parse_graph(read("bare.json"), "bare.json").layers)
    EXPECT_EQ(layer.forward_work, std::nullopt) << layer.id;
  EXPECT_EQ(profile(kTiny + "--structure --microbatch 1 -o one.json").status, 0);
  EXPECT_EQ(format::parse_graph(read("one.json"), "one.json").microbatch_samples, 1);
  EXPECT_EQ(profile(kTiny + "--without-work").status, 2);
}

TEST_F(ProfileTool, SaysInOneLineWhereMemoryRanOut) {
  const auto text = [&](const std::string& arguments) {
    // Makes allocations that are too large fail with sanitizers as they do without.
    const Outcome o = run("profile", arguments, "ASAN_OPTIONS=allocator_may_return_null=1");
    EXPECT_EQ(o.status, 1) << arguments;
    return o.err;
  };
  const std::string more =
      " more were requested; use smaller microbatches, bfloat16 \\(profile --dtype\\) or, in a run, more stages or "
      "recomputation \\(plan --recompute\\) \\[SC4004\\]\n";
  // 2^20 x 2^20 values of 4 bytes.
  EXPECT_THAT(text("mlp --set inputs=8 --set width=1048576 -o graph.json"),
              MatchesRegex("stagecraft-profile: parameter \"fc2[.]weight\": out of memory, 4[.]00 TiB" + more));
  // Scores of attention: 2 samples x 64 heads x 65536 x 65536 values of 4 bytes, 2 TiB.
  EXPECT_THAT(text("transformer --set attention_dropout_percent=10 --set sequence=65536 --set width=64 --set heads=64 "
                   "--set vocabulary=8 --set layers=1 "
                   "--microbatch 2 -o graph.json"),
              MatchesRegex("stagecraft-profile: layer \"layers[.]0\", forward: out of memory, 2[.]00 TiB" + more));
  EXPECT_THAT(
      text("mlp --microbatch 1000000000000 -o graph.json"),
      MatchesRegex("stagecraft-profile: data of a microbatch of 1000000000000 samples: out of memory, .*" + more));
}

TEST_F(ProfileTool, SaysHowAFileIsNamedAsData) {
  const Outcome o = run("profile", "mlp --data x.npy -o graph.json", "touch x.npy &&");
  EXPECT_EQ(o.status, 2);
  EXPECT_THAT(o.err,
              HasSubstr("--data: a file needs its kind first, as in tensors:x.npy; unknown data source \"x.npy\", "));
}

TEST_F(ProfileTool, DrawsModels) {
  const Outcome o = run("graph", "mlp --set layers=2 --dot");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("<B>mlp</B>"));
  EXPECT_THAT(o.out, HasSubstr("<B>fc1</B> Linear"));
  const Outcome unknown = run("graph", "lenet --dot");
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, HasSubstr("unknown model \"lenet\", known are mlp"));
}

TEST_F(ProfileTool, TrainsFromAnArchive) {
  const std::string net = source_folder() + "/tests/golden/pt2/net.pt2";
  const Outcome o = profile(net + " --layers leaf --microbatch 2 --max-seconds 0.01 --warmup 1 -o graph.json");
  EXPECT_EQ(o.status, 0) << o.err;
  const Graph graph = format::parse_graph(read("graph.json"), "graph.json");
  EXPECT_EQ(graph.name, net);
  EXPECT_EQ(graph.options.at("layers"), "leaf");
  EXPECT_EQ(profile(net + " --layers blocks").status, 1);
}

TEST_F(ProfileTool, TakesTheModelAfterItsOptions) {
  const Outcome o = profile("--set width=8 --max-seconds 0.01 --warmup 1 --concurrent 1 --microbatch 2 mlp -o -");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(format::parse_graph(o.out, "out").microbatch_samples, 2);
}

TEST_F(ProfileTool, MeasuresConcurrentRanksInProcesses) {
  const Outcome o =
      profile("--set width=8 --max-seconds 5 --microbatch 2 --concurrent 3 mlp --accept-untrusted -o graph.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("slowdown by number of ranks on this host: 1: 1.00 2: "));
  const Graph graph = format::parse_graph(read("graph.json"), "graph.json");
  ASSERT_EQ(graph.slowdown.size(), 3U);
  EXPECT_EQ(graph.slowdown[0], 1);
  EXPECT_TRUE(std::is_sorted(graph.slowdown.begin(), graph.slowdown.end()));
}

TEST_F(ProfileTool, ComputesInBfloat16) {
  const Outcome o = profile(kTiny + "--dtype bfloat16 --concurrent 1 -o graph.json");
  EXPECT_EQ(o.status, 0) << o.err;
  const Graph graph = format::parse_graph(read("graph.json"), "graph.json");
  EXPECT_EQ(graph.dtype, "bfloat16");
  const Layer& fc1 = graph.layers[to_index(layer_index(graph, "fc1"))];
  EXPECT_EQ(fc1.outputs.at(0).dtype, "bfloat16");
  EXPECT_EQ(fc1.outputs.at(0).bytes, Bytes(8 * 2));               // one sample, 8 values of 2 bytes
  EXPECT_EQ(graph.layers.back().outputs.at(0).dtype, "float32");  // the loss
}

TEST_F(ProfileTool, MeasuresParametersInBfloat16) {
  const Outcome o = profile(kTiny +
                            "--dtype bfloat16 --parameter-dtype bfloat16 --moment-dtype bfloat16 --optimizer adam "
                            "--concurrent 1 -o graph.json");
  EXPECT_EQ(o.status, 0) << o.err;
  const Graph graph = format::parse_graph(read("graph.json"), "graph.json");
  EXPECT_EQ(graph.types, (StateTypes{StateType::Bfloat16, StateType::Float32, StateType::Bfloat16}));
  const Layer& fc1 = graph.layers[to_index(layer_index(graph, "fc1"))];
  EXPECT_EQ(fc1.parameter_bytes, Bytes(2 * *fc1.parameters));
  EXPECT_EQ(fc1.gradient_bytes, Bytes(4 * *fc1.parameters));
  ASSERT_TRUE(fc1.update);
}

TEST_F(ProfileTool, SaysWhyThereIsNoGpuAndWhatToDo) {
  if (run("profile", kTiny + "--device cuda").status == 0) GTEST_SKIP() << "this machine has a GPU";
  for (const char* clock : {"", "--clock cupti ", "--clock events "}) {
    const Outcome o = profile(kTiny + clock + "--device cuda -o graph.json");
    EXPECT_EQ(o.status, 1);
    EXPECT_THAT(o.err, ::testing::AnyOf(HasSubstr("no usable GPU"), HasSubstr("STAGECRAFT_WITH_CUDA=ON"))) << clock;
  }
}

TEST_F(ProfileTool, PutsTheGraphOnStandardOutput) {
  const Outcome o = profile(kTiny + "-o -");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(format::parse_graph(o.out, "out").name, "mlp");
}

// BuildModel.ListsTheKnownModels compares the list with the table.
TEST_F(ProfileTool, ListsTheModels) {
  const Outcome o = profile("lenet");
  EXPECT_EQ(o.status, 2);
  EXPECT_THAT(o.err,
              MatchesRegex("stagecraft-profile: MODEL: unknown model \"lenet\", known are mlp, .+, and files that "
                           "end in .pt2 or .pt \\[SC1005\\]\nsee stagecraft profile --help\n"));
}

TEST_F(ProfileTool, ListsTheOptionsOfTheModel) {
  const Outcome o = profile("mlp --set depth=3");
  EXPECT_EQ(o.status, 2);
  EXPECT_EQ(
      o.err,
      "stagecraft-profile: MODEL: mlp: unknown option \"depth\", known are inputs, width, layers, classes [SC1005]\n"
      "see stagecraft profile --help\n");
}

TEST_F(ProfileTool, RefusesBadInputWithStatusOne) {
  for (const auto& [arguments, message] :
       std::vector<std::pair<std::string, std::string>>{{"gpt --set layers=1 --data text:nowhere.txt", "nowhere.txt"},
                                                        {kTiny + "-o nowhere/graph.json", "nowhere/graph.json: "}}) {
    const Outcome o = profile(arguments);
    EXPECT_EQ(o.status, 1) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message)) << arguments;
    EXPECT_THAT(o.err, HasSubstr("stagecraft-profile: ")) << arguments;
  }
}

TEST_F(ProfileTool, EndsWithTwoOnWrongUsage) {
  for (const auto& [arguments, message] :
       std::vector<std::pair<std::string, std::string>>{{"", "MODEL is required"}, {"mlp --magic", "--magic"}}) {
    const Outcome o = profile(arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message)) << arguments;
  }
}

TEST_F(ProfileTool, FindsOutBeforeItRunsWhetherResultsCanBeWritten) {
  (void)run("profile", kTiny + "--structure -o graph.json");
  ASSERT_EQ(format::parse_graph(read("graph.json"), "graph.json").name, "mlp");
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"--trace graph.json", "graph.json: holds a stagecraft.graph, so no Chrome trace replaces it"},
           {"--csv graph.json", "graph.json: holds a stagecraft.graph, so no table of activities replaces it"},
           {"-o new --trace ./new", "./new: is named for two outputs"},
           {"--trace nowhere/trace.json", "nowhere/trace.json: cannot write: No such file or directory"},
           {"--csv nowhere/t.csv", "nowhere/t.csv: cannot write: No such file or directory"}}) {
    const Outcome o = profile(kTiny + arguments);
    EXPECT_EQ(o.status, 1) << arguments;
    EXPECT_THAT(o.err, ::testing::StartsWith("stagecraft-profile: " + message)) << arguments;
  }
}

TEST_F(ProfileTool, SaysWhatAnOptionTakes) {
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"--microbatch 0", "--microbatch: 0 is not an integer of 1 or more"},
           {"--microbatch some", "--microbatch: \"some\" is not an integer of 1 or more"},
           {"--microbatch 1,-2", "--microbatch: -2 is not an integer of 1 or more"},
           {"--microbatch 1,2 -o -", "-o - with several microbatches: expected a file name"},
           {"--microbatch 2,2 -o graph.json", "--microbatch: names 2 twice"},
           {"--threads 0", "--threads: 0 is not an integer from 1 to 1024"},
           {"--concurrent 0", "--concurrent: 0 is not an integer from 1 to 1024"},
           {"--warmup -1", "--warmup: -1 is not an integer of 0 or more"},
           {"--error 0", "--error: 0 is not a number above 0"},
           {"--max-seconds 0", "--max-seconds: 0 is not a number above 0"},
           {"--max-seconds nan", "--max-seconds: \"nan\" is not a number above 0"},
           {"--seed -1", "--seed: -1 is not an integer of 0 or more"},
           {"--lr -1", "--learning-rate: -1 is not a number from 0 to 1000000"},
           {"--momentum 1.5", "--momentum: 1.5 is not a number from 0 to 1"},
           {"--weight-decay -0.1", "--weight-decay: -0.1 is not a number from 0 to 1000000"},
           {"--optimizer magic", "--optimizer: unknown optimizer \"magic\", known are"},
           {"--optimizer adam --momentum 0.5", "--optimizer: optimizer \"adam\" has no momentum; use sgd"},
           {"--set width", "--set \"width\": expected key=value, such as --set layers=4"},
           {"--set =8", "--set \"=8\": expected key=value"},
           {"--set width=wide", "MODEL: mlp: option width is \"wide\", must be an integer from 1 to 1048576"},
           {"--data cloud", "--data: unknown data source \"cloud\", known are"},
           {"--device tpu --clock events", "--device: unknown device \"tpu\", known are cpu, cuda"},
           {"--device cuda:x", "--device: \"cuda:x\" is not cuda or cuda:N with N from 0"},
           {"--dtype float16 --parameter-dtype bfloat16",
            "--parameter-dtype: parameters in bfloat16 need a computation in bfloat16, found float16"},
           {"--dtype bfloat16 --gradient-dtype bfloat16",
            "--parameter-dtype: gradients in bfloat16 need parameters in bfloat16"},
           {"--moment-dtype half", "--moment-dtype: unknown dtype \"half\", known are float32, bfloat16"},
           {"--dtype int8", "--dtype: unknown dtype \"int8\", known are float32, bfloat16, float16"},
           {"--clock sundial", "--clock: unknown clock \"sundial\", known are host, cupti, events"},
           {"--allow-tf32", "--allow-tf32: needs a GPU: use --device cuda"},
           {"--clock events", "--clock events with --device cpu: expected host"},
           {"--device cuda --clock host", "--clock host with --device cuda: expected cupti or events"}}) {
    const Outcome o = profile("mlp " + arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_THAT(o.err, HasSubstr("stagecraft-profile: " + message)) << arguments;
  }
}

TEST_F(ProfileTool, ShowsAnExampleAndTheModels) {
  const Outcome o = profile("--help");
  EXPECT_EQ(o.status, 0);
  EXPECT_THAT(o.out, HasSubstr("stagecraft profile resnet18 --microbatch 8 -o graph.json"));
  EXPECT_THAT(o.out, HasSubstr("gnmt: "));
}

}  // namespace
}  // namespace stagecraft::profiler

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "costmodel/format/plan_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/version.h"
#include "executor/channel/table/channels.h"
#include "executor/device/device.h"
#include "executor/device/machine/program.h"
#include "executor/files/columns.h"
#include "executor/files/safetensors.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/places.h"
#include "tests/support/run_command.h"

// stagecraft-run as a user runs it.

namespace stagecraft {
namespace {

using testing::cut_plan;
using ::testing::HasSubstr;
using testing::Outcome;

/// A small mlp on two ranks (plan.json), and with its first stage on two of three (replicated.json).
class RunTool : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    planned_ = new testing::PlannedModel(testing::planned_model("mlp", {{"inputs", "12"}, {"width", "16"}}, 3));
  }
  static void TearDownTestSuite() { delete planned_; }
  RunTool() {
    folder_.write("plan.json", format::plan_json(cut_plan(*planned_, {3}, {1, 1}, "1f1b", 4)));
    folder_.write("other.json", format::plan_json(cut_plan(*planned_, {3}, {1, 1}, "1f1b", 2)));
    folder_.write("replicated.json", format::plan_json(cut_plan(*planned_, {3}, {2, 1}, "1f1b", 5)));
  }
  Outcome run(const std::string& arguments) const {
    return folder_.run("stagecraft-run " + arguments + " --steps 3 --timeout 5");
  }

  static testing::PlannedModel* planned_;
  testing::CommandFolder folder_;
};
testing::PlannedModel* RunTool::planned_ = nullptr;

/// A TCP port that was free a moment ago.
std::string free_port() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(listener, generic, length), 0);
  EXPECT_EQ(::getsockname(listener, generic, &length), 0);
  ::close(listener);
  return std::to_string(ntohs(address.sin_port));
}

// Its own version, LibTorch's, the allocator's and CUDA's come first.
TEST_F(RunTool, SaysWithWhichChannelsAndImagesItWasBuilt) {
  const Outcome o = folder_.run("stagecraft-run --version");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.err, "");
  const std::string first = std::string("stagecraft-run ") + version() + device::program_versions() + ", ";
  ASSERT_THAT(o.out, ::testing::StartsWith(first));
  EXPECT_THAT(o.out.substr(first.size()),
              ::testing::MatchesRegex("Gloo [(]c10d[)], (UCX [0-9]+[.][0-9]+[.][0-9]+|UCX "
                                      "not found|without UCX), (libjpeg and "
                                      "libpng|without images), (Parquet and Arrow|without Parquet)\n"));
  // The help lists the data sources of the build.
  const bool images = folder_.run("stagecraft-run --help | grep -q STAGECRAFT_WITH_IMAGES").status != 0;
  EXPECT_THAT(o.out, ::testing::HasSubstr(images ? ", libjpeg and libpng, " : ", without images, "));
  EXPECT_THAT(o.out,
              ::testing::EndsWith(files::why_no_columns().empty() ? ", Parquet and Arrow\n" : ", without Parquet\n"));
}

TEST_F(RunTool, SaysOnceWhatItAssumes) {
  const std::string random = "note: no --data given, the samples are random\n";
  for (const char* how : {"", " --spawn --channel gloo"}) {
    const std::string said = run(std::string("plan.json") + how).err;
    EXPECT_THAT(said, HasSubstr(random));
    EXPECT_EQ(said.find(random), said.rfind(random));
  }
  EXPECT_THAT(run("plan.json --data synthetic").err, ::testing::Not(HasSubstr(random)));

  Plan adam = cut_plan(*planned_, {3}, {1, 1}, "1f1b", 4);
  adam.optimizer = "adam";
  folder_.write("adam.json", format::plan_json(adam));
  const std::string made = "the plan was made for --optimizer adam, this run uses sgd: ";
  EXPECT_THAT(run("adam.json").err, HasSubstr("stagecraft-run: warning: " + made));
  EXPECT_THAT(run("adam.json --optimizer adam").err, ::testing::Not(HasSubstr("was made for")));
}

TEST_F(RunTool, LooksForUcxOnlyToSayItsVersion) {
  if (folder_.run("stagecraft-run --version | grep -q 'without UCX'").status == 0) GTEST_SKIP() << "built without UCX";
  const std::string libraries = "LD_DEBUG=libs LD_DEBUG_OUTPUT=tried stagecraft-run ";
  EXPECT_EQ(folder_.run(libraries + "--help >help && cat tried.* | grep -q 'find library=libuc'").status, 1);
  EXPECT_EQ(folder_.run(libraries + "--version && cat tried.* | grep -q 'find library=libuc'").status, 0);
  // A library that cannot be loaded is as good as none.
  const Outcome o =
      folder_.run("mkdir none && echo none >none/libucm.so.0 && LD_LIBRARY_PATH=none stagecraft-run --version");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.err, "");
  EXPECT_THAT(o.out, HasSubstr(", UCX not found, "));
}

TEST_F(RunTool, LoadsWhatReadsColumnsOnlyWhenItReadsSome) {
  if (!files::why_no_columns().empty()) GTEST_SKIP() << "built without Arrow";
  const auto mlp = testing::planned_model("mlp", {{"inputs", "12"}, {"width", "16"}}, 3);
  folder_.write("plan.json", format::plan_json(cut_plan(mlp, {3}, {1, 1}, "1f1b", 4)));
  const std::string columns = " --data tensors:" + source_folder() + "/tests/golden/columns/plain.arrow";
  const std::string libraries = "rm -f tried.*; LD_DEBUG=libs LD_DEBUG_OUTPUT=tried stagecraft-run plan.json --steps 1";
  EXPECT_EQ(folder_.run(libraries + " && cat tried.* | grep -q libarrow").status, 1);
  EXPECT_EQ(folder_.run(libraries + columns + "; cat tried.* | grep -q libarrow").status, 0);

  // A copy of the program has no such library beside its folder, and then one that cannot be loaded.
  const std::string copied = "bin/stagecraft-run plan.json --steps 1" + columns;
  Outcome o = folder_.run("mkdir bin && cp $(command -v stagecraft-run) bin/ && " + copied);
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err,
              HasSubstr("/plain.arrow: this build reads neither Parquet nor Arrow files: run scripts/setup, or"));
  EXPECT_THAT(folder_.run("bin/stagecraft-run --version").out, ::testing::EndsWith(", without Parquet\n"));
  o = folder_.run("mkdir -p lib/stagecraft && echo none >lib/stagecraft/libstagecraft_columns.so && " + copied);
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, HasSubstr("/plain.arrow: cannot load what reads Parquet and Arrow files, run scripts/setup: "));
  EXPECT_THAT(o.err, HasSubstr("/lib/stagecraft/libstagecraft_columns.so: file too short"));
}

TEST_F(RunTool, PrintsTheLossScaleOfAPlanInFloat16AndRefusesOneForOthers) {
  const auto half = testing::planned_model("mlp", {{"inputs", "12"}, {"width", "16"}}, 3, at::kHalf);
  folder_.write("half.json", format::plan_json(cut_plan(half, {3}, {1, 1}, "1f1b", 4)));
  const Outcome trained = run("half.json --loss-scale 1024 --check");
  EXPECT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("per step, loss scale 1024\n"));
  EXPECT_THAT(trained.err, HasSubstr("final loss scale 1024; 0 of 3 steps overflowed and were skipped\n"));
  EXPECT_THAT(trained.err, HasSubstr("all bit-equal"));
  const Outcome single = run("plan.json --loss-scale dynamic");
  EXPECT_EQ(single.status, 1);
  EXPECT_EQ(single.err,
            "stagecraft-run: plan.json: --loss-scale needs a plan in float16, this one is in float32 [SC2001]\n");
  const Outcome wrong = run("half.json --loss-scale -3");
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.err, HasSubstr("expected dynamic or a number above 0"));
}

TEST_F(RunTool, RefusesTf32ForAPlanThatWasProfiledWithoutIt) {
  if (!device::no_gpu_reason()) GTEST_SKIP() << "this machine has a GPU";
  const auto plan = [&](std::optional<bool> allowed) {
    Plan out = format::read_plan(folder_.path() / "plan.json");
    out.allow_tf32 = allowed;
    folder_.write("tf32.json", format::plan_json(out));
    return run("tf32.json --device cuda --allow-tf32").err;
  };
  EXPECT_EQ(plan(false),
            "stagecraft-run: tf32.json: --allow-tf32 needs a plan that allows TF32, this one was profiled without it "
            "[SC2001]\n");
  EXPECT_THAT(plan(true), HasSubstr(*device::no_gpu_reason()));
  EXPECT_THAT(plan({}), HasSubstr(*device::no_gpu_reason()));
}

TEST_F(RunTool, NamesBadInput) {
  folder_.write("text.json", "a plan");
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"nowhere.json", "stagecraft-run: nowhere.json: "},
           {"text.json", "stagecraft-run: text.json: line 1 column 1: not JSON"},
           {"plan.json -o nowhere/measured.json",
            "stagecraft-run: nowhere/measured.json: cannot write: No such file"}}) {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.status, 1) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message));
    EXPECT_EQ(o.err.find('\n'), o.err.size() - 1) << "one line, not one a rank: " << o.err;
    EXPECT_EQ(o.out, "");
  }
}

TEST_F(RunTool, FindsOutBeforeItRunsWhetherResultsCanBeWritten) {
  folder_.write("notes.txt", "buy milk\n");
  (void)folder_.run("ln plan.json hard.json && mkdir folder");
  const std::string plan = folder_.read("plan.json");
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"--trace nowhere/trace.json", "nowhere/trace.json: cannot write: No such file or directory"},
           {"--trace folder", "folder: is a directory, expected a file"},
           {"--trace plan.json", "plan.json: is also an input"},
           {"-o hard.json",
            "hard.json: is also an input, as plan.json, so it is not replaced; use another name, or --force"},
           {"--data tensors:image=plan.json,target=notes.txt --trace notes.txt", "notes.txt: is also an input"},
           {"--validate-data text:notes.txt --trace notes.txt", "notes.txt: is also an input"},
           {"-o notes.txt", "notes.txt: holds something that stagecraft did not write, so no stagecraft.timeline"},
           {"--metrics notes.txt", "notes.txt: holds something that stagecraft did not write, so no file of metrics"},
           {"--metrics folder", "folder: is a directory, expected a file"},
           {"-o new --trace ./new", "./new: is named for two outputs"},
           {"--spawn --trace nowhere/trace.json", "nowhere/trace.json: cannot write: No such file or directory"},
           {"--checkpoint notes.txt/c", "notes.txt/c: cannot write: Not a directory"},
           {"--tensorboard notes.txt/t", "notes.txt/t: cannot write: Not a directory"},
           {"--logs notes.txt/l", "notes.txt/l: cannot write: Not a directory"}}) {
    const Outcome o = run("plan.json " + arguments);
    EXPECT_EQ(o.status, 1) << arguments;
    EXPECT_THAT(o.err, ::testing::StartsWith("stagecraft-run: " + message)) << "no step before: " << arguments;
    EXPECT_EQ(std::ranges::count(o.err, '\n'), 1) << o.err;
  }
  EXPECT_EQ(folder_.read("plan.json"), plan);
  EXPECT_EQ(folder_.run("ls -d new* nowhere* folder/*").out, "");
}

TEST_F(RunTool, SaysWhatAnOptionTakes) {
  const std::string processes = channel::default_channel("cpu", true).name;
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"--model magic", "--model: unknown model \"magic\", known are "},
           {"--data magic", "--data: unknown data source \"magic\", known are "},
           {"--channel magic", "--channel: unknown channel \"magic\", known are "},
           {"--channel magic --spawn", "--channel: unknown channel \"magic\", known are "},
           {"--optimizer magic", "--optimizer: unknown optimizer \"magic\", known are "},
           {"--optimizer adam --momentum 0.5", "--optimizer: optimizer \"adam\" has no momentum; use sgd"},
           {"--optimizer sgd --betas 0.5,0.9", "--optimizer: optimizer \"sgd\" has no beta1; use adam or adamw or "},
           {"--optimizer adam --betas 0.5,1", "--optimizer: beta2 is 1, must be at least 0 and below 1"},
           {"--nesterov", "--optimizer: Nesterov momentum needs a momentum, and no dampening"},
           {"--lr-schedule step",
            "--lr-schedule: schedule \"step\" needs the number of steps between two drops; use --lr-step-size"},
           {"--lr-schedule one-cycle --warmup-steps 2",
            "--lr-schedule: schedule \"one-cycle\" begins with its own warm-up; use no other"},
           {"--set width", "--set \"width\": expected key=value, such as --set layers=4"},
           {"--set depth=3", "--set: mlp: unknown option \"depth\", known are inputs, width, layers, classes"},
           {"--set width=wide", "--set: mlp: option width is \"wide\", must be an integer from 1 to 1048576"},
           {"--channel gloo",
            "--channel: gloo needs one process per rank: add --spawn, or start with torchrun, srun or mpirun"},
           {"--channel nccl --spawn", "--channel: nccl needs GPUs: use --device cuda, or --channel " + processes},
           {"--device cuda --channel gloo --spawn", "--channel: gloo needs CPUs: use --device cpu, or --channel nccl"},
           {"--device tpu", "--device: unknown device \"tpu\", known are cpu, cuda"},
           {"--allow-tf32", "--allow-tf32: needs GPUs: use --device cuda"},
           {"--channel local --spawn",
            "--channel: channel local runs all ranks as threads of one process; remove --spawn, or use --channel " +
                processes},
           {"--steps 0", "--steps: 0 is not an integer of 1 or more"},
           {"--steps 9223372036854775808", "--steps: 9223372036854775808 is not an integer from 1 to"},
           {"--threads 0", "--threads: 0 is not an integer from 1 to 1024"},
           {"--timeout -1", "--timeout: -1 is not a number from 0.001 to 1000000"},
           {"--seed 1.5", "--seed: 1.5 is not an integer of 0 or more"},
           {"--warmup-steps -1", "--warmup-steps: -1 is not an integer of 0 or more"},
           {"--last-rate 2", "--last-rate: 2 is not a number from 0 to 1"},
           {"--clip-norm nan", "--clip-norm: \"nan\" is not a number from 0 to 1e+30"},
           {"--lr-schedule magic", "--lr-schedule: unknown rate schedule \"magic\", known are "},
           {"--rate-schedule cosine --steps 3 --warmup-steps 5",
            "--lr-schedule: schedule cosine over 3 steps with a warm-up of 5: the run must be longer than the warm-up"},
           {"--validate-every 2", "--validate-every requires --validate-data"},
           {"--validate-data magic", "--validate-data: unknown data source \"magic\", known are "},
           {"--validate-data synthetic",
            "--validate-data: data source \"synthetic\" is endless; use --validate-samples"},
           {"--validate-data synthetic --validate-samples 1",
            "--validate-data: 1 samples do not fill one microbatch of "},
           {"--loss-scale-growth-interval 0", "--loss-scale-growth-interval: 0 is not an integer of 1 or more"},
           {"--checkpoint c --keep 0", "--keep: 0 is not an integer of 1 or more"},
           {"--checkpoint c --checkpoint-every 0", "--checkpoint-every: 0 is not an integer of 1 or more"},
           {"--checkpoint c --restart -1", "--restart: -1 is not an integer of 0 or more"}}) {
    const Outcome o = folder_.run("stagecraft-run plan.json " + arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_THAT(o.err, ::testing::StartsWith("stagecraft-run: " + message)) << arguments;
    EXPECT_THAT(o.err, ::testing::EndsWith("\nsee stagecraft run --help\n")) << arguments;
    EXPECT_EQ(std::ranges::count(o.err, '\n'), 2) << "once, not once a rank: " << o.err;
    EXPECT_EQ(o.out, "");
  }
}

TEST_F(RunTool, SaysWhyThereIsNoGpu) {
  if (!device::no_gpu_reason()) GTEST_SKIP() << "this machine has one";
  for (const char* how : {"", " --spawn"}) {
    const Outcome outcome = run(std::string("plan.json --device cuda") + how);
    EXPECT_EQ(outcome.status, 1) << how;
    EXPECT_THAT(outcome.err, HasSubstr(*device::no_gpu_reason())) << how;
  }
}

TEST_F(RunTool, EndsWithTwoOnWrongUsage) {
  for (const char* arguments :
       {"plan.json --steps 0", "plan.json --threads 0", "plan.json --timeout -1", "plan.json --magic", ""}) {
    const Outcome o = folder_.run("stagecraft-run " + std::string(arguments));
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_THAT(o.err, HasSubstr("see stagecraft run --help"));
  }
}

TEST_F(RunTool, RefusesAValueAfterAFlag) {
  EXPECT_EQ(folder_.run("stagecraft-run plan.json --spawn=2").err,
            "stagecraft-run: --spawn takes no value, found \"2\" [SC1005]\nsee stagecraft run --help\n");
}

TEST_F(RunTool, DryRunPrintsWhatEachRankDoes) {
  const Outcome o = run("replicated.json --dry-run");
  EXPECT_EQ(o.status, 0) << o.err;
  // Of 5 microbatches, replica 0 runs three and replica 1 two: forward, send, receive and backward for each, then
  // reduce and update.
  EXPECT_EQ(o.out,
            "rank 0: device 0, stage 0, replica 0, 3 layers fc1 to fc2, 14 actions per step\n"
            "rank 1: device 1, stage 0, replica 1, 3 layers fc1 to fc2, 10 actions per step\n"
            "rank 2: device 2, stage 1, replica 0, 5 layers relu2 to loss, 21 actions per step\n");
}

TEST_F(RunTool, TrainsInOneProcess) {
  const Outcome o = run("plan.json -o - --check");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("all bit-equal"));
  EXPECT_EQ(format::parse_measurement(o.out, "out").losses.size(), 3U);
}

TEST_F(RunTool, SpawnsRanksThatEqualASingleProcess) {
  const Outcome o = run("replicated.json --spawn --check -o measured.json --trace trace.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(
      o.err,
      HasSubstr(
          "note: the comparison made the steps in measured.json longer; measure times without it\ncompared with"));
  const Measurement measured = format::parse_measurement(folder_.read("measured.json"), "measured.json");
  EXPECT_THAT(measured.timeline.stage_of_rank, ::testing::ElementsAre(0, 0, 1));
  EXPECT_EQ(measured.timeline.steps.size(), 3U);
  EXPECT_EQ(measured.microbatches, 5);
  EXPECT_TRUE(measured.conditions.yardstick);
  EXPECT_THAT(folder_.read("trace.json"), HasSubstr("mlp, measured"));
}

TEST_F(RunTool, RefusesAnotherNumberOfRanksThanThePlans) {
  const std::string place = " RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + free_port() + " ";
  const Outcome o = folder_.run(place + "stagecraft-run replicated.json --timeout 3");
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(o.err,
            "stagecraft-run: replicated.json: the plan needs 3 ranks, torchrun started 2; start 3, or use --spawn "
            "to start them on this machine without torchrun [SC4105]\n");
  const Outcome threads = folder_.run(place + "stagecraft-run plan.json --channel local");
  EXPECT_EQ(threads.status, 1);
  EXPECT_THAT(threads.err, HasSubstr("channel local runs all ranks as threads of one process, torchrun started 2"));
}

TEST_F(RunTool, EndsBothRanksWhenOneHasAnotherPlan) {
  // A rank that waited for its deadline would outlast the test's time limit.
  const std::string start = "WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + free_port() + " ";
  const Outcome o = folder_.run("export " + start + "\n" +
                                "RANK=0 LOCAL_RANK=0 stagecraft-run plan.json --timeout 3600 2> zero.txt & zero=$!\n"
                                "RANK=1 LOCAL_RANK=1 stagecraft-run other.json --timeout 3600 2> one.txt & one=$!\n"
                                "wait $zero; echo $?; wait $one; echo $?");
  EXPECT_THAT(o.out, ::testing::MatchesRegex("[13]\n[13]\n"));
  for (const char* file : {"zero.txt", "one.txt"}) {
    EXPECT_THAT(folder_.read(file), HasSubstr("rank 1 has different options or files than rank 0: plan ")) << file;
  }
  EXPECT_THAT(folder_.read("zero.txt") + folder_.read("one.txt"), HasSubstr(" [SC4104]\n"));
}

TEST_F(RunTool, RefusesARankWithAnotherLearningRateSchedule) {
  const std::string start = "WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + free_port() + " ";
  const Outcome o = folder_.run("export " + start + "\n" +
                                "RANK=0 LOCAL_RANK=0 stagecraft-run plan.json --timeout 4 2> zero.txt & zero=$!\n"
                                "RANK=1 LOCAL_RANK=1 stagecraft-run plan.json --timeout 4 --lr-schedule cosine 2> "
                                "one.txt\nwait $zero");
  for (const char* file : {"zero.txt", "one.txt"})
    EXPECT_THAT(folder_.read(file), HasSubstr("--lr-schedule cosine instead of --lr-schedule constant")) << file;
}

// Rank 1 runs in another folder, as on another machine.
TEST_F(RunTool, RefusesARankWhoseFilesHaveOtherContents) {
  std::filesystem::create_directories(folder_.path() / "two");
  const auto write = [&](const std::string& name, const at::Tensor& image) {
    (void)files::write_safetensors((folder_.path() / name).string(),
                                   {{"image", image}, {"target", at::zeros({24}, at::kLong)}});
  };
  for (const char* folder : {"", "two/"}) {
    write(folder + std::string("data.safetensors"), at::ones({24, 12}));
    write(folder + std::string("other.safetensors"), at::ones({24, 12}).mul(folder[0] == 't' ? 2 : 1));
  }
  const auto lines_of = [&](const std::string& arguments) {
    const std::string start = "WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + free_port() + " ";
    const Outcome o =
        folder_.run("export " + start + "\nRANK=0 LOCAL_RANK=0 stagecraft-run plan.json --steps 2 --timeout 5 " +
                    arguments + " 2> zero.txt & zero=$!\ncd two\nRANK=1 LOCAL_RANK=1 stagecraft-run " +
                    "../plan.json --steps 2 --timeout 5 " + arguments + " 2> ../one.txt; echo $?\nwait $zero; echo $?");
    return std::pair(o.out, folder_.read("zero.txt") + folder_.read("one.txt"));
  };
  EXPECT_EQ(lines_of("--data tensors:data.safetensors").first, "0\n0\n");
  for (const auto& [arguments, option] : std::vector<std::pair<std::string, std::string>>{
           {"--data tensors:other.safetensors", "--data"},
           {"--validate-data tensors:other.safetensors", "--validate-data"}}) {
    const auto [statuses, text] = lines_of(arguments);
    EXPECT_THAT(statuses, ::testing::MatchesRegex("[13]\n[13]\n"));
    EXPECT_THAT(text, ::testing::ContainsRegex(
                          "rank 1 has different options or files than rank 0: " + option +
                          " file other.safetensors: [0-9]+ bytes, CRC-32 [0-9a-f]+ instead of " + option +
                          " file other.safetensors: [0-9]+ bytes, CRC-32 [0-9a-f]+; start all ranks with the same"));
  }
}

TEST_F(RunTool, EndsAllRanksWhenOneIsKilled) {
  // A rank that waited for its deadline would outlast the test's time limit.
  const Outcome o = folder_.run(
      "stagecraft-run plan.json --steps 100000000 --spawn --timeout 3600 2> run.txt & run=$!\n"
      "until grep -q 'step 1/' run.txt; do kill -0 $run || exit 9; sleep 0.02; done\n"
      "for child in $(cat /proc/$run/task/*/children); do\n"
      "  if tr '\\0' '\\n' < /proc/$child/environ | grep -qx RANK=1; then kill -KILL $child; fi\n"
      "done\n"
      "wait $run");
  EXPECT_EQ(o.status, 128 + 9) << folder_.read("run.txt");
  EXPECT_THAT(folder_.read("run.txt"), HasSubstr("stagecraft: rank 1 was killed by signal 9 (Killed)"));
}

TEST_F(RunTool, ExitsWithFourAndOneLinePerRankWhenOneFallsSilent) {
  const Outcome o = folder_.run(
      "stagecraft-run plan.json --steps 100000000 --spawn --timeout 2 2> run.txt & run=$!\n"
      "until grep -q 'step 1/' run.txt; do kill -0 $run || exit 9; sleep 0.02; done\n"
      "for child in $(cat /proc/$run/task/*/children); do\n"
      "  if tr '\\0' '\\n' < /proc/$child/environ | grep -qx RANK=1; then kill -STOP $child; fi\n"
      "done\n"
      "wait $run");
  const std::string told = folder_.read("run.txt");
  EXPECT_EQ(o.status, 4) << told;
  EXPECT_THAT(told,
              ::testing::ContainsRegex(
                  "stagecraft: rank 1 has been silent for [0-9]+\\.[0-9] s\n"
                  "stagecraft:   rank 0: .+ of stage 0 in step [0-9]+, waiting for rank 1 .+ for [0-9]+\\.[0-9] s\n"
                  "stagecraft:   rank 1: .+ \\(last heard [0-9]+\\.[0-9] s ago\\)\n"));
}

/// Shell lines: wait until the run in the background has printed a step.
constexpr const char* kUntilAStep = "until grep -q 'step 1/' run.txt; do kill -0 $run || exit 9; sleep 0.02; done\n";

TEST_F(RunTool, ResumesUnderAnotherPlan) {
  const std::string common = " --checkpoint saved --checkpoint-every 2 --optimizer adam";
  EXPECT_EQ(run("plan.json -o whole.json --optimizer adam").status, 0);
  const Outcome first = folder_.run("stagecraft-run plan.json --spawn --steps 2 --timeout 5 --resume" + common);
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("no complete checkpoint in saved; starting at step 0\n"));
  const Outcome second = run("plan.json -o rest.json --resume --check" + common);
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_THAT(second.err, HasSubstr("resuming from saved/step-2\n"));
  EXPECT_THAT(second.err, HasSubstr("all bit-equal"));
  const auto losses = [&](const char* file) { return format::parse_measurement(folder_.read(file), file).losses; };
  EXPECT_THAT(losses("rest.json"), ::testing::ElementsAre(losses("whole.json").back()));
  const Outcome done = run("plan.json --resume" + common);
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("nothing to do: 3 of 3 steps are already done\n"));
  const Outcome fresh = run("plan.json --spawn" + common);
  EXPECT_EQ(fresh.status, 1);
  EXPECT_EQ(
      fresh.err,
      "stagecraft-run: saved/step-3 already exists; continue from it with --resume, or use another folder [SC3204]\n");
}

TEST_F(RunTool, WritesMetricsThatResumingContinues) {
  const std::string common = " --metrics m.jsonl --checkpoint saved --checkpoint-every 2 --clip-norm 0.5 --timeout 5";
  const auto keys = [](const std::string& line) {
    std::string out;
    for (const char* key : {"step", "epoch", "loss", "learning_rate", "step_s", "samples_per_s", "gradient_norm"}) {
      if (line.find("\"" + std::string(key) + "\":") != line.npos) out += std::string(key) + " ";
    }
    return out;
  };
  const auto steps = [&] {
    std::istringstream text(folder_.read("m.jsonl"));
    std::string out;
    for (std::string line; std::getline(text, line);) {
      EXPECT_EQ(keys(line), "step loss learning_rate step_s samples_per_s gradient_norm ");
      out += line.substr(0, line.find(',')) + " ";
    }
    return out;
  };
  EXPECT_EQ(folder_.run("stagecraft-run plan.json --spawn --steps 3" + common).status, 0);
  EXPECT_EQ(steps(), R"({"step":1 {"step":2 {"step":3 )");
  const Outcome fresh = folder_.run("stagecraft-run plan.json --steps 4" + common);
  EXPECT_EQ(fresh.status, 1) << "the folder has checkpoints";
  EXPECT_EQ(steps(), R"({"step":1 {"step":2 {"step":3 )") << "and the metrics are kept";
  const Outcome more = folder_.run("stagecraft-run plan.json --resume --steps 8 --log-every 3" + common);
  EXPECT_EQ(more.status, 0) << more.err;
  EXPECT_EQ(steps(), R"({"step":1 {"step":2 {"step":3 {"step":6 {"step":8 )");
  EXPECT_THAT(more.err, HasSubstr("gradient norm "));
  EXPECT_EQ(folder_.run("stagecraft-run plan.json --steps 1 --metrics m.jsonl --clip-norm 1").status, 0);
  EXPECT_EQ(steps(), R"({"step":1 )") << "a new run replaces them";
}

TEST_F(RunTool, ValidatesDuringATraining) {
  const std::string common = "stagecraft-run plan.json --steps 3 --timeout 5 -o ";
  EXPECT_EQ(folder_.run(common + "plain.json").status, 0);
  for (const char* how : {"", " --spawn"}) {
    const Outcome o = folder_.run(common +
                                  "validated.json --validate-data synthetic --validate-samples 64 "
                                  "--validate-every 2 --log-every 100 --metrics m.jsonl" +
                                  how);
    EXPECT_EQ(o.status, 0) << o.err;
    const auto losses = [&](const char* file) { return format::parse_measurement(folder_.read(file), file).losses; };
    EXPECT_EQ(losses("validated.json"), losses("plain.json"));
    EXPECT_THAT(o.err, ::testing::ContainsRegex("step 2/3 .*, validation loss [0-9.]+ accuracy "));
    EXPECT_THAT(o.err, ::testing::ContainsRegex("step 3/3 .*, validation loss "));
    std::istringstream text(folder_.read("m.jsonl"));
    std::string steps;
    for (std::string line; std::getline(text, line);) {
      steps += line.substr(8, 1);
      EXPECT_THAT(line, HasSubstr("\"validation_accuracy\":"));
    }
    EXPECT_EQ(steps, "23") << "every 100 steps, and those with a validation";
  }
}

TEST_F(RunTool, DropsTheRateOnAPlateauAlsoAfterResuming) {
  // A better loss would be below a thousandth of the first: every validation but the first halves the rate of the steps
  // after it, down to a fifth.
  const std::string common =
      "stagecraft-run plan.json --timeout 5 --lr 1e-3 --lr-schedule plateau --lr-patience 0 --lr-threshold 0.999 "
      "--lr-gamma 0.5 --last-rate 0.2 --validate-data synthetic --validate-samples 12 --validate-every 1 "
      "--metrics m.jsonl";
  const auto rates = [&] {
    std::istringstream text(folder_.read("m.jsonl"));
    std::string out;
    for (std::string line; std::getline(text, line);) {
      const std::string key = "\"learning_rate\":";
      const std::size_t at = line.find(key) + key.size();
      out += std::to_string(std::lround(std::stod(line.substr(at)) * 1e5)) + " ";
    }
    return out;
  };
  const Outcome whole = folder_.run(common + " --spawn --check --steps 6");
  EXPECT_EQ(whole.status, 0) << whole.err;
  EXPECT_EQ(rates(), "100 100 50 25 20 20 ");
  EXPECT_EQ(folder_.run(common + " --checkpoint saved --steps 3").status, 0);
  EXPECT_EQ(folder_.run(common + " --checkpoint saved --steps 6 --resume --spawn").status, 0);
  EXPECT_EQ(rates(), "100 100 50 25 20 20 ");
  const Outcome none = folder_.run("stagecraft-run plan.json --lr-schedule plateau");
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err, HasSubstr("--lr-schedule: plateau follows the validation loss; give --validate-data"));
}

TEST_F(RunTool, KeepsTheMetricsOfARunThatIsKilled) {
  const Outcome o = folder_.run(
      "stagecraft-run plan.json --steps 100000000 --timeout 5 --metrics m.jsonl 2> run.txt & run=$!\n" +
      std::string(kUntilAStep) + "kill -KILL $run\nwait $run\ntail -c 2 m.jsonl; head -n 1 m.jsonl | cut -c 1-9");
  EXPECT_EQ(o.out, "}\n{\"step\":1\n");
}

TEST_F(RunTool, TrainsForEpochs) {
  const Plan plan = format::read_plan(folder_.path() / "plan.json");
  const std::int64_t step = *plan.microbatch_samples * plan.microbatches;
  files::NamedTensors named;
  for (const model::ModelInput& input : planned_->model.inputs) {
    std::vector<std::int64_t> shape{20};
    shape.insert(shape.end(), input.shape.begin(), input.shape.end());
    named[input.name] = input.dtype == "int64" ? at::zeros(shape, at::kLong) : at::ones(shape);
  }
  files::write_safetensors((folder_.path() / "data.safetensors").string(), named);
  const Outcome o =
      folder_.run("stagecraft-run plan.json --data tensors:data.safetensors --epochs 3 --metrics m.jsonl");
  EXPECT_EQ(o.status, 0) << o.err;
  const std::int64_t steps = (3 * 20 + step - 1) / step;
  EXPECT_THAT(o.err, HasSubstr("in " + std::to_string(steps) + " steps"));
  EXPECT_THAT(folder_.read("m.jsonl"), HasSubstr("\"epoch\":"));
  const Outcome endless = folder_.run("stagecraft-run plan.json --epochs 3");
  EXPECT_EQ(endless.status, 2);
  EXPECT_THAT(endless.err, HasSubstr("--epochs: data source \"synthetic\" is endless; use --steps"));
  EXPECT_EQ(folder_.run("stagecraft-run plan.json --epochs 3 --steps 2").status, 2);
}

TEST_F(RunTool, SaysOnceThatACheckpointBelongsToAnotherOptimizer) {
  EXPECT_EQ(run("plan.json --checkpoint saved --optimizer sgd").status, 0);
  for (const char* where : {" --spawn", ""}) {
    const Outcome o = run("plan.json --resume --checkpoint saved --optimizer adam" + std::string(where));
    EXPECT_EQ(o.status, 1);
    EXPECT_EQ(
        o.err,
        "stagecraft-run: saved/step-3/manifest.json: /optimizer/name: found \"sgd\", this run has \"adam\" [SC3203]\n");
  }
}

TEST_F(RunTool, WritesACheckpointWhenAskedToStop) {
  for (const char* where : {" --spawn", "", " --spawn --logs logs"}) {  // logs have a thread
    const Outcome o =
        folder_.run("rm -rf saved run.txt\nstagecraft-run plan.json --steps 100000000 --timeout 5 --checkpoint saved" +
                    std::string(where) + " 2> run.txt & run=$!\n" + kUntilAStep + "kill -TERM $run\nwait $run");
    EXPECT_EQ(o.status, 75) << folder_.read("run.txt");
    EXPECT_THAT(folder_.read("run.txt"), HasSubstr(" of 100000000 steps, saved in saved/step-"));
    const Outcome files = folder_.run("ls saved/*/manifest.json | wc -l; ls -d saved/*.partial");
    EXPECT_THAT(files.out, ::testing::AnyOf("1\n", "2\n"));
  }
}

TEST_F(RunTool, StartsAllRanksAgainFromTheLastCheckpoint) {
  const Outcome o = folder_.run(
      "stagecraft-run plan.json --steps 100 --spawn --timeout 3 --checkpoint saved --checkpoint-every 1 --restart 2 "
      "2> run.txt & run=$!\n"
      "until grep -q 'step 10/' run.txt; do kill -0 $run || exit 9; sleep 0.02; done\n"
      "for child in $(cat /proc/$run/task/*/children); do\n"
      "  if tr '\\0' '\\n' < /proc/$child/environ | grep -qx RANK=1; then kill -KILL $child; fi\n"
      "done\n"
      "wait $run");
  const std::string told = folder_.read("run.txt");
  EXPECT_EQ(o.status, 0) << told;
  EXPECT_THAT(told, HasSubstr("stagecraft: rank 1 was killed by signal 9 (Killed)\n"));
  EXPECT_THAT(told, HasSubstr("stagecraft: restarting all ranks, attempt 1 of 2\n"));
  EXPECT_THAT(told, HasSubstr("resuming from saved/step-"));
  EXPECT_THAT(told, HasSubstr("step 100/100"));
}

TEST_F(RunTool, EndsWithTheReasonWhenACheckpointCannotBeWritten) {
  // A limit on the file's length, in blocks of 1024 bytes, simulates a full disk.
  folder_.write("small.json", format::plan_json(cut_plan(*planned_, {}, {1}, "1f1b", 4)));
  EXPECT_EQ(folder_.run("stagecraft-run small.json --steps 2 --checkpoint saved").status, 0);
  const Outcome o =
      folder_.run("trap '' XFSZ; ulimit -f 1\nstagecraft-run small.json --steps 4 --checkpoint saved --resume");
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, HasSubstr("saved/step-4.partial/part-0.safetensors: cannot write: File too large"));
  // While the run continues, by a rank other than the one that commits: only rank 1's file is too long.
  folder_.write("uneven.json", format::plan_json(cut_plan(*planned_, {1}, {1, 1}, "1f1b", 4)));
  const Outcome going = folder_.run(
      "trap '' XFSZ; ulimit -f 2\n"
      "stagecraft-run uneven.json --steps 100000000 --checkpoint uneven --checkpoint-every 3");
  EXPECT_EQ(going.status, 1);
  EXPECT_THAT(going.err, HasSubstr("uneven/step-3.partial/part-1.safetensors: cannot write: File too large"));
  EXPECT_EQ(folder_.run("ls uneven").out, "step-3.partial\n");
  const Outcome after = folder_.run("stagecraft-run small.json --steps 4 --checkpoint saved --resume");
  EXPECT_EQ(after.status, 0);
  EXPECT_THAT(after.err, HasSubstr("resuming from saved/step-2\n"));
}

TEST_F(RunTool, CheckpointOptionsNeedAFolder) {
  for (const char* option : {"--resume", "--checkpoint-every 3", "--restart 1"}) {
    const Outcome o = run("plan.json " + std::string(option));
    EXPECT_EQ(o.status, 2) << option;
    EXPECT_THAT(o.err, HasSubstr("requires --checkpoint"));
  }
  EXPECT_EQ(run("plan.json --checkpoint saved --checkpoint-every 0").status, 2);
  EXPECT_EQ(run("plan.json --spawn --weights none.safetensors").err,
            "stagecraft-run: none.safetensors: cannot read: No such file or directory [SC1101]\n");
}

}  // namespace
}  // namespace stagecraft

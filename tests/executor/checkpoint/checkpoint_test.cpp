#include "executor/checkpoint/checkpoint.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <set>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/index.h"
#include "executor/run/run.h"
#include "tests/costmodel/documents.h"
#include "tests/support/models/counting_model.h"
#include "tests/support/models/laid_out_model.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/run_command.h"

namespace stagecraft::checkpoint {
namespace {

using std::chrono::milliseconds;
using testing::cut_plan;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::planned_model;
using testing::PlannedModel;
using ::testing::ThrowsMessage;

namespace fs = std::filesystem;

class Checkpoint : public ::testing::Test {
 protected:
  [[nodiscard]] std::string folder(const std::string& name = "saved") const { return (files_.path() / name).string(); }
  /// Writes one file into the folder from begin_checkpoint and returns the checkpoint's manifest.
  static format::CheckpointManifest written(const std::string& partial, std::int64_t step) {
    format::CheckpointManifest manifest = full_checkpoint();
    manifest.step = step;
    manifest.finite = true;
    const files::FileDigest digest =
        files::write_safetensors(partial + "/part-0.safetensors", {{"a", at::tensor({static_cast<float>(step)})}});
    manifest.files = {{"part-0.safetensors", digest.bytes, digest.crc32}};
    manifest.tensors.clear();  // commit_checkpoint lists them
    return manifest;
  }
  void save(std::int64_t step, const std::vector<std::int64_t>& keep = {}) const {
    commit_checkpoint(folder(), written(begin_checkpoint(folder(), step), step), keep);
  }
  /// The step of the newest complete checkpoint; -1 if there is none.
  std::int64_t latest() {
    reported_.clear();
    const auto found = latest_checkpoint(folder(), [&](const std::string& text) { reported_ += text + "\n"; });
    return found ? found->manifest.step : -1;
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(folder())) out.push_back(entry.path().filename().string());
    std::sort(out.begin(), out.end());
    return out;
  }

  testing::CommandFolder files_;
  std::string reported_;
};

TEST_F(Checkpoint, ExistsOnceCommittedAndReplacesAllButTheOneToKeep) {
  EXPECT_EQ(latest(), -1);
  save(3);
  EXPECT_EQ(latest(), 3);
  save(6, {3});
  save(9, {6});
  EXPECT_EQ(latest(), 9);
  EXPECT_THAT(names(), ElementsAre("step-6", "step-9"));
  EXPECT_EQ(check_checkpoint(folder() + "/step-6").step, 6);
}

TEST_F(Checkpoint, IsNotThereWhicheverWriteOfTheCommitIsTheLast) {
  save(3);
  // Killed after creating the folder, within a file, after all files, after the manifest but before the rename.
  const std::vector<std::function<void(const std::string&)>> ends{
      [](const std::string&) {},
      [](const std::string& partial) { std::ofstream(partial + "/part-0.safetensors.partial.1") << "half"; },
      [](const std::string& partial) { (void)written(partial, 6); },
      [](const std::string& partial) {
        format::write_text(partial + "/manifest.json", format::checkpoint_json(written(partial, 6)));
      }};
  for (const auto& end : ends) {
    end(begin_checkpoint(folder(), 6));
    EXPECT_THAT(names(), ElementsAre("step-3", "step-6.partial"));
    EXPECT_EQ(latest(), 3);
    EXPECT_EQ(reported_, "");
  }
  // Killed while removing older checkpoints: the manifest is removed first.
  save(6, {3});
  fs::remove(folder() + "/step-3/manifest.json");
  EXPECT_EQ(latest(), 6);
  EXPECT_EQ(reported_, "");
  (void)begin_checkpoint(folder(), 9);
  EXPECT_THAT(names(), ElementsAre("step-6", "step-9.partial"));
}

TEST_F(Checkpoint, ReportsADamagedCheckpointAndTakesTheOneBefore) {
  const std::string file = folder() + "/step-6/part-0.safetensors";
  const auto damage = [&](const std::function<void()>& how, const std::string& message) {
    save(3);
    save(6, {3});
    ASSERT_EQ(latest(), 6);
    how();
    EXPECT_EQ(latest(), 3) << message;
    EXPECT_THAT(reported_, HasSubstr("skipping damaged checkpoint " + folder() + "/step-6: " + message));
  };
  damage([&] { fs::resize_file(file, 70); }, file + ": found 70 bytes, the manifest says ");
  damage(
      [&] { std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(-1, std::ios::end).put('\1'); },
      file + ": found checksum ");
  damage([&] { fs::remove(file); }, file + ": cannot read: No such file or directory");
  damage(
      [&] {
        std::string text = format::read_text(folder() + "/step-6/manifest.json");
        text.replace(text.find("\"learning_rate\": 0.5"), 20, "\"learning_rate\": 0.7");
        format::write_text(folder() + "/step-6/manifest.json", text);
      },
      folder() + "/step-6/manifest.json: /manifest_crc32: found ");
  damage([&] { fs::resize_file(folder() + "/step-6/manifest.json", 20); }, folder() + "/step-6/manifest.json: line ");
  damage(
      [&] {
        format::write_text(folder() + "/step-6/manifest.json",
                           format::checkpoint_json(check_checkpoint(folder() + "/step-3")));
      },
      folder() + "/step-6/manifest.json: /step: found 3, which does not match the folder");
}

TEST_F(Checkpoint, OfAnOlderVersionKeepsItsChecksum) {
  // The format of version 2: the checksum is computed with zeros in its place.
  format::CheckpointManifest manifest = written(begin_checkpoint(folder(), 3), 3);
  manifest.manifest_crc32 = 0;
  manifest.optimizer_settings.clear();
  std::string text = format::checkpoint_json(manifest);
  text.replace(text.find("\"version\": 6"), 12, "\"version\": 2");
  const std::size_t finite = text.find("\"finite\"");
  text.erase(finite, text.find("\"plan_hash\"") - finite);
  const std::uint32_t crc = files::crc32_of(text);
  text.replace(text.find("\"00000000\""), 10, fmt::format("\"{:08x}\"", crc));
  format::write_text(partial_path(folder(), 3) + "/manifest.json", text);
  fs::rename(partial_path(folder(), 3), checkpoint_path(folder(), 3));
  EXPECT_EQ(latest(), 3) << reported_;
  EXPECT_TRUE(check_checkpoint(checkpoint_path(folder(), 3)).finite);
}

TEST_F(Checkpoint, ReportsANonfiniteCheckpointAndTakesTheOneBefore) {
  save(3);
  format::CheckpointManifest spoilt = written(begin_checkpoint(folder(), 6), 6);
  spoilt.finite = false;
  commit_checkpoint(folder(), spoilt, {3});
  EXPECT_EQ(latest(), 3);
  EXPECT_EQ(reported_, folder() + "/step-6 is skipped: it contains infinities or NaNs\n");
  EXPECT_THAT(finite_checkpoints(folder(), 6), ElementsAre(3));
  EXPECT_THAT(finite_checkpoints(folder(), 2), IsEmpty());
}

TEST_F(Checkpoint, IsRefusedWhenAFileIsNotThereAsReported) {
  save(3);
  format::CheckpointManifest manifest = written(begin_checkpoint(folder(), 6), 6);
  manifest.files.push_back({"part-1.safetensors", 10_B, 0});
  EXPECT_THAT(
      [&] { commit_checkpoint(folder(), manifest, {}); },
      ThrowsMessage<FormatError>(HasSubstr(
          "/step-6.partial/part-1.safetensors: cannot read what was written; all ranks must share the folder")));
  std::ofstream(folder() + "/step-6.partial/part-1.safetensors") << "short";
  EXPECT_THAT([&] { commit_checkpoint(folder(), manifest, {}); },
              ThrowsMessage<FormatError>(HasSubstr("part-1.safetensors: found 5 bytes, expected 10")));
  EXPECT_EQ(latest(), 3);
}

TEST_F(Checkpoint, NamesAFolderThatCannotBeWritten) {
  std::ofstream(folder("file")) << "";
  EXPECT_THAT([&] { check_checkpoint_folder(folder("file"), true); },
              ThrowsMessage<FormatError>(HasSubstr(folder("file"))));
  EXPECT_THAT([&] { (void)begin_checkpoint(folder("file/within"), 3); },
              ThrowsMessage<FormatError>(HasSubstr(folder("file/within") + ": cannot write: Not a directory")));
  save(3);
  EXPECT_NO_THROW(check_checkpoint_folder(folder(), true));
  EXPECT_THAT([&] { check_checkpoint_folder(folder(), false); },
              ThrowsMessage<std::invalid_argument>(
                  folder() + "/step-3 already exists; continue from it with --resume, or use another folder"));
}

/// Runs small models with checkpoints.
class CheckpointedRun : public Checkpoint {
 protected:
  static run::RunOptions options(const std::string& optimizer, const std::string& where, std::int64_t steps) {
    run::RunOptions out;
    out.steps = steps;
    out.optimizer.name = optimizer;
    out.optimizer.momentum = optimizer == "sgd" ? 0.9 : 0;
    out.optimizer.weight_decay = 0.01;
    out.checkpoint.folder = where;
    out.checkpoint.resume = true;
    out.checkpoint.data = "synthetic";
    return out;
  }
  static run::RunResult run(const PlannedModel& planned, const Plan& plan, const run::RunOptions& options) {
    return run::run_local(plan, planned.model, *planned.data, options, milliseconds(60000));
  }
  /// Compares six steps under `first` with three under `first` followed by three under `second`.
  void expect_same(const PlannedModel& planned, const Plan& first, const Plan& second, const std::string& optimizer) {
    const std::string what = planned.model.name + " with " + optimizer;
    fs::remove_all(folder("whole"));
    fs::remove_all(folder("halves"));
    const run::RunResult whole = run(planned, first, options(optimizer, folder("whole"), 6));
    const run::RunResult half = run(planned, first, options(optimizer, folder("halves"), 3));
    run::RunOptions more = options(optimizer, folder("halves"), 6);
    more.check = true;
    const run::RunResult rest = run(planned, second, more);
    EXPECT_EQ(rest.first_step, 3) << what;
    std::vector<double> losses = half.measurement.losses;
    losses.insert(losses.end(), rest.measurement.losses.begin(), rest.measurement.losses.end());
    EXPECT_EQ(losses, whole.measurement.losses) << what;
    EXPECT_EQ(rest.check->different + rest.check->losses_different, 0) << what;
    const files::TensorFiles one = tensors(folder("whole") + "/step-6");
    const files::TensorFiles two = tensors(folder("halves") + "/step-6");
    EXPECT_EQ(one.names(), two.names()) << what;
    for (const std::string& name : one.names()) EXPECT_TRUE(at::equal(one.read(name), two.read(name))) << what << name;
  }
  static files::TensorFiles tensors(const std::string& path) { return {path, check_checkpoint(path)}; }
  static PlannedModel mlp() { return planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "3"}}, 3); }
};

TEST_F(CheckpointedRun, ContinuesBitForBitUnderAnotherCutAndSchedule) {
  const PlannedModel small = mlp();
  const PlannedModel convnet = planned_model("convnet", {}, 2);
  const PlannedModel gpt = planned_model(
      "gpt", {{"layers", "2"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "32"}, {"sequence", "8"}}, 2);
  for (const PlannedModel* planned : {&small, &convnet, &gpt}) {
    const int n = to_int(planned->model.layers.size());
    for (const char* optimizer : {"sgd", "adamw"}) {
      expect_same(*planned, cut_plan(*planned, {n / 2}, {1, 1}, "1f1b", 2),
                  cut_plan(*planned, {n / 3, 2 * n / 3}, {1, 1, 1}, "gpipe", 2), optimizer);
    }
  }
}

TEST_F(CheckpointedRun, ContinuesBitForBitWithReplicasThatSumInTheSameOrder) {
  const PlannedModel small = mlp();
  expect_same(small, cut_plan(small, {3}, {2, 1}, "1f1b", 4), cut_plan(small, {3}, {2, 1}, "gpipe", 4), "sgd");
}

TEST_F(CheckpointedRun, ContinuesBitForBitWithParametersOfOtherLayouts) {
  const PlannedModel convnet =
      planned_model(testing::laid_out_model(intake::build_model("convnet", {{"channels", "4"}})), 2);
  const int n = to_int(convnet.model.layers.size());
  for (const char* optimizer : {"sgd", "adamw"}) {
    expect_same(convnet, cut_plan(convnet, {n / 2}, {2, 1}, "1f1b", 2), cut_plan(convnet, {n / 2}, {2, 1}, "gpipe", 2),
                optimizer);
  }
}

TEST_F(CheckpointedRun, ContinuesBitForBitWithEveryOptimizer) {
  const PlannedModel small = mlp();
  const Plan plan = cut_plan(small, {3}, {1, 1}, "1f1b", 2);
  for (const std::string& optimizer : stage::optimizer_names()) expect_same(small, plan, plan, optimizer);
}

constexpr StateTypes kBfloat16{StateType::Bfloat16, StateType::Float32, StateType::Bfloat16};

TEST_F(CheckpointedRun, ContinuesBitForBitWithMasterValuesAndMomentsInBfloat16) {
  const PlannedModel gpt =
      planned_model("gpt", {{"layers", "1"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "32"}, {"sequence", "8"}},
                    2, at::kBFloat16, kBfloat16);
  const int n = to_int(gpt.model.layers.size());
  for (const char* optimizer : {"sgd", "adamw", "nadam"}) {
    expect_same(gpt, cut_plan(gpt, {n / 2}, {1, 1}, "1f1b", 2),
                cut_plan(gpt, {n / 3, 2 * n / 3}, {1, 1, 1}, "gpipe", 2), optimizer);
  }
  const files::TensorFiles saved = tensors(folder("whole") + "/step-6");
  EXPECT_EQ(saved.kind("h.0.ln_1.weight").dtype, at::kBFloat16);
  EXPECT_EQ(saved.kind("optimizer.first/h.0.ln_1.weight").dtype, at::kBFloat16);
  const at::Tensor master = saved.read("optimizer.master/wte.weight");
  EXPECT_EQ(master.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(saved.read("wte.weight"), master.to(at::kBFloat16)));
  EXPECT_FALSE(at::equal(saved.read("wte.weight").to(at::kFloat), master)) << "it has more bits";
  EXPECT_EQ(state_dict(saved, gpt.model, {}).at("wte.weight").scalar_type(), at::kBFloat16) << "as others read it";
}

TEST_F(CheckpointedRun, ContinuesInOtherTypesFromTheValuesOfMoreBits) {
  const auto mlp_in = [](const StateTypes& types) {
    return planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "3"}}, 3, at::kBFloat16, types);
  };
  for (const bool rounds : {true, false}) {
    const PlannedModel before = mlp_in(rounds ? StateTypes{} : kBfloat16);
    const PlannedModel after = mlp_in(rounds ? kBfloat16 : StateTypes{});
    const std::string where = folder(rounds ? "rounds" : "does_not");
    (void)run(before, cut_plan(before, {3}, {1, 1}, "1f1b", 2), options("adam", where, 2));
    const files::TensorFiles saved = tensors(where + "/step-2");
    const Plan plan = cut_plan(after, {}, {1}, "1f1b", 2);
    std::vector<int> layers(after.model.layers.size());
    std::iota(layers.begin(), layers.end(), 0);
    const stage::ComputePlace place = run::compute_place(plan, c10::Device(c10::kCPU));
    stage::StageProgram program(after.model, layers, {}, {}, 1, place);
    const auto optimizer =
        stage::optimizer_of(run::with_types(options("adam", "", 2).optimizer, plan), program.parameters());
    load_state(saved, program, *optimizer);
    for (std::size_t i = 0; i < program.parameters().size(); ++i) {
      const auto& [name, layer, value] = program.parameters()[i];
      const at::Tensor exact = saved.read(rounds ? name : "optimizer.master/" + name);
      const stage::OptimizerState state = optimizer->state(i);
      EXPECT_EQ(exact.scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(rounds ? state.master : value.detach(), exact)) << name;
      EXPECT_TRUE(at::equal(value.detach(), exact.to(value.scalar_type()))) << name;
      EXPECT_EQ(state.master.defined(), rounds) << name;
      const at::Tensor first = saved.read("optimizer.first/" + name);
      EXPECT_EQ(first.scalar_type(), rounds ? at::kFloat : at::kBFloat16) << name;
      EXPECT_TRUE(at::equal(state.first, first.to(rounds ? at::kBFloat16 : at::kFloat))) << name;
    }
    run::RunOptions more = options("adam", where, 4);
    more.check = true;
    const run::RunResult rest = run(after, plan, more);
    EXPECT_EQ(rest.first_step, 2);
    EXPECT_EQ(rest.check->different + rest.check->losses_different, 0);
    EXPECT_EQ(tensors(where + "/step-4").holds("optimizer.master/fc1.weight"), rounds);
  }
}

TEST_F(CheckpointedRun, IsLoadedByAnyNumberOfRanks) {
  const PlannedModel small = mlp();
  (void)run(small, cut_plan(small, {3}, {2, 1}, "1f1b", 4), options("adam", folder(), 2));
  const auto next_loss = [&](const std::vector<int>& cuts, const std::vector<int>& replicas, const std::string& into) {
    fs::copy(folder(), folder(into), fs::copy_options::recursive);
    return run(small, cut_plan(small, cuts, replicas, "1f1b", 4), options("adam", folder(into), 3)).measurement.losses;
  };
  // The loss of a step depends only on what was loaded, not on how its gradients are reduced.
  const std::vector<double> expected = next_loss({}, {1}, "one");
  EXPECT_EQ(expected.size(), 1U);
  EXPECT_EQ(next_loss({}, {4}, "four"), expected);
  EXPECT_EQ(next_loss({2, 4}, {1, 3, 2}, "six"), expected);
}

TEST_F(CheckpointedRun, HoldsFullNamesOnce) {
  const PlannedModel gpt = planned_model(
      "gpt", {{"layers", "1"}, {"width", "8"}, {"heads", "2"}, {"vocabulary", "16"}, {"sequence", "4"}}, 2);
  const int n = to_int(gpt.model.layers.size());
  (void)run(gpt, cut_plan(gpt, {n / 2}, {2, 1}, "1f1b", 2), options("adam", folder(), 1));
  const format::CheckpointManifest manifest = check_checkpoint(folder() + "/step-1");
  EXPECT_EQ(manifest.files.size(), 2U) << "one a stage, replicas write none";
  EXPECT_EQ(manifest.samples, 1 * 2 * 2);
  std::set<std::string> expected;
  for (const model::LayerSpec& layer : gpt.model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters) {
      for (const char* before : {"", "optimizer.first/", "optimizer.second/", "optimizer.steps/"})
        expected.insert(before + parameter.name);
    }
  }
  EXPECT_THAT(tensors(folder() + "/step-1").names(), ::testing::ElementsAreArray(expected));
}

TEST_F(CheckpointedRun, IsRefusedByAnotherRunNamingWhatDiffers) {
  const PlannedModel small = mlp();
  const Plan plan = cut_plan(small, {}, {1}, "1f1b", 2);
  (void)run(small, plan, options("sgd", folder(), 1));
  const auto refusal = [&](const std::function<void(run::RunOptions&)>& change, const std::string& message) {
    run::RunOptions other = options("sgd", folder(), 2);
    change(other);
    EXPECT_THAT([&] { (void)run(small, plan, other); },
                ThrowsMessage<FormatError>(HasSubstr(folder() + "/step-1/manifest.json: " + message)));
  };
  refusal([](run::RunOptions& o) { o.seed = 9; }, "/seed: found 1, this run has 9");
  refusal([](run::RunOptions& o) { o.checkpoint.data = "text:a"; },
          "/data: found \"synthetic\", this run has \"text:a\"");
  refusal(
      [](run::RunOptions& o) {
        o.optimizer.name = "adam";
        o.optimizer.momentum = 0;
      },
      "/optimizer/name: found \"sgd\", this run has \"adam\"");
  refusal([](run::RunOptions& o) { o.optimizer.momentum = 0; }, "/optimizer/momentum: found 0.9, this run has 0");
  fs::remove_all(folder());
  (void)run(small, plan, options("adam", folder(), 1));
  refusal(
      [](run::RunOptions& o) {
        o.optimizer = options("adam", "", 1).optimizer;
        o.optimizer.amsgrad = true;
      },
      "/optimizer/settings: found {}, this run has {amsgrad=true}");
  const PlannedModel other = planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "2"}}, 3);
  EXPECT_THAT([&] { (void)run(other, cut_plan(other, {}, {1}, "1f1b", 2), options("sgd", folder(), 2)); },
              ThrowsMessage<FormatError>(HasSubstr("/options: found {inputs=12, layers=3, width=16}, this run has")));
  EXPECT_THAT([&] { (void)run(small, cut_plan(small, {}, {1}, "1f1b", 4), options("sgd", folder(), 2)); },
              ThrowsMessage<FormatError>(HasSubstr("/samples: found 6, this run has 12")));
  run::RunOptions again = options("sgd", folder(), 2);
  again.checkpoint.resume = false;
  EXPECT_THAT(
      [&] { (void)run(small, plan, again); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("/step-1 already exists; continue from it with --resume")));
}

TEST_F(CheckpointedRun, NamesTensorsThatAreMissingOrUnknownOrOfAnotherShape) {
  const PlannedModel small = mlp();
  (void)run(small, cut_plan(small, {}, {1}, "1f1b", 2), options("adam", folder(), 1));
  const files::TensorFiles whole = tensors(folder() + "/step-1");
  files::NamedTensors all;
  for (const std::string& name : whole.names()) all[name] = whole.read(name);
  const auto verdict = [&](const std::function<void(files::NamedTensors&)>& change) -> std::string {
    files::NamedTensors changed = all;
    change(changed);
    files::write_safetensors(folder("changed"), changed);
    const files::TensorFiles files({folder("changed")});
    std::vector<int> layers(small.model.layers.size());
    std::iota(layers.begin(), layers.end(), 0);
    stage::StageProgram program(small.model, layers, {}, {}, 1);
    std::vector<at::Tensor> values;
    for (const stage::Parameter& parameter : program.parameters()) values.push_back(parameter.value);
    stage::OptimizerOptions adam;
    adam.name = "adam";
    stage::Optimizer optimizer(adam, values);
    try {
      check_names(files, small.model, adam);
      load_state(files, program, optimizer);
    } catch (const FormatError& e) { return e.what(); }
    return "";
  };
  EXPECT_EQ(verdict([](files::NamedTensors&) {}), "");
  const std::string place = folder("changed") + ": ";
  EXPECT_EQ(verdict([](files::NamedTensors& t) { t.erase("fc1.weight"); }), place + "tensor \"fc1.weight\" is missing");
  EXPECT_EQ(verdict([](files::NamedTensors& t) {
              t.erase("fc1.weight");
              t.erase("fc2.bias");
            }),
            place + "tensor \"fc1.weight\" is missing, and 1 more");
  EXPECT_EQ(verdict([](files::NamedTensors& t) { t.erase("optimizer.second/fc1.bias"); }),
            place + "tensor \"optimizer.second/fc1.bias\" is missing");
  EXPECT_THAT(
      verdict([](files::NamedTensors& t) { t["fc9.weight"] = t["fc1.weight"]; }),
      HasSubstr(place + "unknown tensor \"fc9.weight\", did you mean fc1.weight? known are fc1.bias, fc1.weight, "));
  EXPECT_EQ(verdict([](files::NamedTensors& t) { t["fc1.bias"] = t["fc1.weight"]; }),
            place + "tensor \"fc1.bias\": found Float [16, 12], expected Float [16]");
  EXPECT_EQ(verdict([](files::NamedTensors& t) { t["fc1.bias"] = t["fc1.bias"].to(at::kDouble); }),
            place + "tensor \"fc1.bias\": found Double [16], expected Float [16]");
}

TEST_F(CheckpointedRun, BeginsWithTheWeightsOfAFile) {
  const PlannedModel small = mlp();
  files::NamedTensors weights;
  for (const model::LayerSpec& layer : small.model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters)
      weights[parameter.name] = model::initial_value(parameter, 77);
  }
  files::write_safetensors(folder("weights"), weights);
  // Weights of seed 77 in a run of seed 1, whose data do not depend on the run's seed here as there is no dropout.
  run::RunOptions from_file = options("sgd", "", 2);
  from_file.checkpoint.weights = folder("weights");
  run::RunOptions from_seed = options("sgd", "", 2);
  from_seed.seed = 77;
  const Plan plan = cut_plan(small, {3}, {2, 1}, "1f1b", 2);
  EXPECT_EQ(run(small, plan, from_file).measurement.losses, run(small, plan, from_seed).measurement.losses);
  weights.erase("fc2.weight");
  files::write_safetensors(folder("weights"), weights);
  EXPECT_THAT([&] { (void)run(small, plan, from_file); },
              ThrowsMessage<FormatError>(folder("weights") + ": tensor \"fc2.weight\" is missing"));
  weights["optimizer.first/fc2.weight"] = weights["fc1.weight"];
  files::write_safetensors(folder("weights"), weights);
  EXPECT_THAT(
      [&] { (void)run(small, plan, from_file); },
      ThrowsMessage<FormatError>(HasSubstr("unknown tensor \"optimizer.first/fc2.weight\", known are fc1.bias")));
}

TEST_F(CheckpointedRun, KeepsBuffersInTheirTypes) {
  const PlannedModel counting = planned_model(testing::counting_model(), 2);
  const Plan plan = cut_plan(counting, {2}, {2, 1}, "1f1b", 3);
  (void)run(counting, plan, options("sgd", folder(), 2));
  const auto saved = [&](int step) {
    return files::TensorFiles({checkpoint_path(folder(), step) + "/part-0.safetensors"});
  };
  EXPECT_EQ(saved(2).read("fc1.calls").item<std::int64_t>(), testing::kNoDouble + 2 * 3);
  EXPECT_EQ(saved(2).read("fc1.mean").scalar_type(), at::kDouble);
  EXPECT_EQ(saved(2).read("fc1.last").scalar_type(), at::kBFloat16);
  run::RunOptions on = options("sgd", folder(), 4);
  on.checkpoint.resume = true;
  (void)run(counting, plan, on);
  (void)run(counting, plan, options("sgd", folder("whole"), 4));
  const files::TensorFiles whole({checkpoint_path(folder("whole"), 4) + "/part-0.safetensors"});
  EXPECT_EQ(whole.read("fc1.calls").item<std::int64_t>(), testing::kNoDouble + 4 * 3);
  for (const std::string& name : whole.names()) EXPECT_TRUE(at::equal(saved(4).read(name), whole.read(name))) << name;
}

TEST_F(CheckpointedRun, LeavesOutWhatNoFileHoldsUnlessItChanges) {
  PlannedModel small = mlp();
  std::vector<model::ParameterSpec>& parameters = small.model.layers[0].parameters;
  parameters.push_back({.name = "fc1.turns", .shape = {2}, .trainable = false, .dtype = at::kComplexDouble});
  const Plan plan = cut_plan(small, {3}, {1, 1}, "1f1b", 2);
  (void)run(small, plan, options("sgd", folder(), 2));
  run::RunOptions on = options("sgd", folder(), 3);
  on.checkpoint.resume = true;
  EXPECT_EQ(run(small, plan, on).first_step, 2);
  parameters.back().written = true;
  EXPECT_THAT([&] { (void)run(small, plan, on); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("layer \"fc1\" writes its buffer \"fc1.turns\" of type ComplexDouble, which checkpoints "
                            "cannot store; run without --checkpoint")));
  EXPECT_NO_THROW((void)run(small, plan, options("sgd", "", 1)));
}

TEST_F(CheckpointedRun, ContinuesWithoutConstantsWhichItOmits) {
  PlannedModel small = mlp();
  small.model.layers[0].parameters.push_back(
      {.name = "fc1.places", .shape = {2}, .trainable = false, .constant = true});
  const Plan plan = cut_plan(small, {3}, {1, 1}, "1f1b", 2);
  (void)run(small, plan, options("sgd", folder(), 2));
  EXPECT_THAT(tensors(folder() + "/step-2").names(), ::testing::Not(::testing::Contains("fc1.places")));
  EXPECT_EQ(run(small, plan, options("sgd", folder(), 3)).first_step, 2);
}

TEST_F(CheckpointedRun, GivesTheStateDictOfTheModule) {
  PlannedModel small = mlp();
  std::vector<model::ParameterSpec>& first = small.model.layers[0].parameters;
  first.push_back({.name = "fc1.places", .shape = {2}, .trainable = false, .constant = true});
  first.push_back({.name = "fc1.count", .shape = {}, .trainable = false, .dtype = at::kLong});
  first.push_back({.name = "fc1.mean", .shape = {2}, .trainable = false, .written = true, .in_state_dict = false});
  (void)run(small, cut_plan(small, {3}, {1, 1}, "1f1b", 2), options("adam", folder(), 2));
  const files::TensorFiles saved = tensors(folder() + "/step-2");
  EXPECT_TRUE(saved.holds("fc1.mean")) << "a run continues with it, though no state dict has it";
  const TiedNames tied{{"head.weight", "fc1.weight"}};
  const files::NamedTensors state = state_dict(saved, small.model, tied);
  std::set<std::string> expected{"fc1.count", "head.weight"};
  for (const model::LayerSpec& layer : small.model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters)
      if (parameter.trainable) expected.insert(parameter.name);
  }
  std::set<std::string> found;
  for (const auto& [name, value] : state) found.insert(name);
  EXPECT_EQ(found, expected);
  EXPECT_TRUE(at::equal(state.at("head.weight"), saved.read("fc1.weight")));
  EXPECT_EQ(state.at("fc1.count").scalar_type(), at::kLong);
  first[first.size() - 2].dtype = at::kComplexDouble;
  EXPECT_THAT(
      [&] { (void)state_dict(saved, small.model, tied); },
      ThrowsMessage<FormatError>(HasSubstr("layer \"fc1\" has a buffer \"fc1.count\" of type ComplexDouble, which "
                                           "safetensors files cannot hold")));
}

TEST_F(CheckpointedRun, BeginsWithWeightsThatHaveTiedTensorsUnderAllNames) {
  const PlannedModel small = mlp();
  files::NamedTensors weights;
  for (const model::LayerSpec& layer : small.model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters)
      weights[parameter.name] = model::initial_value(parameter, 77);
  }
  weights["head.weight"] = weights.at("fc2.weight");
  files::write_safetensors(folder("weights"), weights);
  const TiedNames tied{{"head.weight", "fc2.weight"}, {"further.weight", "fc1.weight"}};
  EXPECT_NO_THROW(check_weight_names(files::TensorFiles({folder("weights")}), small.model, tied));
  weights["head.weight"] = weights.at("fc1.weight");
  files::write_safetensors(folder("weights"), weights);
  EXPECT_THAT(
      [&] { check_weight_names(files::TensorFiles({folder("weights")}), small.model, tied); },
      ThrowsMessage<FormatError>(folder("weights") + ": tensors \"head.weight\" and \"fc2.weight\" differ; the model "
                                                     "has one tensor with both names"));
}

TEST_F(Checkpoint, IsFoundByItsFolderOrByItsOwn) {
  const auto found = [&](const std::string& path) {
    reported_.clear();
    return checkpoint_at(path, [&](const std::string& text) { reported_ += text; }).path;
  };
  EXPECT_THAT([&] { (void)found(folder()); },
              ThrowsMessage<FormatError>(folder() + ": is not a folder of checkpoints, nor a checkpoint in one"));
  save(3);
  save(5, {3});
  EXPECT_EQ(found(folder()), folder() + "/step-5");
  EXPECT_EQ(found(folder() + "/step-3"), folder() + "/step-3");
  EXPECT_EQ(found(folder() + "/step-3/"), folder() + "/step-3");
  files_.write("saved/step-5/part-0.safetensors", "short");
  EXPECT_EQ(found(folder()), folder() + "/step-3");
  EXPECT_THAT(reported_, HasSubstr("skipping damaged checkpoint " + folder() + "/step-5"));
  EXPECT_THAT([&] { (void)found(folder() + "/step-5"); }, ThrowsMessage<FormatError>(HasSubstr("found 5 bytes")));
  fs::create_directories(folder("empty"));
  EXPECT_THAT([&] { (void)found(folder("empty")); },
              ThrowsMessage<FormatError>(folder("empty") + ": no complete checkpoint"));
}

TEST_F(CheckpointedRun, EndsOnAllRanksAfterTheStepInWhichOneIsAskedTo) {
  const PlannedModel small = mlp();
  run::RunOptions stopped = options("sgd", folder(), 100);
  stopped.checkpoint.every = 2;
  std::atomic<int> asked = 0;
  stopped.checkpoint.stop = [&] { return ++asked == 11; };  // one of three ranks, in the fourth step
  const run::RunResult result = run(small, cut_plan(small, {3}, {2, 1}, "1f1b", 4), stopped);
  EXPECT_EQ(result.steps_done, 4);
  EXPECT_EQ(result.measurement.losses.size(), 4U);
  EXPECT_EQ(asked, 4 * 3) << "all ranks were asked in each step";
  EXPECT_THAT(names(), ElementsAre("step-2", "step-4"));
}

TEST_F(CheckpointedRun, HoldsTheStateAfterItsStepAlthoughTheRunGoesOn) {
  // 3 MiB of parameters and state, so that steps end while a thread writes them.
  const PlannedModel wide = planned_model("mlp", {{"inputs", "12"}, {"width", "256"}, {"layers", "3"}}, 1);
  const Plan plan = cut_plan(wide, {3}, {2, 1}, "1f1b", 2);
  run::RunOptions every = options("adam", folder(), 6);
  every.checkpoint.every = 1;
  every.checkpoint.keep = 6;
  (void)run(wide, plan, every);
  EXPECT_THAT(names(), ElementsAre("step-1", "step-2", "step-3", "step-4", "step-5", "step-6"));
  for (const int step : {1, 3, 5}) {
    const std::string until = "until-" + std::to_string(step);
    (void)run(wide, plan, options("adam", folder(until), step));
    const files::TensorFiles expected = tensors(checkpoint_path(folder(until), step));
    const files::TensorFiles found = tensors(checkpoint_path(folder(), step));
    EXPECT_EQ(found.names(), expected.names());
    for (const std::string& name : expected.names())
      EXPECT_TRUE(at::equal(found.read(name), expected.read(name))) << "step " << step << ", " << name;
  }
}

TEST_F(CheckpointedRun, LeavesTheStepsThatAreDone) {
  const PlannedModel small = mlp();
  const Plan plan = cut_plan(small, {3}, {1, 1}, "1f1b", 2);
  (void)run(small, plan, options("sgd", folder(), 3));
  run::RunOptions again = options("sgd", folder(), 3);
  std::string told;
  again.checkpoint.tell = [&](const std::string& text) { told += text; };
  const run::RunResult result = run(small, plan, again);
  EXPECT_EQ(told, "resuming from " + folder() + "/step-3");
  EXPECT_EQ(result.steps_done, 3);
  EXPECT_THAT(result.measurement.losses, IsEmpty());
}

}  // namespace
}  // namespace stagecraft::checkpoint

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/lerp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>

#include "costmodel/format/files/outputs.h"
#include "costmodel/format/plan_json.h"
#include "executor/files/safetensors.h"
#include "executor/files/tensor_files.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/run_command.h"

// stagecraft-weights as a user runs it; tests/models/weights_test.py loads its files in Python.

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;

/// A checkpoint of a small mlp, written by two ranks.
class WeightsTool : public ::testing::Test {
 protected:
  WeightsTool() {
    const testing::PlannedModel planned = testing::planned_model("mlp", {{"inputs", "12"}, {"width", "16"}}, 3);
    folder_.write("plan.json", format::plan_json(testing::cut_plan(planned, {3}, {1, 1}, "1f1b", 4)));
    for (const model::LayerSpec& layer : planned.model.layers) {
      for (const model::ParameterSpec& parameter : layer.parameters) names_.push_back(parameter.name);
    }
    std::ranges::sort(names_);
    const Outcome o = folder_.run("stagecraft-run plan.json --steps 2 --optimizer adam --checkpoint saved");
    EXPECT_EQ(o.status, 0) << o.err;
  }
  testing::CommandFolder folder_;
  std::vector<std::string> names_;
};

TEST_F(WeightsTool, WritesTheParametersOfAllStagesAlone) {
  const Outcome o = folder_.run("stagecraft-weights saved -o model.safetensors");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, "");
  EXPECT_THAT(o.err, HasSubstr("model.safetensors: " + std::to_string(names_.size()) + " tensors, "));
  EXPECT_THAT(o.err, HasSubstr(", after step 2 of saved/step-2\n"));
  const files::TensorFiles written({(folder_.path() / "model.safetensors").string()});
  EXPECT_EQ(written.names(), names_);
  EXPECT_EQ(format::text_kind(folder_.read("model.safetensors")), "safetensors file");
  EXPECT_EQ(folder_.run("stagecraft-weights saved/step-2 -o again.safetensors").status, 0);
  EXPECT_EQ(folder_.read("again.safetensors"), folder_.read("model.safetensors"));
  // It is also a file of initial weights.
  EXPECT_EQ(folder_.run("stagecraft-run plan.json --steps 1 --weights model.safetensors").status, 0);
}

TEST_F(WeightsTool, AreEvaluatedWithoutChangingAnything) {
  const std::string before = folder_.run("sha256sum saved/step-2/*").out;
  const Outcome o = folder_.run("stagecraft-evaluate saved --data synthetic --microbatch 3 --samples 20 --seed 3");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.out,
              ::testing::MatchesRegex("loss [0-9.]+, accuracy 0\\.[0-9]+ \\([0-9]+ of [0-9]+\\), .* samples/s\n"));
  EXPECT_EQ(folder_.run("sha256sum saved/step-2/*").out, before);
  // The same weights, as a file.
  EXPECT_EQ(folder_.run("stagecraft-weights saved -o model.safetensors").status, 0);
  const std::string model =
      " --model mlp --set inputs=12 --set width=16 --microbatch 3 --samples 20 --seed 3 --data synthetic";
  const Outcome file = folder_.run("stagecraft-evaluate model.safetensors" + model);
  EXPECT_EQ(file.status, 0) << file.err;
  EXPECT_EQ(file.out.substr(0, file.out.find(" samples (")), o.out.substr(0, o.out.find(" samples (")));
  // And in a folder, in two shards.
  const files::TensorFiles written({(folder_.path() / "model.safetensors").string()});
  std::array<files::NamedTensors, 2> shards;
  std::string map;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    shards.at(i % 2)[names_[i]] = written.read(names_[i]);
    map += (map.empty() ? "\"" : ", \"") + names_[i] + "\": \"shard-" + std::to_string(i % 2) + ".safetensors\"";
  }
  std::filesystem::create_directory(folder_.path() / "weights");
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = "shard-" + std::to_string(i) + ".safetensors";
    (void)files::write_safetensors((folder_.path() / "weights" / name).string(), shards.at(i));
  }
  folder_.write("weights/model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
  const Outcome folder = folder_.run("stagecraft-evaluate weights" + model);
  EXPECT_EQ(folder.status, 0) << folder.err;
  EXPECT_EQ(folder.out.substr(0, folder.out.find(" samples (")), o.out.substr(0, o.out.find(" samples (")));
  EXPECT_THAT(folder_.run("stagecraft-evaluate weights --data synthetic --samples 3").err,
              HasSubstr("--model: is needed to evaluate a weights file"));
  const Outcome json =
      folder_.run("stagecraft-evaluate saved/step-2 --data synthetic --samples 20 --microbatch 3 --json -o e.json");
  EXPECT_EQ(json.status, 0) << json.err;
  EXPECT_EQ(json.out, folder_.read("e.json"));
  EXPECT_THAT(json.out,
              HasSubstr("\"weights\": \"saved/step-2\",\n  \"step\": 2,\n  \"samples\": 18,\n  \"samples_left\": 2,"));
  // Microbatches of 3 as in training would leave two samples over.
  const Outcome even = folder_.run("stagecraft-evaluate saved/step-2 --data synthetic --samples 20 --json");
  EXPECT_THAT(even.out, HasSubstr("\n  \"samples\": 20,\n  \"samples_left\": 0,"));
}

TEST_F(WeightsTool, TakesMovingAveragesUnlessTheTrainedParametersAreWanted) {
  // With SGD, the average after two steps is half of the parameters after each of them.
  const std::string train = "stagecraft-run plan.json --ema-decay 0.5 --checkpoint ";
  ASSERT_EQ(folder_.run(train + "one --steps 1").status, 0);
  ASSERT_EQ(folder_.run(train + "two --steps 2").status, 0);
  const auto weights = [&](const std::string& words) {
    const Outcome o = folder_.run("stagecraft-weights " + words + " --force -o w.safetensors");
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_EQ(o.err.find("with moving averages") != std::string::npos, words.find("--no-ema") == std::string::npos);
    return files::TensorFiles({(folder_.path() / "w.safetensors").string()}).read(names_.front());
  };
  const at::Tensor expected = weights("one").lerp(weights("two --no-ema"), 0.5);
  EXPECT_TRUE(weights("two").equal(expected));
  EXPECT_FALSE(weights("two --no-ema").equal(expected));
  const std::string evaluate = "stagecraft-evaluate two --data synthetic --samples 18 ";
  const Outcome averages = folder_.run(evaluate);
  EXPECT_THAT(averages.err, HasSubstr("evaluating the moving averages\n"));
  const Outcome trained = folder_.run(evaluate + "--no-ema");
  EXPECT_THAT(trained.err, ::testing::Not(HasSubstr("averages")));
  EXPECT_NE(averages.out.substr(0, averages.out.find(',')), trained.out.substr(0, trained.out.find(',')));
  EXPECT_THAT(folder_.run("stagecraft-run plan.json --checkpoint two --resume --steps 3").err,
              HasSubstr("two/step-2/manifest.json: /optimizer/settings: found {ema-decay=0.5}, this run has {}"));
}

TEST_F(WeightsTool, EvaluationNamesWhatIsWrong) {
  const Outcome none = folder_.run("stagecraft-evaluate none --data synthetic --samples 3");
  EXPECT_EQ(none.status, 1);
  EXPECT_EQ(none.err, "stagecraft-evaluate: none: is not a folder of checkpoints, nor a checkpoint in one [SC3201]\n");
  EXPECT_EQ(folder_.run("stagecraft-evaluate saved").status, 2) << "no data";
  const Outcome endless = folder_.run("stagecraft-evaluate saved --data synthetic");
  EXPECT_EQ(endless.status, 1);
  EXPECT_EQ(endless.err,
            "stagecraft-evaluate: the data is endless; give the number of samples with --samples [SC2001]\n");
  EXPECT_EQ(folder_.run("stagecraft-weights saved -o model.safetensors").status, 0);
  const Outcome file = folder_.run("stagecraft-evaluate model.safetensors --data synthetic --samples 3");
  EXPECT_EQ(file.status, 2);
  EXPECT_THAT(file.err, HasSubstr("--model: is needed to evaluate a weights file"));
}

TEST_F(WeightsTool, ReplacesNeitherItsInputNorAnotherKindOfFile) {
  const std::string part = "saved/step-2/part-0.safetensors";
  const std::string before = folder_.read(part);
  const Outcome input = folder_.run("stagecraft-weights saved -o " + part);
  EXPECT_EQ(input.status, 1);
  EXPECT_THAT(input.err, HasSubstr(part + ": is also an input"));
  EXPECT_EQ(folder_.read(part), before);
  const Outcome other = folder_.run("stagecraft-weights saved -o plan.json");
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.err, HasSubstr("plan.json: holds a stagecraft.plan, so no safetensors file replaces it"));
}

TEST_F(WeightsTool, NamesWhatIsWrong) {
  EXPECT_EQ(folder_.run("stagecraft-weights saved").status, 2);
  EXPECT_EQ(folder_.run("stagecraft-weights -o model.safetensors").status, 2);
  const Outcome none = folder_.run("stagecraft-weights none -o model.safetensors");
  EXPECT_EQ(none.status, 1);
  EXPECT_EQ(none.err, "stagecraft-weights: none: is not a folder of checkpoints, nor a checkpoint in one [SC3201]\n");
  const Outcome another = folder_.run("stagecraft-weights saved --model convnet -o model.safetensors");
  EXPECT_EQ(another.status, 1);
  EXPECT_THAT(another.err, HasSubstr("stagecraft-weights: "));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "model.safetensors"));
}

}  // namespace
}  // namespace stagecraft

#include "executor/files/torch_file.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/index.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/files/safetensors.h"
#include "executor/files/zip_archive.h"
#include "executor/intake/layer_sources.h"
#include "executor/stage/stage_program.h"
#include "tests/executor/files/pickle_text.h"
#include "tests/support/places.h"
#include "tests/support/run_command.h"

namespace stagecraft::files {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string kByPython = source_folder() + "/tests/golden/torch/weights.pt";

class TorchFiles : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  /// Writes an archive in the format of torch.save.
  void write(const std::string& name, const std::string& pickle, const std::map<std::string, std::string>& storages,
             const std::string& order = "little") const {
    caffe2::serialize::PyTorchStreamWriter out(path(name));
    out.writeRecord("data.pkl", pickle.data(), pickle.size());
    out.writeRecord("byteorder", order.data(), order.size());
    for (const auto& [key, bytes] : storages) out.writeRecord("data/" + key, bytes.data(), bytes.size());
    out.writeEndOfFile();
  }
  testing::CommandFolder folder_;
};

TEST_F(TorchFiles, HoldWhatPythonSaved) {
  const TorchFile file(kByPython);
  EXPECT_THAT(file.names(), ElementsAre("bfloat16", "double", "empty", "half", "norm.num_batches_tracked", "parameter",
                                        "scalar", "shared.first", "shared.transposed"));
  EXPECT_EQ(file.read("norm.num_batches_tracked").item<std::int64_t>(), 5);
  const at::Tensor shared = at::arange(24, at::TensorOptions().dtype(at::kFloat));
  EXPECT_TRUE(at::equal(file.read("shared.first"), shared.narrow(0, 0, 12).view({3, 4})));
  EXPECT_TRUE(at::equal(file.read("shared.transposed"), shared.view({6, 4}).t()));
  EXPECT_TRUE(file.read("shared.transposed").is_contiguous());
  const at::Tensor part = file.read_part("shared.transposed", {{1, 2}, {2, 3}});
  EXPECT_TRUE(at::equal(part, shared.view({6, 4}).t().slice(0, 1, 3).slice(1, 2, 5)));
  EXPECT_TRUE(part.is_contiguous());
  EXPECT_TRUE(at::equal(file.read("half"), at::tensor({1.5, -2.0}).to(at::kHalf)));
  EXPECT_TRUE(at::equal(file.read("bfloat16"), at::tensor({3.0, 0.25}).to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(file.read("double"), at::tensor({0.1}, at::kDouble).view({1, 1})));
  EXPECT_TRUE(at::equal(file.read("parameter"), at::tensor({1.0F, 2.0F})));
  EXPECT_EQ(file.read("scalar").item<std::int64_t>(), 7);
  EXPECT_EQ(file.read("scalar").dim(), 0);
  EXPECT_EQ(file.read("empty").sizes(), at::IntArrayRef({0, 3}));
  EXPECT_THAT([&] { (void)file.read("bias"); },
              ThrowsMessage<FormatError>(HasSubstr("unknown tensor \"bias\", known are bfloat16, double")));
}

TEST_F(TorchFiles, AreDistinguishedFromSafetensorsByTheirFirstBytes) {
  write_safetensors(path("a"), {{"a", at::tensor({1.0F})}});
  const TensorFiles both({path("a"), kByPython});
  EXPECT_TRUE(both.holds("a"));
  EXPECT_EQ(both.path_of("half"), kByPython);
  EXPECT_EQ(both.read("scalar").item<std::int64_t>(), 7);
  EXPECT_THAT([&] { (void)TensorFiles({path("none")}); },
              ThrowsMessage<FormatError>(path("none") + ": cannot read: No such file or directory"));
}

TEST_F(TorchFiles, SetCountsWhereTheModelHasThem) {
  model::Model model = intake::build_model("mlp", {{"inputs", "2"}, {"width", "2"}, {"layers", "1"}});
  NamedTensors weights{{"fc1.weight", at::zeros({10, 2})},
                       {"fc1.bias", at::zeros({10})},
                       {"fc1.num_batches_tracked", at::scalar_tensor(5, at::kLong)}};
  write_safetensors(path("w"), weights);
  EXPECT_NO_THROW(checkpoint::check_weight_names(TensorFiles({path("w")}), model)) << "nobody needs the count";
  model::ParameterSpec count{.name = "fc1.num_batches_tracked", .shape = {}, .trainable = false, .dtype = at::kLong};
  model.layers[0].parameters.push_back(count);
  stage::StageProgram program(model, {0, 1}, {}, {}, 1);
  EXPECT_NO_THROW(checkpoint::check_weight_names(TensorFiles({path("w")}), model));
  checkpoint::load_weights(TensorFiles({path("w")}), program);
  EXPECT_EQ(program.buffers().front().value.item<std::int64_t>(), 5);
  for (const at::ScalarType other : {at::kFloat, at::kInt}) {
    weights["fc1.num_batches_tracked"] = at::scalar_tensor(5, other);
    write_safetensors(path("w"), weights);
    EXPECT_THAT([&] { checkpoint::load_weights(TensorFiles({path("w")}), program); },
                ThrowsMessage<FormatError>(path("w") + ": tensor \"fc1.num_batches_tracked\": found " +
                                           c10::toString(other) + " [], expected Long []"));
  }
}

TEST_F(TorchFiles, SetTheFirstParametersByName) {
  const model::Model model = intake::build_model("mlp", {{"inputs", "2"}, {"width", "2"}, {"layers", "1"}});
  ASSERT_EQ(model.layers.size(), 2U);  // one linear layer and the loss
  const std::int64_t classes = model.layers[0].parameters[0].shape[0];
  std::string storage(to_index(3 * classes) * 4, '\0');
  for (std::int64_t i = 0; i < 3 * classes; ++i) {
    const auto value = static_cast<float>(i);
    std::memcpy(storage.data() + 4 * i, &value, 4);
  }
  const int values = to_int(3 * classes);
  const int rows = to_int(classes);
  // Weight and bias share a storage; the weight is transposed.
  const std::string weight = tensor("0", values, 0, {rows, 2}, {1, rows});
  const std::string bias = tensor("0", values, 2 * rows, {rows}, {1});
  write("good", "\x80\x02}(" + short_text("fc1.weight") + weight + short_text("fc1.bias") + bias + "u.",
        {{"0", storage}});
  const TensorFiles good({path("good")});
  EXPECT_NO_THROW(checkpoint::check_weight_names(good, model));
  stage::StageProgram program(model, {0, 1}, {}, {}, 1);
  checkpoint::load_weights(good, program);
  const at::Tensor all = at::arange(values, at::TensorOptions().dtype(at::kFloat));
  EXPECT_TRUE(at::equal(program.parameters()[0].value, all.narrow(0, 0, 2 * classes).view({2, classes}).t()));
  EXPECT_TRUE(at::equal(program.parameters()[1].value, all.narrow(0, 2 * classes, classes)));
  write("short", dict("fc1.weight", weight), {{"0", storage}});
  EXPECT_THAT([&] { checkpoint::check_weight_names(TensorFiles({path("short")}), model); },
              ThrowsMessage<FormatError>(path("short") + ": tensor \"fc1.bias\" is missing"));
  EXPECT_THAT([&] { checkpoint::check_weight_names(TensorFiles({kByPython}), model); },
              ThrowsMessage<FormatError>(HasSubstr("weights.pt: unknown tensor \"bfloat16\", known are fc1.bias")));
}

TEST_F(TorchFiles, OpenWeightsUnderTheModelsNames) {
  const model::Model model = intake::build_model("mlp", {{"inputs", "2"}, {"width", "2"}, {"layers", "1"}});
  const at::Tensor weight = at::arange(20, at::TensorOptions().dtype(at::kFloat)).view({10, 2});
  const auto opens = [&](const std::string& weight_name, const checkpoint::TiedNames& tied = {}) {
    write_safetensors(path("w"), {{weight_name, weight}, {"fc1.bias", at::zeros({10})}});
    const TensorFiles files = checkpoint::open_weights(path("w"), model, tied);
    EXPECT_NO_THROW(checkpoint::check_weight_names(files, model, tied)) << weight_name;
    EXPECT_TRUE(files.holds("fc1.weight") && at::equal(files.read("fc1.weight"), weight)) << weight_name;
  };
  for (const char* name : {"fc1.weight", "module.fc1.weight", "model.fc1.weight", "_orig_mod.fc1.weight",
                           "fc1._orig_mod.weight", "module._orig_mod.model.fc1.weight"})
    opens(name);
  // safetensors' save_model keeps one name of a tied tensor.
  opens("a_head.weight", {{"a_head.weight", "fc1.weight"}});
  opens("model.a_head.weight", {{"a_head.weight", "fc1.weight"}});
  // Names that only look alike stay as they are.
  write_safetensors(path("w"), {{"module.fc9.weight", weight}, {"fc1.bias", at::zeros({10})}});
  EXPECT_THAT([&] { checkpoint::check_weight_names(checkpoint::open_weights(path("w"), model, {}), model); },
              ThrowsMessage<FormatError>(HasSubstr("unknown tensor \"module.fc9.weight\"")));
}

TEST_F(TorchFiles, OpenTheShardsOfAnIndexOrAFolder) {
  const model::Model model = intake::build_model("mlp", {{"inputs", "2"}, {"width", "2"}, {"layers", "1"}});
  std::filesystem::create_directory(path("m"));
  EXPECT_THAT([&] { (void)tensor_file_paths(path("m")); },
              ThrowsMessage<FormatError>(path("m") + ": has no weights, expected one of model.safetensors.index.json, "
                                                     "pytorch_model.bin.index.json, model.safetensors, "
                                                     "pytorch_model.bin in it"));
  write_safetensors(path("m/one"), {{"fc1.weight", at::zeros({10, 2})}});
  write_safetensors(path("m/two"), {{"fc1.bias", at::zeros({10})}});
  folder_.write("m/model.safetensors.index.json", R"({"weight_map":{"fc1.weight":"one","fc1.bias":"two"}})");
  EXPECT_TRUE(is_weights_folder(path("m")));
  EXPECT_FALSE(is_weights_folder(path("m/one")));
  EXPECT_FALSE(is_weights_folder(folder_.path().string()));
  for (const std::string name : {"m", "m/model.safetensors.index.json"}) {
    EXPECT_THAT(tensor_file_paths(path(name)), ElementsAre(path("m/one"), path("m/two")));
    EXPECT_NO_THROW(checkpoint::check_weight_names(checkpoint::open_weights(path(name), model, {}), model));
  }
}

TEST_F(TorchFiles, NameAStorageThatIsNotThereOrOfAnotherLength) {
  const std::string pickle = dict("w", tensor("0", 2, 0, {2}, {1}));
  write("good", pickle, {{"0", std::string(8, '\0')}});
  EXPECT_EQ(TorchFile(path("good")).read("w").sum().item<float>(), 0);
  write("short", pickle, {{"0", std::string(4, '\0')}});
  EXPECT_THAT([&] { (void)TorchFile(path("short")); },
              ThrowsMessage<FormatError>(path("short") +
                                         ": tensor \"w\": found 4 bytes as data/0, expected 2 values of Float"));
  write("absent", pickle, {});
  EXPECT_THAT([&] { (void)TorchFile(path("absent")); },
              ThrowsMessage<FormatError>(HasSubstr("found 0 bytes as data/0")));
  write("big", pickle, {{"0", std::string(8, '\0')}}, "big");
  EXPECT_THAT([&] { (void)TorchFile(path("big")); }, ThrowsMessage<FormatError>(HasSubstr("unknown byte order")));
  folder_.write("zip", "PK\x03\x04 and no more");
  EXPECT_THAT([&] { (void)TorchFile(path("zip")); },
              ThrowsMessage<FormatError>(HasSubstr("is not a complete torch.save archive")));
}

TEST_F(TorchFiles, HaveAFolderThatIsCalledAsTheFileWas) {
  write("net (1)! = #2", dict("w", tensor("0", 2, 0, {2}, {1})), {{"0", std::string(8, '\0')}});
  EXPECT_EQ(TorchFile(path("net (1)! = #2")).read("w").sum().item<float>(), 0);
}

TEST_F(TorchFiles, NameADamagedStorage) {
  const std::string storage = "eight by";
  write("damaged", dict("w", tensor("0", 2, 0, {2}, {1})), {{"0", storage}});
  std::string text = format::read_text(path("damaged"));
  const std::size_t at = text.find(storage);
  ASSERT_NE(at, std::string::npos);
  text[at] = 'E';
  folder_.write("damaged", text);
  const TorchFile file(path("damaged"));
  EXPECT_THAT(
      [&] { (void)file.read("w"); },
      ThrowsMessage<FormatError>(::testing::AllOf(
          HasSubstr(path("damaged") + ": is not a complete torch.save archive: record \"damaged/data/0\": found CRC"),
          HasSubstr("the file is damaged"))));
}

TEST_F(TorchFiles, RefuseAFormatOfAnotherVersion) {
  const auto error = [&](const std::string& version) {
    ZipWriter out(path("other"));
    out.add("r/data.pkl", dict("w", tensor("0", 2, 0, {2}, {1})));
    out.add("r/data/0", std::string(8, '\0'));
    if (!version.empty()) out.add("r/version", version);
    out.finish();
    return [this] { (void)TorchFile(path("other")); };
  };
  EXPECT_NO_THROW(error("3\n")());
  EXPECT_THAT(error("11\n"),
              ThrowsMessage<FormatError>(
                  path("other") + ": is not a complete torch.save archive: found format version 11, expected 1 to 10"));
  EXPECT_THAT(error("x"), ThrowsMessage<FormatError>(HasSubstr("found format version 0")));
  EXPECT_THAT(error(""), ThrowsMessage<FormatError>(HasSubstr("no record \"version\"")));
}

TEST_F(TorchFiles, MutatedGiveErrorsAndNeverAnythingElse) {
  constexpr std::uint64_t kSeed = 5;
  std::mt19937_64 random(kSeed);
  const std::string whole = format::read_text(kByPython);
  int refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string text = whole;
    for (std::uint64_t i = 0; i <= random() % 4; ++i) text[random() % text.size()] = static_cast<char>(random());
    if (random() % 8 == 0) text.resize(random() % text.size());
    folder_.write("mutated", text);
    try {
      const std::unique_ptr<TensorFile> file = open_tensor_file(path("mutated"));
      for (const std::string& name : file->names()) (void)file->read(name);
    } catch (const FormatError&) { ++refused; }
  }
  EXPECT_GT(refused, 300) << "seed " << kSeed;
}

}  // namespace
}  // namespace stagecraft::files

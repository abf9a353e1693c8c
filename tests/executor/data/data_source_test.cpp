#include "executor/data/data_source.h"

#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <thread>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/project/steps.h"
#include "executor/device/dtype.h"
#include "executor/intake/layer_sources.h"
#include "tests/support/known_names.h"

namespace stagecraft::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;
namespace fs = std::filesystem;

constexpr std::array kBoth{0, 1};

TEST(DataFiles, OfAListAreTheFilesByName) {
  EXPECT_THAT(data_files("tensors:b=y.npy,a=x.npy"), ElementsAre("x.npy", "y.npy"));
  EXPECT_THAT(data_files("tensors-in-order:a=x.npy"), ElementsAre("x.npy"));
  EXPECT_THAT([] { (void)data_files("tensors:a=x.npy,b"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("found \"b\", expected NAME=FILE.npy")));
}

TEST(DataFiles, OfImagesAreTheFolderWithoutOptions) {
  if (!why_no_images().empty()) GTEST_SKIP() << why_no_images();
  EXPECT_THAT(data_files("images:photos,augment=yes"), ElementsAre("photos"));
  EXPECT_THAT(data_files("images:a,B=1,c,resize=256,mean=0.5/0.5/0.5"), ElementsAre("a,B=1,c"));
}

TEST(DataFiles, OfDebiansPackageAreTheSamePlacesAsItsFolders) {
  EXPECT_EQ(data_files("fashion-mnist"), data_files("fashion-mnist:/usr/share/datasets/fashion-mnist"));
  EXPECT_THAT(data_files("fashion-mnist-test:d"),
              ElementsAre("d/t10k-images-idx3-ubyte.gz", "d/t10k-labels-idx1-ubyte.gz"));
}

// A project finds the files that a step depends on without the table.
TEST(DataFiles, AreThoseThatAProjectFinds) {
  for (const std::string source :
       {"synthetic", "text:a=b,c.txt", "tensors:t.safetensors", "tensors:a=x.npy,b=y.npy", "tensors-in-order:a=x.npy",
        "images:photos", "images:a,B=1,augment=yes", "tokens:a,b.npy", "tokens:t.parquet,column=text"}) {
    if (source.starts_with("images") && !why_no_images().empty()) continue;
    EXPECT_EQ(data_files(source), project::data_files(source)) << source;
  }
}

/// A directory that is removed after the test.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "stagecraft-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no temporary directory");
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

TEST(DataFiles, OfAFolderAreItsArrays) {
  const Folder folder;
  for (const char* name : {"b.npy", "a.npy", "notes.txt"}) std::ofstream(folder / name) << "x";
  EXPECT_THAT(data_files("tensors:" + folder.path()), ElementsAre(folder / "a.npy", folder / "b.npy"));
}

void write_bytes(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

void write_gzip(const std::string& path, const std::string& bytes) {
  const gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())), to_int(bytes.size()));
  gzclose(file);
}

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string big_endian(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

std::string images(std::uint32_t count, std::uint32_t magic = 0x803, std::uint32_t rows = 28) {
  std::string out = big_endian(magic) + big_endian(count) + big_endian(rows) + big_endian(28);
  for (std::uint32_t i = 0; i < count; ++i) out += std::string(784, static_cast<char>(i));
  return out;
}

std::string labels(std::uint32_t count) {
  std::string out = big_endian(0x801) + big_endian(count);
  for (std::uint32_t i = 0; i < count; ++i) out += static_cast<char>(i % 10);
  return out;
}

/// A small Fashion-MNIST: every pixel of image i is i, its label is i mod 10.
class SmallFashionMnist : public ::testing::Test {
 protected:
  void SetUp() override {
    write_gzip(images_, images(30));
    write_gzip(labels_, labels(30));
  }
  std::unique_ptr<DataSource> open(const std::string& model = "convnet", std::uint64_t seed = 1) const {
    return make_data_source("fashion-mnist:" + folder_.path(), intake::build_model(model, {}), seed);
  }
  void expect_error(const std::string& file, const std::string& text) const {
    EXPECT_THAT([&] { (void)open(); }, ThrowsMessage<FormatError>(AllOf(StartsWith(file + ": "), HasSubstr(text))));
  }
  Folder folder_;
  std::string images_ = folder_ / "train-images-idx3-ubyte.gz";
  std::string labels_ = folder_ / "train-labels-idx1-ubyte.gz";
};

std::vector<std::int64_t> values(const at::Tensor& numbers) {
  const at::Tensor all = numbers.contiguous();
  return {all.const_data_ptr<std::int64_t>(), all.const_data_ptr<std::int64_t>() + all.numel()};
}

/// The image number of each sample.
std::vector<int> image_numbers(const at::Tensor& batch) {
  std::vector<int> out;
  for (std::int64_t i = 0; i < batch.size(0); ++i) {
    const double pixel = (batch[i].flatten()[0].item<double>() * 0.3530 + 0.2860) * 255;
    out.push_back(static_cast<int>(std::lround(pixel)));
  }
  return out;
}

TEST_F(SmallFashionMnist, ShowsEveryImageOncePerEpochWithItsLabel) {
  const auto source = open();
  std::vector<std::vector<int>> epochs;
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<int> order;
    for (int step = 0; step < 3; ++step)
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        const auto batch = source->batch(3 * epoch + step, microbatch, 2, 5, kBoth);
        const std::vector<int> numbers = image_numbers(batch[0]);
        for (std::size_t i = 0; i < numbers.size(); ++i)
          EXPECT_EQ(batch[1][static_cast<std::int64_t>(i)].item<int>(), numbers[i] % 10);
        order.insert(order.end(), numbers.begin(), numbers.end());
      }
    EXPECT_EQ(std::set<int>(order.begin(), order.end()).size(), 30U);
    epochs.push_back(order);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_FALSE(std::ranges::is_sorted(epochs[0]));
}

TEST_F(SmallFashionMnist, OrdersByTheSeed) {
  const auto order = [&](std::uint64_t seed) {
    return image_numbers(open("convnet", seed)->batch(0, 0, 1, 30, kBoth)[0]);
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST_F(SmallFashionMnist, GivesTheShapeThatTheModelAsksFor) {
  const auto image = open()->batch(0, 0, 1, 4, kBoth);
  EXPECT_EQ(image[0].sizes().vec(), (std::vector<std::int64_t>{4, 1, 28, 28}));
  EXPECT_EQ(image[1].sizes().vec(), (std::vector<std::int64_t>{4}));
  const auto flat = open("mlp")->batch(0, 0, 1, 4, kBoth);
  EXPECT_TRUE(flat[0].equal(image[0].flatten(1)));
}

TEST_F(SmallFashionMnist, GivesEverySampleOnceAndInOrderForEvaluation) {
  const auto source =
      make_data_source("fashion-mnist:" + folder_.path(), intake::build_model("mlp", {}), 1, DataOrder::Evaluation);
  ASSERT_EQ(source->samples(), 30);
  // The files' labels are 0, 1, ..., 9, repeated three times; microbatch 1 of step 1 begins at sample (1 * 2 + 1) * 4.
  EXPECT_THAT(values(source->batch(1, 1, 2, 4, std::array{1})[0]), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(values(source->batch(7, 0, 1, 4, std::array{1})[0]), ElementsAre(8, 9, 0, 1));
}

TEST_F(SmallFashionMnist, ReadsTheTestImages) {
  const model::Model model = intake::build_model("mlp", {});
  EXPECT_THAT([&] { (void)make_data_source("fashion-mnist-test:" + folder_.path(), model, 1); },
              ThrowsMessage<FormatError>(HasSubstr("/t10k-images-idx3-ubyte.gz: cannot be opened")));
  fs::rename(images_, folder_ / "t10k-images-idx3-ubyte.gz");
  fs::rename(labels_, folder_ / "t10k-labels-idx1-ubyte.gz");
  EXPECT_EQ(make_data_source("fashion-mnist-test:" + folder_.path(), model, 1)->samples(), 30);
}

TEST_F(SmallFashionMnist, GivesOnlyTheInputsAskedFor) {
  const auto both = open()->batch(0, 0, 1, 4, kBoth);
  const auto target = open()->batch(0, 0, 1, 4, std::array{1});
  ASSERT_EQ(target.size(), 1U);
  EXPECT_TRUE(target[0].equal(both[1]));
}

TEST_F(SmallFashionMnist, NamesWhatTheModelWantsAndWhatTheDataGive) {
  EXPECT_THAT([&] { (void)open("resnet18"); },
              ThrowsMessage<std::invalid_argument>(
                  "data source fashion-mnist gives image float32[1, 28, 28] or float32[784], target int64[]; model "
                  "resnet18 needs image float32[3, 224, 224], target int64[]"));
  EXPECT_THAT([&] { (void)make_data_source("fashion-mnist", intake::build_model("mlp", {{"classes", "9"}}), 1); },
              ThrowsMessage<std::invalid_argument>(
                  "data source fashion-mnist has 10 classes, model mlp has 9: set classes=10"));
}

TEST_F(SmallFashionMnist, SaysWhereToGetAMissingDirectory) {
  EXPECT_THAT(
      [] { (void)make_data_source("fashion-mnist:/nowhere", intake::build_model("mlp", {}), 1); },
      ThrowsMessage<FormatError>("/nowhere: no such directory; install Debian's package dataset-fashion-mnist or "
                                 "give a directory as fashion-mnist:DIR"));
  fs::remove(labels_);
  expect_error(labels_, "cannot be opened: No such file or directory");
}

TEST_F(SmallFashionMnist, RefusesATruncatedArchive) {
  // Stored without compression, so that the cut is within the pixels.
  const gzFile file = gzopen(images_.c_str(), "wb0");
  const std::string bytes = images(30);
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  const std::string packed = read_bytes(images_);
  write_bytes(images_, packed.substr(0, packed.size() / 2));
  expect_error(images_, " of its values");
}

TEST_F(SmallFashionMnist, RefusesADamagedArchive) {
  std::string packed = read_bytes(images_);
  packed[packed.size() - 6] = static_cast<char>(packed[packed.size() - 6] ^ 1);  // in the checksum
  write_bytes(images_, packed);
  expect_error(images_, "incorrect data check");
}

TEST_F(SmallFashionMnist, RefusesAnotherMagicNumber) {
  write_gzip(images_, images(30, 0x801));
  expect_error(images_, "magic number 0x801, must be 0x803");
}

TEST_F(SmallFashionMnist, RefusesAnotherImageSize) {
  write_gzip(images_, images(30, 0x803, 32));
  expect_error(images_, "items have 32 rows or columns, must have 28");
}

TEST_F(SmallFashionMnist, RefusesACountThatTheFileCannotHold) {
  write_gzip(images_, big_endian(0x803) + big_endian(0xffffffff) + big_endian(28) + big_endian(28));
  expect_error(images_, "its header counts 4294967295 items");
  write_gzip(images_, big_endian(0x803) + big_endian(0) + big_endian(28) + big_endian(28));
  expect_error(images_, "its header counts 0 items");
}

TEST_F(SmallFashionMnist, RefusesFewerOrMoreValuesThanCounted) {
  const std::string bytes = images(30);
  write_gzip(images_, bytes.substr(0, bytes.size() - 1));
  expect_error(images_, "ends after 23519 bytes of its values, must have 23520");
  write_gzip(images_, bytes + "x");
  expect_error(images_, "has more values than its header says");
  write_gzip(images_, "abc");
  expect_error(images_, "ends after 3 bytes of its header, must have 4");
}

TEST_F(SmallFashionMnist, RefusesCountsThatDoNotMatch) {
  write_gzip(labels_, labels(29));
  expect_error(labels_, "29 labels, but \"" + images_ + "\" has 30 images");
}

TEST_F(SmallFashionMnist, RefusesALabelOutOfRange) {
  std::string bytes = labels(30);
  bytes[8 + 4] = 10;
  write_gzip(labels_, bytes);
  expect_error(labels_, "label 4 is 10, must be 0 to 9");
}

TEST(FashionMnist, IsNormalisedOverTheTrainingSet) {
  if (!fs::is_directory("/usr/share/datasets/fashion-mnist")) GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  const auto source = make_data_source("fashion-mnist", intake::build_model("mlp", {}), 1);
  const auto batch = source->batch(0, 0, 1, 60000, kBoth);
  EXPECT_NEAR(batch[0].mean().item<double>(), 0, 1e-3);
  EXPECT_NEAR(batch[0].std().item<double>(), 1, 1e-3);
  // The training set has 6000 images of each class, and an epoch has every image once.
  EXPECT_TRUE(batch[1].bincount().eq(6000).all().item<bool>());
}

class SmallText : public ::testing::Test {
 protected:
  std::unique_ptr<DataSource> open(const std::string& text, const std::map<std::string, std::string>& set,
                                   const std::string& model = "gpt") const {
    write_bytes(file_, text);
    return make_data_source("text:" + file_, intake::build_model(model, set), 1);
  }
  Folder folder_;
  std::string file_ = folder_ / "text";
};

TEST_F(SmallText, GivesBytesAndTheBytesAfterThem) {
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);
  const auto source = open(text, {{"sequence", "16"}, {"vocabulary", "256"}});
  std::set<std::int64_t> starts;
  for (int step = 0; step < 100; ++step) {
    const auto batch = source->batch(step, 0, 1, 20, kBoth);
    EXPECT_TRUE(batch[1].equal(batch[0].add(1)));
    for (std::int64_t i = 0; i < 20; ++i) starts.insert(batch[0][i][0].item<std::int64_t>());
  }
  // There are 240 windows; 2000 draws miss each with probability (1 - 1/240)^2000 = 2.4e-4.
  EXPECT_GE(starts.size(), 235U);
  EXPECT_EQ(*starts.rbegin(), 239);
}

TEST_F(SmallText, GivesConsecutiveWindowsForEvaluation) {
  write_bytes(file_, "abcdefghijk");
  const auto source =
      make_data_source("text:" + file_, intake::build_model("gpt", {{"sequence", "3"}, {"vocabulary", "256"}}), 1,
                       DataOrder::Evaluation);
  // Windows begin at a, d and g; the one at j would need three bytes after it.
  EXPECT_EQ(source->samples(), 3);
  const auto batch = source->batch(0, 0, 1, 4, kBoth);
  EXPECT_THAT(values(batch[0].select(1, 0)), ElementsAre('a', 'd', 'g', 'a'));
  EXPECT_THAT(values(batch[1].select(1, 2)), ElementsAre('d', 'g', 'j', 'd'));
}

TEST_F(SmallText, TakesAFileOfOneWindow) {
  const auto batch = open("hello", {{"sequence", "4"}})->batch(0, 0, 1, 1, kBoth);
  EXPECT_EQ(batch[0][0][0].item<int>(), 'h');
  EXPECT_EQ(batch[1][0][3].item<int>(), 'o');
}

TEST_F(SmallText, RefusesAFileShorterThanAWindow) {
  EXPECT_THAT(
      [&] { (void)open("hell", {{"sequence", "4"}}); },
      ThrowsMessage<FormatError>(file_ + ": 4 bytes, must be at least 5, one more than sequence=4 of model gpt"));
}

TEST_F(SmallText, RefusesASmallVocabularyAndNamesTheOption) {
  EXPECT_THAT(
      [&] { (void)open("hello", {{"sequence", "4"}, {"vocabulary", "255"}}); },
      ThrowsMessage<std::invalid_argument>("data source text gives 256 tokens, model gpt has 255: set vocabulary=256"));
}

TEST_F(SmallText, NamesWhatTheModelWantsAndWhatTheDataGive) {
  EXPECT_THAT([&] { (void)open("hello", {}, "mlp"); },
              ThrowsMessage<std::invalid_argument>(
                  "data source text gives tokens int64[sequence] and, if the model has "
                  "such an input, target int64[sequence]; model mlp needs image float32[784], target int64[]"));
}

TEST(MakeDataSource, ListsTheKnown) {
  const model::Model model = intake::build_model("mlp", {});
  EXPECT_THAT([&] { (void)make_data_source("imagenet", model, 1); },
              ThrowsMessage<std::invalid_argument>("unknown data source \"imagenet\", known are " +
                                                   known_names(data_sources())));
  EXPECT_THAT([&] { (void)make_data_source("text", model, 1); },
              ThrowsMessage<std::invalid_argument>("data source \"text\" needs a file, as in text:FILE"));
  EXPECT_THAT([&] { (void)make_data_source("synthetic:x", model, 1); },
              ThrowsMessage<std::invalid_argument>("data source \"synthetic:x\": synthetic takes no argument"));
}

TEST(MakeDataSource, SaysHowAFileIsNamed) {
  const fs::path file = fs::path(::testing::TempDir()) / "data_source_test.npy";
  std::ofstream(file) << "x";
  const std::string name = file.string();
  EXPECT_THAT([&] { (void)make_data_source(name, intake::build_model("mlp", {}), 1); },
              ThrowsMessage<std::invalid_argument>(StartsWith("a file needs its kind first, as in tensors:" + name +
                                                              "; unknown data source \"" + name + "\", ")));
  fs::remove(file);
}

TEST(MakeDataSource, SaysThatATextIsMissing) {
  EXPECT_THAT([] { (void)make_data_source("text:/nowhere", intake::build_model("gpt", {}), 1); },
              ThrowsMessage<FormatError>(HasSubstr("/nowhere")));
}

/// Expects step 3 of 12 samples to be the same as one, two and four microbatches.
void expect_one_step_however_cut(const DataSource& source) {
  const auto whole = source.batch(3, 0, 1, 12, kBoth);
  for (const int cuts : {2, 4})
    for (std::size_t input = 0; input < 2; ++input) {
      std::vector<at::Tensor> parts;
      for (int i = 0; i < cuts; ++i) parts.push_back(source.batch(3, i, cuts, 12 / cuts, kBoth)[input]);
      EXPECT_TRUE(whole[input].equal(at::cat(parts))) << "input " << input << " in " << cuts << " microbatches";
    }
}

TEST_F(SmallFashionMnist, GivesAStepTheSameSamplesHoweverCut) { expect_one_step_however_cut(*open()); }

TEST_F(SmallText, GivesAStepTheSameSamplesHoweverCut) {
  expect_one_step_however_cut(*open("a text with some windows", {{"sequence", "4"}}));
}

TEST(Synthetic, GivesAStepTheSameSamplesHoweverCut) {
  expect_one_step_however_cut(*make_data_source("synthetic", intake::build_model("mlp", {}), 1));
}

TEST(Synthetic, FollowsShapeTypeAndClasses) {
  const model::Model model = intake::build_model("transformer", {{"vocabulary", "5"}, {"sequence", "1000"}});
  const auto batch = make_data_source("synthetic", model, 1)->batch(0, 0, 1, 2, kBoth);
  EXPECT_EQ(batch[0].sizes().vec(), (std::vector<std::int64_t>{2, 1000}));
  EXPECT_TRUE(batch[0].flatten().bincount().size(0) == 5);
  EXPECT_FALSE(batch[0].equal(batch[1]));
}

TEST(Synthetic, GivesEveryType) {
  model::Model model;
  for (const char* dtype : {"float32", "float64", "float16", "bfloat16"})
    model.inputs.push_back({.name = dtype, .dtype = dtype, .shape = {50}});
  for (const char* dtype : {"int64", "int32", "int16", "uint8"})
    model.inputs.push_back({.name = dtype, .dtype = dtype, .shape = {50}, .classes = 7, .least = 5});
  model.inputs.push_back({.name = "bool", .dtype = "bool", .shape = {50}});
  std::vector<int> all(model.inputs.size());
  std::iota(all.begin(), all.end(), 0);
  const auto batch = make_data_source("synthetic", model, 1)->batch(0, 0, 1, 40, all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(device::dtype_name(batch[i].scalar_type()), model.inputs[i].dtype);
    const at::Tensor values = batch[i].to(at::kDouble);
    if (batch[i].is_floating_point()) {
      // The mean of 2000 values with standard deviation 1 has standard deviation 1 / sqrt(2000).
      EXPECT_NEAR(values.mean().item<double>(), 0, 5 / std::sqrt(2000.0)) << model.inputs[i].dtype;
      EXPECT_NEAR(values.pow(2).mean().item<double>(), 1, 0.2) << model.inputs[i].dtype;
    } else {
      const bool truth = model.inputs[i].dtype == "bool";
      EXPECT_EQ(values.min().item<double>(), truth ? 0 : 5);
      EXPECT_EQ(values.max().item<double>(), truth ? 1 : 6);
    }
  }
}

TEST(Synthetic, RefusesUnboundedIntegers) {
  model::Model model;
  model.name = "gpt2.pt2";
  model.inputs = {{.name = "tokens", .dtype = "int64", .shape = {4}}};
  EXPECT_THAT([&] { (void)make_data_source("synthetic", model, 1); },
              ThrowsMessage<std::invalid_argument>(
                  "data source synthetic: integer input \"tokens\" of model gpt2.pt2 has no range; set one, such as "
                  "--input-range tokens=0..50257 (setting range.tokens)"));
  model.inputs[0] = {.name = "tokens", .dtype = "uint8", .shape = {4}, .classes = 257};
  EXPECT_THAT([&] { (void)make_data_source("synthetic", model, 1); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("has the range 0..257, expected one that begins below its end and fits uint8")));
  model.inputs[0].classes = 256;
  EXPECT_NO_THROW((void)make_data_source("synthetic", model, 1));
  model.inputs[0].least = 256;
  EXPECT_THROW((void)make_data_source("synthetic", model, 1), std::invalid_argument);
}

TEST(Synthetic, IsAFunctionOfStepAndMicrobatchFromAnyThread) {
  const auto source = make_data_source("synthetic", intake::build_model("mlp", {}), 1);
  std::vector<at::Tensor> alone, together(16);
  for (int i = 0; i < 16; ++i) alone.push_back(source->batch(i / 4, i % 4, 4, 3, kBoth)[0]);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 16; ++i)
      threads.emplace_back([&, i] { together[to_index(i)] = source->batch(i / 4, i % 4, 4, 3, kBoth)[0]; });
  }
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_TRUE(alone[i].equal(together[i]));
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(alone[i].equal(alone[j]));
  }
}

}  // namespace
}  // namespace stagecraft::data

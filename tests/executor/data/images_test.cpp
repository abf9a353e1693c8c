#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "executor/data/data_source.h"
#include "executor/files/npy.h"
#include "tests/support/files/png_bytes.h"
#include "tests/support/places.h"
#include "tests/support/run_command.h"

namespace stagecraft::data {
namespace {

using stagecraft::testing::png_bytes;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;
namespace fs = std::filesystem;

constexpr std::array kBoth{0, 1};

/// A model that reads images of this shape.
model::Model reader(std::vector<std::int64_t> shape, std::int64_t classes = 10) {
  model::Model out;
  out.name = "reader";
  out.inputs = {{"image", "float32", std::move(shape)}, {"target", "int64", {}, classes}};
  return out;
}

class ImagesTest : public ::testing::Test {
 protected:
  /// Writes an RGB image of `width` x `height` whose pixels `colour` gives.
  template <typename Colour>
  void write(const std::string& name, int width, int height, Colour colour) const {
    std::string values;
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x)
        for (const int value : colour(x, y)) values += static_cast<char>(value);
    write_text(name, png_bytes(width, height, 2, values));
  }
  void write_text(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_.path() / name).parent_path());
    folder_.write(name, text);
  }
  void write_plain(const std::string& name, int value = 0) const {
    write(name, 8, 8, [&](int, int) { return std::array{value, value, value}; });
  }
  [[nodiscard]] std::unique_ptr<DataSource> open(const model::Model& model, const std::string& options = "",
                                                 DataOrder order = DataOrder::Evaluation,
                                                 std::uint64_t seed = 1) const {
    return make_data_source("images:" + folder_.path().string() + options, model, seed, order);
  }
  void expect_refused(const std::string& options, const std::string& text) const {
    EXPECT_THAT([&] { (void)open(reader({3, 4, 4}), options); }, ThrowsMessage<std::invalid_argument>(HasSubstr(text)));
  }
  testing::CommandFolder folder_;
};

// expected.npy is what torchvision 0.26 with Pillow 13 makes of the same files (make.py beside it). The resampling is
// the same to the bit, and so is PNG; decoders of JPEG may differ by one step of 255 per value, which the smallest
// standard deviation, 0.224, enlarges to 0.0175.
TEST(ImagesByTorchvision, AreTheSame) {
  const std::string folder = source_folder() + "/tests/golden/images";
  const std::string text = format::read_text(folder + "/expected.npy");
  const files::NpyHeader header =
      files::parse_npy_header(text, static_cast<std::int64_t>(text.size()), folder + "/expected.npy");
  const std::int64_t count = 14;
  ASSERT_EQ(header.shape, (std::vector<std::int64_t>{count, 3, 20, 14}));
  ASSERT_EQ(header.dtype, at::kFloat);
  const std::string values = text.substr(static_cast<std::size_t>(header.begin));
  const at::Tensor expected = at::from_blob(const_cast<char*>(values.data()), header.shape, at::kFloat);

  const auto source =
      make_data_source("images:" + folder + "/classes,resize=23", reader({3, 20, 14}, 2), 1, DataOrder::Evaluation);
  ASSERT_EQ(source->samples(), count);
  const auto batch = source->batch(0, 0, 1, count, kBoth);
  std::istringstream lines(format::read_text(folder + "/samples.txt"));
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t label = 0;
    std::string path;
    lines >> label >> path;
    EXPECT_EQ(batch[1][i].item<std::int64_t>(), label) << path;
    const double difference = batch[0][i].sub(expected[i]).abs().max().item<double>();
    EXPECT_LE(difference, path.ends_with(".png") ? 1e-6 : 0.0176) << path;
  }
}

// 3 x 1 pixels, the shorter side already as wanted, cut to the middle one: (value / 255 - mean) / std.
TEST_F(ImagesTest, AreCutAndNormalised) {
  write("a/x.png", 3, 1, [](int x, int) { return std::array{51 * x, 102 * x, 255 * (x == 1)}; });
  const auto batch = open(reader({3, 1, 1}), ",resize=1,mean=0.1/0.2/0.5,std=0.5/0.25/2")->batch(0, 0, 1, 1, kBoth);
  EXPECT_FLOAT_EQ(batch[0].flatten()[0].item<float>(), 0.2F);   // (51 / 255 - 0.1) / 0.5
  EXPECT_FLOAT_EQ(batch[0].flatten()[1].item<float>(), 0.8F);   // (102 / 255 - 0.2) / 0.25
  EXPECT_FLOAT_EQ(batch[0].flatten()[2].item<float>(), 0.25F);  // (255 / 255 - 0.5) / 2
}

// Pillow's grey of red 200, green 100, blue 50: 0.299 * 200 + 0.587 * 100 + 0.114 * 50 = 124.2.
TEST_F(ImagesTest, AreGreyForAModelWithOneChannel) {
  write("a/x.png", 2, 2, [](int, int) { return std::array{200, 100, 50}; });
  const auto batch = open(reader({1, 2, 2}), ",mean=0,std=1")->batch(0, 0, 1, 1, kBoth);
  EXPECT_FLOAT_EQ(batch[0].flatten()[3].item<float>(), 124.0F / 255);
}

TEST_F(ImagesTest, HaveTheSortedFoldersAsClasses) {
  for (const std::string name : {"b/1.png", "b/0.PNG", "B/9.png", "a/z/0.png", "a/zz.png"}) write_plain(name);
  write_text("a/Thumbs.db", "x");
  write_text("readme.txt", "x");
  const auto source = open(reader({3, 4, 4}, 3));
  EXPECT_EQ(source->samples(), 5);
  const at::Tensor labels = source->batch(0, 0, 1, 5, kBoth)[1];
  std::vector<std::int64_t> seen;
  for (std::int64_t i = 0; i < 5; ++i) seen.push_back(labels[i].item<std::int64_t>());
  EXPECT_THAT(seen, ElementsAre(0, 1, 1, 2, 2));  // B, a, b
}

TEST_F(ImagesTest, AreAugmentedBySeedAndNumber) {
  write("a/x.png", 64, 64, [](int x, int y) { return std::array{4 * x, 4 * y, 0}; });
  const model::Model model = reader({3, 16, 16});
  const auto source = open(model, ",augment=yes", DataOrder::Training);
  const at::Tensor whole = source->batch(2, 0, 1, 6, kBoth)[0];
  for (int m = 0; m < 3; ++m) EXPECT_TRUE(at::equal(whole.narrow(0, 2 * m, 2), source->batch(2, m, 3, 2, kBoth)[0]));
  EXPECT_FALSE(at::equal(whole[0], whole[1]));  // the same image in two epochs
  EXPECT_FALSE(at::equal(whole, open(model, ",augment=yes", DataOrder::Training, 2)->batch(2, 0, 1, 6, kBoth)[0]));
  EXPECT_TRUE(
      at::equal(open(model)->batch(0, 0, 1, 1, kBoth)[0], open(model, ",augment=yes")->batch(0, 0, 1, 1, kBoth)[0]))
      << "evaluation is not augmented";
}

// Red and green grow by 2 per pixel across and down: the values in the middle of a crop, a quarter of it to each side,
// tell its width and height. RandomResizedCrop takes 8 % to 100 % of the area in a ratio of 3/4 to 4/3. Half of the
// images are mirrored: of 400, 200 with a standard deviation of 10. Rounding to
// pixels and values changes the ratio of small crops by less than a fifth.
TEST_F(ImagesTest, AreCroppedAndMirroredAsByTorchvision) {
  constexpr int kSide = 120;
  write("a/x.png", kSide, kSide, [](int x, int y) { return std::array{2 * x, 2 * y, 0}; });
  const std::int64_t count = 400;
  const at::Tensor views = open(reader({3, 16, 16}), ",augment=yes,mean=0/0/0,std=1/1/1", DataOrder::Training)
                               ->batch(0, 0, 1, count, kBoth)[0];
  int mirrored = 0;
  double least_area = 1;
  double most_area = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = [&](int channel, int y, int x) { return views[i][channel][y][x].item<double>() * 255; };
    const double across = value(0, 8, 12) - value(0, 8, 4);  // half of the crop
    const double down = value(1, 12, 8) - value(1, 4, 8);
    mirrored += across < 0 ? 1 : 0;
    EXPECT_GT(down, 0);
    EXPECT_GT(std::abs(across) / down, 3.0 / 4 / 1.2) << i;
    EXPECT_LT(std::abs(across) / down, 4.0 / 3 * 1.2) << i;
    const double area = std::abs(across) * down / kSide / kSide;
    least_area = std::min(least_area, area);
    most_area = std::max(most_area, area);
  }
  EXPECT_NEAR(mirrored, 200, 50);
  EXPECT_NEAR(least_area, 0.08, 0.03);
  EXPECT_NEAR(most_area, 1, 0.1);
}

TEST_F(ImagesTest, NameAFolderThatDoesNotFit) {
  const std::string root = folder_.path().string();
  const auto expect = [&](const std::string& text) {
    EXPECT_THAT([&] { (void)open(reader({3, 4, 4}, 2)); }, ThrowsMessage<FormatError>(root + text));
  };
  expect(": has no folders, must have one for each class, with the images of the class");
  write_text("cat/notes.txt", "x");
  expect("/cat: a class without images: has 1 files that do not end in .jpg, .jpeg or .png");
  write_text("cat/x.webp", "x");
  expect("/cat/x.webp: images must be JPEG or PNG files; convert it or move it away");
  fs::remove(folder_.path() / "cat/x.webp");
  for (const std::string name : {"cat/1.png", "dog/1.png", "emu/1.png"}) write_plain(name);
  EXPECT_THAT([&] { (void)open(reader({3, 4, 4}, 2)); },
              ThrowsMessage<std::invalid_argument>(root + ": has 3 classes, model reader has 2: set classes=3"));
}

TEST_F(ImagesTest, NameABrokenFileWhenItIsRead) {
  write_text("a/x.jpg", "<html>");
  const auto source = open(reader({3, 4, 4}));
  EXPECT_THAT([&] { (void)source->batch(0, 0, 1, 1, kBoth); },
              ThrowsMessage<FormatError>((folder_.path() / "a/x.jpg").string() +
                                         ": begins with 3c 68 74 6d, must be a JPEG or PNG image"));
}

TEST_F(ImagesTest, RefuseOptionsThatDoNotFit) {
  write_plain("a/x.png");
  expect_refused(",size=4", "unknown option \"size\", known are resize, augment, mean, std");
  expect_refused(",resize=3", "option resize: \"3\", must be 4, the image's longer side in the model, to 16384 pixels");
  expect_refused(",resize=4x", "option resize: \"4x\"");
  expect_refused(",augment=maybe", "option augment: \"maybe\", must be yes or no");
  expect_refused(",mean=0.5", "option mean: \"0.5\", must be 3 numbers separated by slashes");
  expect_refused(",std=1/0/1", "option std: \"1/0/1\", must be 3 positive numbers separated by slashes");
  expect_refused(",resize=4,yes", "\"yes\" after the folder, must be OPTION=VALUE");
  EXPECT_THAT([&] { (void)open(reader({784})); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("model reader needs image float32[784], target int64[]")));
}

TEST_F(ImagesTest, MayLieInAFolderWithAComma) {
  write_plain("a,b/c/x.png", 255);
  const auto source = make_data_source("images:" + (folder_.path() / "a,b").string() + ",mean=0/0/0,std=1/1/1",
                                       reader({3, 4, 4}), 1, DataOrder::Evaluation);
  EXPECT_EQ(source->batch(0, 0, 1, 1, kBoth)[0].min().item<float>(), 1);
}

}  // namespace
}  // namespace stagecraft::data

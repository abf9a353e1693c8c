#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/data/data_source.h"
#include "executor/device/dtype.h"
#include "executor/files/safetensors.h"
#include "executor/intake/layer_sources.h"
#include "tests/support/files/png_bytes.h"
#include "tests/support/run_command.h"
#include "tests/support/table_names.h"

// The conformance suite of data sources: every case runs on every entry of the table.

namespace stagecraft::data {
namespace {

using ::testing::HasSubstr;
using ::testing::Throws;

/// What the suite needs to test an entry.
struct Trial {
  std::string model;
  std::map<std::string, std::string> settings;
  std::string argument;  ///< a file or folder of small data; empty if not needed
  std::int64_t samples;  ///< per epoch; 0 if there is no end
};

/// Big-endian, as in Fashion-MNIST's files.
std::string number(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

class DataSourceSuite : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "images" && !why_no_images().empty()) GTEST_SKIP() << why_no_images();
    const auto trials = make_trials();
    const auto it = trials.find(GetParam());
    ASSERT_NE(it, trials.end()) << "the suite has no small data for data source " << GetParam();
    trial_ = it->second;
    model_ = intake::build_model(trial_.model, trial_.settings);
    for (std::size_t i = 0; i < model_.inputs.size(); ++i) all_.push_back(to_int(i));
  }

  [[nodiscard]] std::unique_ptr<DataSource> open(std::uint64_t seed = 1, DataOrder order = DataOrder::Training) const {
    return make_data_source(GetParam() + (trial_.argument.empty() ? "" : ":" + trial_.argument), model_, seed, order);
  }

  testing::CommandFolder folder_;
  Trial trial_;
  model::Model model_;
  std::vector<int> all_;

 private:
  /// By the source's name.
  std::map<std::string, Trial> make_trials() {
    constexpr std::uint32_t kImages = 12;
    for (const std::string part : {"train", "t10k"}) {
      std::string images = number(0x803) + number(kImages) + number(28) + number(28);
      std::string labels = number(0x801) + number(kImages);
      for (std::uint32_t i = 0; i < kImages; ++i) {
        images += std::string(784, static_cast<char>(i));
        labels += static_cast<char>(i % 10);
      }
      folder_.write(part + "-images-idx3-ubyte", images);
      folder_.write(part + "-labels-idx1-ubyte", labels);
    }
    EXPECT_EQ(folder_.run("gzip *-ubyte").status, 0);
    std::string bytes;
    for (int i = 0; i < 40; ++i) bytes += static_cast<char>('A' + i);
    folder_.write("text", bytes);
    const std::int64_t count = 10;
    at::Tensor images = at::empty({count, 784}, at::kFloat);
    at::Tensor targets = at::empty({count}, at::kLong);
    for (std::int64_t i = 0; i < count; ++i) {
      images[i].fill_(static_cast<double>(i));
      targets[i].fill_(i);
    }
    (void)files::write_safetensors((folder_.path() / "samples.safetensors").string(),
                                   {{"image", images}, {"target", targets}});
    for (int i = 0; i < count; ++i) {
      const std::string folder = "classes/" + std::to_string(i % 3);
      std::filesystem::create_directories(folder_.path() / folder);
      folder_.write(folder + "/" + std::to_string(i) + ".png",
                    testing::png_bytes(28, 28, 0, std::string(784, static_cast<char>(10 * i))));
    }
    const std::string samples = (folder_.path() / "samples.safetensors").string();
    std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 10)}";
    header += std::string(128 - 10 - 1 - header.size(), ' ') + "\n";
    folder_.write("tokens.npy",
                  std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size()) + '\0' + header + bytes);
    return {
        {"synthetic", {"mlp", {}, "", 0}},
        {"fashion-mnist", {"mlp", {}, folder_.path().string(), kImages}},
        {"fashion-mnist-test", {"mlp", {}, folder_.path().string(), kImages}},
        {"tensors", {"mlp", {}, samples, count}},
        {"tensors-in-order", {"mlp", {}, samples, count}},
        {"images", {"convnet", {}, (folder_.path() / "classes").string(), count}},
        {"tokens",
         {"transformer", {{"sequence", "4"}, {"vocabulary", "256"}}, (folder_.path() / "tokens.npy").string(), 0}},
        {"text", {"transformer", {{"sequence", "4"}, {"vocabulary", "256"}}, (folder_.path() / "text").string(), 0}},
    };
  }
};

INSTANTIATE_TEST_SUITE_P(Every, DataSourceSuite, ::testing::ValuesIn(testing::names_of(data_sources())),
                         testing::AfterEntry());

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& x, const at::Tensor& y) { return x.equal(y); });
}

TEST_P(DataSourceSuite, GivesWhatTheModelAsksFor) {
  constexpr std::int64_t kSamples = 3;
  const auto batch = open()->batch(0, 0, 1, kSamples, all_);
  ASSERT_EQ(batch.size(), model_.inputs.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const model::ModelInput& input = model_.inputs[i];
    std::vector<std::int64_t> shape = input.shape;
    shape.insert(shape.begin() + *input.batch_axis, kSamples);
    EXPECT_EQ(batch[i].sizes(), at::IntArrayRef(shape)) << input.name;
    EXPECT_EQ(batch[i].scalar_type(), device::dtype_of(input.dtype)) << input.name;
    EXPECT_TRUE(batch[i].is_contiguous()) << input.name;
    if (input.classes == 0) continue;
    EXPECT_GE(batch[i].min().item<std::int64_t>(), input.least) << input.name;
    EXPECT_LT(batch[i].max().item<std::int64_t>(), input.classes) << input.name;
  }
}

TEST_P(DataSourceSuite, GivesOnlyTheInputsThatAreAskedFor) {
  const auto source = open();
  const auto both = source->batch(1, 0, 1, 2, all_);
  const auto last = source->batch(1, 0, 1, 2, std::array{all_.back()});
  ASSERT_EQ(last.size(), 1U);
  EXPECT_TRUE(last[0].equal(both.back()));
}

TEST_P(DataSourceSuite, GivesEqualSamplesForEqualCalls) {
  const auto source = open();
  const auto again = open();
  for (const std::int64_t step : {0, 1, 7, 1000}) {
    const auto first = source->batch(step, 1, 2, 3, all_);
    EXPECT_TRUE(equal(first, source->batch(step, 1, 2, 3, all_))) << step;
    EXPECT_TRUE(equal(first, again->batch(step, 1, 2, 3, all_))) << step;
  }
}

TEST_P(DataSourceSuite, GivesEqualSamplesToSeveralThreads) {
  const auto source = open();
  constexpr int kThreads = 4;
  std::vector<std::vector<at::Tensor>> seen(kThreads);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] { seen[to_index(t)] = source->batch(5, 0, 1, 4, all_); });
  }
  for (const auto& samples : seen) EXPECT_TRUE(equal(samples, seen.front()));
}

TEST_P(DataSourceSuite, GivesAStepTheSameSamplesHoweverItIsCut) {
  const auto source = open();
  const auto whole = source->batch(3, 0, 1, 6, all_);
  for (int m = 0; m < 3; ++m) {
    const auto part = source->batch(3, m, 3, 2, all_);
    for (std::size_t i = 0; i < part.size(); ++i)
      EXPECT_TRUE(part[i].equal(whole[i].narrow(*model_.inputs[i].batch_axis, 2 * m, 2))) << i << " of " << m;
  }
}

TEST_P(DataSourceSuite, CoversEachSampleOnceInAnEpoch) {
  const auto source = open(1, DataOrder::Evaluation);
  if (trial_.samples == 0) { GTEST_SKIP() << "its samples never end, or begin anywhere"; }
  ASSERT_EQ(source->samples(), trial_.samples);
  // The first input of each sample of the small data contains the sample's number.
  for (const DataOrder order : {DataOrder::Training, DataOrder::Evaluation}) {
    const auto ordered = open(1, order);
    for (const std::int64_t epoch : {0, 1}) {
      std::set<double> seen;
      for (std::int64_t i = 0; i < trial_.samples; ++i) {
        const at::Tensor one = ordered->batch(epoch * trial_.samples + i, 0, 1, 1, std::array{0}).front();
        seen.insert(one.flatten()[0].item<double>());
      }
      EXPECT_EQ(static_cast<std::int64_t>(seen.size()), trial_.samples) << "epoch " << epoch;
    }
  }
}

TEST_P(DataSourceSuite, NamesAFileThatIsNotThere) {
  if (trial_.argument.empty()) GTEST_SKIP() << "it reads no file";
  const std::string missing = (folder_.path() / "not-there").string();
  EXPECT_THAT([&] { (void)make_data_source(GetParam() + ":" + missing, model_, 1); },
              Throws<FormatError>(::testing::Property(&FormatError::what, HasSubstr("not-there"))));
}

TEST_P(DataSourceSuite, NeedsEachOfTheFilesThatItNames) {
  const std::string name = GetParam() + (trial_.argument.empty() ? "" : ":" + trial_.argument);
  const std::vector<std::string> files = data_files(name);
  EXPECT_EQ(files.empty(), trial_.argument.empty());
  for (const std::string& file : files) {
    std::filesystem::rename(file, file + ".away");
    EXPECT_THAT([&] { (void)make_data_source(name, model_, 1); }, Throws<FormatError>()) << file;
    EXPECT_EQ(data_files(name), files) << "they need not exist";
    std::filesystem::rename(file + ".away", file);
  }
  (void)open();
}

TEST_P(DataSourceSuite, SaysWhetherItTakesAnArgument) {
  const auto kind = std::ranges::find(data_sources(), GetParam(), &DataSourceKind::name);
  if (kind->argument.empty()) {
    EXPECT_THAT([&] { (void)make_data_source(GetParam() + ":more", model_, 1); }, Throws<std::invalid_argument>());
  } else if (!kind->needed.empty()) {
    EXPECT_THAT([&] { (void)make_data_source(GetParam(), model_, 1); },
                Throws<std::invalid_argument>(::testing::Property(
                    &std::invalid_argument::what, HasSubstr("as in " + GetParam() + ":" + kind->argument))));
  }
}

}  // namespace
}  // namespace stagecraft::data

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <set>

#include "costmodel/errors.h"
#include "executor/data/data_source.h"
#include "executor/files/safetensors.h"
#include "tests/support/run_command.h"

namespace stagecraft::data {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::array kBoth{0, 1};

/// An input x [2, samples] of float32, and an input y of one token below 10 per sample.
model::Model columns_and_tokens() {
  model::Model model;
  model.name = "m";
  model.inputs = {{.name = "x", .dtype = "float32", .shape = {2}}, {.name = "y", .dtype = "int64", .shape = {}}};
  model.inputs[0].batch_axis = 1;
  model.inputs[1].classes = 10;
  return model;
}

class TensorsSource : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  /// Seven samples: sample i is the column [i, 10 + i] and the token i.
  [[nodiscard]] static files::NamedTensors seven() {
    const at::Tensor row = at::arange(7, at::TensorOptions().dtype(at::kFloat));
    return {{"x", at::cat({row.unsqueeze(0), row.add(10).unsqueeze(0)})},
            {"y", at::arange(7, at::TensorOptions().dtype(at::kLong))},
            {"other", at::zeros({1})}};
  }
  /// Writes these bytes as a .npy file of version 1.
  void write_npy(const std::string& name, const std::string& type, const std::string& shape,
                 const at::Tensor& values) const {
    const std::string text = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + "}\n";
    std::string out("\x93NUMPY\x01\x00", 8);
    out += static_cast<char>(text.size());
    out += '\0';
    const at::Tensor whole = values.contiguous();
    out += text + std::string(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
    std::ofstream(path(name), std::ios::binary) << out;
  }
  void write_seven_npy() const {
    const files::NamedTensors tensors = seven();
    write_npy("x.npy", "<f4", "(2, 7)", tensors.at("x"));
    write_npy("y.npy", "<i8", "(7,)", tensors.at("y"));
  }
  [[nodiscard]] std::unique_ptr<DataSource> open(const std::string& source, std::uint64_t seed = 1) const {
    return make_data_source(source, model_, seed);
  }
  void refuses(const std::string& source, const std::string& message) const {
    EXPECT_THAT([&] { (void)open(source); }, ThrowsMessage<FormatError>(HasSubstr(message)));
  }

  testing::CommandFolder folder_;
  model::Model model_ = columns_and_tokens();
};

TEST_F(TensorsSource, GivesSamplesInOrderAndBeginsAgain) {
  files::write_safetensors(path("d.safetensors"), seven());
  write_seven_npy();
  for (const std::string& where :
       {path("d.safetensors"), folder_.path().string(), "x=" + path("x.npy") + ",y=" + path("y.npy")}) {
    // Step 2 of 2 microbatches of 2 begins with sample 8, the second microbatch with sample 10: 3, 4 of the file.
    const auto batch = open("tensors-in-order:" + where)->batch(2, 1, 2, 2, kBoth);
    EXPECT_TRUE(batch[0].equal(at::tensor({3.0F, 4.0F, 13.0F, 14.0F}).view({2, 2}))) << where;
    EXPECT_TRUE(batch[1].equal(at::tensor({3, 4}, at::kLong))) << where;
    EXPECT_TRUE(
        open("tensors-in-order:" + where)->batch(0, 3, 4, 2, std::array{1})[0].equal(at::tensor({6, 0}, at::kLong)));
  }
}

TEST_F(TensorsSource, ReadsEachSampleOncePerEpochInANewOrder) {
  files::write_safetensors(path("d.safetensors"), seven());
  const auto source = open("tensors:" + path("d.safetensors"));
  std::set<std::vector<std::int64_t>> orders;
  for (int epoch = 0; epoch < 5; ++epoch) {
    const auto batch = source->batch(epoch, 0, 1, 7, kBoth);
    EXPECT_TRUE(batch[0].select(0, 0).to(at::kLong).equal(batch[1])) << "inputs of one sample stay together";
    std::vector<std::int64_t> order(batch[1].const_data_ptr<std::int64_t>(),
                                    batch[1].const_data_ptr<std::int64_t>() + 7);
    orders.insert(order);
    EXPECT_EQ(std::set<std::int64_t>(order.begin(), order.end()).size(), 7U);
  }
  EXPECT_GT(orders.size(), 1U);
  EXPECT_FALSE(source->batch(0, 0, 1, 7, kBoth)[1].equal(
      open("tensors:" + path("d.safetensors"), 2)->batch(0, 0, 1, 7, kBoth)[1]));
  const at::Tensor whole = source->batch(3, 0, 1, 4, kBoth)[1];
  EXPECT_TRUE(whole.equal(at::cat({source->batch(3, 0, 2, 2, kBoth)[1], source->batch(3, 1, 2, 2, kBoth)[1]})));
}

TEST_F(TensorsSource, GivesTheSameTensorWhereThereIsNoBatchAxis) {
  files::NamedTensors tensors = seven();
  tensors["table"] = at::arange(6, at::TensorOptions().dtype(at::kHalf)).view({2, 3});
  files::write_safetensors(path("d.safetensors"), tensors);
  model_.inputs.push_back({.name = "table", .dtype = "float16", .shape = {2, 3}});
  model_.inputs.back().batch_axis = std::nullopt;
  const auto source = open("tensors:" + path("d.safetensors"));
  for (const int step : {0, 9}) EXPECT_TRUE(source->batch(step, 0, 1, 3, std::array{2})[0].equal(tensors.at("table")));
}

TEST_F(TensorsSource, ReadsUnalignedValues) {
  // The length of this safetensors header is not a multiple of 8, so the values are not aligned.
  const std::string header = R"({"y":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}})";
  std::string out(8, '\0');
  out[0] = static_cast<char>(header.size());
  ASSERT_NE(header.size() % 8, 0U);
  const std::array<std::int64_t, 2> values{7, 9};
  std::ofstream(path("d.safetensors"), std::ios::binary)
      << out << header << std::string(reinterpret_cast<const char*>(values.data()), sizeof values);
  model_.inputs.erase(model_.inputs.begin());
  EXPECT_TRUE(open("tensors-in-order:" + path("d.safetensors"))
                  ->batch(0, 0, 1, 2, std::array{0})[0]
                  .equal(at::tensor({7, 9}, at::kLong)));
}

TEST_F(TensorsSource, NamesWhatIsMissing) {
  files::write_safetensors(path("d.safetensors"), {{"x", seven().at("x")}, {"z", at::zeros({1})}});
  refuses("tensors:" + path("d.safetensors"),
          path("d.safetensors") + ": found no tensor for input \"y\"; there are x, z");
  write_npy("x.npy", "<f4", "(2, 7)", seven().at("x"));
  refuses("tensors:" + folder_.path().string(), "found no y.npy for input \"y\"; there are x");
  EXPECT_THAT([&] { (void)open("tensors:x=" + path("x.npy")); },
              ThrowsMessage<std::invalid_argument>("data source tensors: no file for input \"y\"; listed are x"));
  EXPECT_THAT([&] { (void)open("tensors:x=a.npy,b.npy"); },
              ThrowsMessage<std::invalid_argument>("data source tensors: found \"b.npy\", expected NAME=FILE.npy"));
  EXPECT_THAT([&] { (void)open("tensors-in-order"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("needs files, as in tensors-in-order:PATH")));
  refuses("tensors:/nowhere", "/nowhere: cannot read: No such file or directory");
}

TEST_F(TensorsSource, NamesTheInputThatDoesNotFit) {
  const auto with = [&](const std::string& name, const at::Tensor& tensor) {
    files::NamedTensors tensors = seven();
    tensors[name] = tensor;
    files::write_safetensors(path("d.safetensors"), tensors);
  };
  const std::string source = "tensors:" + path("d.safetensors");
  with("x", at::zeros({3, 7}));
  refuses(source, "input \"x\": found float32[3, 7], expected float32[2, samples]");
  with("x", at::zeros({2}));
  refuses(source, "input \"x\": found float32[2], expected float32[2, samples]");
  with("x", at::zeros({2, 7}, at::kDouble));
  refuses(source, "input \"x\": found float64[2, 7], expected float32[2, samples]");
  with("y", at::zeros({7}, at::kChar));
  refuses(source, "input \"y\": found int8[7], expected int64[samples]");
  with("y", at::zeros({6}, at::kLong));
  refuses(source, "input \"y\": found 6 samples, expected 7 as in input \"x\"");
  with("x", at::zeros({2, 0}));
  refuses(source, "input \"x\": found 0 samples, must be at least 1");
}

TEST_F(TensorsSource, NamesTheFirstValueOutOfRange) {
  model_.inputs[1].shape = {3};
  files::NamedTensors tensors = seven();
  at::Tensor tokens = at::ones({7, 3}, at::kLong);
  tokens.select(0, 5).fill_(10);
  tokens.select(0, 6).fill_(-1);
  tensors["y"] = tokens;
  files::write_safetensors(path("d.safetensors"), tensors);
  refuses("tensors:" + path("d.safetensors"), "input \"y\": found 10 at [5, 0], expected 0..10 (upper end excluded)");
  model_.inputs[1].classes = 11;
  refuses("tensors:" + path("d.safetensors"), "input \"y\": found -1 at [6, 0], expected 0..11 (upper end excluded)");
  model_.inputs[1].least = -1;
  EXPECT_NO_THROW((void)open("tensors:" + path("d.safetensors")));
  model_.inputs[1].classes = 0;  // unknown number of classes
  EXPECT_NO_THROW((void)open("tensors:" + path("d.safetensors")));
}

TEST_F(TensorsSource, RefusesAnInvalidBool) {
  write_npy("x.npy", "<f4", "(2, 7)", seven().at("x"));
  write_npy("y.npy", "|b1", "(7,)", at::arange(7, at::TensorOptions().dtype(at::kByte)));
  model_.inputs[1] = {.name = "y", .dtype = "bool", .shape = {}};
  refuses("tensors:" + folder_.path().string(), "input \"y\": found 2 at [2], expected 0 or 1");
}

}  // namespace
}  // namespace stagecraft::data

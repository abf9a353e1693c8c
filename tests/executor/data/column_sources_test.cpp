#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "costmodel/errors.h"
#include "executor/data/data_source.h"
#include "tests/support/places.h"
#include "tests/support/run_command.h"

// The sources tensors and tokens on Parquet and Arrow files (tests/golden/columns).

namespace stagecraft::data {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::array kFiles{"snappy.parquet", "zstd.parquet", "lz4.feather", "plain.arrow", "stream.arrow"};
constexpr std::array kAll{0, 1, 2};
constexpr std::int64_t kRows = 12;

std::string golden(const std::string& name) { return source_folder() + "/tests/golden/columns/" + name; }

/// Inputs of other types and shapes than the columns have: x is written as float64, grid as lists of lists, y as int32.
model::Model three_inputs() {
  model::Model out;
  out.name = "m";
  out.inputs = {{.name = "x", .dtype = "float32", .shape = {2}},
                {.name = "grid", .dtype = "float32", .shape = {3, 2}},
                {.name = "y", .dtype = "int64", .shape = {}}};
  out.inputs[2].classes = 5;
  return out;
}

model::Model text_model(const std::string& input = "tokens") {
  model::Model out;
  out.name = "m";
  out.inputs = {{.name = input, .dtype = "int64", .shape = {4}}, {.name = "target", .dtype = "int64", .shape = {4}}};
  for (model::ModelInput& model_input : out.inputs) model_input.classes = 2000;
  return out;
}

void refuses(const std::string& source, const model::Model& model, const std::string& message) {
  EXPECT_THAT([&] { (void)make_data_source(source, model, 1); }, ThrowsMessage<std::exception>(HasSubstr(message)));
}

TEST(ColumnSources, GiveRowsInTheTypesOfTheInputs) {
  for (const char* const name : kFiles) {
    const auto source = make_data_source("tensors-in-order:" + golden(name), three_inputs(), 1);
    EXPECT_EQ(source->samples(), kRows);
    const auto batch = source->batch(1, 1, 2, 3, kAll);  // samples 9, 10 and 11
    EXPECT_TRUE(batch[0].equal(at::tensor({9.0F, 9.5F, 10.0F, 10.5F, 11.0F, 11.5F}).view({3, 2}))) << name;
    EXPECT_TRUE(batch[1][0].equal(at::arange(9, 15).view({3, 2}).to(at::kFloat))) << name;
    EXPECT_TRUE(batch[2].equal(at::tensor({4, 0, 1}, at::kLong))) << name;
  }
}

TEST(ColumnSources, ShuffleRowsTogether) {
  const auto source = make_data_source("tensors:" + golden("snappy.parquet"), three_inputs(), 1);
  const auto batch = source->batch(0, 0, 1, kRows, kAll);
  EXPECT_FALSE(batch[0].select(1, 0).equal(at::arange(kRows).to(at::kFloat)));
  EXPECT_TRUE(batch[0].select(1, 0).remainder(5).to(at::kLong).equal(batch[2]));
  EXPECT_TRUE(batch[0].select(1, 0).equal(batch[1].select(1, 0).select(1, 0)));
}

TEST(ColumnSources, TakeAListOfNumbersForAnyShape) {
  model::Model model = three_inputs();
  model.inputs = {{.name = "x", .dtype = "float64", .shape = {1, 2, 1}}};
  const auto source = make_data_source("tensors-in-order:" + golden("plain.arrow"), model, 1);
  EXPECT_TRUE(source->batch(0, 0, 1, 2, std::array{0})[0].equal(
      at::tensor({0.0, 0.5, 1.0, 1.5}, at::kDouble).view({2, 1, 2, 1})));
}

TEST(ColumnSources, NameTheColumnThatDoesNotFit) {
  const std::string source = "tensors:" + golden("snappy.parquet");
  model::Model model = three_inputs();
  model.inputs[0].shape = {3};
  refuses(source, model, "input \"x\": found float32[12, 2], expected float32[samples, 3]");
  model = three_inputs();
  model.inputs[2].classes = 4;
  refuses(source, model, "input \"y\": found 4 at [4], expected 0..4 (upper end excluded)");
  model = three_inputs();
  model.inputs[2].dtype = "float32";
  refuses(source, model, "input \"y\": found int32[12], expected float32[samples]");
  model = three_inputs();
  model.inputs[1].name = "z";
  refuses(source, model, "found no column \"z\"; there are x, grid, y");
  model = three_inputs();
  model.inputs[1].name = "text";
  refuses(source, model,
          "column \"text\": row 1: found a list of 1, others before it have 0; all rows must have the shape");
  model = three_inputs();
  model.inputs[1].batch_axis = std::nullopt;
  refuses(source, model, "input \"grid\" is the same for all samples, which a column cannot hold");
}

TEST(ColumnSources, ConvertIntegersIfAllFit) {
  model::Model model;
  model.name = "m";
  model.inputs = {{.name = "y", .dtype = "uint8", .shape = {}}};
  const auto source = make_data_source("tensors-in-order:" + golden("plain.arrow"), model, 1);
  EXPECT_TRUE(source->batch(0, 0, 1, 6, std::array{0})[0].equal(at::tensor({0, 1, 2, 3, 4, 0}, at::kByte)));
  for (const std::string type : {"int8", "uint8"}) {
    model.inputs = {{.name = "big", .dtype = type, .shape = {}}};
    refuses("tensors:" + golden("plain.arrow"), model,
            "input \"big\": found int64[12], expected " + type + "[samples]");
  }
  model.inputs = {{.name = "big", .dtype = "int16", .shape = {}}};
  EXPECT_NO_THROW((void)make_data_source("tensors:" + golden("plain.arrow"), model, 1));
}

TEST(ColumnSources, GiveTokensAloneToAModelThatShiftsThemItself) {
  model::Model model = text_model();
  model.inputs.pop_back();
  const auto source =
      make_data_source("tokens:" + golden("plain.arrow") + ",column=text", model, 1, DataOrder::Evaluation);
  const auto batch = source->batch(0, 0, 1, 2, std::array{0});
  EXPECT_TRUE(batch[0].equal(at::tensor({100, 200, 201, 300, 301, 302, 500, 600}, at::kLong).view({2, 4})));
  model.inputs[0].classes = 600;
  refuses("tokens:" + golden("plain.arrow") + ",column=text", model, "found token ");
}

TEST(ColumnSources, GiveTheRowsOfATextOneAfterTheOther) {
  for (const char* const name : kFiles) {
    const auto source =
        make_data_source("tokens:" + golden(name) + ",column=text", text_model(), 1, DataOrder::Evaluation);
    EXPECT_EQ(source->samples(), 4);  // of 18 tokens, windows of 4 and one more token
    const auto batch = source->batch(0, 0, 1, 2, std::array{0, 1});
    EXPECT_TRUE(batch[0].equal(at::tensor({100, 200, 201, 300, 301, 302, 500, 600}, at::kLong).view({2, 4}))) << name;
    EXPECT_TRUE(batch[1].equal(at::tensor({200, 201, 300, 301, 302, 500, 600, 601}, at::kLong).view({2, 4}))) << name;
  }
  const auto source = make_data_source("tokens:" + golden("plain.arrow"), text_model("text"), 1);
  const auto batch = source->batch(0, 0, 1, 50, std::array{0, 1});
  EXPECT_TRUE(batch[0].narrow(1, 1, 3).equal(batch[1].narrow(1, 0, 3)));
}

TEST(ColumnSources, NameTheTokensThatDoNotFit) {
  const std::string source = "tokens:" + golden("plain.arrow");
  refuses(source, text_model(),
          "has neither a column \"tokens\" nor \"input_ids\"; add ,column=NAME, where NAME is one of x,");
  refuses(source + ",column=x", text_model(), "column \"x\": found float64, expected integers");
  refuses(source + ",column=", text_model(), "column= is empty, expected a column's name");
  refuses(source + ",col=x", text_model(), ",col=x\", expected PATH or PATH,column=NAME");
  model::Model small = text_model();
  small.inputs[1].classes = 1000;
  refuses(source + ",column=text", small,
          "column \"text\": found token 1102, model m has 0..1000 (upper end excluded): set vocabulary=");
  small = text_model();
  for (model::ModelInput& input : small.inputs) input.shape = {18};
  refuses(source + ",column=text", small,
          "column \"text\": 18 tokens, must be at least 19, one more than sequence=18 of model m");
}

TEST(OtherFormats, AreRefusedWithWhatToDo) {
  const testing::CommandFolder folder;
  folder.write("data.csv", "x,y\n1,2\n");
  folder.write("data.npz", "PK");
  const std::string csv = (folder.path() / "data.csv").string();
  const std::string expected = csv +
                               ": .csv files are not read; expected .safetensors, .npy, .parquet, .arrow or .feather; "
                               "in Python: pandas.read_csv(FILE).to_parquet(\"data.parquet\")";
  refuses("tensors:" + csv, three_inputs(), expected);
  refuses("tokens:" + csv, text_model(), expected);
  refuses("tensors:" + (folder.path() / "data.npz").string(), three_inputs(),
          "numpy.save(\"NAME.npy\", array) for each");
  refuses("tensors:nowhere.csv", three_inputs(), "nowhere.csv: cannot read: No such file or directory");
}

}  // namespace
}  // namespace stagecraft::data

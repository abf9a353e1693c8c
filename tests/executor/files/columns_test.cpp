#include "executor/files/columns.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <random>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "tests/support/places.h"
#include "tests/support/run_command.h"

// Of files that pyarrow wrote (tests/golden/columns/write.py).

namespace stagecraft::files {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr std::array kFiles{"snappy.parquet", "zstd.parquet", "lz4.feather", "plain.arrow", "stream.arrow"};
constexpr std::int64_t kRows = 12;

std::string golden(const std::string& name) { return source_folder() + "/tests/golden/columns/" + name; }

NumberColumn read_one(const std::string& path, const std::string& name) { return read_columns(path, {name}).front(); }

class EveryColumnFile : public ::testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] static NumberColumn read(const std::string& name) { return read_one(golden(GetParam()), name); }
  static void refuses(const std::string& name, const std::string& message) {
    EXPECT_THAT([&] { (void)read(name); }, ThrowsMessage<FormatError>(HasSubstr(message)));
  }
};

INSTANTIATE_TEST_SUITE_P(Golden, EveryColumnFile, ::testing::ValuesIn(kFiles), [](const auto& entry) {
  std::string name = entry.param;
  std::ranges::replace(name, '.', '_');
  return name;
});

TEST_P(EveryColumnFile, HoldsTheRowsOfPyarrow) {
  const at::Tensor rows = at::arange(kRows);
  const std::vector<NumberColumn> columns = read_columns(golden(GetParam()), {"y", "x", "grid", "flag"});
  ASSERT_EQ(columns.size(), 4U);
  for (const NumberColumn& column : columns) {
    EXPECT_EQ(column.rows, kRows);
    EXPECT_EQ(column.uneven, "");
  }
  EXPECT_THAT(columns[0].shape, IsEmpty());
  EXPECT_TRUE(columns[0].values.equal(rows.remainder(5).to(at::kInt)));
  EXPECT_THAT(columns[1].shape, ElementsAre(2));
  const at::Tensor x = rows.to(at::kDouble).unsqueeze(1).add(at::tensor({0.0, 0.5}, at::kDouble));
  EXPECT_TRUE(columns[1].values.view({kRows, 2}).equal(x));
  EXPECT_THAT(columns[2].shape, ElementsAre(3, 2));
  EXPECT_TRUE(columns[2].values.view({kRows, 6}).equal(rows.unsqueeze(1).add(at::arange(6)).to(at::kFloat)));
  EXPECT_TRUE(columns[3].values.equal(rows.remainder(3).eq(0)));
}

TEST_P(EveryColumnFile, HoldsListsOfDifferentLengths) {
  const NumberColumn text = read("text");
  EXPECT_EQ(text.rows, kRows);
  EXPECT_TRUE(text.values.equal(at::tensor(
      {100, 200, 201, 300, 301, 302, 500, 600, 601, 700, 701, 702, 900, 1000, 1001, 1100, 1101, 1102}, at::kInt)));
  EXPECT_EQ(text.uneven, golden(GetParam()) + ": column \"text\": row 1: found a list of 1, others before it have 0");
}

TEST_P(EveryColumnFile, NamesWhatItCannotRead) {
  refuses("z", "found no column \"z\"; there are x, grid, y, flag, text, name, some, big, holes");
  refuses("name", ": column \"name\": found string, expected numbers or lists of numbers");
  refuses("some", ": column \"some\": row 7 is null, must be a value");
  refuses("holes", ": column \"holes\": a list holds null, must hold values");
}

TEST_P(EveryColumnFile, NamesItsColumns) {
  EXPECT_THAT(column_names(golden(GetParam())),
              ElementsAre("x", "grid", "y", "flag", "text", "name", "some", "big", "holes"));
}

// Reads what is left of the file, or says that it is damaged; under the sanitizers, nothing else happens either.
TEST_P(EveryColumnFile, SurvivesDamage) {
  const testing::CommandFolder folder;
  const std::string whole = format::read_text(golden(GetParam()));
  const std::string path = (folder.path() / GetParam()).string();
  std::mt19937 random(7);
  int refused = 0;
  constexpr int kTrials = 300;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::string bytes = whole;
    if (trial % 3 == 0) bytes.resize(random() % bytes.size());
    for (int change = trial % 3 == 0 ? 1 : 0; change < 3 && !bytes.empty(); ++change)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    folder.write(GetParam(), bytes);
    try {
      for (const NumberColumn& column : read_columns(path, {"x", "grid", "y", "flag", "text"}))
        (void)column.values.sum();
    } catch (const FormatError& e) {
      EXPECT_THAT(e.what(), HasSubstr(path));
      ++refused;
    }
  }
  EXPECT_GT(refused, kTrials / 3);
}

TEST(Columns, OfAFolderFollowEachOther) {
  const testing::CommandFolder folder;
  EXPECT_FALSE(has_columns(folder.path().string()));
  for (const char* const name : {"2.parquet", "1.arrow"}) {
    const std::string from = golden(name[0] == '2' ? "snappy.parquet" : "stream.arrow");
    std::filesystem::copy_file(from, folder.path() / name);
  }
  folder.write("dataset_info.json", "{}");
  const std::string path = folder.path().string();
  EXPECT_TRUE(has_columns(path));
  EXPECT_THAT(column_files(path), ElementsAre(path + "/1.arrow", path + "/2.parquet"));
  const NumberColumn y = read_one(path, "y");
  EXPECT_EQ(y.rows, 2 * kRows);
  EXPECT_TRUE(y.values.equal(at::arange(kRows).remainder(5).repeat({2}).to(at::kInt)));
}

TEST(Columns, AreToldByTheEndingOfTheFile) {
  EXPECT_TRUE(has_columns("a.parquet"));
  EXPECT_TRUE(has_columns("a.feather"));
  EXPECT_FALSE(has_columns("a.npy"));
}

TEST(Columns, AreRefusedInOtherFiles) {
  const testing::CommandFolder folder;
  folder.write("text.parquet", "x,y\n1,2\n");
  folder.write("empty.parquet", "");
  folder.write("old.feather", "FEA1....FEA1");
  const auto message = [&](const std::string& name) {
    try {
      (void)column_names((folder.path() / name).string());
    } catch (const FormatError& e) { return std::string(e.what()); }
    return std::string("none");
  };
  EXPECT_THAT(message("text.parquet"), HasSubstr("text.parquet: is neither Parquet nor Arrow"));
  EXPECT_THAT(message("empty.parquet"), HasSubstr("empty.parquet: "));
  EXPECT_THAT(message("old.feather"), HasSubstr("is a Feather file of version 1; write it as version 2"));
  EXPECT_THAT(message("none.parquet"), HasSubstr("none.parquet: cannot read: "));
}

}  // namespace
}  // namespace stagecraft::files

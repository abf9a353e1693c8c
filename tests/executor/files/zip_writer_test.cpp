#include "executor/files/zip_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "executor/files/zip_archive.h"

namespace stagecraft::files {
namespace {

using ::testing::HasSubstr;

class ZipWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::filesystem::path folder_;
};

TEST_F(ZipWriterTest, RecordsReadBackAndBeginAtMultiplesOf64) {
  std::map<std::string, std::string> records{{"m/empty", ""}, {"m/byteorder", "little"}};
  for (int length = 1; length < 200; length += 13) {
    records["m/data/" + std::to_string(length)] =
        std::string(static_cast<std::size_t>(length), static_cast<char>(length));
  }
  ZipWriter zip(path("a.pt2"));
  for (const auto& [name, text] : records) zip.add(name, text);
  zip.finish();
  const ZipArchive archive(path("a.pt2"));
  ASSERT_EQ(archive.records().size(), records.size());
  for (const ZipRecord& record : archive.records()) {
    EXPECT_EQ(record.offset % 64, 0U) << record.name;
    EXPECT_EQ(archive.read(record, 1 << 20), records.at(record.name)) << record.name;
  }
}

TEST_F(ZipWriterTest, TheSameRecordsGiveTheSameBytes) {
  for (const char* name : {"a.pt2", "b.pt2"}) {
    ZipWriter zip(path(name));
    zip.add("m/x", "one");
    zip.finish();
  }
  EXPECT_EQ(format::read_text(path("a.pt2")), format::read_text(path("b.pt2")));
}

TEST_F(ZipWriterTest, LeavesNothingUnlessFinished) {
  {
    ZipWriter zip(path("a.pt2"));
    zip.add("m/x", "one");
    EXPECT_THROW(zip.add("m/x", "two"), std::invalid_argument);
  }
  EXPECT_FALSE(std::filesystem::exists(path("a.pt2")));
}

TEST_F(ZipWriterTest, SaysWhyItCannotWrite) {
  try {
    const ZipWriter zip(path("no/folder.pt2"));
    FAIL() << "opened";
  } catch (const FormatError& e) {
    EXPECT_EQ(e.what(), path("no/folder.pt2") + ": cannot write: No such file or directory");
  }
}

TEST_F(ZipWriterTest, SaysThatTheDiskIsFull) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  std::filesystem::create_symlink("/dev/full", path("a.pt2"));
  try {
    ZipWriter zip(path("a.pt2"));
    zip.add("m/x", std::string(1 << 20, 'x'));
    zip.finish();
    FAIL() << "written";
  } catch (const FormatError& e) { EXPECT_THAT(e.what(), HasSubstr("a.pt2: cannot write: No space left on device")); }
}

}  // namespace
}  // namespace stagecraft::files

#include "costmodel/format/files/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>

#include "costmodel/errors.h"

namespace stagecraft::format {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

class Files : public ::testing::Test {
 protected:
  Files() {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = std::filesystem::temp_directory_path() / ("stagecraft-files-" + name + "-" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~Files() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  std::filesystem::path folder_;
};

auto refuses(const std::string& path, const std::string& message) {
  return ThrowsMessage<FormatError>(AllOf(StartsWith(path + ": "), HasSubstr(message)));
}

TEST_F(Files, ReadBackWhatWasWritten) {
  const std::string text("line\r\n\0 \xFF end", 13);
  write_text(at("a.txt"), text);
  EXPECT_EQ(read_text(at("a.txt")), text);
  write_text(at("a.txt"), "");
  EXPECT_EQ(read_text(at("a.txt")), "");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, ReadingNamesAMissingFileAndADirectory) {
  EXPECT_THAT([&] { (void)read_text(at("none")); }, refuses(at("none"), "cannot read: No such file or directory"));
  EXPECT_THAT([&] { (void)read_text(folder_.string()); }, refuses(folder_.string(), "is a directory, expected a file"));
}

TEST_F(Files, ACheckBeforeWritingRefusesWhatWritingWouldAndLeavesNothing) {
  EXPECT_THAT([&] { check_can_write(at("none/a.txt")); },
              refuses(at("none/a.txt"), "cannot write: No such file or directory"));
  EXPECT_THAT([&] { check_can_write(folder_.string()); }, refuses(folder_.string(), "is a directory, expected a file"));
  check_can_write(at("new"));
  check_can_write("-");
  check_can_write("");
  EXPECT_EQ(entries(), 0u);
}

TEST_F(Files, WritingNamesAMissingFolderAndADirectory) {
  EXPECT_THAT([&] { write_text(at("none/a.txt"), "x"); },
              refuses(at("none/a.txt"), "cannot write: No such file or directory"));
  EXPECT_THAT([&] { write_text(folder_.string(), "x"); }, refuses(folder_.string(), "is a directory, expected a file"));
  write_text(at("file"), "x");
  EXPECT_THAT([&] { write_text(at("file/a.txt"), "x"); }, refuses(at("file/a.txt"), "cannot write: Not a directory"));
  EXPECT_THAT([&] { write_text("/dev/full", "x"); }, refuses("/dev/full", "cannot write: No space left on device"));
}

TEST_F(Files, AFailedWriteLeavesTheOldFileAndNothingElse) {
  write_text(at("a.txt"), "old");
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  rlimit small = limit;
  small.rlim_cur = 1000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THAT([&] { write_text(at("a.txt"), std::string(5000, 'x')); },
              refuses(at("a.txt"), "cannot write: File too large"));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(read_text(at("a.txt")), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, WriteIntoAPipeOrDeviceInPlace) {
  write_text("/dev/null", "x");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(Files, ADashIsStandardInputAndOutput) {
  std::istringstream in("from standard input\n");
  std::streambuf* const cin_before = std::cin.rdbuf(in.rdbuf());
  const std::string read = read_text("-");
  std::cin.rdbuf(cin_before);
  EXPECT_EQ(read, "from standard input\n");

  std::ostringstream out;
  std::streambuf* const cout_before = std::cout.rdbuf(out.rdbuf());
  write_text("-", "to standard output\n");
  std::cout.rdbuf(cout_before);
  EXPECT_EQ(out.str(), "to standard output\n");
}

}  // namespace
}  // namespace stagecraft::format

#include "executor/files/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "costmodel/errors.h"
#include "tests/support/run_command.h"

namespace stagecraft::files {
namespace {

using ::testing::StartsWith;
using ::testing::ThrowsMessage;

class Fingerprint : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string of(const std::string& text, std::int64_t most = kMostRead) const {
    folder_.write("file", text);
    return fingerprint(at("file"), most);
  }
  testing::CommandFolder folder_;
};

// 0xcbf43926 is the check value of CRC-32 in the catalogue of parametrised CRC algorithms.
TEST_F(Fingerprint, OfAFileIsItsSizeAndChecksum) {
  EXPECT_EQ(of("123456789"), "9 bytes, CRC-32 cbf43926");
  EXPECT_EQ(of(""), "0 bytes, CRC-32 00000000");
}

TEST_F(Fingerprint, SeesEveryByteOfAFileThatIsReadAsAWhole) {
  std::string text(3 << 20, 'a');
  const std::string before = of(text);
  for (const std::size_t at : {0U, 1U << 20U, (3U << 20U) - 1}) {
    std::string other = text;
    other[at] = 'b';
    EXPECT_NE(of(other), before) << at;
  }
}

TEST_F(Fingerprint, OfALargeFileReadsItsSizeItsEndsAndBlocksBetween) {
  constexpr std::size_t kMebibyte = 1 << 20;
  constexpr std::int64_t kMost = 3 << 20;  // three blocks: of 9 MiB the first, the fifth and the last
  const std::string text(9 * kMebibyte, 'a');
  const std::string before = of(text, kMost);
  EXPECT_THAT(before, StartsWith("9437184 bytes, CRC-32 "));
  EXPECT_NE(of(text + "a", kMost), before);
  const auto changed_at = [&](std::size_t place) {
    std::string other = text;
    other[place] = 'b';
    return of(other, kMost) != before;
  };
  for (const std::size_t block : {0U, 4U, 8U}) {
    EXPECT_TRUE(changed_at(block * kMebibyte)) << block;
    EXPECT_TRUE(changed_at((block + 1) * kMebibyte - 1)) << block;
  }
  EXPECT_FALSE(changed_at(2 * kMebibyte)) << "the price of seconds";
}

TEST_F(Fingerprint, OfAFolderSeesNamesSizesAndFirstBytes) {
  const auto files = [&](const std::string& name, const std::string& text) {
    std::filesystem::remove_all(folder_.path() / "photos");
    std::filesystem::create_directories(folder_.path() / "photos/cat");
    folder_.write("photos/cat/1.png", "one");
    folder_.write("photos/" + name, text);
    return fingerprint(at("photos"));
  };
  const std::string before = files("cat/2.png", "two");
  EXPECT_THAT(before, StartsWith("2 files, CRC-32 "));
  EXPECT_EQ(files("cat/2.png", "two"), before);
  EXPECT_NE(files("2.png", "two"), before);
  EXPECT_NE(files("cat/2.png", "four"), before);
  EXPECT_NE(files("cat/2.png", "Two"), before);
}

TEST_F(Fingerprint, NamesWhatCannotBeRead) {
  EXPECT_THAT([&] { (void)fingerprint(at("none")); },
              ThrowsMessage<FormatError>(StartsWith(at("none") + ": cannot read: No such file")));
}

}  // namespace
}  // namespace stagecraft::files

#include "executor/files/zip_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "tests/support/files/zip_text.h"
#include "tests/support/places.h"
#include "tests/support/run_command.h"

namespace stagecraft::files {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using testing::zip_text;
using testing::ZipPart;

const std::string kByPython = source_folder() + "/tests/golden/pt2/net.pt2";

class ZipArchives : public ::testing::Test {
 protected:
  [[nodiscard]] ZipArchive open(const std::string& bytes) const {
    testing::write_bytes(path(), bytes);
    return ZipArchive(path());
  }
  void expect_refused(const std::string& bytes, const std::string& message) const {
    EXPECT_THAT([&] { (void)open(bytes); }, ThrowsMessage<FormatError>(HasSubstr(message)));
  }
  [[nodiscard]] std::string path() const { return (folder_.path() / "a.zip").string(); }

  const std::vector<ZipPart> parts_{{"r/first", "one two"}, {"r/empty", ""}, {"r/data/second", "three"}};
  testing::CommandFolder folder_;
};

TEST_F(ZipArchives, GiveTheirRecords) {
  for (const bool wide : {false, true}) {
    const ZipArchive zip = open(zip_text(parts_, wide));
    ASSERT_EQ(zip.records().size(), 3U);
    EXPECT_EQ(zip.records()[2].name, "r/data/second");
    EXPECT_EQ(zip.records()[2].bytes, 5U);
    EXPECT_EQ(zip.records()[2].offset, 192U);
    EXPECT_EQ(zip.find("r/none"), nullptr);
    for (const ZipPart& part : parts_) {
      const ZipRecord* const record = zip.find(part.name);
      ASSERT_NE(record, nullptr);
      EXPECT_EQ(zip.read(*record, 100), part.bytes);
      const auto mapped = zip.map(*record, true);
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(mapped->bytes().data()), mapped->bytes().size()), part.bytes);
    }
  }
}

TEST_F(ZipArchives, AreReadAsPyTorchWritesThem) {
  const ZipArchive zip(kByPython);
  ASSERT_NE(zip.find("net/archive_format"), nullptr);
  EXPECT_EQ(zip.read(*zip.find("net/archive_format"), 10), "pt2");
  EXPECT_EQ(zip.read(*zip.find("net/byteorder"), 10), "little");
  for (const ZipRecord& record : zip.records()) {
    EXPECT_NO_THROW((void)zip.map(record, true));
    EXPECT_EQ(record.offset % 64, 0U) << record.name;
  }
}

TEST_F(ZipArchives, MayFollowTheBytesWithTheirSizes) {
  std::vector<ZipPart> parts = parts_;
  for (ZipPart& part : parts) part.flags = 8;
  const ZipArchive zip = open(zip_text(parts));
  EXPECT_EQ(zip.read(*zip.find("r/data/second"), 5), "three");
}

TEST_F(ZipArchives, StayAsTheyAreWhenAMappingIsWritten) {
  const std::string bytes = zip_text(parts_);
  const ZipArchive zip = open(bytes);
  const auto mapped = zip.map(*zip.find("r/first"), false);
  std::memset(mapped->bytes().data(), 'x', mapped->bytes().size());
  EXPECT_EQ(folder_.read("a.zip"), bytes);
  EXPECT_EQ(zip.read(*zip.find("r/first"), 7), "one two");
}

TEST_F(ZipArchives, MapRecordsThatOutliveThem) {
  std::shared_ptr<MappedRecord> mapped;
  {
    const ZipArchive zip = open(zip_text(parts_));
    mapped = zip.map(*zip.find("r/first"), false);
  }
  std::filesystem::remove(path());
  EXPECT_EQ(static_cast<char>(mapped->bytes()[0]), 'o');
}

TEST_F(ZipArchives, CheckTheSumsOfWhatTheyRead) {
  std::string bytes = zip_text(parts_);
  bytes[bytes.find("one two")] ^= 1;
  const ZipArchive zip = open(bytes);
  const ZipRecord& record = *zip.find("r/first");
  const std::string message = "a.zip: record \"r/first\": found CRC ";
  EXPECT_THAT([&] { (void)zip.read(record, 7); }, ThrowsMessage<FormatError>(HasSubstr(message)));
  EXPECT_THAT([&] { (void)zip.map(record, true); }, ThrowsMessage<FormatError>(HasSubstr(message)));
  EXPECT_NO_THROW((void)zip.map(record, false));
}

TEST_F(ZipArchives, ReadNoMoreThanTheyMay) {
  const ZipArchive zip = open(zip_text(parts_));
  EXPECT_THAT([&] { (void)zip.read(*zip.find("r/first"), 6); },
              ThrowsMessage<FormatError>(path() + ": record \"r/first\": found 7 bytes, expected at most 6"));
}

TEST_F(ZipArchives, RefuseAnIncompleteArchive) {
  EXPECT_THAT([] { (void)ZipArchive("no/such.zip"); },
              ThrowsMessage<FormatError>("no/such.zip: cannot read: No such file or directory"));
  EXPECT_THAT([&] { (void)ZipArchive(folder_.path().string()); },
              ThrowsMessage<FormatError>(HasSubstr("is not a file")));
  const std::string whole = zip_text(parts_);
  const std::string message = "is not a complete ZIP archive";
  expect_refused("", message);
  expect_refused("PK\3\4 and so on, for more than an end takes", message);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) expect_refused(whole.substr(0, bytes), "");
  expect_refused(whole.substr(0, whole.size() - 1), message);
  expect_refused(whole + "x", message);
  expect_refused("x" + whole, message);
  expect_refused(whole + whole, message);
  expect_refused(zip_text(parts_, false, "a comment"), message);
}

TEST_F(ZipArchives, RefuseRecordsThatAreNotPlain) {
  const auto with = [](ZipPart part) { return zip_text({{"r/first", "one"}, std::move(part)}); };
  expect_refused(with({.name = "r/a", .bytes = "two", .method = 8}),
                 "record \"r/a\": is compressed (method 8), expected a stored record");
  expect_refused(with({.name = "r/a", .bytes = "two", .flags = 1}), "record \"r/a\": is encrypted");
  expect_refused(with({.name = "r/a", .bytes = "two", .whole_bytes = 4}), "found 3 bytes stored of 4");
  expect_refused(with({.name = "r/first", .bytes = "two"}), "record \"r/first\" appears twice");
}

TEST_F(ZipArchives, RefuseNamesThatNoFileShouldHave) {
  for (const char* name : {"../a", "r/../a", "/a", "r//a", "r/", "r/./a", "", "r\\a", "r/a\n", "r/\xc3\xa9", "r:a"}) {
    const std::string wanted = std::strpbrk(name, "\\\n\xc3:") != nullptr
                                   ? "a name with characters other than"
                                   : "a name with an empty part, \".\" or \"..\"";
    expect_refused(zip_text({{name, "one"}}), wanted);
  }
  expect_refused(zip_text({{std::string("r/a\0b", 5), "one"}}), "a name with characters other than");
  expect_refused(zip_text({{std::string(4097, 'a'), "one"}}), "a name of more than 4096 characters");
  EXPECT_EQ(open(zip_text({{std::string(4096, 'a'), "one"}})).records().size(), 1U);
}

TEST_F(ZipArchives, MayHaveAPrintableFolder) {
  const auto open_printable = [&](const std::string& name) {
    testing::write_bytes(path(), zip_text({{name, "one"}}));
    return ZipArchive(path(), ZipArchive::Deflated::Refused, ZipArchive::Folder::Printable);
  };
  EXPECT_EQ(open_printable("net (1)!/a").records()[0].name, "net (1)!/a");
  for (const std::string name : {"r/a(1)", "r\n/a", "r\xff/a"}) {
    EXPECT_THAT([&] { (void)open_printable(name); },
                ThrowsMessage<FormatError>(HasSubstr("a name with characters other than")));
  }
  EXPECT_THAT([&] { (void)open_printable("../a"); },
              ThrowsMessage<FormatError>(HasSubstr("a name with an empty part")));
}

TEST_F(ZipArchives, RefuseRecordsThatAreNotWhereTheyShouldBe) {
  const ZipPart first{"r/first", "one"};
  expect_refused(zip_text({first, {.name = "r/a", .bytes = "two", .stored_bytes = 4000}}),
                 "record \"r/a\": lies outside the file: found 4000 bytes at");
  expect_refused(zip_text({first, {.name = "r/a", .bytes = "two", .header_at = 70000}}),
                 "record \"r/a\": its local header is missing or differs from the central directory");
  expect_refused(zip_text({first, {.name = "r/a", .bytes = "two", .local_name = "r/b"}}),
                 "its local header is missing or differs");
  // Two names for one record.
  expect_refused(zip_text({{.name = "r/a", .bytes = "one"}, {.name = "r/b", .bytes = "one", .header_at = 0}}),
                 "record \"r/b\": its local header is missing or differs");
  expect_refused(zip_text({{.name = "r/a", .bytes = "one", .stored_bytes = 70}, {"r/b", std::string(80, 'b')}}),
                 "records \"r/a\" and \"r/b\" overlap");
  expect_refused(zip_text({{.name = "r/b", .bytes = "two", .header_at = 1}}), "its local header is missing or differs");
}

TEST_F(ZipArchives, RefuseADirectoryWithMoreOrLessThanItsEndSays) {
  std::string bytes = zip_text(parts_);
  bytes.replace(bytes.size() - 14, 4, "\2\0\2\0", 4);
  expect_refused(bytes, "a.zip: its central directory has ");
  bytes.replace(bytes.size() - 14, 4, "\4\0\4\0", 4);
  expect_refused(bytes, "");
  std::string wide = zip_text(parts_, true);
  wide[wide.size() - 14] = 2;  // the end record says 2, the zip64 one still 3
  wide[wide.size() - 12] = 2;
  expect_refused(wide, "is not a complete ZIP archive");
}

TEST_F(ZipArchives, MutatedGiveErrorsAndNeverAnythingElse) {
  constexpr std::uint64_t kSeed = 11;
  std::mt19937_64 random(kSeed);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = zip_text(parts_, round % 2 == 0);
    for (std::uint64_t i = 0; i <= random() % 3; ++i) {
      const std::size_t at = random() % bytes.size();
      if (random() % 4 == 0) {
        bytes.erase(at, 1 + random() % 4);
      } else {
        bytes[at] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
      }
    }
    try {
      const ZipArchive zip = open(bytes);
      for (const ZipRecord& record : zip.records()) EXPECT_EQ(zip.read(record, 1000).size(), record.bytes);
    } catch (const FormatError&) { ++refused; }
  }
  EXPECT_GT(refused, 1500) << "seed " << kSeed;
}

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

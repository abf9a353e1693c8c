#include "costmodel/format/files/outputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "tests/support/run_command.h"

namespace stagecraft::format {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) out.push_back(entry.path().filename().string());
  return out;
}

std::string failure(const std::string& path, const MayDelete& may_delete = {}) {
  try {
    write_folder(path, {{"new", "text"}}, may_delete);
  } catch (const FormatError& e) { return e.what(); }
  return "nothing was refused";
}

const MayDelete kAll = [](const std::string&, const std::string&) { return true; };

TEST(WriteFolder, WritesAllFilesAndNothingElse) {
  const testing::CommandFolder place;
  write_folder((place.path() / "a/b/package/").string(), {{"one", "1"}, {"two", "2"}});
  EXPECT_THAT(names_in(place.path() / "a/b"), UnorderedElementsAre("package"));
  EXPECT_EQ(place.read("a/b/package/one"), "1");
  EXPECT_EQ(place.read("a/b/package/two"), "2");
}

TEST(WriteFolder, LetsLargeFilesWriteThemselves) {
  const testing::CommandFolder place;
  const std::string path = (place.path() / "package").string();
  write_folder(path, {{"one", "1"}}, {}, {{"two", [](const std::string& file) { write_text(file, "2"); }}});
  EXPECT_EQ(place.read("package/one") + place.read("package/two"), "12");
  EXPECT_THROW(write_folder(path, {{"one", "new"}}, kAll, {{"two", [](const std::string&) { throw 3; }}}), int);
  EXPECT_EQ(place.read("package/one"), "1");
  EXPECT_THAT(names_in(place.path()), UnorderedElementsAre("package"));
}

TEST(WriteFolder, ReplacesAnEmptyFolder) {
  const testing::CommandFolder place;
  fs::create_directory(place.path() / "package");
  write_folder((place.path() / "package").string(), {{"one", "1"}});
  EXPECT_EQ(place.read("package/one"), "1");
}

TEST(WriteFolder, KeepsANonEmptyFolderUnlessEveryFileMayBeDeleted) {
  const testing::CommandFolder place;
  const std::string path = (place.path() / "package").string();
  write_folder(path, {{"one", "1"}, {"two", "2"}});
  fs::create_directory(place.path() / "package/__pycache__");
  EXPECT_EQ(failure(path), path + ": is a directory that is not empty, expected an empty one or none");
  const MayDelete only_one = [](const std::string& name, const std::string& text) {
    return name == "one" && text == "1";
  };
  EXPECT_EQ(failure(path, only_one), path + ": holds \"two\", which stagecraft did not write; not replaced");
  EXPECT_EQ(place.read("package/two"), "2");
  write_folder(path, {{"three", "3"}}, kAll);
  EXPECT_THAT(names_in(path), UnorderedElementsAre("three"));
  EXPECT_THAT(names_in(place.path()), UnorderedElementsAre("package"));
}

TEST(WriteFolder, DeletesNoFolderOrLinkInside) {
  const testing::CommandFolder place;
  const std::string path = (place.path() / "package").string();
  fs::create_directories(place.path() / "package/data");
  EXPECT_THAT(failure(path, kAll), HasSubstr("holds \"data\""));
  fs::remove(place.path() / "package/data");
  fs::create_directory(place.path() / "elsewhere");
  fs::create_directory_symlink(place.path() / "elsewhere", place.path() / "package/__pycache__");
  EXPECT_THAT(failure(path, kAll), HasSubstr("holds \"__pycache__\""));
}

TEST(WriteFolder, NamesWhatIsInItsPlace) {
  const testing::CommandFolder place;
  place.write("file", "");
  const std::string path = (place.path() / "file").string();
  EXPECT_EQ(failure(path), path + ": is not a directory");
  EXPECT_EQ(failure(path + "/below"), path + "/below: cannot write: Not a directory");
  EXPECT_EQ(failure("."), ".: expected the name of a directory");
  EXPECT_THAT(names_in(place.path()), UnorderedElementsAre("file"));
}

}  // namespace
}  // namespace stagecraft::format

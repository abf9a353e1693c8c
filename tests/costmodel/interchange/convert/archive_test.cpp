#include "costmodel/interchange/convert/archive.h"

#include <gtest/gtest.h>

#include "tests/support/run_command.h"

namespace stagecraft::interchange {
namespace {

TEST(IsArchive, GoesByTheFirstFourBytes) {
  const testing::CommandFolder folder;
  const auto is = [&](const std::string& text) {
    folder.write("model.pt2", text);
    return is_archive((folder.path() / "model.pt2").string());
  };
  EXPECT_TRUE(is("PK\3\4"));
  EXPECT_TRUE(is("PK\3\4 and more"));
  EXPECT_FALSE(is(""));
  EXPECT_FALSE(is("PK\3"));
  EXPECT_FALSE(is("PK\5\6"));  // an archive without files
  EXPECT_FALSE(is("node1 -- Input0"));
}

TEST(IsArchive, IsFalseForAFolderOrAMissingFile) {
  const testing::CommandFolder folder;
  EXPECT_FALSE(is_archive((folder.path() / "none").string()));
  EXPECT_FALSE(is_archive(folder.path().string()));
  EXPECT_FALSE(is_archive(""));
}

}  // namespace
}  // namespace stagecraft::interchange

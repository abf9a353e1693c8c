#include "executor/channel/table/channels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "costmodel/format/files/files.h"
#include "costmodel/links/channel_traits.h"
#include "costmodel/project/project.h"
#include "tests/support/places.h"

// The table of channels, and what repeats it where the executor cannot be included.

namespace stagecraft::channel {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

/// "local, ucx, gloo or nccl".
std::string names_text() {
  std::string out;
  for (const std::string& name : channel_names()) {
    if (!out.empty()) out += name == channel_names().back() ? " or " : ", ";
    out += name;
  }
  return out;
}

TEST(Channels, ConnectEitherThreadsOrProcesses) {
  for (const ChannelKind& kind : channels()) {
    EXPECT_NE(kind.make_threads == nullptr, kind.make_process == nullptr) << kind.name;
    EXPECT_FALSE(kind.help.empty()) << kind.name;
  }
}

// stagecraft.train adds --spawn for all others.
TEST(Channels, ConnectThreadsOnlyIfLocal) {
  for (const ChannelKind& kind : channels()) EXPECT_EQ(kind.make_threads != nullptr, kind.name == "local") << kind.name;
}

TEST(Channels, AreThoseOfTheCostModel) {
  std::vector<std::string> known;
  for (const ChannelTraits& traits : channel_traits()) {
    known.push_back(traits.name);
    EXPECT_EQ(traits.connects_threads, channel_by_name(traits.name).make_threads != nullptr) << traits.name;
  }
  EXPECT_EQ(known, channel_names());
}

TEST(Channels, AreNamedInHelpWithWhatTheyConnect) {
  EXPECT_EQ(channels_text(),
            "local (ranks are threads of one process), ucx (one process per rank, on CPUs, over shared memory or a "
            "network), gloo (one process per rank, on CPUs, over TCP) or nccl (one process per rank, on GPUs)");
}

TEST(Channels, SayWhichLibrariesCarryThem) {
  EXPECT_THAT(channel_versions(), MatchesRegex("Gloo [(]c10d[)], (UCX .+|without UCX)"));
}

TEST(Channels, AreThoseThatProjectFilesName) {
  const auto& sections = project::sections();
  const auto cluster = std::ranges::find(sections, "cluster", &project::ProjectSection::name);
  ASSERT_NE(cluster, sections.end());
  const auto key = std::ranges::find(cluster->keys, "channel", &project::ProjectKey::name);
  ASSERT_NE(key, cluster->keys.end());
  EXPECT_EQ(key->one_of, channel_names());
  EXPECT_THAT(key->help, HasSubstr(names_text()));
  std::string quoted;
  for (const std::string& name : channel_names()) quoted += (quoted.empty() ? "\"" : ", \"") + name + "\"";
  const auto text_of = [](const std::string& file) { return format::read_text(source_folder() + file); };
  EXPECT_THAT(text_of("/costmodel/project/project.schema.json"), HasSubstr("\"enum\": [" + quoted + "]"));
  EXPECT_THAT(text_of("/docs/project.md"), HasSubstr("channel between ranks: " + names_text()));
}

}  // namespace
}  // namespace stagecraft::channel

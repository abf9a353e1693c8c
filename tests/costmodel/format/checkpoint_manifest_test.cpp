#include "costmodel/format/checkpoint_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "tests/costmodel/documents.h"

namespace stagecraft::format {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string changed(const std::string& from, const std::string& to) {
  std::string text = checkpoint_json(full_checkpoint());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(CheckpointManifest, RoundTrips) {
  EXPECT_EQ(parse_checkpoint(checkpoint_json(full_checkpoint()), "manifest.json"), full_checkpoint());
  EXPECT_THAT(checkpoint_json(full_checkpoint()), HasSubstr(R"("crc32": "00c0ffee")"));
}

TEST(CheckpointManifest, ReadsVersionOneWhichHasNoLossScale) {
  CheckpointManifest manifest = full_checkpoint();
  manifest.loss_scale.reset();
  manifest.loss_scale_steps = 0;
  std::string text = checkpoint_json(manifest);
  EXPECT_EQ(text.find("loss_scale"), std::string::npos);
  text.replace(text.find("\"version\": 5"), 12, "\"version\": 1");
  EXPECT_EQ(parse_checkpoint(text, "manifest.json"), manifest);
}

TEST(CheckpointManifest, NamesWhatIsWrong) {
  for (const auto& [from, to, message] : std::vector<std::array<std::string, 3>>{
           {"part-0.safetensors", "../part-0.safetensors",
            "/files/0/name: found \"../part-0.safetensors\", expected the name of a file next to the manifest"},
           {"part-1.safetensors", "part-0.safetensors", "/files/1: file \"part-0.safetensors\" appears twice"},
           {"00c0ffee", "c0ffee", "/files/0/crc32: found \"c0ffee\", expected 8 hexadecimal digits"},
           {"00c0ffee", "00C0FFEE", "/files/0/crc32: found \"00C0FFEE\", expected 8 hexadecimal digits"},
           {"18446744073709551615", "18446744073709551616",
            "/seed: found \"18446744073709551616\", expected a 64-bit integer as text"},
           {"\"version\": 5", "\"version\": 6", "/version: found version 6, this program reads version 1 to 5"}}) {
    EXPECT_THAT([&] { (void)parse_checkpoint(changed(from, to), "manifest.json"); },
                ThrowsMessage<FormatError>(HasSubstr("manifest.json: " + message)));
  }
  CheckpointManifest none = full_checkpoint();
  none.files.clear();
  EXPECT_THAT([&] { (void)parse_checkpoint(checkpoint_json(none), "manifest.json"); },
              ThrowsMessage<FormatError>(HasSubstr("/files: found [], expected at least one file")));
}

}  // namespace
}  // namespace stagecraft::format

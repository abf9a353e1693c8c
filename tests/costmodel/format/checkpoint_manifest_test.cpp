#include "costmodel/format/checkpoint_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <utility>

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
  text.replace(text.find("\"version\": 6"), 12, "\"version\": 1");
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
           {"\"version\": 6", "\"version\": 7", "/version: found version 7, this program reads version 1 to 6"}}) {
    EXPECT_THAT([&] { (void)parse_checkpoint(changed(from, to), "manifest.json"); },
                ThrowsMessage<FormatError>(HasSubstr("manifest.json: " + message)));
  }
  CheckpointManifest without_pieces = full_checkpoint();
  without_pieces.tensors.at("optimizer.steps/fc1.weight").pieces.clear();
  EXPECT_THAT(
      [&] { (void)parse_checkpoint(checkpoint_json(without_pieces), "manifest.json"); },
      ThrowsMessage<FormatError>(HasSubstr("/tensors/1/pieces: tensor \"optimizer.steps/fc1.weight\": found pieces "
                                           "with 0 of 1 elements, expected all in one piece or more")));
  CheckpointManifest none = full_checkpoint();
  none.files.clear();
  EXPECT_THAT([&] { (void)parse_checkpoint(checkpoint_json(none), "manifest.json"); },
              ThrowsMessage<FormatError>(HasSubstr("/files: found [], expected at least one file")));
}

// full_checkpoint has a tensor of 4 rows of 6 as [0:1, 0:6], [1:4, 0:2] and [1:4, 2:6], and a scalar.
TEST(CheckpointManifest, NamesWhatIsWrongWithPieces) {
  const std::string weight = "tensor \"fc1.weight\": found ";
  for (const auto& [from, to, message] : std::vector<std::array<std::string, 3>>{
           {"\"begin\": [1, 2]", "\"begin\": [2, 2]",
            "/tensors/0/pieces/1: " + weight + "the piece [2:5, 2:6], expected one inside [0:4, 0:6]"},
           {"\"begin\": [1, 2]", "\"begin\": [1, 1]",
            "/tensors/0/pieces/1: " + weight +
                "the piece [1:4, 1:5], which overlaps [1:4, 0:2], expected each element once"},
           {"\"shape\": [3, 4]", "\"shape\": [3, 3]",
            "/tensors/0/pieces: " + weight + "pieces with 21 of 24 elements, expected all in one piece or more"},
           {"\"begin\": [1, 2]", "\"begin\": [1]",
            "/tensors/0/pieces/1/begin: found [1], expected 2 numbers, one for each dimension of the tensor"},
           {"\"shape\": [3, 4]", "\"shape\": [3, 4, 1]",
            "/tensors/0/pieces/1/shape: found [3,4,1], expected 2 numbers, one for each dimension of the tensor"},
           {"\"file\": \"part-0.safetensors\"", "\"file\": \"part-7.safetensors\"",
            "/tensors/0/pieces/0: tensor \"fc1.weight\": unknown file \"part-7.safetensors\""},
           {"\"name\": \"optimizer.steps/fc1.weight\"", "\"name\": \"fc1.weight\"",
            "/tensors/1/name: tensor \"fc1.weight\" appears twice"},
           {"\"dtype\": \"F32\"", "\"dtype\": \"F31\"", "/tensors/0/dtype: unknown dtype \"F31\""},
           {"\"shape\": [4, 6]", "\"shape\": [1152921504606846976, 6]",
            "/tensors/0/shape: found [1152921504606846976,6], expected a shape of at most 1152921504606846976 "
            "bytes"}}) {
    EXPECT_THAT([&] { (void)parse_checkpoint(changed(from, to), "manifest.json"); },
                ThrowsMessage<FormatError>(HasSubstr("manifest.json: " + message)));
  }
}

TEST(CheckpointManifest, MayHavePiecesWithoutElements) {
  CheckpointManifest manifest = full_checkpoint();
  manifest.tensors.at("fc1.weight").pieces.push_back({"part-1.safetensors", {{2, 3}, {0, 2}}});
  manifest.tensors["none"] = {"F32", {0, 3}, {{"part-0.safetensors", {{0, 0}, {0, 3}}}}};
  EXPECT_EQ(parse_checkpoint(checkpoint_json(manifest), "manifest.json"), manifest);
}

TEST(CheckpointManifest, ListsTheTensorsOfFilesByTheirHeaders) {
  CheckpointManifest manifest = full_checkpoint();
  const std::map<std::string, SavedTensor> expected = std::exchange(manifest.tensors, {});
  for (const std::string file : {"part-0.safetensors", "part-1.safetensors"}) {
    SafetensorsHeader header;
    for (const auto& [name, tensor] : expected) {
      for (const TensorPiece& piece : tensor.pieces) {
        if (piece.file != file) continue;
        const std::string entry = entry_name(name, tensor.shape, piece.part);
        header.tensors[entry] = {tensor.dtype, piece.part.shape, {}, {}};
        if (entry != name) header.metadata[entry] = entry_text(name, tensor.shape, piece.part);
      }
    }
    add_tensors(manifest, file, header, file);
  }
  EXPECT_EQ(entry_name("a", {4, 6}, {{1, 2}, {3, 4}}), "a[1:4, 2:6]");
  for (auto& [name, tensor] : manifest.tensors) {
    EXPECT_EQ(tensor.shape, expected.at(name).shape);
    EXPECT_THAT(tensor.pieces, ::testing::UnorderedElementsAreArray(expected.at(name).pieces));
  }
  EXPECT_EQ(manifest.tensors.size(), expected.size());
  const SafetensorsHeader other{{}, {{"fc1.weight", {"F32", {2, 6}, {}, {}}}}};
  EXPECT_THAT([&] { add_tensors(manifest, "part-2.safetensors", other, "part-2.safetensors"); },
              ThrowsMessage<FormatError>(
                  "part-2.safetensors: tensor \"fc1.weight\" has another dtype or shape than in another file"));
}

}  // namespace
}  // namespace stagecraft::format

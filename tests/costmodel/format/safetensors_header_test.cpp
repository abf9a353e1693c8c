#include "costmodel/format/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"

namespace stagecraft::format {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(SafetensorsHeader, IsReadAsTheFormatDescribesIt) {
  // The format's own README: dtype, shape, data_offsets [begin, end), a special key for metadata, spaces at the end.
  const SafetensorsHeader header = parse_safetensors_header(
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]},)"
      R"("n":{"dtype":"I64","shape":[],"data_offsets":[12,20]}}   )",
      20_B, "file");
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(header.tensors.at("w"), (SafetensorsEntry{"F16", {2, 3}, 0_B, 12_B}));
  EXPECT_EQ(header.tensors.at("n"), (SafetensorsEntry{"I64", {}, 12_B, 20_B}));
}

TEST(SafetensorsHeader, IsWrittenInTheOrderOfTheBytesAndPaddedToEight) {
  const SafetensorsHeader header{{}, {{"a", {"U8", {1}, 4_B, 5_B}}, {"b", {"F32", {1}, 0_B, 4_B}}}};
  const std::string text = safetensors_header_text(header);
  // Two entries of 52 and 51 bytes, a comma and two braces: 106; the next multiple of 8 is 112.
  EXPECT_EQ(text, R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                  R"("a":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}})" +
                      std::string(112 - 106, ' '));
  EXPECT_EQ(parse_safetensors_header(text, 5_B, "file"), header);
}

TEST(SafetensorsHeader, NamesTensorFoundAndWanted) {
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const auto b = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return ",\"b\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
  };
  for (const auto& [more, message] : std::vector<std::pair<std::string, std::string>>{
           {b("F8", "[1]", "[8,9]"), "file: /b/dtype: unknown dtype \"F8\", known are F64, F32, F16"},
           {b("F32", "[1]", "[8,11]"),
            "file: /b/data_offsets: found [8,11], expected offsets 4 bytes apart, by dtype and shape"},
           {b("F32", "[1]", "[12,8]"), "file: /b/data_offsets: found [12,8], expected offsets 4 bytes apart"},
           {b("F32", "[1]", "[8]"), "file: /b/data_offsets: found [8], expected two offsets"},
           {b("F32", "[-1]", "[8,12]"), "file: /b/shape/0: found -1, expected an integer from 0"},
           {b("F32", "[1099511627776,1099511627776]", "[8,8]"),
            "file: /b/shape: found [1099511627776,1099511627776], expected a shape of at most"},
           {b("U8", "[2]", "[7,9]"), "file: /b: its bytes begin at 7, the previous ones end at 8, expected no hole"},
           {b("U8", "[2]", "[9,11]"), "file: /b: its bytes begin at 9, the previous ones end at 8, expected no hole"},
           {b("U8", "[2]", "[8,10]") + b("U8", "[2]", "[10,12]"), "file: key \"b\" appears twice in one object"},
           {b("U8", "[2]", "[8,10],\"c\":1"), "file: /b: unknown key \"c\", known are dtype, shape, data_offsets"},
           {",\"__metadata__\":{\"a\":1}", "file: /__metadata__/a: found 1, expected a string"},
           {"", "file: found 10 bytes after the header, expected 8, where the last tensor ends"},
           {b("U8", "[3]", "[8,11]"), "file: found 10 bytes after the header, expected 11"}}) {
    const std::string text = "{" + a + more + "}";
    EXPECT_THAT([&] { (void)parse_safetensors_header(text, 10_B, "file"); },
                ThrowsMessage<FormatError>(HasSubstr(message)));
  }
  EXPECT_THAT([] { (void)parse_safetensors_header("[]", 0_B, "file"); },
              ThrowsMessage<FormatError>("file: /: found [], expected an object"));
  EXPECT_THAT([] { (void)parse_safetensors_header(std::string(100, '['), 0_B, "file"); },
              ThrowsMessage<FormatError>("file: nested deeper than 64 levels"));
}

TEST(ShardIndex, ListsEachFileOnce) {
  EXPECT_THAT(parse_shard_index(R"({"metadata":{"total_size":12},"weight_map":{"b":"m-2.safetensors",)"
                                R"("a":"m-1.safetensors","c":"m-2.safetensors"}})",
                                "f"),
              ::testing::ElementsAre("m-1.safetensors", "m-2.safetensors"));
  const auto refuses = [](const std::string& text, const std::string& message) {
    EXPECT_THAT([&] { (void)parse_shard_index(text, "f"); }, ThrowsMessage<FormatError>(HasSubstr(message))) << text;
  };
  refuses(R"({"weight_map":{"a":"../m"}})", "f: /weight_map/a: found \"../m\", expected the name of a file beside");
  refuses(R"({"weight_map":{}})", "f: /weight_map: has no tensors");
  refuses(R"({"weight_map":["m"]})", "f: /weight_map: ");
  refuses(R"({"metadata":{}})", "weight_map");
}

TEST(SafetensorsHeader, KnowsTheBytesOfEachDtype) {
  std::vector<std::int64_t> bytes;
  for (const std::string& dtype : safetensors_dtypes()) bytes.push_back(safetensors_value_bytes(dtype).value);
  EXPECT_THAT(bytes, ::testing::ElementsAre(8, 4, 2, 2, 8, 4, 2, 1, 1, 1, 8));  // a C64 is two F32
}

}  // namespace
}  // namespace stagecraft::format

#include "executor/files/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "costmodel/errors.h"
#include "tests/support/files/mutated.h"

namespace stagecraft::files {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

/// A header as written by numpy.lib.format: magic, version, length, dictionary.
std::string header(const std::string& dictionary, int version = 1) {
  std::string out = "\x93NUMPY";
  out += static_cast<char>(version);
  out += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) out += static_cast<char>(dictionary.size() >> (8 * i));
  return out + dictionary;
}
std::string usual(const std::string& type, const std::string& shape, const std::string& fortran = "False") {
  return "{'descr': '" + type + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }   \n";
}
NpyHeader parse(const std::string& text, std::int64_t values) {
  return parse_npy_header(text, static_cast<std::int64_t>(text.size()) + values, "a.npy");
}
void refuses(const std::string& text, std::int64_t values, const std::string& message) {
  EXPECT_THAT([&] { (void)parse(text, values); }, ThrowsMessage<FormatError>(HasSubstr(message))) << text;
}

TEST(NpyHeader, SaysTypeShapeAndWhereValuesBegin) {
  for (const int version : {1, 2, 3}) {
    const std::string text = header(usual("<f4", "(3, 4)"), version);
    const NpyHeader found = parse(text, 48);
    EXPECT_EQ(found.dtype, at::kFloat);
    EXPECT_THAT(found.shape, ElementsAre(3, 4));
    EXPECT_EQ(found.begin, static_cast<std::int64_t>(text.size()));
  }
  EXPECT_THAT(parse(header(usual("<i8", "(5,)")), 40).shape, ElementsAre(5));
  EXPECT_THAT(parse(header(usual("|b1", "()")), 1).shape, IsEmpty());
  EXPECT_THAT(parse(header(usual("<f8", "(0, 7)")), 0).shape, ElementsAre(0, 7));
  EXPECT_EQ(parse(header("{\"shape\":(2,),\"descr\":\"|u1\",\"fortran_order\":False}"), 2).dtype, at::kByte);
  EXPECT_THAT(parse(header(usual("<f4", "(3,)", "True")), 12).shape, ElementsAre(3)) << "one axis has one order";
}

TEST(NpyHeader, KnowsTheTypes) {
  const std::vector<std::pair<std::string, at::ScalarType>> types{
      {"<f2", at::kHalf}, {"<f4", at::kFloat}, {"<f8", at::kDouble}, {"|i1", at::kChar}, {"<i2", at::kShort},
      {"<i4", at::kInt},  {"<i8", at::kLong},  {"|u1", at::kByte},   {"|b1", at::kBool}};
  for (const auto& [word, type] : types)
    EXPECT_EQ(parse(header(usual(word, "(2,)")), 2 * static_cast<std::int64_t>(c10::elementSize(type))).dtype, type);
  for (const char* other : {">f4", "=f4", "<c8", "<u4", "|O", "<M8[ns]", "<f", "f4", ""})
    refuses(header(usual(other, "(2,)")), 8, "unknown type \"" + std::string(other) + "\", known are <f2, <f4");
}

TEST(NpyHeader, RefusesWhatItDoesNotRead) {
  const std::string good = header(usual("<f4", "(3, 4)"));
  refuses("", 0, "is not a NumPy file");
  refuses("PK\x03\x04 and more of it", 0, "is not a NumPy file");
  refuses(header(usual("<f4", "(3,)"), 4), 12, "found format version 4, expected 1, 2 or 3");
  refuses(good.substr(0, good.size() - 1), 48, "all of it in the file");
  refuses(good, 47, "found 47 bytes of values, shape [3, 4] needs more");
  refuses(good, 49, "found 49 bytes of values, shape [3, 4] needs 48");
  refuses(header(usual("<f4", "(3, 4)", "True")), 48, "Fortran order; save numpy.ascontiguousarray");
  refuses(header(usual("<f4", "(4611686018427387904, 4)")), 0, "needs more");
  refuses(header(usual("<f4", "(-1,)")), 4, "expected a non-negative integer");
  refuses(header(usual("<f4", "(99999999999999999999,)")), 4, "expected a non-negative integer");
  refuses(header(usual("<f4", "[3]")), 12, "found byte 0x5b, expected \"(\"");
  refuses(header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}"), 12, "expected a quoted string");
  refuses(header("{'descr': '<f4', 'fortran_order': False}"), 4, "\"shape\" is missing");
  refuses(header("{'descr': '<f4', 'descr': '<f4'}"), 4, "\"descr\" appears twice");
  refuses(header("{'order': 'C'}"), 4, "unknown key \"order\", known are descr, fortran_order, shape");
  refuses(header(usual("<f4", "(3,)") + "{}"), 12, "expected the end of the header");
  refuses(header("{'descr': '<f4"), 4, "expected a closing quote");
}

TEST(NpyHeader, MutatedGivesErrorsAndNeverAnythingElse) {
  constexpr std::uint64_t kSeed = 8;
  std::mt19937_64 random(kSeed);
  const std::string whole = header(usual("<i4", "(2, 3, 5)"), 2);
  ASSERT_EQ(parse(whole, 120).shape.size(), 3U);
  int refused = 0;
  for (int round = 0; round < 100000; ++round) {
    const std::string text = testing::mutated(whole, random, "{");
    const auto bytes = static_cast<std::int64_t>(text.size() + 120);
    try {
      const NpyHeader found = parse_npy_header(text, bytes, "f");
      std::int64_t values = static_cast<std::int64_t>(c10::elementSize(found.dtype));
      for (const std::int64_t axis : found.shape) values *= axis;
      EXPECT_EQ(found.begin + values, bytes) << "seed " << kSeed << " round " << round;
    } catch (const FormatError&) { ++refused; }
  }
  EXPECT_GT(refused, 50000) << "seed " << kSeed;
  EXPECT_LT(refused, 100000) << "seed " << kSeed;
}

}  // namespace
}  // namespace stagecraft::files

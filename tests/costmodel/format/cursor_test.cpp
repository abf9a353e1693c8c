#include "costmodel/format/cursor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace stagecraft::format {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

auto refuses(const std::string& place, const std::string& found) {
  return ThrowsMessage<FormatError>(AllOf(StartsWith(place), HasSubstr(found)));
}

/// The message of the FormatError that `call` throws; empty if it throws none.
template <class Call>
std::string refused(Call call) {
  try {
    (void)call();
  } catch (const FormatError& e) { return e.what(); }
  return "";
}

TEST(Cursor, NamesFileAndPointerOfWhatItRefuses) {
  const Json document = Json::parse(R"({"rows": [{"a/b~c": 7}]})");
  const Cursor root(document, "f.json");
  const Cursor deep = root.inside(document["rows"][0]["a/b~c"]);
  EXPECT_EQ(root.pointer(), "");
  EXPECT_THAT([&] { root.fail("why"); }, ThrowsMessage<FormatError>("f.json: /: why"));
  EXPECT_THAT([&] { deep.fail("why"); }, ThrowsMessage<FormatError>("f.json: /rows/0/a~1b~0c: why"));
  EXPECT_THAT([&] { deep.under("layer a").fail("why"); },
              ThrowsMessage<FormatError>("f.json: layer a: /rows/0/a~1b~0c: why"));
}

/// A document of up to `depth` levels, with keys that a pointer must escape.
Json random_document(std::mt19937_64& random, int depth) {
  static const std::vector<std::string> signs{"a", "b", "/", "~", "\"", "\\", "\n", "\xc3\xbc"};
  const auto text = [&] {
    std::string out;
    for (auto n = random() % 4; n > 0; --n) out += signs[random() % signs.size()];
    return out;
  };
  switch (random() % (depth > 0 ? 8 : 6)) {
    case 0:
      return nullptr;
    case 1:
      return random() % 2 == 0;
    case 2:
      return random();
    case 3:
      return -static_cast<std::int64_t>(random() >> 1);
    case 4: {
      const double value = std::bit_cast<double>(random());
      return std::isfinite(value) ? value : 0.1;
    }
    case 5:
      return text();
    case 6: {
      Json out = Json::array();
      for (auto n = random() % 5; n > 0; --n) out.push_back(random_document(random, depth - 1));
      return out;
    }
    default: {
      Json out = Json::object();
      for (auto n = random() % 7; n > 0; --n) out[text() + std::to_string(n)] = random_document(random, depth - 1);
      return out;
    }
  }
}

/// Calls `visit` for the value at `at` and for all values within it.
template <class Visit>
void walk(const Cursor& at, const Visit& visit) {
  visit(at);
  for (const Json& value : at.value()) {
    if (at.value().is_structured()) walk(at.inside(value), visit);
  }
}

// RFC 6901: evaluating a value's pointer in the document gives that value.
TEST(Cursor, PointersLeadBackToTheirValues) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const Json document = random_document(random, 4);
    walk(Cursor(document, "f.json"), [&](const Cursor& at) {
      EXPECT_EQ(&document.at(Json::json_pointer(at.pointer())), &at.value()) << "seed " << seed << " " << at.pointer();
    });
  }
}

TEST(Cursor, ShowsTheBeginningOfWhatIsTooLongForAMessage) {
  const Json document = std::string(100, 'a');
  // 57 characters: the quote and 56 letters.
  EXPECT_THAT([&] { (void)Cursor(document, "f.json").number(); },
              refuses("f.json: /: ", "found \"" + std::string(56, 'a') + "..."));
}

TEST(Cursor, CanShowWhatIsNotUtf8) {
  const Json document = "\xff";
  EXPECT_THAT([&] { (void)Cursor(document, "f.json").number(); }, refuses("f.json: /: ", "found \"\\ufffd\""));
}

TEST(Cursor, AcceptsEachTypeOnlyAsItself) {
  const Json document = Json::parse(R"(["1", 1, 1.0, true, null, [], {}])");
  const Cursor root(document, "f.json");
  for (std::size_t i = 0; i < document.size(); ++i) {
    const Cursor at = root.at(i);
    EXPECT_EQ(refused([&] { return at.text(); }).empty(), i == 0) << i;
    EXPECT_EQ(refused([&] { return at.number(); }).empty(), i == 1 || i == 2) << i;
    EXPECT_EQ(refused([&] { return at.integer(0, 9); }).empty(), i == 1 || i == 2) << i;
    EXPECT_EQ(refused([&] { return at.boolean(); }).empty(), i == 3) << i;
    EXPECT_EQ(refused([&] { return at.elements(); }).empty(), i == 5) << i;
    EXPECT_EQ(refused([&] {
                Fields fields(at);
                return 0;
              }).empty(),
              i == 6)
        << i;
  }
}

TEST(Cursor, DrawsTheLineAtZero) {
  const auto at = [](const Json& value) { return Cursor(value, "f.json"); };
  const Json below = -0.5;
  const Json zero = 0;
  const Json above = std::numeric_limits<double>::denorm_min();
  EXPECT_THAT([&] { (void)at(below).not_negative(); }, refuses("f.json: /: ", "-0.5"));
  EXPECT_EQ(at(zero).not_negative(), 0);
  EXPECT_THAT([&] { (void)at(zero).positive(); }, refuses("f.json: /: ", "found 0"));
  EXPECT_EQ(at(above).positive(), std::numeric_limits<double>::denorm_min());
  EXPECT_THAT([&] { (void)at(below).seconds(); }, refuses("f.json: /: ", "-0.5"));
  EXPECT_EQ(at(zero).seconds(), 0_s);
}

TEST(Cursor, RefusesNumbersThatAreNotFinite) {
  for (const double value : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const Json document = value;
    EXPECT_THROW((void)Cursor(document, "f.json").number(), FormatError);
    EXPECT_THROW((void)Cursor(document, "f.json").integer(0, 9), FormatError);
  }
}

// Every small number, written as each of JSON's three kinds of number, against every small range.
TEST(Cursor, TakesIntegersOfTheRangeHoweverTheyAreWritten) {
  for (int low = -3; low <= 3; ++low) {
    for (int high = low; high <= 3; ++high) {
      for (int value = -4; value <= 4; ++value) {
        std::vector<Json> written{Json(std::int64_t{value}), Json(double{1} * value)};
        if (value >= 0) written.emplace_back(static_cast<std::uint64_t>(value));
        for (const Json& document : written) {
          const Cursor at(document, "f.json");
          if (low <= value && value <= high) {
            EXPECT_EQ(at.integer(low, high), value);
          } else {
            EXPECT_THROW((void)at.integer(low, high), FormatError) << low << ".." << high << ": " << document;
          }
        }
      }
    }
  }
}

TEST(Cursor, TakesNoIntegerThatItCouldNotHold) {
  constexpr std::int64_t kLow = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kHigh = std::numeric_limits<std::int64_t>::max();
  const auto read = [](const Json& document) { return Cursor(document, "f.json").integer(kLow, kHigh); };
  EXPECT_EQ(read(Json::parse("9223372036854775807")), kHigh);
  EXPECT_EQ(read(Json::parse("-9223372036854775808")), kLow);
  EXPECT_THROW((void)read(Json::parse("9223372036854775808")), FormatError);
  // Beyond 2^53 a double can no longer distinguish adjacent integers.
  EXPECT_EQ(read(Json::parse("9007199254740992.0")), std::int64_t{1} << 53);
  EXPECT_THROW((void)read(Json::parse("9007199254740994.0")), FormatError);
  EXPECT_THROW((void)read(Json::parse("0.5")), FormatError);
}

TEST(Cursor, ReadsBytesUpToTwoToTheSixtieth) {
  const Json most = std::int64_t{1} << 60;
  const Json more = (std::int64_t{1} << 60) + 1;
  EXPECT_EQ(Cursor(most, "f.json").bytes(), Bytes(std::int64_t{1} << 60));
  EXPECT_THAT([&] { (void)Cursor(more, "f.json").bytes(); }, refuses("f.json: /: ", "found 1152921504606846977"));
  const Json negative = -1;
  EXPECT_THROW((void)Cursor(negative, "f.json").bytes(), FormatError);
}

TEST(Cursor, ReadsListsInOrderAndNamesTheElementThatIsWrong) {
  const auto read = [](const Cursor& at) { return at.integer(0, 9); };
  const Json good = Json::parse("[3, 1, 2]");
  EXPECT_THAT(Cursor(good, "f.json").list(read), ::testing::ElementsAre(3, 1, 2));
  const Json wrong = Json::parse("[3, 1, -2]");
  EXPECT_THAT([&] { (void)Cursor(wrong, "f.json").list(read); }, refuses("f.json: /2: ", "found -2"));
}

TEST(Fields, NameAMissingKeyAndWhereItBelongs) {
  const Json document = Json::parse(R"({"a": {"b": 1}})");
  Fields fields(Cursor(document, "f.json").inside(document["a"]));
  EXPECT_EQ(fields.required("b").integer(0, 9), 1);
  EXPECT_THAT([&] { (void)fields.required("c"); }, refuses("f.json: /a: ", "\"c\""));
}

TEST(Fields, TakeNullForAbsentOnlyWhereAKeyIsOptional) {
  const Json document = Json::parse(R"({"a": null})");
  Fields fields(Cursor(document, "f.json"));
  EXPECT_EQ(fields.optional("a"), std::nullopt);
  EXPECT_EQ(fields.optional("b"), std::nullopt);
  EXPECT_THAT([&] { (void)fields.required("a").text(); }, refuses("f.json: /a: ", "found null"));
}

TEST(Fields, RefuseAnUnreadKey) {
  const Json document = Json::parse(R"({"a": 1, "b": 2, "z": 3})");
  Fields fields(Cursor(document, "f.json"));
  (void)fields.required("b");
  (void)fields.optional("a");
  EXPECT_THAT([&] { fields.done(); }, refuses("f.json: /: ", "\"z\""));
  EXPECT_THAT([&] { fields.done(); }, refuses("f.json: /: ", "b, a"));  // the allowed keys
  (void)fields.optional("z");
  EXPECT_NO_THROW(fields.done());
}

TEST(ParseDocument, NamesTheLineOfAMissingQuote) {
  // The string of line 2 reaches the end of that line, its 11th character.
  const std::string text = "{\n  \"a\": \"b,\n  \"c\": 1\n}\n";
  EXPECT_THAT([&] { (void)parse_document(text, "f.json"); }, refuses("f.json: line 2 column 11: ", "not JSON"));
  EXPECT_THAT([&] { (void)parse_document("PK\x03\x04 and more", "net.pt2"); },
              refuses("net.pt2: not JSON but an archive, such as a model", "stagecraft profile makes a graph"));
  EXPECT_THAT(
      [] { (void)parse_document("import torch\n", "net.py"); },
      ThrowsMessage<FormatError>("net.py: not JSON but Python; stagecraft export-model net.py:FUNCTION makes a model "
                                 "file of it"));
  EXPECT_THAT(
      [] { (void)parse_document("import torch\n", "net"); },
      ThrowsMessage<FormatError>("net: line 1 column 1: not JSON: syntax error while parsing value - invalid literal"));
}

TEST(ParseDocument, NamesLineAndColumnOfAWrongCharacterAnywhere) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    std::mt19937 random(seed);
    std::string text;
    std::size_t line = 1;
    std::size_t column = 1;
    for (auto n = random() % 20; n > 0; --n) {
      const bool ends = random() % 3 == 0;
      text += ends ? '\n' : ' ';
      line += ends ? 1 : 0;
      column = ends ? 1 : column + 1;
    }
    const std::string place = "f.json: line " + std::to_string(line) + " column " + std::to_string(column) + ": ";
    EXPECT_THAT([&] { (void)parse_document(text + "!\n", "f.json"); }, refuses(place, "not JSON")) << "seed " << seed;
  }
}

TEST(ParseDocument, RefusesNoText) {
  EXPECT_THAT([] { (void)parse_document("", "f.json"); }, refuses("f.json: ", "empty"));
  EXPECT_THROW((void)parse_document(" \n", "f.json"), FormatError);
  EXPECT_THROW((void)parse_document("1 2", "f.json"), FormatError);
}

TEST(ParseDocument, NamesAKeyThatAnObjectRepeats) {
  EXPECT_THAT([] { (void)parse_document(R"({"a": 1, "b": {"c": 1, "d": 2, "c": 1}})", "f.json"); },
              refuses("f.json: ", "key \"c\""));
  // Two objects may have the same keys.
  EXPECT_EQ(parse_document(R"([{"a": 1}, {"a": {"a": 2}}])", "f.json")[1]["a"]["a"], 2);
}

TEST(ParseDocument, NestsUpTo64Deep) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW((void)parse_document(nested(64), "f.json"));
  EXPECT_THAT([&] { (void)parse_document(nested(65), "f.json"); }, refuses("f.json: ", "64"));
  // Depth, not length: 65 adjacent arrays are fine.
  std::string beside = "[[]";
  for (int i = 0; i < 64; ++i) beside += ",[]";
  EXPECT_NO_THROW((void)parse_document(beside + "]", "f.json"));
}

TEST(ParseDocument, GivesBackWhatDumpWrote) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    const Json document = random_document(random, 4);
    const std::string text = dump(document);
    EXPECT_EQ(parse_document(text, "f.json"), document) << "seed " << seed;
    EXPECT_EQ(dump(parse_document(text, "f.json")), text) << "seed " << seed;
  }
}

TEST(Dump, IndentsByTwoAndKeepsFlatListsOnOneLine) {
  const Json document = Json::parse(
      R"({"z": "n", "list": [1, 2.5], "rows": [{"a": 1}, {"b": []}], "five": {"a":1,"b":2,"c":3,"d":4,"e":5}, "none": {}})");
  EXPECT_EQ(dump(document), R"({
  "z": "n",
  "list": [1, 2.5],
  "rows": [
    {"a": 1},
    {
      "b": []
    }
  ],
  "five": {
    "a": 1,
    "b": 2,
    "c": 3,
    "d": 4,
    "e": 5
  },
  "none": {}
}
)");
}

TEST(Dump, RefusesTextThatIsNotUtf8) {
  Json document;
  document["name"] = "caf\xe9";
  EXPECT_THAT([&] { (void)dump(document); }, ThrowsMessage<std::invalid_argument>(HasSubstr("UTF-8")));
}

std::string header(const std::string& format, int version) {
  return dump(Json{{"format", format}, {"version", version}});
}

void read_header(const std::string& text, int newest) {
  const Json document = parse_document(text, "f.json");
  Fields fields(Cursor(document, "f.json"));
  check_header(fields, "stagecraft.graph", newest);
  fields.done();
}

TEST(CheckHeader, TakesVersionsUpToTheNewest) {
  EXPECT_NO_THROW(read_header(header("stagecraft.graph", 3), 3));
  EXPECT_NO_THROW(read_header(header("stagecraft.graph", 1), 3));
  for (const int version : {0, 4}) {
    EXPECT_THAT([&] { read_header(header("stagecraft.graph", version), 3); },
                refuses("f.json: /version: ", "version " + std::to_string(version)));
  }
}

TEST(CheckHeader, RefusesAnotherFormatAndTextForAVersion) {
  EXPECT_THAT([] { read_header(header("stagecraft.plan", 1), 3); },
              refuses("f.json: /format: ", "\"stagecraft.plan\""));
  EXPECT_THAT([] { read_header(R"({"format": "stagecraft.graph", "version": "1"})", 3); },
              refuses("f.json: /version: ", "\"1\""));
  EXPECT_THAT([] { read_header(R"({"version": 1})", 3); }, refuses("f.json: /: ", "\"format\""));
}

}  // namespace
}  // namespace stagecraft::format

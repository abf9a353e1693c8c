#include "costmodel/format/description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/format/shared_notations.h"

namespace stagecraft::format {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

auto refuses(const std::string& text) { return ThrowsMessage<FormatError>(HasSubstr(text)); }

struct Inner {
  int size = 0;
  friend bool operator==(const Inner&, const Inner&) = default;
};

struct Outer {
  std::string name;
  int count = 1;
  std::optional<Seconds> time;
  Inner inner;
  Inner flat;
  bool odd = false;
  bool was_absent = false;
  friend bool operator==(const Outer&, const Outer&) = default;
};

Notation<Outer> outer() {
  const FieldList<Inner> inner = {required("size", &Inner::size, integer(0, 9), "How many.")};
  return object<Outer>(
      fields<Outer>(
          {{
               required("name", &Outer::name, text(), "Any text."),
               optional("count", &Outer::count, integer(1, 5)).or_else([](Outer& of) { of.was_absent = true; }),
               optional("time_s", &Outer::time, not_negative()),
               optional("inner", &Outer::inner, object(inner, "Inside.").named("inner")),
           },
           embedded(&Outer::flat, inner),
           {
               group<Outer>("group", {optional("odd", &Outer::odd, boolean()).always()}),
               former<Outer, double>("speed", positive()),
           }}),
      "A whole.", [](const Cursor& at, Outer& of) {
        if (of.name.empty()) at.fail("has no name");
      });
}

Outer read(const std::string& text) {
  const Json json = parse_document(text, "f.json");
  return outer().read(Cursor(json, "f.json"));
}

TEST(Description, WritesWhatIsNotADefaultInOrderAndReadsItBack) {
  const Outer few{.name = "a", .count = 1, .time = {}, .inner = {}, .flat = {2}};
  EXPECT_EQ(outer().write(few).dump(), R"({"name":"a","size":2,"group":{"odd":false}})");
  const Outer all{.name = "b", .count = 3, .time = Seconds(0.5), .inner = {4}, .flat = {5}, .odd = true};
  const std::string text = outer().write(all).dump();
  EXPECT_EQ(text, R"({"name":"b","count":3,"time_s":0.5,"inner":{"size":4},"size":5,"group":{"odd":true}})");
  EXPECT_EQ(read(text), all);
}

TEST(Description, ReadsKeysInAnyOrderAndNullAsAbsent) {
  const Outer found = read(R"({"group": {}, "time_s": null, "speed": 2, "size": 3, "count": null, "name": "c"})");
  EXPECT_EQ(found.name, "c");
  EXPECT_EQ(found.flat.size, 3);
  EXPECT_TRUE(found.was_absent);
  EXPECT_FALSE(read(R"({"name": "c", "count": 2, "size": 3, "group": {}})").was_absent);
}

TEST(Description, NamesThePlaceOfWhatItRefuses) {
  EXPECT_THAT([] { (void)read("[]"); }, refuses("f.json: /: found [], expected an object"));
  EXPECT_THAT([] { (void)read(R"({"size": 3, "group": {}})"); }, refuses("f.json: /: key \"name\" is missing"));
  EXPECT_THAT([] { (void)read(R"({"name": null, "size": 3, "group": {}})"); }, refuses("/name: found null"));
  EXPECT_THAT([] { (void)read(R"({"name": "", "size": 3, "group": {}})"); }, refuses("f.json: /: has no name"));
  EXPECT_THAT([] { (void)read(R"({"name": "c", "size": 10, "group": {}})"); },
              refuses("/size: found 10, expected an integer from 0 to 9"));
  EXPECT_THAT([] { (void)read(R"({"name": "c", "size": 1, "group": {}, "speed": 0})"); },
              refuses("/speed: found 0, expected a number above 0"));
  EXPECT_THAT([] { (void)read(R"({"name": "c", "size": 1, "group": {}, "nmae": 0})"); },
              refuses("f.json: /: unknown key \"nmae\", did you mean name? known are name, count, time_s, inner, size, "
                      "group, speed"));
  EXPECT_THAT([] { (void)read(R"({"name": "c", "size": 1, "group": {"even": true}})"); },
              refuses("/group: unknown key \"even\", known are odd"));
}

TEST(Description, DescribesEachKeyButFormerOnes) {
  Json definitions = Json::object();
  const Json schema = outer().schema(definitions);
  EXPECT_EQ(schema["description"], "A whole.");
  EXPECT_EQ(schema["required"], Json::array({"name", "size", "group"}));
  EXPECT_EQ(schema["additionalProperties"], false);
  EXPECT_EQ(schema["properties"]["name"], Json({{"description", "Any text."}, {"type", "string"}}));
  EXPECT_EQ(schema["properties"]["count"], Json({{"type", "integer"}, {"minimum", 1}, {"maximum", 5}}));
  EXPECT_EQ(schema["properties"]["inner"], Json({{"$ref", "#/$defs/inner"}}));
  EXPECT_FALSE(schema["properties"].contains("speed"));
  EXPECT_EQ(definitions["inner"]["properties"]["size"]["description"], "How many.");
}

TEST(Row, IsAnArrayWithAnElementForEachColumn) {
  const auto pair = row<Inner>({required("size", &Inner::size, integer(0, 9))}, "One.");
  const Json one = Json::array({7});
  const Json two = Json::array({7, 8});
  EXPECT_EQ(pair.read(Cursor(one, "f.json")).size, 7);
  EXPECT_EQ(pair.write({7}), one);
  EXPECT_THAT([&] { (void)pair.read(Cursor(two, "f.json")); }, refuses("expected a row of 1 values"));
}

struct Even {
  int value = 0;
};
void validate(const Even& even) {
  if (even.value % 2 != 0) throw std::invalid_argument("is odd");
}

TEST(RefuseInvalid, NamesTheFileOfAValueThatValidateRefuses) {
  const Json document = Json::object();
  const Cursor root(document, "f.json");
  Even even{2};
  Even odd{3};
  EXPECT_NO_THROW(refuse_invalid(root, even));
  EXPECT_THAT([&] { refuse_invalid(root, odd); }, ThrowsMessage<FormatError>("f.json: /: is odd"));
}

TEST(DeviceKind, ReadsTheWordsItWrites) {
  const Notation<DeviceKind> notation = device_kind();
  for (const DeviceKind kind : {DeviceKind::Processor, DeviceKind::Gpu}) {
    const Json word = notation.write(kind);
    EXPECT_EQ(notation.read(Cursor(word, "f.json")), kind);
  }
  const Json word = "abacus";
  EXPECT_THAT([&] { (void)notation.read(Cursor(word, "f.json")); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr("\"abacus\""), EndsWith("processor, gpu"))));
}

TEST(Processors, AreAtLeastOne) {
  const Notation<int> notation = processors();
  const Json none = 0;
  const Json one = 1;
  EXPECT_EQ(notation.read(Cursor(one, "f.json")), 1);
  EXPECT_THAT([&] { (void)notation.read(Cursor(none, "f.json")); }, refuses("f.json: /: found 0"));
}

TEST(ProvenanceNotation, LeavesOutWhatIsNotKnown) {
  const Notation<Provenance> notation = provenance();
  EXPECT_EQ(notation.write({}), Json::object());
  Provenance some;
  some.device = "a processor";
  some.notes = {{"b", "2"}, {"a", "1"}};
  const Json json = notation.write(some);
  EXPECT_EQ(dump(json), "{\n  \"device\": \"a processor\",\n  \"notes\": {\"a\": \"1\", \"b\": \"2\"}\n}\n");
  EXPECT_EQ(notation.read(Cursor(json, "f.json")), some);
}

TEST(TextMap, NamesTheKeyWhoseValueIsNotAString) {
  const Json document = Json::parse(R"({"a": "1", "b/c": 2})");
  EXPECT_THAT([&] { (void)text_map().read(Cursor(document, "f.json")); }, refuses("f.json: /b~1c: found 2"));
  const Json list = Json::array();
  EXPECT_THAT([&] { (void)text_map().read(Cursor(list, "f.json")); }, refuses("f.json: /: found []"));
}

}  // namespace
}  // namespace stagecraft::format

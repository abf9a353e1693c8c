#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/format/topology_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <iostream>
#include <random>
#include <sstream>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "tests/costmodel/documents.h"
#include "tests/support/run_command.h"

// What all documents have in common. The tests named after each document cover the rest.

namespace stagecraft::format {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

/// One kind of document: a text with every key, and the text written back after reading a text or a file.
struct Kind {
  std::string name;
  std::string document;
  std::function<std::string(const std::string& text)> parse;
  std::function<std::string(const std::string& path)> read;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> table{
      {"graph", graph_json(full_graph()), [](const auto& text) { return graph_json(parse_graph(text, "f.json")); },
       [](const auto& path) { return graph_json(read_graph(path)); }},
      {"topology", topology_json(full_topology()),
       [](const auto& text) { return topology_json(parse_topology(text, "f.json")); },
       [](const auto& path) { return topology_json(read_topology(path)); }},
      {"plan", plan_json(full_plan()), [](const auto& text) { return plan_json(parse_plan(text, "f.json")); },
       [](const auto& path) { return plan_json(read_plan(path)); }},
      {"prediction", prediction_json(full_prediction()),
       [](const auto& text) { return prediction_json(parse_prediction(text, "f.json")); },
       [](const auto& path) { return prediction_json(read_prediction(path)); }},
      {"timeline", measurement_json(full_measurement()),
       [](const auto& text) { return measurement_json(parse_measurement(text, "f.json")); },
       [](const auto& path) { return measurement_json(read_measurement(path)); }},
  };
  return table;
}

class Documents : public ::testing::TestWithParam<std::string> {
 protected:
  const Kind& kind() const {
    for (const Kind& kind : kinds()) {
      if (kind.name == GetParam()) return kind;
    }
    throw std::logic_error(GetParam());
  }
};

TEST_P(Documents, RoundTripByteForByte) {
  EXPECT_EQ(kind().parse(kind().document), kind().document);
  EXPECT_TRUE(kind().document.ends_with("}\n"));
  EXPECT_THAT(kind().document, StartsWith("{\n  \"format\": \"stagecraft." + GetParam() + "\",\n  \"version\": "));
}

TEST_P(Documents, AreNotReadAsAnotherKind) {
  for (const Kind& other : kinds()) {
    if (other.name == GetParam()) continue;
    EXPECT_THAT([&] { (void)kind().parse(other.document); },
                ThrowsMessage<FormatError>(
                    AllOf(StartsWith("f.json: /format: "), HasSubstr("\"stagecraft." + other.name + "\""))));
  }
}

TEST_P(Documents, AreRefusedWhereverTheyAreCutOff) {
  const unsigned seed = 11;
  std::mt19937 random(seed);
  const std::string& whole = kind().document;
  for (int i = 0; i < 100; ++i) {
    const std::string text = whole.substr(0, random() % (whole.size() - 1));  // cuts off more than the final newline
    EXPECT_THAT([&] { (void)kind().parse(text); }, ThrowsMessage<FormatError>(StartsWith("f.json: ")))
        << "seed " << seed << ", " << text.size() << " of " << whole.size() << " bytes";
  }
}

TEST_P(Documents, AreReadFromAFileOrStandardInput) {
  const testing::CommandFolder folder;
  folder.write("d.json", kind().document);
  EXPECT_EQ(kind().read((folder.path() / "d.json").string()), kind().document);
  std::istringstream in(kind().document);
  std::streambuf* const before = std::cin.rdbuf(in.rdbuf());
  const std::string read = kind().read("-");
  std::cin.rdbuf(before);
  EXPECT_EQ(read, kind().document);
}

TEST_P(Documents, NameTheFileThatCannotBeRead) {
  EXPECT_THAT([&] { (void)kind().read("/none/d.json"); }, ThrowsMessage<FormatError>(StartsWith("/none/d.json: ")));
  const testing::CommandFolder folder;
  folder.write("d.json", "{}");
  const std::string path = (folder.path() / "d.json").string();
  EXPECT_THAT([&] { (void)kind().read(path); },
              ThrowsMessage<FormatError>(AllOf(StartsWith(path + ": /: "), HasSubstr("\"format\""))));
}

INSTANTIATE_TEST_SUITE_P(Kinds, Documents, ::testing::Values("graph", "topology", "plan", "prediction", "timeline"),
                         [](const auto& tested) { return tested.param; });

TEST(DocumentProvenance, ContainsOnlyText) {
  for (const Kind& kind : kinds()) {
    if (kind.name == "prediction") continue;  // predictions have no provenance
    std::string text = kind.document;
    const std::size_t at = text.find("\"2026-01-02T03:04:05Z\"");
    ASSERT_NE(at, text.npos) << kind.name;
    text.replace(at, 22, "20260102");
    EXPECT_THAT(
        [&] { (void)kind.parse(text); },
        ThrowsMessage<FormatError>(AllOf(StartsWith("f.json: /provenance/date: "), HasSubstr("found 20260102"))));
  }
}

}  // namespace
}  // namespace stagecraft::format

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "costmodel/format/files/files.h"
#include "tests/support/places.h"
#include "tests/support/run_command.h"

// The cases of tests/golden/cases: each is a folder of documents, the commands to run on them, and the expected
// results. tests/golden/cases/README.md says how to write one; a new case is a new folder.

namespace stagecraft {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

const fs::path kCases = source_folder() + "/tests/golden/cases";

/// Whether a value may differ from the expected one: the provenance and the format's version.
bool is_free(const std::string& pointer) { return pointer == "/provenance" || pointer == "/version"; }

/// Adds "POINTER: found X, expected Y" for every difference. Objects may have more keys than expected; numbers must
/// agree within the relative `tolerance`.
void compare(const Json& found, const Json& expected, double tolerance, const std::string& pointer,
             std::vector<std::string>& differences) {
  if (is_free(pointer)) return;
  const auto differ = [&] {
    differences.push_back((pointer.empty() ? "/" : pointer) + ": found " + found.dump() + ", expected " +
                          expected.dump());
  };
  if (expected.is_object() && found.is_object()) {
    for (const auto& [key, value] : expected.items()) {
      const std::string inside = pointer + "/" + key;
      if (found.contains(key)) {
        compare(found[key], value, tolerance, inside, differences);
      } else if (!is_free(inside)) {
        differences.push_back(inside + ": found nothing, expected " + value.dump());
      }
    }
  } else if (expected.is_array() && found.is_array() && expected.size() == found.size()) {
    for (std::size_t i = 0; i < expected.size(); ++i)
      compare(found[i], expected[i], tolerance, pointer + "/" + std::to_string(i), differences);
  } else if (expected.is_number() && found.is_number()) {
    const double a = found.get<double>();
    const double b = expected.get<double>();
    if (std::abs(a - b) > tolerance * std::max(std::abs(a), std::abs(b))) differ();
  } else if (found != expected) {
    differ();
  }
}

std::vector<std::string> differences(const Json& found, const Json& expected, double tolerance) {
  std::vector<std::string> out;
  compare(found, expected, tolerance, "", out);
  return out;
}

/// Throws std::invalid_argument for a key that is not in `known`.
void check_keys(const Json& object, const std::vector<std::string>& known) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw std::invalid_argument("case.json: unknown key \"" + key + "\"");
  }
}

Json read_json(const fs::path& path) { return Json::parse(format::read_text(path.string())); }

std::vector<std::string> case_names() {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(kCases)) {
    if (entry.is_directory()) out.push_back(entry.path().filename());
  }
  std::sort(out.begin(), out.end());
  return out;
}

class GoldenCase : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenCase, MatchesTheExpectedOutput) {
  const fs::path source = kCases / GetParam();
  const testing::CommandFolder folder;
  for (const auto& entry : fs::directory_iterator(source)) fs::copy(entry.path(), folder.path());
  const Json described = read_json(source / "case.json");
  check_keys(described, {"why", "relative_tolerance", "runs", "doctor"});
  ASSERT_FALSE(described.at("why").empty());
  const double tolerance = described.at("relative_tolerance");
  ASSERT_LE(tolerance, 1e-9) << "more than rounding";
  ASSERT_FALSE(described.at("runs").empty());
  for (const Json& run : described.at("runs")) {
    check_keys(run, {"verb", "arguments", "document", "text", "status", "error"});
    std::string command = run.at("verb").get<std::string>() + " " + run.at("arguments").get<std::string>();
    if (run.at("verb") == "plan" && command.find(" -o ") == std::string::npos) command += " -o -";
    SCOPED_TRACE(command);
    const testing::Outcome outcome = folder.run("stagecraft-" + command);
    const int status = run.value("status", 0);
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_EQ(run.contains("document") + run.contains("text") + run.contains("error"), 1) << "says one of these";
    EXPECT_EQ(run.contains("error"), status != 0);
    if (run.contains("error")) {
      EXPECT_EQ(outcome.err, run["error"].get<std::string>());
      EXPECT_EQ(outcome.out, "");
    } else if (run.contains("text")) {
      static const std::regex hash("; hash [0-9a-f]{16}");  // of the document, which may get more keys
      EXPECT_EQ(std::regex_replace(outcome.out, hash, ""), run["text"].get<std::string>());
    } else if (outcome.status == 0) {
      const Json expected = read_json(source / run["document"].get<std::string>());
      EXPECT_THAT(differences(Json::parse(outcome.out), expected, tolerance), ::testing::IsEmpty());
    }
  }
}

std::string test_name(const ::testing::TestParamInfo<std::string>& tested) {
  std::string out = tested.param;
  std::replace_if(out.begin(), out.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return out;
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenCase, ::testing::ValuesIn(case_names()), test_name);

TEST(GoldenCases, ArePresentAndTellDocumentsApart) {
  EXPECT_GE(case_names().size(), 25U);
  const Json expected = Json::parse(R"({"version": 1, "a": [1, {"b": "x"}], "t": 0.1})");
  EXPECT_THAT(differences(Json::parse(R"({"version": 2, "a": [1, {"b": "x"}], "t": 0.1, "more": 1})"), expected, 0),
              ::testing::IsEmpty());
  EXPECT_THAT(differences(Json::parse(R"({"a": [1, {"b": "y"}], "t": 0.2})"), expected, 0.1),
              ::testing::ElementsAre("/a/1/b: found \"y\", expected \"x\"", "/t: found 0.2, expected 0.1"));
  EXPECT_THAT(differences(Json::parse(R"({"a": [1]})"), expected, 0.1),
              ::testing::ElementsAre("/a: found [1], expected [1,{\"b\":\"x\"}]", "/t: found nothing, expected 0.1"));
}

}  // namespace
}  // namespace stagecraft

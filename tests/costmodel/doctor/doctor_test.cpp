#include "costmodel/doctor/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "costmodel/format/files/files.h"
#include "costmodel/format/results/diagnosis_json.h"
#include "tests/costmodel/documents.h"
#include "tests/support/places.h"

// The cases of tests/golden/doctor, one per check, and every document of the repository.

namespace stagecraft::doctor {
namespace {

using nlohmann::json;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

const fs::path kCases = source_folder() + "/tests/golden/doctor";
const DoctorOptions kOptions{std::chrono::year(2026) / 1 / 31};

json read_json(const fs::path& path) { return json::parse(format::read_text(path.string())); }

/// The documents of a folder that doctor reads, ascending by name.
std::vector<fs::path> documents_in(const fs::path& folder) {
  static const std::set<std::string> kinds{"stagecraft.graph", "stagecraft.topology", "stagecraft.plan",
                                           "stagecraft.timeline"};
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    const json document = read_json(entry.path());
    if (document.is_object() &&
        kinds.contains(document.value("format", json()).is_string() ? document["format"].get<std::string>()
                                                                    : std::string()))
      out.push_back(entry.path());
  }
  std::ranges::sort(out);
  return out;
}

/// What is found in these files together; findings name a file without its folder.
Diagnosis diagnosis_of(const std::vector<fs::path>& paths) {
  ExaminedDocuments documents;
  for (const fs::path& path : paths) format::read_into(documents, path.string());
  const auto shorten = [](auto& all) {
    for (auto& document : all) document.file = fs::path(document.file).filename();
  };
  shorten(documents.graphs);
  shorten(documents.topologies);
  shorten(documents.plans);
  shorten(documents.measurements);
  Diagnosis out;
  for (const fs::path& path : paths) out.files.push_back(path.filename());
  out.findings = diagnose(documents, kOptions);
  return out;
}

std::vector<std::string> codes() {
  std::vector<std::string> out;
  for (const DoctorCheck& check : checks()) out.push_back(check.code);
  return out;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

TEST(Checks, HaveCodesInOrderAndAreInTheManual) {
  const std::string manual = format::read_text(source_folder() + "/docs/doctor.md");
  std::string last;
  for (const DoctorCheck& check : checks()) {
    EXPECT_TRUE(std::regex_match(check.code, std::regex("SC[1-3][0-9]{2}"))) << check.code;
    EXPECT_LT(last, check.code);
    last = check.code;
    EXPECT_THAT(manual, HasSubstr("| " + check.code + " | " + to_string(check.severity) + " | " + check.summary));
  }
  for (const DoctorCheck& check : checks())
    EXPECT_THAT(checks_text(), HasSubstr(check.code + " " + to_string(check.severity)));
}

class DoctorCase : public ::testing::TestWithParam<std::string> {};

TEST_P(DoctorCase, FindsWhatItsFolderSays) {
  const json described = read_json(kCases / GetParam() / "case.json");
  EXPECT_FALSE(described.at("why").get<std::string>().empty());
  const Diagnosis diagnosis = diagnosis_of(documents_in(kCases / GetParam()));
  std::vector<std::string> found = lines_of(diagnosis_text(diagnosis));
  found.pop_back();  // counts
  EXPECT_THAT(found, ElementsAreArray(described.at("finds").get<std::vector<std::string>>()));
  for (const Finding& finding : diagnosis.findings) EXPECT_EQ(finding.code, GetParam());
  EXPECT_FALSE(diagnosis.findings.empty());
  // A place is in the file.
  for (const Finding& finding : diagnosis.findings) {
    const json document = read_json(kCases / GetParam() / finding.file);
    EXPECT_TRUE(document.contains(json::json_pointer(finding.place))) << finding.place;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, DoctorCase, ::testing::ValuesIn(codes()),
                         [](const auto& tested) { return tested.param; });

TEST(Doctor, HasNoCaseWithoutACheck) {
  std::vector<std::string> folders;
  for (const auto& entry : fs::directory_iterator(kCases)) {
    if (entry.is_directory()) folders.push_back(entry.path().filename());
  }
  std::ranges::sort(folders);
  EXPECT_EQ(folders, codes());
}

// Examples one by one, as they are used alone; the documents of a golden case together.
TEST(Doctor, FindsInTheRepositoryOnlyWhatGoldenCasesSay) {
  const fs::path root = source_folder();
  std::map<std::string, std::set<std::string>> found;
  std::map<std::string, std::set<std::string>> expected;
  int examined = 0;
  const auto examine = [&](const std::string& name, const std::vector<fs::path>& paths) {
    if (paths.empty()) return;
    ++examined;
    for (const Finding& finding : diagnosis_of(paths).findings) found[name].insert(finding.code);
  };
  for (const fs::path& path : documents_in(root / "examples")) examine("examples/" + path.filename().string(), {path});
  std::vector<fs::path> folders{root / "bench/results"};
  for (const auto& entry : fs::recursive_directory_iterator(root / "tests/golden")) {
    if (entry.is_directory() && entry.path().parent_path() != kCases) folders.push_back(entry.path());
  }
  for (const fs::path& folder : folders) {
    const std::string name = folder.lexically_relative(root).string();
    examine(name, documents_in(folder));
    if (!fs::exists(folder / "case.json")) continue;
    const json described = read_json(folder / "case.json");
    if (described.contains("doctor")) described["doctor"].get_to(expected[name]);
  }
  EXPECT_GE(examined, 10);
  EXPECT_EQ(json(found), json(expected));
}

// Two topologies: the plan needs to fit only one of them.
TEST(Doctor, TakesAPlanThatFitsOneOfSeveralFiles) {
  ExaminedDocuments documents;
  documents.plans.push_back({"plan.json", full_plan()});  // devices 0 and 1
  Topology small = full_topology();
  small.levels = {{"server", 1, {1_GBps, 1_us, {}, {}}}};
  const auto has = [&](const std::string& code) {
    const auto findings = diagnose(documents, kOptions);
    return std::ranges::find(findings, code, &Finding::code) != findings.end();
  };
  documents.topologies.push_back({"small.json", small});
  EXPECT_TRUE(has("SC301"));
  small.levels.front().count = 2;
  documents.topologies.push_back({"fits.json", small});
  EXPECT_FALSE(has("SC301"));
  EXPECT_FALSE(has("SC304"));
}

TEST(DiagnosisText, CountsFilesErrorsAndWarnings) {
  EXPECT_EQ(diagnosis_text(full_diagnosis()),
            "warning SC101 topology.json: /levels/0: is slow\n"
            "error SC301 plan.json: is for another cluster\n"
            "1 file: 1 error, 1 warning\n");
  EXPECT_EQ(diagnosis_text({{"a", "b"}, {}}), "2 files: 0 errors, 0 warnings\n");
}

TEST(DiagnosisJson, HasTheFilesAndEachFinding) {
  EXPECT_EQ(json::parse(format::diagnosis_json(full_diagnosis())), (json{{"format", "stagecraft.diagnosis"},
                                                                         {"version", 1},
                                                                         {"files", {"topology.json"}},
                                                                         {"findings",
                                                                          {{{"code", "SC101"},
                                                                            {"severity", "warning"},
                                                                            {"file", "topology.json"},
                                                                            {"place", "/levels/0"},
                                                                            {"message", "is slow"}},
                                                                           {{"code", "SC301"},
                                                                            {"severity", "error"},
                                                                            {"file", "plan.json"},
                                                                            {"place", ""},
                                                                            {"message", "is for another cluster"}}}}}));
}

}  // namespace
}  // namespace stagecraft::doctor

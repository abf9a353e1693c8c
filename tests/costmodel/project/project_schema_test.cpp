#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/project/project.h"
#include "tests/support/places.h"

// project.schema.json is for editors, the reader for us. They must accept and refuse the same files.

namespace stagecraft::project {
namespace {

using Json = nlohmann::ordered_json;

const Json& schema() {
  static const Json read = Json::parse(format::read_text(source_folder() + "/costmodel/project/project.schema.json"));
  return read;
}

std::string type_of(const Json& value) { return value.is_number_integer() ? "integer" : value.type_name(); }

bool matches(const Json& pattern, const std::string& text) {
  static std::map<std::string, std::regex> known;
  const auto [at, added] = known.try_emplace(pattern.get<std::string>());
  if (added) at->second = std::regex(at->first);
  return std::regex_search(text, at->second);
}

bool accepts(const Json& rules, const Json& value);

/// Whether a value obeys one rule of JSON Schema, draft 7. Throws for a rule that the schema of projects does not use.
bool obeys(const std::string& rule, const Json& rules, const Json& value) {
  static const std::set<std::string> notes{"$schema", "$id", "title", "description", "propertyNames"};
  const Json& wanted = rules[rule];
  const auto holds = [&](const Json& schema_rules) { return accepts(schema_rules, value); };
  if (notes.contains(rule)) return true;
  if (rule == "type") {
    const Json types = wanted.is_array() ? wanted : Json::array({wanted});
    return std::ranges::any_of(
        types, [&](const Json& type) { return type == type_of(value) || (type == "number" && value.is_number()); });
  }
  if (rule == "enum") return std::ranges::find(wanted, value) != wanted.end();
  if (rule == "pattern") return !value.is_string() || matches(wanted, value.get<std::string>());
  if (rule == "minimum") return !value.is_number() || value >= wanted;
  if (rule == "exclusiveMinimum") return !value.is_number() || value > wanted;
  if (rule == "maximum") return !value.is_number() || value <= wanted;
  if (rule == "items")
    return !value.is_array() ||
           std::ranges::all_of(value, [&](const Json& element) { return accepts(wanted, element); });
  if (rule == "minItems") return !value.is_array() || value.size() >= wanted.get<std::size_t>();
  if (rule == "maxItems") return !value.is_array() || value.size() <= wanted.get<std::size_t>();
  if (rule == "required")
    return std::ranges::all_of(wanted, [&](const Json& key) { return value.contains(key.get<std::string>()); });
  if (rule == "anyOf") return std::ranges::any_of(wanted, holds);
  if (rule == "allOf") return std::ranges::all_of(wanted, holds);
  if (rule == "oneOf") return std::ranges::count_if(wanted, holds) == 1;
  if (rule == "not") return !accepts(wanted, value);
  if (rule == "dependencies") {
    return std::ranges::all_of(wanted.items(), [&](const auto& dependency) {
      return !value.contains(dependency.key()) || accepts({{"required", dependency.value()}}, value);
    });
  }
  if (rule == "properties" || rule == "additionalProperties") {
    if (!value.is_object()) return true;
    const Json named = rules.value("properties", Json::object());
    return std::ranges::all_of(value.items(), [&](const auto& member) {
      if (named.contains(member.key())) return rule != "properties" || accepts(named[member.key()], member.value());
      const bool fits = !rules.contains("propertyNames") || matches(rules["propertyNames"]["pattern"], member.key());
      return rule == "properties" || (fits && wanted != false && accepts(wanted, member.value()));
    });
  }
  throw std::logic_error("unknown rule " + rule);
}

bool accepts(const Json& rules, const Json& value) {
  return std::ranges::all_of(rules.items(), [&](const auto& rule) { return obeys(rule.key(), rules, value); });
}

/// A value in TOML, which differs from JSON in tables only.
std::string toml(const Json& value) {
  if (!value.is_object()) return value.dump();
  std::string out;
  for (const auto& [key, member] : value.items())
    out += (out.empty() ? " " : ", ") + Json(key).dump() + " = " + toml(member);
  return "{" + out + " }";
}

std::string file_of(const Json& project) {
  std::string out;
  for (const auto& [section, keys] : project.items()) {
    if (!keys.is_object()) {
      out = section + " = " + toml(keys) + "\n" + out;
      continue;
    }
    out += "[" + section + "]\n";
    for (const auto& [key, value] : keys.items()) out += Json(key).dump() + " = " + toml(value) + "\n";
  }
  return out;
}

/// The reader's message; empty if it accepts the project.
std::string refusal(const Json& project) {
  try {
    (void)parse_project(file_of(project), "p.toml");
  } catch (const FormatError& e) { return e.what(); }
  return "";
}

/// Both accept the project, or both refuse it. Returns which.
bool expect_agreement(const Json& project) {
  const std::string message = refusal(project);
  EXPECT_EQ(accepts(schema(), project), message.empty()) << file_of(project) << message;
  return message.empty();
}

/// A project in which `key` may be any value of its own.
Json project_with(const std::string& section, const std::string& key, const Json& value) {
  Json out{{"model", {{"name", "mlp"}}}};
  if (section == "evaluate") out["run"] = Json::object();
  if (section == "evaluate") out["evaluate"]["source"] = "synthetic";
  if (section == "model" && key == "graph") out["model"].erase("name");
  if (key.starts_with("loss_scale")) out["model"]["dtype"] = "float16";
  if (key.starts_with("validate_")) out["run"]["validate_data"] = "synthetic";
  if (key == "png") out["output"]["pictures"] = true;
  out[section][key] = value;
  return out;
}

/// The value of an example, as written in a file.
Json example_of(const ProjectKey& key) {
  if (key.kind == KeyKind::Named) return {{"layers", 4}};
  return Json::parse(key.example);
}

TEST(ProjectSchema, HasTheKeysOfTheReaderInTheirOrder) {
  std::vector<std::string> wanted;
  for (const ProjectSection& section : sections()) {
    wanted.push_back("[" + section.name + "] " + section.help);
    for (const ProjectKey& key : section.keys) wanted.push_back(key.name);
  }
  std::vector<std::string> found;
  for (const auto& [section, rules] : schema()["properties"].items()) {
    found.push_back("[" + section + "] " + rules["description"].get<std::string>());
    for (const auto& [key, description] : rules["properties"].items()) found.push_back(key);
  }
  EXPECT_EQ(found, wanted);
}

TEST(ProjectSchema, DescribesEachKeyAsTheFileDoes) {
  for (const ProjectSection& section : sections()) {
    for (const ProjectKey& key : section.keys) {
      const Json& rules = schema()["properties"][section.name]["properties"][key.name];
      EXPECT_NE(rules.value("description", ""), "") << key.name;
      if (!key.help.empty()) { EXPECT_EQ(rules["description"], key.help) << section.name; }
    }
  }
}

TEST(ProjectSchema, ListsTheTextsThatTheReaderLists) {
  int lists = 0;
  for (const ProjectSection& section : sections()) {
    for (const ProjectKey& key : section.keys) {
      const Json& rules = schema()["properties"][section.name]["properties"][key.name];
      std::vector<std::string> wanted = key.one_of;
      std::erase(wanted, "csv:FILE");  // which stands for any file
      const Json& listed = rules.contains("anyOf") ? rules["anyOf"][0] : rules;
      EXPECT_EQ(listed.value("enum", Json::array()), Json(wanted)) << key.name;
      lists += wanted.empty() ? 0 : 1;
    }
  }
  EXPECT_GE(lists, 5);  // dtype, device, channel, schedule, on_nonfinite
}

TEST(ProjectSchema, TakesTheValuesThatTheReaderTakes) {
  // 2^53 and 2^60 are the limits of integers and bytes. Without 1.0: an integer for JSON Schema, but not in TOML.
  const Json values = Json::parse(R"([
    true, false, 0, 1, -1, 7, 9007199254740992, 9007199254740993, 1152921504606846976, 1152921504606846977,
    0.0, 0.5, -0.5, 7.5, 1e-12, 1.5e300,
    "text", "", "-text", "two words", "a\nb", "tab\t", "\u007f", "gr\u00fc\u00df", "float16", "cuda", "1f1b", "skip",
    "forward", "csv:", "csv:s.csv", "csv:a\tb",
    "16GiB", "16 gib", "1.5MB", "16e9", "16", "16 ", ".5kB", "5.TiB", "2b", "16 GiBs", "GiB", "1k", "-1GiB", "1.5.5MB", "4gb ",
    [], ["a", "-b", 3], [""], ["a\nb"], [1.5], [true], [[1]], [0.5, 0.25], [0, 1], [-0.5, 0.5], [0.5, 0.5, 0.5],
    {}, {"key": 1}, {"a-b_C": "text"}, {"two words": 1}, {"": 1}, {"key": 1.5}, {"key": true}, {"key": ""},
    {"key": "a\nb"}, {"key": [1]}, {"key": {"key": 1}}
  ])");
  for (const ProjectSection& section : sections()) {
    for (const ProjectKey& key : section.keys) {
      int accepted = expect_agreement(project_with(section.name, key.name, example_of(key))) ? 1 : 0;
      EXPECT_EQ(accepted, 1) << key.example;
      for (const Json& value : values)
        accepted += expect_agreement(project_with(section.name, key.name, value)) ? 1 : 0;
      EXPECT_LT(accepted, static_cast<int>(values.size()) / 2) << key.name << " takes almost anything";
    }
  }
}

TEST(ProjectSchema, RefusesWhatIsUnknown) {
  for (const ProjectSection& section : sections()) {
    EXPECT_FALSE(expect_agreement(project_with(section.name, "strange", 1))) << section.name;
    Json wrong = project_with("model", "name", "mlp");
    wrong[section.name] = 4;
    EXPECT_FALSE(expect_agreement(wrong)) << section.name;
  }
  EXPECT_FALSE(expect_agreement({{"model", {{"name", "mlp"}}}, {"strange", Json::object()}}));
  EXPECT_FALSE(expect_agreement({{"model", {{"name", "mlp"}}}, {"name", "mlp"}}));
}

TEST(ProjectSchema, KnowsWhichKeysNeedOrExcludeEachOther) {
  const Json wrong = Json::parse(R"([
    {},
    {"model": {}},
    {"model": {"microbatch": 4}},
    {"model": {"name": "mlp", "graph": "g.json"}},
    {"model": {"name": "mlp"}, "plan": {"microbatches": 2, "global_batch": 8}},
    {"model": {"name": "mlp"}, "plan": {"recompute": true, "recompute_every": 8}},
    {"model": {"name": "mlp"}, "plan": {"stages": 2, "replicas": [2, 1]}},
    {"model": {"name": "mlp"}, "run": {"steps": 2, "epochs": 2}},
    {"model": {"name": "mlp"}, "run": {"validate_every": 2}},
    {"model": {"name": "mlp"}, "run": {"validate_samples": 2}},
    {"model": {"name": "mlp"}, "output": {"png": true}},
    {"model": {"name": "mlp"}, "evaluate": {"source": "synthetic"}},
    {"model": {"name": "mlp"}, "run": {}, "evaluate": {}},
    {"model": {"name": "mlp"}, "run": {}, "evaluate": {"samples": 4}}
  ])");
  for (const Json& project : wrong) EXPECT_FALSE(expect_agreement(project)) << project;
  for (const ProjectSection& section : sections()) {
    if (section.name == "evaluate" || section.name == "model") continue;
    EXPECT_TRUE(expect_agreement({{"model", {{"name", "mlp"}}}, {section.name, Json::object()}})) << section.name;
  }
  EXPECT_TRUE(expect_agreement({{"model", {{"graph", "g.json"}}}}));
}

TEST(ProjectSchema, TakesWhatInitWrites) {
  NewProject there{.model = "gpt", .options = {"layers=4"}, .topology = "example:dgx-h100", .estimate = "H100-SXM"};
  NewProject planned{.model = "g.json", .topology = "t.json"};
  for (const NewProject& wanted : {NewProject{}, there, planned}) {
    Json project;
    for (const auto& [section, keys] : new_project(wanted).given) {
      for (const auto& [key, value] : keys) {
        project[section][key] = std::visit([](const auto& given) { return Json(given); }, value);
      }
    }
    EXPECT_TRUE(expect_agreement(project));
  }
}

}  // namespace
}  // namespace stagecraft::project

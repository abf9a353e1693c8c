#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "costmodel/accuracy/intervals.h"
#include "costmodel/errors.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/format/results/accuracy_json.h"
#include "costmodel/format/results/analysis_json.h"
#include "costmodel/format/results/diagnosis_json.h"
#include "costmodel/format/results/documents.h"
#include "costmodel/format/results/evaluation_json.h"
#include "costmodel/format/results/objective_json.h"
#include "costmodel/format/results/steps_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/format/topology_json.h"
#include "tests/costmodel/documents.h"
#include "tests/support/chains.h"

// The schemas and the readers must agree, checked with a document that contains every key.

namespace stagecraft::format {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;
using Pointer = Json::json_pointer;

/// Three layers in two stages, with everything that a graph and a topology can give an explanation.
Scenario small_scenario() {
  Scenario out;
  out.graph = stagecraft::testing::chain_graph({1, 1, 1}, {2, 2, 2}, Bytes(500));
  out.graph.microbatch_samples = 2;
  out.topology = stagecraft::testing::flat_topology(2, 1000);
  out.topology.device.memory = Bytes(1 << 20);
  out.plan = make_plan(out.graph, out.topology, {{0, 0, 1}, {1, 1}}, {.microbatches = 4});
  return out;
}

std::string some_explanation() {
  const Scenario s = small_scenario();
  return explanation_json(std::get<Explanation>(explain(s.graph, s.topology, BoundPlan(s.plan))));
}

std::string some_whatif() {
  return whatif_json(std::get<WhatIf>(what_if(small_scenario(), {"compute=2x"}, {}, {}, "measured elsewhere")));
}

std::string some_diff() {
  const Scenario s = small_scenario();
  const Plan other = make_plan(s.graph, s.topology, {{0, 1, 1}, {1, 1}}, {.microbatches = 8});
  return plan_comparison_json(std::get<PlanComparison>(compare_plans(s.graph, s.topology, s.plan, other)));
}

std::string some_objective() {
  ObjectiveAnswer answer;
  answer.profile = "piper";
  answer.source = "f.json";
  answer.unit = "seconds per sample of the slowest stage";
  answer.value = 3_s;
  answer.lower_bound = 2_s;
  answer.stages = {{{"a", "b"}, "accelerator", 2, 1, 3_s, 16.0, {{"vanilla", 2}}}};
  answer.nodes = 2;
  answer.downsets = 3;
  answer.pairs = 3;
  answer.stopped = "time is up";
  answer.notes = {"times are read as published, in seconds"};
  return objective_json(answer);
}

/// Two sides of everything that a change can have.
std::string some_change() {
  StepChange change;
  change.measured = true;
  change.step = {4_s, 5_s};
  change.interval = {Range<Seconds>{3_s, 5_s}, Range<Seconds>{4_s, 6_s}};
  change.spread = {1_s, 2_s};
  change.steps = {8, 9};
  change.samples_per_s = {2.5, 2.0};
  change.bubble = {0.25, 0.5};
  change.memory = {300_B, 200_B};
  change.actions = {{0, ActionKind::Forward, {1_s, 2_s}}};
  change.ranks = {{0, {0.25, 0.5}, {300_B, 200_B}}};
  change.differences = {{"schedule", "1f1b", "gpipe"}};
  change.distrust = {"the second run did not finish"};
  change.drift = Drift{{{"copy", 1.25}}, 1.25};
  change.no_drift = "text";
  return step_change_json(change);
}

std::string some_evaluation() {
  ModelEvaluation evaluation;
  evaluation.loss = 2.5;
  evaluation.samples = 64;
  evaluation.samples_left = 3;
  evaluation.predictions = 100;
  evaluation.correct = 75;
  evaluation.perplexity = 12.5;
  evaluation.time = 3_s;
  return evaluation_json(evaluation, {"mlp", "tensors-in-order:test.safetensors", "saved/step-3", 3});
}

struct Kind {
  std::string name;
  std::string document;
  std::function<void(const std::string&)> read;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> table{
      {"checkpoint", checkpoint_json(full_checkpoint()),
       [](const std::string& text) { (void)parse_checkpoint(text, "file.json"); }},
      {"graph", graph_json(full_graph()), [](const std::string& text) { (void)parse_graph(text, "file.json"); }},
      {"topology", topology_json(full_topology()),
       [](const std::string& text) { (void)parse_topology(text, "file.json"); }},
      {"plan", plan_json(full_plan()), [](const std::string& text) { (void)parse_plan(text, "file.json"); }},
      {"prediction", prediction_json(full_prediction()),
       [](const std::string& text) { (void)parse_prediction(text, "file.json"); }},
      {"timeline", measurement_json(full_measurement()),
       [](const std::string& text) { (void)parse_measurement(text, "file.json"); }},
      {"calibration", calibration_json(full_calibration()),
       [](const std::string& text) { (void)parse_calibration(text, "file.json"); }},
      {"validation", validation_json(full_validation()),
       [](const std::string& text) { (void)parse_validation(text, "file.json"); }},
      {"comparison", comparison_json(full_comparison()),
       [](const std::string& text) { (void)parse_comparison(text, "file.json"); }},
      {"diagnosis", diagnosis_json(full_diagnosis()), nullptr},
      {"steps", steps_json(full_steps()), [](const std::string& text) { (void)parse_steps(text, "file.json"); }},
      {"explanation", some_explanation(), nullptr},
      {"whatif", some_whatif(), nullptr},
      {"diff", some_diff(), nullptr},
      {"objective", some_objective(), nullptr},
      {"plans", plan_list_json(full_plan_list()),
       [](const std::string& text) { (void)parse_plan_list(text, "file.json"); }},
      {"evaluation", some_evaluation(), nullptr},
      {"change", some_change(), nullptr},
  };
  return table;
}

class Schema : public ::testing::TestWithParam<std::string> {
 protected:
  Schema() {
    for (const Kind& kind : kinds()) {
      if (kind.name == GetParam()) kind_ = &kind;
    }
    schema_ = Json::parse(document_schema(GetParam()).text);
    document_ = Json::parse(kind_->document);
  }

  const Json& resolved(const Json* schema) const {
    if (!schema->contains("$ref")) return *schema;
    return schema_.at(Pointer((*schema)["$ref"].get<std::string>().substr(1)));
  }

  /// Calls visit(value, its schema, pointer) for the document and every value in it.
  using Visit = std::function<void(const Json&, const Json&, const Pointer&)>;
  void walk(const Json& value, const Json& unresolved, const Pointer& at, const Visit& visit) const {
    const Json& schema = resolved(&unresolved);
    visit(value, schema, at);
    if (schema.contains("const")) return;
    if (value.is_object()) {
      for (const auto& [key, member] : value.items()) {
        const bool named = schema.contains("properties") && schema["properties"].contains(key);
        if (!named && !schema["additionalProperties"].is_object()) {
          ADD_FAILURE() << (at / key).to_string() << " is in the document but not in the schema";
          continue;
        }
        walk(member, named ? schema["properties"][key] : schema["additionalProperties"], at / key, visit);
      }
    } else if (value.is_array()) {
      const Json& first = schema.contains("prefixItems") ? schema["prefixItems"] : Json::array();
      for (std::size_t i = 0; i < value.size(); ++i) {
        walk(value[i], i < first.size() ? first[i] : schema.at("items"), at / i, visit);
      }
    }
  }
  void walk(const Visit& visit) const { walk(document_, schema_, Pointer(), visit); }

  /// The reader's message for the document with `value` at `at`; empty if it accepts the document.
  std::string verdict(const Pointer& at, const Json& value) const {
    Json changed = document_;
    changed[at] = value;
    return verdict(changed);
  }
  std::string verdict(const Json& document) const {
    try {
      kind_->read(document.dump());
    } catch (const FormatError& e) { return e.what(); }
    return "";
  }

  void expect_accepted() const {
    EXPECT_EQ(schema_.at("$id"), "urn:stagecraft:" + GetParam() + ":" + document_.at("version").dump());
    walk([](const Json& value, const Json& schema, const Pointer& at) {
      const std::string where = at.to_string();
      if (schema.contains("const")) {
        EXPECT_EQ(value, schema["const"]) << where;
        return;
      }
      if (schema.contains("enum")) {
        EXPECT_THAT(schema["enum"], ::testing::Contains(value)) << where;
        return;
      }
      const Json types = schema.at("type").is_array() ? schema["type"] : Json::array({schema["type"]});
      const std::string type = value.is_number_integer() && schema["type"] == "integer" ? "integer" : value.type_name();
      EXPECT_THAT(types, ::testing::Contains(Json(type))) << where;
      if (value.is_number()) {
        EXPECT_GE(value.get<double>(), schema.value("minimum", -1e300)) << where;
        EXPECT_LE(value.get<double>(), schema.value("maximum", 1e300)) << where;
        EXPECT_GT(value.get<double>(), schema.value("exclusiveMinimum", -1e300)) << where;
      }
      if (value.is_array()) { EXPECT_GE(value.size(), schema.value("minItems", 0u)) << where; }
      for (const Json& key : schema.value("required", Json::array())) EXPECT_TRUE(value.contains(key)) << where << key;
    });
  }

  void expect_no_other_key() const {
    std::set<const Json*> met;
    std::set<std::string> missing;
    walk([&](const Json& value, const Json& schema, const Pointer&) {
      if (!schema.contains("properties")) return;
      for (const auto& [key, member] : schema["properties"].items()) {
        if (value.contains(key)) met.insert(&member);
      }
    });
    walk([&](const Json&, const Json& schema, const Pointer& at) {
      if (!schema.contains("properties")) return;
      for (const auto& [key, member] : schema["properties"].items()) {
        if (!met.contains(&member)) missing.insert(at.to_string() + "/" + key);
      }
    });
    EXPECT_THAT(missing, ::testing::IsEmpty());
  }

  const Kind* kind_ = nullptr;
  Json schema_;
  Json document_;
};

TEST_P(Schema, AcceptsWhatTheWriterWrites) {
  expect_accepted();
  EXPECT_EQ(verdict(document_), "");
}

TEST_P(Schema, HasNoKeyThatTheWriterNeverWrites) { expect_no_other_key(); }

TEST_P(Schema, RequiresTheKeysThatTheReaderRequires) {
  walk([this](const Json& value, const Json& schema, const Pointer& at) {
    if (!schema.contains("properties")) return;
    for (const auto& [key, member] : value.items()) {
      Json changed = document_;
      changed[at].erase(key);
      const Json required = schema.value("required", Json::array());
      const bool wanted = std::find(required.begin(), required.end(), key) != required.end();
      const std::string message = (at.empty() ? "/" : at.to_string()) + ": key \"" + key + "\" is missing";
      if (wanted) {
        EXPECT_THAT(verdict(changed), HasSubstr(message));
      } else {
        EXPECT_THAT(verdict(changed), ::testing::Not(HasSubstr("is missing"))) << at.to_string() << " without " << key;
      }
    }
  });
}

TEST_P(Schema, RefusesUnknownKeysWhereTheReaderDoes) {
  walk([this](const Json& value, const Json& schema, const Pointer& at) {
    if (!value.is_object()) return;
    const std::string where = at.empty() ? "/" : at.to_string();
    if (schema["additionalProperties"].is_object()) {
      const bool number = resolved(&schema["additionalProperties"])["type"] == "integer";
      const Json some = number ? Json(1) : Json("text");
      if (!schema.contains("propertyNames")) {
        EXPECT_EQ(verdict(at / "yyyy", some), "") << where;
        return;
      }
      EXPECT_THAT(verdict(at / "yyyy", some), HasSubstr("\"yyyy\", known are ")) << where;
      for (const Json& name : schema["propertyNames"]["enum"])
        EXPECT_EQ(verdict(at / name.get<std::string>(), some), "") << where << " " << name;
    } else {
      EXPECT_EQ(schema["additionalProperties"], false) << where;
      EXPECT_THAT(verdict(at / "yyyy", "text"), HasSubstr(where + ": unknown key \"yyyy\", known are "));
    }
  });
}

TEST_P(Schema, BoundsNumbersAsTheReaderDoes) {
  walk([this](const Json& value, const Json& schema, const Pointer& at) {
    if (!value.is_number() || schema.contains("const")) return;
    const std::string refusal = at.to_string() + ": found ";
    const bool whole = schema["type"] == "integer";
    if (!schema.contains("minimum") && !schema.contains("exclusiveMinimum")) {
      EXPECT_THAT(verdict(at, -1e300), ::testing::Not(HasSubstr(refusal)));
    } else if (schema.contains("minimum")) {
      const Json below =
          whole ? Json(schema["minimum"].get<std::int64_t>() - 1) : Json(schema["minimum"].get<double>() - 0.5);
      EXPECT_THAT(verdict(at, below), HasSubstr(refusal));
      EXPECT_THAT(verdict(at, schema["minimum"]), ::testing::Not(HasSubstr(refusal)));
    } else {
      EXPECT_THAT(verdict(at, schema["exclusiveMinimum"]), HasSubstr(refusal));
    }
    if (!whole) return;
    ASSERT_TRUE(schema.contains("maximum")) << refusal;
    EXPECT_THAT(verdict(at, schema["maximum"].get<std::int64_t>() + 1), HasSubstr(refusal));
    EXPECT_THAT(verdict(at, schema["maximum"]), ::testing::Not(HasSubstr(refusal)));
    EXPECT_THAT(verdict(at, 1.5), HasSubstr(refusal));
  });
}

TEST_P(Schema, NamesTypesAsTheReaderDoes) {
  walk([this](const Json& value, const Json&, const Pointer& at) {
    const std::string refusal = (at.empty() ? "/" : at.to_string()) + ": found ";
    for (const Json& other : {Json("text"), Json(7), Json(true), Json::array({1}), Json{{"key", 1}}}) {
      if (other.type() == value.type() || (other.is_number() && value.is_number())) continue;
      EXPECT_THAT(at.empty() ? verdict(other) : verdict(at, other), HasSubstr(refusal));
    }
  });
}

TEST(DocumentSchemas, AreThoseOfTheTestsHere) {
  std::vector<std::string> names;
  for (const Kind& kind : kinds()) names.push_back(kind.name);
  std::vector<std::string> listed;
  for (const DocumentSchema& schema : document_schemas()) listed.push_back(schema.name);
  EXPECT_THAT(listed, ::testing::UnorderedElementsAreArray(names));
  EXPECT_THAT([] { (void)document_schema("plna"); }, ::testing::ThrowsMessage<std::invalid_argument>(
                                                         HasSubstr("unknown document \"plna\", did you mean plan?")));
}

/// Documents for other programs, which nothing here reads.
class WrittenDocument : public Schema {};

TEST_P(WrittenDocument, IsWhatItsSchemaDescribes) {
  expect_accepted();
  expect_no_other_key();
}

INSTANTIATE_TEST_SUITE_P(Documents, WrittenDocument,
                         ::testing::Values("explanation", "whatif", "diff", "objective", "evaluation", "change",
                                           "diagnosis"),
                         [](const auto& param) { return param.param; });

INSTANTIATE_TEST_SUITE_P(Documents, Schema,
                         ::testing::Values("checkpoint", "graph", "topology", "plan", "prediction", "timeline",
                                           "comparison", "plans", "steps", "calibration", "validation"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace stagecraft::format

#include "costmodel/format/results/steps_json.h"

#include <fmt/format.h>

#include <algorithm>

#include "costmodel/fnv.h"
#include "costmodel/format/cursor.h"

namespace stagecraft::format {
namespace {

constexpr const char* kFormat = "stagecraft.steps";
constexpr int kVersion = 1;
constexpr std::int64_t kMost = std::int64_t{1} << 53;

Json text_map_json(const std::map<std::string, std::string>& map) {
  Json out = Json::object();
  for (const auto& [key, value] : map) out[key] = value;
  return out;
}

}  // namespace

std::string text_hash(const std::string& text) { return fmt::format("{:016x}", fnv1a(text)); }

std::string steps_json(const std::vector<StepRecord>& steps) {
  Json out = document(kFormat, kVersion);
  out["steps"] = Json::array();
  for (const StepRecord& step : steps) {
    Json& one = out["steps"].emplace_back(Json{{"name", step.name}, {"command", step.command}});
    one["version"] = step.version;
    one["ended"] = step.ended;
    one["inputs"] = text_map_json(step.inputs);
    one["outputs"] = text_map_json(step.outputs);
    if (step.training) one["training"] = Json{{"hash", step.training->hash}, {"length", step.training->length}};
  }
  return dump(out);
}

std::vector<StepRecord> parse_steps(const std::string& text, const std::string& file) {
  const Json json = parse_document(text, file);
  const Cursor root(json, file);
  Fields fields(root);
  check_header(fields, kFormat, kVersion);
  const auto steps = fields.required("steps").list([](const Cursor& at) {
    Fields one(at);
    StepRecord step;
    step.name = one.required("name").text();
    step.command = one.required("command").text();
    step.version = one.required("version").text();
    step.ended = one.required("ended").boolean();
    step.inputs = read_text_map(one.required("inputs"));
    step.outputs = read_text_map(one.required("outputs"));
    if (const auto training = one.optional("training")) {
      Fields in(*training);
      step.training = StartedTraining{in.required("hash").text(), in.required("length").integer(1, kMost)};
      in.done();
    }
    one.done();
    return step;
  });
  fields.done();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto same = [&](const StepRecord& other) { return other.name == steps[i].name; };
    if (std::any_of(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(i), same))
      root.fail("step \"" + steps[i].name + "\" appears twice");
  }
  return steps;
}

}  // namespace stagecraft::format

#include "costmodel/format/results/step_change_json.h"

#include <cmath>
#include <cstdint>

#include "costmodel/format/cursor.h"

namespace stagecraft::format {
namespace {

constexpr int kVersion = 1;

double number(Seconds time) { return time.value; }
std::int64_t number(Bytes bytes) { return bytes.value; }
double number(double value) { return value; }

/// Adds the known sides, with the suffix of their unit, and the change if there is one that JSON can express.
template <class T>
void put(Json& out, const Changed<T>& changed, const std::string& unit) {
  if (changed.first) out["first" + unit] = number(*changed.first);
  if (changed.second) out["second" + unit] = number(*changed.second);
  if (const auto change = changed.change(); change && std::isfinite(*change)) out["change"] = *change;
}

template <class T>
Json object(const Changed<T>& changed, const std::string& unit) {
  Json out = Json::object();
  put(out, changed, unit);
  return out;
}

Json interval_json(const Range<Seconds>& range) {
  return Json{{"low_s", range.low.value}, {"high_s", range.high.value}};
}

}  // namespace

std::string step_change_json(const StepChange& change) {
  Json out = document("stagecraft.change", kVersion);
  out["of"] = change.measured ? "runs" : "predictions";
  out["step"] = object(change.step, "_s");
  if (change.interval.first || change.interval.second) {
    Json& intervals = out["intervals"] = Json::object();
    if (change.interval.first) intervals["first"] = interval_json(*change.interval.first);
    if (change.interval.second) intervals["second"] = interval_json(*change.interval.second);
  }
  if (change.measured) {
    out["spread"] = object(change.spread, "_s");
    out["steps"] = Json{{"first", change.steps.first.value_or(0)}, {"second", change.steps.second.value_or(0)}};
  }
  out["samples"] = object(change.samples_per_s, "_per_s");
  out["bubble"] = object(change.bubble, "_share");
  out["memory"] = object(change.memory, "_bytes");
  out["actions"] = Json::array();
  for (const ActionChange& action : change.actions) {
    Json row{{"stage", action.stage}, {"action", to_string(action.kind)}};
    put(row, action.time, "_s");
    out["actions"].push_back(std::move(row));
  }
  out["ranks"] = Json::array();
  for (const RanksChange& ranks : change.ranks) {
    out["ranks"].push_back(Json{{"stage", ranks.stage},
                                {"bubble", object(ranks.bubble, "_share")},
                                {"memory", object(ranks.memory, "_bytes")}});
  }
  out["differences"] = Json::array();
  for (const ConditionChange& difference : change.differences) {
    out["differences"].push_back(
        Json{{"what", difference.what}, {"first", difference.first}, {"second", difference.second}});
  }
  if (!change.distrust.empty()) out["distrust"] = change.distrust;
  if (change.drift) {
    Json& drift = out["drift"] = Json{{"factor", change.drift->factor}, {"works", Json::array()}};
    for (const WorkDrift& work : change.drift->works)
      drift["works"].push_back(Json{{"work", work.work}, {"ratio", work.ratio}});
  }
  if (!change.no_drift.empty()) out["no_drift"] = change.no_drift;
  return dump(out);
}

}  // namespace stagecraft::format

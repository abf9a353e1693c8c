#include "costmodel/format/results/comparison_json.h"

#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "costmodel/format/cursor.h"
#include "costmodel/format/throughput_json.h"
#include "costmodel/index.h"

namespace stagecraft::format {
namespace {

constexpr int kComparisonVersion = 4;
constexpr int kMost = 1 << 24;

double number(Seconds time) { return time.value; }
std::int64_t number(Bytes bytes) { return bytes.value; }
double number(double value) { return value; }

void read(const Cursor& at, Seconds& out) { out = at.seconds(); }
void read(const Cursor& at, Bytes& out) { out = at.bytes(); }
void read(const Cursor& at, double& out) { out = at.not_negative(); }

/// Adds both quantities, with the suffix of their unit, and their error if there is one that JSON can express.
template <class T>
void put(Json& out, const Compared<T>& compared, const std::string& unit) {
  out["predicted" + unit] = number(compared.predicted);
  out["measured" + unit] = number(compared.measured);
  if (const auto error = compared.error(); error && std::isfinite(*error)) out["error"] = *error;
}

template <class T>
void take(Fields& fields, const std::string& unit, Compared<T>& out) {
  read(fields.required("predicted" + unit), out.predicted);
  read(fields.required("measured" + unit), out.measured);
  if (const auto error = fields.optional("error")) (void)error->number();
}

template <class T>
Json object(const Compared<T>& compared, const std::string& unit) {
  Json out;
  put(out, compared, unit);
  return out;
}

template <class T>
Compared<T> read_object(const Cursor& at, const std::string& unit) {
  Fields fields(at);
  Compared<T> out;
  take(fields, unit, out);
  fields.done();
  return out;
}

WorkRates read_rates(const Cursor& at) {
  Fields fields(at);
  WorkRates out = take_rates(fields);
  fields.done();
  return out;
}

int whole(const Cursor& at) { return to_int(at.integer(0, kMost)); }

ActionComparison read_action(const Cursor& at) {
  Fields fields(at);
  ActionComparison out;
  out.stage = whole(fields.required("stage"));
  const Cursor kind = fields.required("action");
  try {
    out.kind = action_kind(kind.text());
  } catch (const std::invalid_argument& e) { kind.fail(e.what()); }
  take(fields, "_s", out.time);
  fields.done();
  return out;
}

BubbleComparison read_bubble(const Cursor& at) {
  Fields fields(at);
  BubbleComparison out;
  out.rank = whole(fields.required("rank"));
  take(fields, "_share", out.share);
  fields.done();
  return out;
}

MemoryComparison read_memory(const Cursor& at) {
  Fields fields(at);
  MemoryComparison out;
  out.rank = whole(fields.required("rank"));
  take(fields, "_bytes", out.peak);
  fields.done();
  return out;
}

/// Before version 4 also the step times the factor, which must be well-formed and is ignored.
Drift read_drift(const Cursor& at) {
  Fields fields(at);
  Drift out;
  out.factor = fields.required("factor").positive();
  const Cursor works = fields.required("works");
  out.works = works.list([](const Cursor& c) {
    Fields work(c);
    WorkDrift drift{work.required("work").text(), work.required("ratio").positive()};
    work.done();
    return drift;
  });
  if (out.works.empty()) works.fail_type("one work or more");
  if (const auto v = fields.optional("step")) (void)read_object<Seconds>(*v, "_s");
  fields.done();
  return out;
}

}  // namespace

std::string comparison_json(const Comparison& comparison) {
  Json out = document("stagecraft.comparison", kComparisonVersion);
  out["step"] = object(comparison.step, "_s");
  if (comparison.samples_per_s) out["samples"] = object(*comparison.samples_per_s, "_per_s");
  if (comparison.rates != Compared<WorkRates>{}) {
    put_rates(out["rates"]["predicted"] = Json::object(), comparison.rates.predicted);
    put_rates(out["rates"]["measured"] = Json::object(), comparison.rates.measured);
  }
  if (const auto inside = is_inside(comparison))
    out["interval"] = Json{{"low_s", comparison.low->value}, {"high_s", comparison.high->value}, {"inside", *inside}};
  out["spread_s"] = comparison.spread.value;
  out["steps"] = comparison.steps;
  out["skipped"] = comparison.skipped;
  out["ended"] = comparison.ended;
  if (!comparison.distrust.empty()) out["distrust"] = comparison.distrust;
  if (comparison.drift) {
    Json& drift = out["drift"] = Json{{"factor", comparison.drift->factor}, {"works", Json::array()}};
    for (const WorkDrift& work : comparison.drift->works)
      drift["works"].push_back(Json{{"work", work.work}, {"ratio", work.ratio}});
  }
  if (!comparison.no_drift.empty()) out["no_drift"] = comparison.no_drift;
  out["actions"] = Json::array();
  for (const ActionComparison& action : comparison.actions) {
    Json row{{"stage", action.stage}, {"action", to_string(action.kind)}};
    put(row, action.time, "_s");
    out["actions"].push_back(row);
  }
  out["bubbles"] = Json::array();
  for (const BubbleComparison& bubble : comparison.bubbles) {
    Json row{{"rank", bubble.rank}};
    put(row, bubble.share, "_share");
    out["bubbles"].push_back(row);
  }
  out["memory"] = Json::array();
  for (const MemoryComparison& memory : comparison.memory) {
    Json row{{"rank", memory.rank}};
    put(row, memory.peak, "_bytes");
    out["memory"].push_back(row);
  }
  return dump(out);
}

Comparison parse_comparison(const std::string& text, const std::string& file) {
  const Json json = parse_document(text, file);
  Fields fields(Cursor(json, file));
  check_header(fields, "stagecraft.comparison", kComparisonVersion);
  Comparison out;
  out.step = read_object<Seconds>(fields.required("step"), "_s");
  if (const auto samples = fields.optional("samples")) out.samples_per_s = read_object<double>(*samples, "_per_s");
  if (const auto v = fields.optional("rates")) {
    Fields both(*v);
    out.rates.predicted = read_rates(both.required("predicted"));
    out.rates.measured = read_rates(both.required("measured"));
    both.done();
  }
  if (const auto v = fields.optional("interval")) {
    Fields interval(*v);
    out.low = interval.required("low_s").seconds();
    out.high = interval.required("high_s").seconds();
    (void)interval.required("inside").boolean();  // follows from the others
    interval.done();
  }
  out.spread = fields.required("spread_s").seconds();
  out.steps = to_index(fields.required("steps").integer(1, kMost));
  out.skipped = to_index(whole(fields.required("skipped")));
  out.ended = fields.required("ended").boolean();
  if (const auto v = fields.optional("distrust")) out.distrust = v->list([](const Cursor& c) { return c.text(); });
  if (const auto v = fields.optional("drift")) out.drift = read_drift(*v);
  if (const auto v = fields.optional("no_drift")) out.no_drift = v->text();
  out.actions = fields.required("actions").list(read_action);
  out.bubbles = fields.required("bubbles").list(read_bubble);
  out.memory = fields.required("memory").list(read_memory);
  fields.done();
  return out;
}

}  // namespace stagecraft::format

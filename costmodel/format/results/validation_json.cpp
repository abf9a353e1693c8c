#include "costmodel/format/results/validation_json.h"

#include <cstdint>

#include "costmodel/format/cursor.h"
#include "costmodel/index.h"

namespace stagecraft::format {
namespace {

constexpr const char* kFormat = "stagecraft.validation";
constexpr int kVersion = 3;
constexpr std::int64_t kMany = std::int64_t{1} << 53;
constexpr int kMost = 1 << 24;

double share(const Cursor& at) {
  if (at.number() < 0 || at.number() > 1) at.fail_type("a number from 0 to 1");
  return at.number();
}

std::size_t count(const Cursor& at) { return to_index(at.integer(0, kMany)); }

Json run_json(const ValidatedRun& run) {
  Json out{{"name", run.name}, {"model", run.model}, {"schedule", run.schedule}, {"ranks", run.ranks}};
  if (run.step_samples > 0) out["step_samples"] = run.step_samples;
  out["group"] = run.times.group;
  out["predicted_s"] = run.times.predicted.value;
  if (run.times.low) out["low_s"] = run.times.low->value;
  if (run.times.high) out["high_s"] = run.times.high->value;
  out["measured_s"] = run.times.measured.value;
  return out;
}

ValidatedRun read_run(const Cursor& at) {
  Fields fields(at);
  ValidatedRun out;
  out.name = fields.required("name").text();
  out.model = fields.required("model").text();
  out.schedule = fields.required("schedule").text();
  out.ranks = to_int(fields.required("ranks").integer(1, kMost));
  if (const auto v = fields.optional("step_samples")) out.step_samples = v->integer(1, kMany);
  out.times.group = to_int(fields.required("group").integer(0, kMost));
  out.times.predicted = fields.required("predicted_s").seconds();
  if (const auto v = fields.optional("low_s")) out.times.low = v->seconds();
  if (const auto v = fields.optional("high_s")) out.times.high = v->seconds();
  out.times.measured = Seconds(fields.required("measured_s").positive());
  if (const auto v = fields.optional("drift")) (void)v->positive();  // of earlier programs
  fields.done();
  return out;
}

Json regime_json(const Regime& regime) {
  Json out{{"name", regime.name}};
  const ErrorScores& e = regime.errors;
  out["errors"] = Json{{"n", e.n},     {"median", e.median},   {"mean", e.mean},
                       {"p90", e.p90}, {"largest", e.largest}, {"bias", e.bias}};
  Json& order = out["order"] = Json{{"pairs", regime.order.pairs}, {"right", regime.order.right}};
  if (regime.order.tau) order["tau"] = *regime.order.tau;
  if (regime.order.mean_regret) order["mean_regret"] = *regime.order.mean_regret;
  if (regime.order.largest_regret) order["largest_regret"] = *regime.order.largest_regret;
  const CoverageScores& c = regime.coverage;
  if (c.n > 0) out["coverage"] = Json{{"n", c.n}, {"inside", c.inside}, {"half_width", c.half_width}};
  return out;
}

Regime read_regime(const Cursor& at) {
  Fields fields(at);
  Regime out;
  out.name = fields.required("name").text();
  Fields errors(fields.required("errors"));
  out.errors.n = count(errors.required("n"));
  out.errors.median = errors.required("median").not_negative();
  out.errors.mean = errors.required("mean").not_negative();
  out.errors.p90 = errors.required("p90").not_negative();
  out.errors.largest = errors.required("largest").not_negative();
  out.errors.bias = errors.required("bias").number();
  errors.done();
  Fields order(fields.required("order"));
  out.order.pairs = count(order.required("pairs"));
  out.order.right = count(order.required("right"));
  if (const auto v = order.optional("tau")) {
    if (v->number() < -1 || v->number() > 1) v->fail_type("a number from -1 to 1");
    out.order.tau = v->number();
  }
  if (const auto v = order.optional("mean_regret")) out.order.mean_regret = v->not_negative();
  if (const auto v = order.optional("largest_regret")) out.order.largest_regret = v->not_negative();
  order.done();
  if (const auto v = fields.optional("coverage")) {
    Fields coverage(*v);
    out.coverage.n = to_index(coverage.required("n").integer(1, kMany));
    out.coverage.inside = share(coverage.required("inside"));
    out.coverage.half_width = coverage.required("half_width").number();
    coverage.done();
  }
  fields.done();
  return out;
}

}  // namespace

std::string validation_json(const Validation& validation) {
  Json out = document(kFormat, kVersion);
  if (validation.noise) out["noise"] = *validation.noise;
  out["regimes"] = Json::array();
  for (const Regime& regime : validation.regimes) out["regimes"].push_back(regime_json(regime));
  out["runs"] = Json::array();
  for (const ValidatedRun& run : validation.runs) out["runs"].push_back(run_json(run));
  return dump(out);
}

Validation parse_validation(const std::string& text, const std::string& file) {
  const Json json = parse_document(text, file);
  Fields fields(Cursor(json, file));
  check_header(fields, kFormat, kVersion);
  Validation out;
  if (const auto v = fields.optional("noise")) out.noise = v->not_negative();
  out.regimes = fields.required("regimes").list(read_regime);
  if (const auto v = fields.optional("without_drift")) (void)v->list(read_regime);  // of earlier programs
  out.runs = fields.required("runs").list(read_run);
  fields.done();
  return out;
}

}  // namespace stagecraft::format

#include "costmodel/accuracy/calibrate.h"

#include <fmt/format.h>
#include <Eigen/Dense>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "costmodel/accuracy/compare.h"
#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/index.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/text/units_text.h"

namespace stagecraft {
namespace {

constexpr int kMostSteps = 200;
constexpr double kLongestStep = 0.5;  // in log(factor): a long step of a bent function would overshoot
constexpr double kSmall = 1e-12;

bool is_amount(double value) { return std::isfinite(value) && value >= 0; }

void check(std::span<const FitRow> rows, std::span<const FactorPrior> priors, const RobustFitOptions& options) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const FitRow& row = rows[i];
    const std::string name = "row " + std::to_string(i) + ": ";
    if (row.parts.size() != priors.size()) {
      throw std::invalid_argument(name + std::to_string(row.parts.size()) + " parts for " +
                                  std::to_string(priors.size()) + " factors");
    }
    double sum = row.fixed;
    bool amounts = is_amount(row.fixed);
    for (const double part : row.parts) {
      amounts = amounts && is_amount(part);
      sum += part;
    }
    if (!amounts || !(sum > 0)) throw std::invalid_argument(name + "parts must not be negative, and some above 0");
    if (!is_amount(row.measured) || row.measured == 0) {
      throw std::invalid_argument(name + "the measured value must be above 0");
    }
  }
  for (const FactorPrior& prior : priors) {
    if (!(prior.log_spread > 0)) throw std::invalid_argument("the spread of a factor must be above 0");
  }
  if (!(options.noise > 0) || !(options.huber > 0)) throw std::invalid_argument("noise and huber must be above 0");
}

// How far factors are expected from 1 before any run: layers are measured where they run; links idle; host time is a
// guess that a machine may miss by a multiple.
constexpr double kComputeSpread = 0.1;
constexpr double kLinkSpread = 0.5;
constexpr double kHostSpread = 1.0;
constexpr double kMemorySpread = 0.2;
constexpr Seconds kHostGuess{20e-6};
constexpr double kStep = 1.02;  // by which a factor is moved to find its part of a step
constexpr double kShare = 0.9;
constexpr double kAssumedWidth = 0.15;
constexpr int kLeastPlans = 5;
constexpr int kRounds = 5;

/// The factors as robust_factors counts them: compute, host, then the levels of the topology.
Calibration of_factors(const std::vector<double>& factors, const Topology& topology) {
  Calibration out;
  out.compute = factors[0];
  out.host = kHostGuess * factors[1];
  for (std::size_t i = 0; i < topology.levels.size(); ++i) out.links[topology.levels[i].name] = factors[i + 2];
  return out;
}

/// What one run says.
struct Evidence {
  BoundPlan plan;
  std::size_t group = 0;  ///< runs of equal plans have the same number
  FitRow step;
  double plain = 0;  ///< predicted without factors or host time, seconds
  std::optional<FitRow> compute;
  std::optional<FitRow> memory;
};

Prediction predicted(const Graph& graph, const Topology& topology, const BoundPlan& plan,
                     const Calibration& calibration) {
  PredictOptions options;
  options.host_per_action = calibration.host;
  auto result = predict(with_calibration(graph, calibration), with_calibration(topology, calibration), plan, options);
  if (const auto* none = std::get_if<Infeasible>(&result)) throw InputError(none->kind, none->reason);
  return std::get<Prediction>(std::move(result));
}

Bytes largest_peak(const std::vector<MemoryComparison>& ranks, Bytes Compared<Bytes>::* side) {
  Bytes out;
  for (const MemoryComparison& rank : ranks) out = std::max(out, rank.peak.*side);
  return out;
}

/// Forwards and backwards, each the mean of its kind and stage, added up; absent if no span was kept.
std::optional<FitRow> compute_row(const Comparison& comparison, std::size_t mechanisms) {
  FitRow row{.fixed = 0, .parts = std::vector<double>(mechanisms), .measured = 0};
  for (const ActionComparison& action : comparison.actions) {
    if (!is_compute(action.kind) || action.time.measured == Seconds(0)) continue;
    row.parts[0] += action.time.predicted.value;
    row.parts[1] += kHostGuess.value;
    row.measured += action.time.measured.value;
  }
  if (row.measured == 0) return std::nullopt;
  return row;
}

/// Sets the parts of the run's step such that their sum is the prediction at `factors` and near them.
void set_parts(Evidence& run, const Graph& graph, const Topology& topology, const std::vector<double>& factors) {
  const double start = steady_step(predicted(graph, topology, run.plan, of_factors(factors, topology))).value;
  run.step.fixed = start;
  run.step.parts.clear();
  for (std::size_t k = 0; k < factors.size(); ++k) {
    std::vector<double> moved = factors;
    moved[k] *= kStep;
    const double time = steady_step(predicted(graph, topology, run.plan, of_factors(moved, topology))).value;
    const double part = std::clamp((time - start) / (kStep - 1), 0.0, run.step.fixed);
    run.step.fixed -= part;
    run.step.parts.push_back(part / factors[k]);
  }
}

Evidence evidence(const Graph& graph, const Topology& topology, const CalibrationRun& run, std::size_t skip) {
  Evidence out{.plan = BoundPlan(run.plan), .step = {}, .compute = {}, .memory = {}};
  const std::vector<double> ones(topology.levels.size() + 2, 1.0);
  Calibration plain = of_factors(ones, topology);
  plain.host = Seconds(0);
  const Prediction base = predicted(graph, topology, out.plan, plain);
  const Comparison comparison = compare(base, run.measurement, skip);
  out.plain = comparison.step.predicted.value;
  out.step.measured = comparison.step.measured.value;
  out.compute = compute_row(comparison, ones.size());
  const Bytes peak = largest_peak(comparison.memory, &Compared<Bytes>::predicted);
  const Bytes measured = largest_peak(comparison.memory, &Compared<Bytes>::measured);
  if (peak > Bytes(0) && measured > Bytes(0)) {
    out.memory =
        FitRow{.fixed = 0, .parts = {static_cast<double>(peak.value)}, .measured = static_cast<double>(measured.value)};
  }
  return out;
}

/// Factors of all runs but those of the plan `without`.
std::vector<double> factors_of(const std::vector<Evidence>& runs, std::size_t mechanisms,
                               std::optional<std::size_t> without = {}) {
  std::vector<FitRow> rows;
  for (const Evidence& run : runs) {
    if (without && run.group == *without) continue;
    rows.push_back(run.step);
    if (run.compute) rows.push_back(*run.compute);
  }
  std::vector<FactorPrior> priors(mechanisms, {kLinkSpread});
  priors[0] = {kComputeSpread};
  priors[1] = {kHostSpread};
  return robust_factors(rows, priors);
}

double memory_factor(const std::vector<Evidence>& runs) {
  std::vector<FitRow> rows;
  for (const Evidence& run : runs) {
    if (run.memory) rows.push_back(*run.memory);
  }
  return robust_factors(rows, std::vector<FactorPrior>{{kMemorySpread}}).front();
}

/// Sets the errors and the interval.
void add_errors(Calibration& out, const std::vector<Evidence>& runs, std::size_t mechanisms) {
  std::size_t plans = 0;
  for (const Evidence& run : runs) plans = std::max(plans, run.group + 1);
  std::vector<double> before;
  std::vector<double> after;
  std::vector<double> residuals;
  for (std::size_t plan = 0; plan < plans; ++plan) {
    const auto factors = factors_of(runs, mechanisms, plans > 1 ? std::optional(plan) : std::nullopt);
    for (const Evidence& run : runs) {
      if (run.group != plan) continue;
      const double time = fitted(run.step, factors);
      before.push_back(std::abs(run.plain / run.step.measured - 1));
      after.push_back(std::abs(time / run.step.measured - 1));
      residuals.push_back(std::log(run.step.measured / time));
    }
  }
  out.runs = to_int(runs.size());
  out.plans = to_int(plans);
  out.error_before = median(before);
  out.error_after = median(after);
  out.log_half_width = conformal_half_width(residuals, kShare);
  if (out.plans < kLeastPlans && out.log_half_width < std::log(1 + kAssumedWidth)) {
    out.log_half_width = std::log(1 + kAssumedWidth);
    out.width_is_declared = true;
  }
}

void scale(Curve& curve, double factor) {
  for (CurvePoint& point : curve.points) point.time = point.time * factor;
}

void scale(std::map<int, Curve>& curves, double factor) {
  for (auto& [ranks, curve] : curves) scale(curve, factor);
}

Bytes scaled(Bytes bytes, double factor) {
  return Bytes(static_cast<std::int64_t>(std::llround(static_cast<double>(bytes.value) * factor)));
}

/// Scales every part; the total stays their sum.
void scale(RankMemory& memory, double factor) {
  if (memory.parts.empty()) {
    memory.total = scaled(memory.total, factor);
    return;
  }
  memory.total = Bytes(0);
  for (auto& [part, bytes] : memory.parts) {
    bytes = scaled(bytes, factor);
    memory.total += bytes;
  }
}

void check_factor(const std::string& name, double factor) {
  if (!std::isfinite(factor) || factor <= 0)
    throw std::invalid_argument(fmt::format("{} {} is not a finite number above 0", name, factor));
}

void check_amount(const std::string& name, double amount) {
  if (!std::isfinite(amount) || amount < 0)
    throw std::invalid_argument(fmt::format("{} {} is not a finite number of at least 0", name, amount));
}

}  // namespace

double fitted(const FitRow& row, std::span<const double> factors) {
  double out = row.fixed;
  for (std::size_t k = 0; k < factors.size(); ++k) out += row.parts[k] * factors[k];
  return out;
}

std::vector<double> robust_factors(std::span<const FitRow> rows, std::span<const FactorPrior> priors,
                                   const RobustFitOptions& options) {
  check(rows, priors, options);
  const auto n = static_cast<Eigen::Index>(priors.size());
  Eigen::VectorXd logs = Eigen::VectorXd::Zero(n);
  std::vector<double> factors(priors.size(), 1.0);
  for (int i = 0; i < kMostSteps && n > 0; ++i) {
    Eigen::MatrixXd matrix = Eigen::MatrixXd::Zero(n, n);
    Eigen::VectorXd right = Eigen::VectorXd::Zero(n);
    for (Eigen::Index k = 0; k < n; ++k) {
      const double spread = priors[to_index(k)].log_spread;
      matrix(k, k) = 1 / (spread * spread);
      right[k] = -logs[k] / (spread * spread);
    }
    for (const FitRow& row : rows) {
      const double predicted = fitted(row, factors);
      const double residual = std::log(row.measured / predicted);
      Eigen::VectorXd slope(n);
      for (Eigen::Index k = 0; k < n; ++k) slope[k] = row.parts[to_index(k)] * factors[to_index(k)] / predicted;
      const double limit = options.huber * options.noise;
      const double weight =
          std::min(1.0, limit / std::max(std::abs(residual), limit)) / (options.noise * options.noise);
      matrix += weight * slope * slope.transpose();
      right += weight * residual * slope;
    }
    Eigen::VectorXd step = matrix.ldlt().solve(right);
    const double longest = step.cwiseAbs().maxCoeff();
    if (longest > kLongestStep) step *= kLongestStep / longest;
    logs += step;
    for (Eigen::Index k = 0; k < n; ++k) factors[to_index(k)] = std::exp(logs[k]);
    if (longest < kSmall) break;
  }
  return factors;
}

Calibration calibrate(const Graph& graph, const Topology& topology, const std::vector<CalibrationRun>& runs,
                      const CalibrateOptions& options) {
  if (runs.empty()) throw std::invalid_argument("no measured runs to learn from");
  for (std::size_t i = 0; i < topology.levels.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (topology.levels[i].name == topology.levels[j].name)
        throw std::invalid_argument("two levels are called \"" + topology.levels[i].name + "\"; factors need names");
    }
  }
  std::vector<Evidence> all;
  std::size_t groups = 0;
  for (const CalibrationRun& run : runs) {
    try {
      all.push_back(evidence(graph, topology, run, options.skip));
    } catch (const std::invalid_argument& e) { throw InputError(kind_of(e), run.name + ": " + e.what()); }
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::size_t first = 0;
    while (!(runs[first].plan == runs[i].plan)) ++first;
    all[i].group = first == i ? groups++ : all[first].group;
  }
  const std::size_t mechanisms = topology.levels.size() + 2;
  // A step is a maximum of sums: which of them it is may change with the factors.
  std::vector<double> factors(mechanisms, 1.0);
  for (int round = 0; round < kRounds; ++round) {
    for (Evidence& run : all) set_parts(run, graph, topology, factors);
    factors = factors_of(all, mechanisms);
  }
  Calibration out = of_factors(factors, topology);
  out.model = graph.name;
  out.device = graph.device.name;
  out.memory = memory_factor(all);
  add_errors(out, all, mechanisms);
  return out;
}

void validate(const Calibration& calibration) {
  check_factor("compute factor", calibration.compute);
  check_factor("memory factor", calibration.memory);
  for (const auto& [level, factor] : calibration.links) check_factor("factor of link \"" + level + "\"", factor);
  check_amount("host time", calibration.host.value);
  check_amount("half-width", calibration.log_half_width);
  check_amount("error", calibration.error_before);
  check_amount("error", calibration.error_after);
}

Graph with_calibration(Graph graph, const Calibration& calibration) {
  const auto scale_all = [&](std::vector<Layer>& layers, std::optional<Timing>& iteration) {
    for (Layer& layer : layers) scale(layer, calibration.compute);
    if (iteration) scale(*iteration, calibration.compute);
  };
  scale_all(graph.layers, graph.iteration);
  for (DeviceProfile& profile : graph.profiles) scale_all(profile.layers, profile.iteration);
  return graph;
}

Topology with_calibration(Topology topology, const Calibration& calibration) {
  std::vector<std::string> names;
  for (Level& level : topology.levels) {
    names.push_back(level.name);
    const auto factor = calibration.links.find(level.name);
    if (factor == calibration.links.end()) continue;
    Link& link = level.link;
    link.bandwidth = link.bandwidth / factor->second;
    link.latency = link.latency * factor->second;
    scale(link.send_receive, factor->second);
    scale(link.all_reduce, factor->second);
    scale(link.all_gather, factor->second);
    scale(link.reduce_scatter, factor->second);
    scale(link.all_to_all, factor->second);
    for (auto& [key, curve] : link.spans) scale(curve, factor->second);
    // A message's time contains the processor time at its ends, and cannot become less than that.
    if (link.processing) {
      scale(link.processing->sender, factor->second);
      scale(link.processing->receiver, factor->second);
    }
  }
  for (const auto& [name, factor] : calibration.links) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw InputError(ErrorKind::UnknownName,
                       "the calibration has a factor of a level that the topology does not have: " +
                           unknown_name("level", name, names));
  }
  return topology;
}

std::variant<Prediction, Infeasible> predict_calibrated(const Graph& graph, const Topology& topology,
                                                        const BoundPlan& plan, const Calibration& calibration,
                                                        PredictOptions options) {
  if (!calibration.device.empty() && !graph.device.name.empty() && calibration.device != graph.device.name) {
    throw std::invalid_argument("the calibration was learned with times of \"" + calibration.device +
                                "\", the graph's are of \"" + graph.device.name + "\"");
  }
  options.host_per_action = calibration.host;
  auto result = predict(with_calibration(graph, calibration), with_calibration(topology, calibration), plan, options);
  auto* prediction = std::get_if<Prediction>(&result);
  if (!prediction) return result;
  prediction->calibration = calibration_text(calibration);
  const double width = std::exp(calibration.log_half_width);
  prediction->low = prediction->iteration / width;
  prediction->high = prediction->iteration * width;
  for (StagePrediction& stage : prediction->stages) {
    scale(stage.memory, calibration.memory);
    stage.memory_bound = Bytes(std::llround(static_cast<double>(stage.memory_bound.value) * calibration.memory));
  }
  for (RankMemory& memory : prediction->timeline.memory) scale(memory, calibration.memory);
  for (int stage = 0; stage < plan.stages(); ++stage) {
    Bytes bound;
    for (const int other : plan.stages_at(plan.position_of(stage)))
      bound += prediction->stages[to_index(other)].memory_bound;
    const std::optional<Bytes> memory = least_memory(topology, plan.plan().stages[to_index(stage)].devices);
    prediction->stages[to_index(stage)].fits = !memory || bound <= *memory;
  }
  return result;
}

std::string calibration_text(const Calibration& calibration) {
  std::string out =
      fmt::format("compute x {:.3g}, host {} per action", calibration.compute, format_seconds(calibration.host));
  for (const auto& [level, factor] : calibration.links) out += fmt::format(", link {} x {:.3g}", level, factor);
  return out + fmt::format(", memory x {:.3g}; from {} run{} of {} plan{}, median error {:.1f} %", calibration.memory,
                           calibration.runs, calibration.runs == 1 ? "" : "s", calibration.plans,
                           calibration.plans == 1 ? "" : "s", calibration.error_after * 100);
}

}  // namespace stagecraft

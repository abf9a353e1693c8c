#include "costmodel/accuracy/intervals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <set>
#include <utility>
#include <vector>

#include "costmodel/conditions.h"
#include "costmodel/gradient_sums.h"
#include "costmodel/graph.h"
#include "costmodel/index.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/memory.h"
#include "costmodel/prediction/stage_costs.h"
#include "costmodel/prediction/step_replay.h"
#include "costmodel/prediction/transfer_costs.h"

namespace stagecraft {
namespace {

// Assumed, as more than the error without the slowdown of three ranks on two processors: 52 plans were then 13 and 17 %
// off (medians of two series), and 3.6 % with it.
constexpr double kRanksAtOnce = 0.25;
// This half-width is assumed; it does not come from measured runs.
constexpr double kSeveralInFlight = 0.1;

bool holds_several_microbatches(const BoundPlan& plan) {
  if (!plan.schedule().trains || plan.plan().microbatches < 2) return false;
  for (int position = 0; position < plan.positions(); ++position) {
    if (plan.schedule().in_flight_bound(plan.shape(), position) > 1) return true;
  }
  return false;
}

/// A smaller share of waits is not reported: the share is 0 where kernels are much longer than their launches.
constexpr double kFewWaits = 0.005;

double wait_share(const Graph& graph) {
  if (!graph.quality || graph.quality->watched_ns <= 0) return 0;
  return static_cast<double>(graph.quality->host_wait_ns) / static_cast<double>(graph.quality->watched_ns);
}

}  // namespace

std::vector<Unmeasured> unmeasured(const Graph& graph, const Topology& topology, const BoundPlan& plan) {
  std::vector<Unmeasured> out;
  if (!graph.quality || graph.quality->clock != "host" || graph.estimate) return out;
  if (!device_differences(graph, topology).empty()) return out;
  std::map<int, int> ranks;
  int most = 1;
  for (const int host : hosts_of(plan, topology)) most = std::max(most, ++ranks[host]);
  const auto lacks = [](const std::string& what, const std::string& option, double half_width) {
    return Unmeasured{
        fmt::format("the profile lacks the slowdown of {}, so the interval is wider: profile with {}", what, option),
        half_width};
  };
  if (most > std::max(1, to_int(graph.slowdown.size()))) {
    out.push_back(lacks(fmt::format("{} ranks on a host", most),
                        fmt::format("--concurrent {} and a --max-seconds that does not cut it short", most),
                        kRanksAtOnce));
  }
  if (!graph.in_flight_slowdown && holds_several_microbatches(plan))
    out.push_back(lacks("several microbatches in flight", "a larger --max-seconds", kSeveralInFlight));
  return out;
}

bool waits_for_launches(const Graph& graph) { return wait_share(graph) > kFewWaits; }

std::string launches_text(const Graph& graph) {
  if (!waits_for_launches(graph)) return "";
  return fmt::format(
      "the GPU waits for kernel launches in {:.1f} % of a step, so the step depends on the host, whose speed differs "
      "from run to run by up to 50 %; a larger microbatch gives each launch more work",
      wait_share(graph) * 100);
}

namespace {

constexpr double kNinety = 1.6448536269514722;                // standard deviations that hold 90 %, both sides together
constexpr double kMedianError = 1.2533141373155003 * 1.4826;  // times MAD / sqrt(n)
// Declared, for want of anything measured; those of links are what calibrate expects before any run.
constexpr double kUnknownTime = 0.1;
constexpr double kMeasuredLink = 0.1;
constexpr double kDeclaredLink = 0.5;
constexpr double kMemoryBelow = 0.07;  // the least that a run needed less; the other end is the bound
// Halves of 90 % intervals. With 8 %, intervals of 186 plans on two CPUs contained 96.8 % of the runs over UCX and
// 94.1 % of those over Gloo; for the runs that it was chosen from, 93.5 and 86.6 %.
constexpr double kModel = 0.08;
// Nine in ten of 4245 pairs of these plans, over UCX, had errors that differ by at most 10.7 %: sqrt(2) times this.
constexpr double kOwnModel = 0.075;
// What the host of a GPU does, launching kernels and loading data, differs between runs. Of 18 runs of four models
// whose kernels are as short as their launches, on an H100 and an H200, 16 lay inside when kModel was 0.12.
constexpr double kHost = 0.4;
const std::string kLayers;  // mechanism of the layers' times; the others are links

FigureSource worse(FigureSource a, FigureSource b) { return std::max(a, b); }

Doubt worse(const Doubt& a, const Doubt& b) {
  return {std::max(a.log_spread, b.log_spread), worse(a.source, b.source)};
}

/// Standard error of the median, or standard deviation of an estimate, in seconds.
Seconds error_of(const Timing& timing) {
  if (timing.log_spread) return timing.median * *timing.log_spread;
  if (!timing.spread || timing.count < 1) return timing.median * kUnknownTime;
  return *timing.spread * (kMedianError / std::sqrt(static_cast<double>(timing.count)));
}

Doubt curve_doubt(const Curve& curve, Bytes bytes, LinkOrigin origin) {
  if (curve.points.empty()) {
    return origin == LinkOrigin::Measured ? Doubt{kMeasuredLink, FigureSource::Fitted}
                                          : Doubt{kDeclaredLink, FigureSource::Analytic};
  }
  const bool inside = bytes >= curve.points.front().bytes && bytes <= curve.points.back().bytes;
  const double spread = curve.log_spread.value_or(0);
  return inside ? Doubt{std::hypot(kMeasuredLink, spread), FigureSource::Measured}
                : Doubt{std::hypot(kDeclaredLink, spread), FigureSource::Extrapolated};
}

/// That of a level's part in a collective; absent if it takes no part.
std::optional<Doubt> collective_doubt(Collective collective, Bytes bytes, const std::vector<int>& devices,
                                      const Topology& topology, int level) {
  const auto uses = curves_used(collective, bytes, devices, topology, level);
  if (!uses) return std::nullopt;
  const LinkOrigin origin = topology.levels[to_index(level)].link.origin;
  if (uses->empty()) return curve_doubt({}, bytes, origin);
  Doubt out;
  for (const CurveUse& use : *uses) out = worse(out, curve_doubt(*use.curve, use.bytes, origin));
  return out;
}

/// The doubts of a plan's mechanisms by name; a link's name is that of its level, none is empty as the layers' is.
std::map<std::string, Doubt> doubts_of(const Graph& graph, const Topology& topology, const BoundPlan& plan) {
  std::map<std::string, Doubt> out;
  for (const std::string& type : types_of(topology, plan.plan()))
    out[kLayers] = worse(out[kLayers], compute_doubt(graph_on(graph, type), plan));
  for (int level = 0; level < to_int(topology.levels.size()); ++level) {
    const Doubt doubt = link_doubt(graph, topology, plan, level);
    if (doubt.log_spread == 0) continue;
    Doubt& of_name = out[topology.levels[to_index(level)].name];
    of_name = worse(of_name, doubt);
  }
  return out;
}

/// The step, or all of the prediction, with one mechanism slower by 1.645 of its spreads.
std::variant<Prediction, Infeasible> predict_slower(const Graph& graph, const Topology& topology, const BoundPlan& plan,
                                                    const std::string& mechanism, const Doubt& doubt,
                                                    const PredictOptions& options) {
  Calibration slower;
  const double factor = std::exp(kNinety * doubt.log_spread);
  if (mechanism == kLayers) {
    slower.compute = factor;
    return predict(with_calibration(graph, slower), topology, plan, options);
  }
  slower.links[mechanism] = factor;
  return predict(graph, with_calibration(topology, slower), plan, options);
}

/// Whether a thread of the host loads the data of a GPU, which is then timed apart.
bool reads_loaded_data(const Graph& graph) {
  return std::ranges::any_of(graph.layers, [](const Layer& layer) { return layer.loading.has_value(); });
}

Graph with_slower_loading(Graph graph) {
  for (Layer& layer : graph.layers) {
    if (layer.loading) scale(*layer.loading, 1 + kHost);
  }
  return graph;
}

/// Of an interval: the predictions with nothing changed, with each mechanism slower, and with slower loading; there may
/// be fewer.
double most_predictions(const Topology& topology) { return 3 + static_cast<double>(topology.levels.size()); }

double square(double x) { return x * x; }

/// What one mechanism, or the model, contributes to the interval of the step.
struct Contribution {
  std::string source;
  double log_half_width = 0;
  bool assumed = false;
};

double sum_of_squares(const std::vector<Contribution>& contributions) {
  double out = 0;
  for (const Contribution& contribution : contributions) out += square(contribution.log_half_width);
  return out;
}

/// Prediction::interval without a calibration. Half-widths add in quadrature, so only their squares are shares of a
/// whole.
std::string shares_text(const std::vector<Contribution>& contributions, double variance) {
  std::string out = "variance by source: ";
  for (const Contribution& contribution : contributions) {
    const bool first = &contribution == &contributions.front();
    out += fmt::format("{}{} {:.1f} % ({}{:.1f} %{})", first ? "" : ", ", contribution.source,
                       square(contribution.log_half_width) / variance * 100, first ? "half-width " : "",
                       std::expm1(contribution.log_half_width) * 100, contribution.assumed ? ", assumed" : "");
  }
  return out;
}

double log_ratio(Seconds a, Seconds b) { return a > Seconds(0) && b > Seconds(0) ? std::log(a / b) : 0; }

Range<Seconds> around(Seconds value, double half, FigureSource source) {
  return {Seconds(std::max(0.0, value.value - half)), Seconds(value.value + half), source};
}

Bytes times(Bytes bytes, double factor) { return Bytes(std::llround(static_cast<double>(bytes.value) * factor)); }

bool has_saved_bytes(const Graph& graph, const Stage& stage) {
  const std::set<std::string> ids(stage.layers.begin(), stage.layers.end());
  return std::all_of(graph.layers.begin(), graph.layers.end(),
                     [&](const Layer& layer) { return !ids.contains(layer.id) || layer.saved_bytes.has_value(); });
}

void add_memory_range(StageRanges& ranges, const Graph& graph, const Stage& stage, const StagePrediction& predicted) {
  ranges.memory = {times(predicted.memory.total, 1 - kMemoryBelow), predicted.memory_bound,
                   graph.estimate                  ? FigureSource::Extrapolated
                   : has_saved_bytes(graph, stage) ? FigureSource::Measured
                                                   : FigureSource::Analytic};
}

constexpr Seconds StagePrediction::* kFigures[] = {
    &StagePrediction::forward, &StagePrediction::backward,         &StagePrediction::compute, &StagePrediction::update,
    &StagePrediction::reduce,  &StagePrediction::exposed_transfer, &StagePrediction::bubble};
constexpr Range<Seconds> StageRanges::* kRanges[] = {
    &StageRanges::forward, &StageRanges::backward,         &StageRanges::compute, &StageRanges::update,
    &StageRanges::reduce,  &StageRanges::exposed_transfer, &StageRanges::bubble};

/// The source of a figure: computation comes from the layers, transfers and reduces from the links, bubbles from both.
FigureSource source_of(Seconds StagePrediction::* figure, FigureSource layers, FigureSource links) {
  if (figure == &StagePrediction::reduce || figure == &StagePrediction::exposed_transfer) return links;
  return figure == &StagePrediction::bubble ? worse(layers, links) : layers;
}

void add_calibrated_ranges(Prediction& out, const Graph& graph, const BoundPlan& plan, const Calibration& calibration) {
  const double width = std::exp(calibration.log_half_width);
  for (StagePrediction& stage : out.stages) {
    StageRanges& ranges = stage.ranges.emplace();
    for (std::size_t i = 0; i < std::size(kFigures); ++i) {
      const Seconds value = stage.*kFigures[i];
      ranges.*kRanges[i] = {value / width, value * width, FigureSource::Calibrated};
    }
    add_memory_range(ranges, graph, plan.plan().stages[to_index(stage.stage)], stage);
    ranges.memory.source = FigureSource::Calibrated;
  }
  out.interval = fmt::format("half-width {:.1f} %, {}", (width - 1) * 100,
                             calibration.width_is_declared ? "assumed, because the calibration used too few plans"
                                                           : "residuals of the calibration");
}

}  // namespace

Doubt compute_doubt(const Graph& graph, const BoundPlan& plan) {
  std::set<std::string> ids;
  for (const Stage& stage : plan.plan().stages) ids.insert(stage.layers.begin(), stage.layers.end());
  Seconds sum;
  Seconds error;
  bool assumed = false;
  const auto add = [&](const Timing& timing) {
    sum += timing.median;
    error += error_of(timing);
    assumed = assumed || (timing.median > Seconds(0) && timing.count == 0 && !timing.log_spread);
  };
  for (const Layer& layer : graph.layers) {
    if (!ids.contains(layer.id)) continue;
    add(layer.forward);
    add(layer.backward);
    if (layer.update) add(*layer.update);
  }
  Doubt out;
  if (sum > Seconds(0)) out.log_spread = error / sum;
  if (graph.iteration && graph.iteration->median > Seconds(0))
    out.log_spread = std::max(out.log_spread, error_of(*graph.iteration) / graph.iteration->median);
  if (graph.conditions.yardstick)
    out.log_spread = std::hypot(out.log_spread, speed_spread(*graph.conditions.yardstick));
  if (!backward_parts_assumption(graph, plan).empty()) out.source = FigureSource::Analytic;
  if (graph.estimate) out.source = FigureSource::Extrapolated;
  if (assumed) out.source = FigureSource::Assumed;
  return out;
}

Doubt link_doubt(const Graph& graph, const Topology& topology, const BoundPlan& plan, int level) {
  const Link& link = topology.levels[to_index(level)].link;
  Doubt out;
  for (std::size_t b = 0; b < plan.plan().boundaries.size(); ++b) {
    const BoundaryEnds& ends = plan.ends(to_int(b));
    bool uses = false;
    for (const int from : plan.plan().stages[to_index(ends.source)].devices) {
      for (const int to : plan.plan().stages[to_index(ends.destination)].devices)
        uses = uses || (from != to && joining_level(topology, from, to) == level);
    }
    if (!uses) continue;
    for (const BoundaryTensor& tensor : plan.plan().boundaries[b].tensors)
      out = worse(out, curve_doubt(link.send_receive, tensor.bytes, link.origin));
  }
  const auto add_reduce = [&](Bytes bytes, const std::vector<int>& devices) {
    if (devices.size() < 2 || bytes <= Bytes(0)) return;
    const auto doubt = collective_doubt(Collective::AllReduce, bytes, devices, topology, level);
    if (!doubt) return;
    const CollectiveTime time = collective_time(Collective::AllReduce, bytes, devices, topology);
    out = worse(out, {std::hypot(doubt->log_spread, log_ratio(time.most, time.time) / kNinety), doubt->source});
  };
  for (const std::vector<GradientSum>& sums : gradient_sums(graph, plan)) {
    for (const GradientSum& sum : sums) add_reduce(sum.bytes, plan.devices_of(sum.ranks));
  }
  return out;
}

Range<Seconds> collective_range(Collective collective, Bytes data, const std::vector<int>& devices,
                                const Topology& topology) {
  const CollectiveTime time = collective_time(collective, data, devices, topology);
  FigureSource source = FigureSource::Measured;
  double above = square(log_ratio(time.most, time.time));
  double below = square(log_ratio(time.time, time.least));
  for (int level = 0; level < to_int(topology.levels.size()); ++level) {
    const auto doubt = collective_doubt(collective, data, devices, topology, level);
    if (!doubt) continue;
    Calibration slower;
    slower.links[topology.levels[to_index(level)].name] = std::exp(kNinety * doubt->log_spread);
    const CollectiveTime moved = collective_time(collective, data, devices, with_calibration(topology, slower));
    const double change = square(log_ratio(moved.time, time.time));
    above += change;
    below += change;
    source = worse(source, doubt->source);
  }
  return {time.time / std::exp(std::sqrt(below)), time.time * std::exp(std::sqrt(above)), source};
}

std::variant<Prediction, Infeasible> predict_with_intervals(const Graph& graph, const Topology& topology,
                                                            const BoundPlan& plan,
                                                            const std::optional<Calibration>& calibration,
                                                            const PredictOptions& options) {
  if (calibration) {
    auto calibrated = predict_calibrated(graph, topology, plan, *calibration, options);
    if (auto* prediction = std::get_if<Prediction>(&calibrated))
      add_calibrated_ranges(*prediction, graph, plan, *calibration);
    return calibrated;
  }
  ProgressParts parts(options, most_predictions(topology));
  auto result = predict(graph, topology, plan, parts.next());
  auto* out = std::get_if<Prediction>(&result);
  if (!out) return result;
  std::vector<Contribution> contributions;
  FigureSource layers = FigureSource::Measured;
  FigureSource links = FigureSource::Measured;
  std::vector<std::vector<double>> squares(out->stages.size(), std::vector<double>(std::size(kFigures)));
  const std::map<std::string, Doubt> doubts = doubts_of(graph, topology, plan);
  parts.set_left(static_cast<double>(doubts.size() + (reads_loaded_data(graph) ? 1 : 0)));
  for (const auto& [name, doubt] : doubts) {
    const auto slower = predict_slower(graph, topology, plan, name, doubt, parts.next());
    const auto* moved = std::get_if<Prediction>(&slower);
    if (!moved) continue;
    const double change = std::max(0.0, log_ratio(moved->iteration, out->iteration));
    contributions.push_back({name == kLayers ? "layers" : "link " + name, change, false});
    FigureSource& source = name == kLayers ? layers : links;
    source = worse(source, doubt.source);
    for (std::size_t s = 0; s < squares.size(); ++s) {
      for (std::size_t i = 0; i < std::size(kFigures); ++i)
        squares[s][i] += square((moved->stages[s].*kFigures[i] - out->stages[s].*kFigures[i]).value);
    }
  }
  if (reads_loaded_data(graph)) {
    const auto slower = predict(with_slower_loading(graph), topology, plan, parts.next());
    const auto* moved = std::get_if<Prediction>(&slower);
    const double change = moved ? log_ratio(moved->iteration, out->iteration) : 0;
    if (change > 0) contributions.push_back({"loading", change, true});
  }
  const bool launches = waits_for_launches(graph);
  if (launches) contributions.push_back({"launches", std::log(1 + kHost), true});
  for (const Unmeasured& part : unmeasured(graph, topology, plan))
    contributions.push_back({"not measured", std::log1p(part.half_width), true});
  contributions.push_back({"model", std::log(1 + kModel), true});
  const double variance = sum_of_squares(contributions);
  out->interval = shares_text(contributions, variance);
  const double width = std::exp(std::sqrt(variance));
  out->low = out->iteration / width;
  out->high = out->iteration * width;
  for (StagePrediction& stage : out->stages) {
    StageRanges& ranges = stage.ranges.emplace();
    const auto& of = squares[to_index(stage.stage)];
    const double assumed = std::hypot(kModel, launches ? kHost : 0);
    for (std::size_t i = 0; i < std::size(kFigures); ++i) {
      const Seconds value = stage.*kFigures[i];
      ranges.*kRanges[i] =
          around(value, std::sqrt(of[i] + square(value.value * assumed)), source_of(kFigures[i], layers, links));
    }
    add_memory_range(ranges, graph, plan.plan().stages[to_index(stage.stage)], stage);
  }
  return result;
}

std::variant<StepRatio, Infeasible> step_ratio(const Scenario& first, const Scenario& second,
                                               const std::optional<Calibration>& calibration,
                                               const PredictOptions& options) {
  struct Side {
    Graph graph;
    Topology topology;
    BoundPlan plan;
    Seconds time;  // per microbatch
  };
  PredictOptions how = options;
  if (calibration) how.host_per_action = calibration->host;
  ProgressParts parts(how, 2 * (calibration ? 1 : most_predictions(first.topology)));
  std::vector<Side> sides;
  for (const Scenario* scenario : {&first, &second}) {
    sides.push_back({calibration ? with_calibration(scenario->graph, *calibration) : scenario->graph,
                     calibration ? with_calibration(scenario->topology, *calibration) : scenario->topology,
                     BoundPlan(scenario->plan), Seconds(0)});
    Side& side = sides.back();
    auto result = predict(side.graph, side.topology, side.plan, parts.next());
    if (auto* none = std::get_if<Infeasible>(&result)) return *none;
    side.time = std::get<Prediction>(result).iteration / scenario->plan.microbatches;
  }
  const double ratio = log_ratio(sides[0].time, sides[1].time);
  const double own_half_width = calibration ? calibration->log_half_width : std::log1p(kOwnModel);
  // Scenarios of one plan share the errors of what does not change.
  const double changed = first.plan == second.plan ? -std::expm1(-std::abs(ratio)) : 1;
  double squares = 2 * square(own_half_width * changed);  // of half-widths
  bool is_certain = changed < 1;                          // which of them is faster
  if (!calibration) {                                     // with one, the residuals hold the mechanisms' errors
    std::map<std::string, Doubt> doubts;
    // What both profiles lack for both plans is common.
    double lacking = 0;
    for (const Side& side : sides) {
      const double sign = &side == &sides.front() ? 1 : -1;
      for (const Unmeasured& part : unmeasured(side.graph, side.topology, side.plan))
        lacking += sign * square(std::log1p(part.half_width));
      if (waits_for_launches(side.graph)) squares += square(std::log(1 + kHost) * changed);
      for (const auto& [name, doubt] : doubts_of(side.graph, side.topology, side.plan))
        doubts[name] = worse(doubts[name], doubt);
    }
    squares += std::abs(lacking);
    parts.set_left(static_cast<double>(2 * doubts.size()));
    for (const auto& [name, doubt] : doubts) {
      std::vector<Seconds> times;
      for (const Side& side : sides) {
        const auto result = predict_slower(side.graph, side.topology, side.plan, name, doubt, parts.next());
        if (const auto* none = std::get_if<Infeasible>(&result)) return *none;
        times.push_back(std::get<Prediction>(result).iteration / side.plan.plan().microbatches);
      }
      const double moved = log_ratio(times[0], times[1]);
      squares += square(moved - ratio);
      is_certain = is_certain && moved * ratio >= 0;
    }
  }
  const double half = std::sqrt(squares);
  StepRatio out{std::exp(ratio), std::exp(ratio - half), std::exp(ratio + half)};
  // If each mechanism's error leaves the faster one faster, none of them makes it slower.
  if (is_certain && ratio >= 0) out.low = std::max(out.low, 1.0);
  if (is_certain && ratio <= 0) out.high = std::min(out.high, 1.0);
  if (half > 0) out.first_faster = 0.5 * std::erfc(ratio * kNinety / (half * std::numbers::sqrt2));
  return out;
}

}  // namespace stagecraft

#include "costmodel/analysis/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "costmodel/accuracy/intervals.h"
#include "costmodel/index.h"
#include "costmodel/prediction/step_replay.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"

namespace stagecraft {
namespace {

constexpr Seconds kNever(std::numeric_limits<double>::infinity());
constexpr std::size_t kShownShares = 6;
constexpr std::size_t kShownSegments = 5;

/// What is predicted with: calibrated, if there is a calibration.
struct PredictionInputs {
  Graph graph;
  Topology topology;
  PredictOptions options;
};

PredictionInputs model_of(const Graph& graph, const Topology& topology, const ExplainOptions& options) {
  PredictionInputs out{graph, topology, options.predict};
  if (options.calibration) {
    out.graph = with_calibration(graph, *options.calibration);
    out.topology = with_calibration(topology, *options.calibration);
    out.options.host_per_action = options.calibration->host;
  }
  return out;
}

std::variant<Prediction, Infeasible> predicted(const Graph& graph, const Topology& topology, const BoundPlan& plan,
                                               const ExplainOptions& options, const PredictOptions& how) {
  return options.calibration ? predict_calibrated(graph, topology, plan, *options.calibration, how)
                             : predict(graph, topology, plan, how);
}

/// Time of a computation or update without other ranks on its host and without host time per action.
class AloneTimes {
 public:
  AloneTimes(const SimulationInput& input, Seconds host) : input_(input), host_(host) {
    for (const auto& list : input.lists) {
      for (const Action& action : list) {
        if (action.kind == ActionKind::WeightGradient) split_.emplace(action.stage, action.microbatch);
      }
    }
  }

  Seconds operator()(const Action& action) const {
    const Seconds time =
        time_of(input_.stages[to_index(action.stage)], action.kind, split_.contains({action.stage, action.microbatch}));
    return std::max(Seconds(0), time - host_);
  }

 private:
  const SimulationInput& input_;
  Seconds host_;
  std::set<std::pair<int, int>> split_;  // (stage, microbatch)
};

/// Shares of a stage's computations and of its updates that are not their own time.
struct HostShares {
  Seconds compute, compute_alone, update, update_alone;
};

std::vector<HostShares> host_shares(const SimulationInput& input, const Timeline& timeline, Seconds host) {
  const AloneTimes alone(input, host);
  std::vector<HostShares> out(input.stages.size());
  for (const Span& span : timeline.spans) {
    HostShares& stage = out[to_index(span.action.stage)];
    if (is_compute(span.action.kind)) {
      stage.compute += span.end - span.start;
      stage.compute_alone += alone(span.action);
    } else if (span.action.kind == ActionKind::Update) {
      stage.update += span.end - span.start;
      stage.update_alone += alone(span.action);
    }
  }
  return out;
}

/// The part of `time` that is not a stage's own.
Seconds host_part(Seconds time, Seconds spans, Seconds alone) {
  if (spans <= Seconds(0)) return {};
  return time * std::clamp(1 - alone / spans, 0.0, 1.0);
}

void add(StepParts& to, const StepParts& parts, double factor) {
  to.compute += parts.compute * factor;
  to.host += parts.host * factor;
  to.update += parts.update * factor;
  to.reduce += parts.reduce * factor;
  to.exposed_transfer += parts.exposed_transfer * factor;
  to.bubble += parts.bubble * factor;
}

/// Work of a position's ranks: all but waiting.
Seconds busy(const StepParts& parts) { return parts.compute + parts.host + parts.update + parts.reduce; }

void add_parts(Explanation& out, const BoundPlan& plan, const SimulationInput& input, Seconds host) {
  const auto shares = host_shares(input, out.prediction.timeline, host);
  for (int position = 0; position < plan.positions(); ++position) {
    PositionParts& of = out.positions.emplace_back();
    of.ranks = plan.replicas(position);
    of.stages = plan.stages_at(position);
    for (const int s : of.stages) {
      const StagePrediction& stage = out.prediction.stages[to_index(s)];
      const HostShares& share = shares[to_index(s)];
      const Seconds compute_host = host_part(stage.compute, share.compute, share.compute_alone);
      const Seconds update_host = host_part(stage.update, share.update, share.update_alone);
      add(of.parts,
          {stage.compute - compute_host, compute_host + update_host, stage.update - update_host, stage.reduce,
           stage.exposed_transfer, stage.bubble},
          1);
    }
    add(out.parts, of.parts, static_cast<double>(of.ranks) / static_cast<double>(plan.ranks().size()));
  }
  Seconds mean;
  for (const PositionParts& of : out.positions) {
    mean += busy(of.parts) * (static_cast<double>(of.ranks) / static_cast<double>(plan.ranks().size()));
    if (busy(of.parts) > busy(out.positions[to_index(out.bottleneck)].parts))
      out.bottleneck = to_int(&of - out.positions.data());
  }
  if (mean > Seconds(0)) out.imbalance = busy(out.positions[to_index(out.bottleneck)].parts) / mean - 1;
}

void add_path(Explanation& out, const BoundPlan& plan, const SimulationInput& input) {
  const StepWindow window = plan.step_window();
  const bool flushed = window.steps == 1;
  const Timeline& timeline = out.prediction.timeline;
  const Seconds begin = flushed ? Seconds(0) : timeline.steps[to_index(window.first)].end;
  CriticalPath path = critical_path(input, timeline, begin, window.last);
  out.steps = flushed ? 1 : window.last - window.first;
  std::map<std::pair<int, ActionKind>, PathShare> shares;
  for (const Span& span : path.segments) {
    PathShare& share = shares[{span.action.stage, span.action.kind}];
    share.stage = span.action.stage;
    share.kind = span.action.kind;
    ++share.count;
    share.time += span.end - span.start;
  }
  for (const auto& [key, share] : shares) out.path_shares.push_back(share);
  std::stable_sort(out.path_shares.begin(), out.path_shares.end(),
                   [](const PathShare& a, const PathShare& b) { return a.time > b.time; });
  for (std::size_t rank = 0; rank < path.slack.size(); ++rank) {
    const int position = plan.ranks()[rank].stages.front();
    auto& least = out.positions[to_index(position)].least_slack;
    for (const Seconds slack : path.slack[rank]) least = std::min(least.value_or(kNever), slack);
    if (least && *least == kNever) least.reset();
  }
  out.path = std::move(path.segments);
}

/// A single move, and what makes it.
struct MoveCandidate {
  LayerMove move;
  Partition partition;
};

/// The moves of one layer to an adjacent stage that keep the edges forward and a layer in each stage.
std::vector<MoveCandidate> candidates(const Graph& graph, const BoundPlan& bound) {
  std::vector<int> layers;
  Partition now;
  for (int s = 0; s < bound.stages(); ++s) {
    const Stage& stage = bound.plan().stages[to_index(s)];
    layers.push_back(to_int(stage.layers.size()));
    now.replicas.push_back(bound.replicas(s));
  }
  for (const Layer& layer : graph.layers) now.stage_of_layer.push_back(bound.stage_of(layer.id).value_or(-1));
  // A layer may move down to the latest stage that it reads, and up to the earliest that reads it.
  std::vector<int> lowest(graph.layers.size(), 0);
  std::vector<int> highest(graph.layers.size(), bound.stages() - 1);
  for (const Edge& edge : graph.edges) {
    int& low = lowest[to_index(edge.destination)];
    int& high = highest[to_index(edge.source)];
    low = std::max(low, now.stage_of_layer[to_index(edge.source)]);
    high = std::min(high, now.stage_of_layer[to_index(edge.destination)]);
  }
  std::vector<MoveCandidate> out;
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    const int from = now.stage_of_layer[i];
    if (from < 0 || layers[to_index(from)] == 1) continue;
    for (const int to : {from - 1, from + 1}) {
      if (to < lowest[i] || to > highest[i]) continue;
      MoveCandidate& candidate = out.emplace_back();
      candidate.move.layer = graph.layers[i].id;
      candidate.move.from = from;
      candidate.move.to = to;
      candidate.partition = now;
      candidate.partition.stage_of_layer[i] = to;
    }
  }
  return out;
}

/// The plan with other layers in its stages, all else as it was.
Plan with_partition(const Graph& graph, const Topology& topology, const Plan& plan, const Partition& partition) {
  PlanSettings settings{.microbatches = plan.microbatches,
                        .schedule = plan.schedule,
                        .chunks = plan.chunks,
                        .strategy = plan.strategy,
                        .listed = plan.listed,
                        .gradient_bucket_bytes = plan.gradient_bucket_bytes};
  Plan out = make_plan(graph, topology, partition, settings);
  for (std::size_t s = 0; s < out.stages.size(); ++s) {
    out.stages[s].devices = plan.stages[s].devices;
    out.stages[s].recompute = plan.stages[s].recompute;
    out.stages[s].recompute_every = plan.stages[s].recompute_every;
  }
  out.warmups = plan.warmups;
  return out;
}

/// No step is shorter than the work of one rank, which does one thing at a time.
Seconds least_step(const SimulationInput& input) {
  const AloneTimes alone(input, {});
  Seconds out;
  for (const auto& list : input.lists) {
    Seconds work;
    for (const Action& action : list) {
      if (is_compute(action.kind) || action.kind == ActionKind::Update) work += alone(action);
    }
    out = std::max(out, work);
  }
  return out / input.steps;
}

bool fits(const Prediction& prediction) {
  return std::all_of(prediction.stages.begin(), prediction.stages.end(),
                     [](const StagePrediction& stage) { return stage.fits; });
}

void add_best_move(Explanation& out, const Graph& graph, const Topology& topology, const BoundPlan& plan,
                   const ExplainOptions& options, const PredictionInputs& model) {
  const bool must_fit = fits(out.prediction);
  PredictOptions how = options.predict;
  how.progress = {};
  auto all = candidates(graph, plan);
  out.moves = to_int(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (options.predict.progress) options.predict.progress(static_cast<double>(i) / static_cast<double>(all.size()));
    MoveCandidate& candidate = all[i];
    std::optional<BoundPlan> moved;
    try {
      moved.emplace(with_partition(graph, topology, plan.plan(), candidate.partition));
      // The lists of a long step take long to add up; those of an asynchronous one cover more than they measure.
      const auto pairs = static_cast<std::int64_t>(plan.stages()) * plan.plan().microbatches;
      if (out.best_move && !plan.asynchronous() && pairs <= how.most_whole &&
          least_step(simulation_input(model.graph, model.topology, *moved, model.options)) >= out.best_move->step)
        continue;
      const auto result = predicted(graph, topology, *moved, options, how);
      const auto* prediction = std::get_if<Prediction>(&result);
      if (!prediction || (must_fit && !fits(*prediction))) continue;
      candidate.move.step = prediction->iteration;
    } catch (const std::invalid_argument&) { continue; }  // the schedule's lists do not suit the moved boundaries
    if (!out.best_move || candidate.move.step < out.best_move->step) out.best_move = candidate.move;
  }
}

std::string percent(Seconds part, Seconds whole) {
  return whole > Seconds(0) ? fmt::format("{:.1f} %", part / whole * 100) : "-";
}

std::string stages_text(const std::vector<int>& stages) {
  return fmt::format("stage{} {}", stages.size() == 1 ? "" : "s", format_ranges(stages, ", "));
}

std::string parts_text(const Explanation& e, const Screen& screen) {
  std::vector<std::vector<std::string>> rows;
  const auto row = [&](const std::string& name, const StepParts& parts, const std::optional<Seconds>& slack) {
    const Seconds step = total(parts);
    rows.push_back({name, percent(parts.compute, step), percent(parts.host, step),
                    percent(parts.exposed_transfer, step), percent(parts.reduce, step), percent(parts.update, step),
                    percent(parts.bubble, step), slack ? format_seconds(*slack) : "-"});
  };
  for (const PositionParts& of : e.positions) row(stages_text(of.stages), of.parts, of.least_slack);
  row("all ranks", e.parts, std::nullopt);
  return table_text({{.title = "", .left = true},
                     {.title = "compute"},
                     {.title = "host"},
                     {.title = "transfer"},
                     {.title = "reduce"},
                     {.title = "update"},
                     {.title = "bubble"},
                     {.title = "slack"}},
                    rows, screen);
}

std::string path_text(const Explanation& e) {
  if (e.path.empty()) return "critical path: not searched, the step is too long to be replayed in full\n";
  const Seconds length = e.path.back().end - e.path.front().start;
  std::string out =
      fmt::format("critical path of {}: {} in {} actions\n", e.steps == 1 ? "a step" : fmt::format("{} steps", e.steps),
                  format_seconds(length), e.path.size());
  for (std::size_t i = 0; i < std::min(kShownShares, e.path_shares.size()); ++i) {
    const PathShare& share = e.path_shares[i];
    out += fmt::format("  {:>7}  stage {} {} x {}\n", percent(share.time, length), share.stage, to_string(share.kind),
                       share.count);
  }
  std::vector<Span> longest = e.path;
  std::stable_sort(longest.begin(), longest.end(),
                   [](const Span& a, const Span& b) { return a.end - a.start > b.end - b.start; });
  longest.resize(std::min(longest.size(), kShownSegments));
  out += "  longest:";
  for (std::size_t i = 0; i < longest.size(); ++i)
    out += fmt::format("{} {} {}", i == 0 ? "" : ",", action_text(longest[i].action),
                       format_seconds(longest[i].end - longest[i].start));
  return out + "\n";
}

std::string move_text(const Explanation& e) {
  if (e.moves == 0) return "best move: no layer can move to an adjacent stage\n";
  if (!e.best_move) return "best move: no single move fits\n";
  const LayerMove& move = *e.best_move;
  const Seconds gain = e.prediction.iteration - move.step;
  if (gain <= Seconds(0)) return fmt::format("best move: none of the {} single moves of a layer is faster\n", e.moves);
  return fmt::format("best move: layer {} from stage {} to stage {}: step {}, {} or {} less\n", move.layer, move.from,
                     move.to, format_seconds(move.step), format_seconds(gain), percent(gain, e.prediction.iteration));
}

std::string memory_text(const Explanation& e) {
  if (e.memory.empty()) return "";
  const auto tightest =
      std::max_element(e.memory.begin(), e.memory.end(),
                       [](const MemoryHeadroom& a, const MemoryHeadroom& b) { return a.peak < b.peak; });
  std::string out =
      fmt::format("memory: rank {} has the largest peak, {}", tightest->rank, format_bytes(tightest->peak));
  if (!tightest->room) return out + "; the topology gives no limit\n";
  return out + (*tightest->room < Bytes(0) ? fmt::format(", {} too much\n", format_bytes(-*tightest->room))
                                           : fmt::format("; {} are left\n", format_bytes(*tightest->room)));
}

}  // namespace

StepParts mean_parts(const Prediction& prediction) {
  StepParts out;
  int ranks = 0;
  for (const std::vector<int>& position : stages_of_positions(prediction))
    ranks += prediction.stages[to_index(position.front())].replicas;
  for (const StagePrediction& stage : prediction.stages) {
    add(out, {stage.compute, {}, stage.update, stage.reduce, stage.exposed_transfer, stage.bubble},
        static_cast<double>(stage.replicas) / ranks);
  }
  return out;
}

Seconds idle_time(const StepParts& parts) { return parts.exposed_transfer + parts.bubble; }

Seconds total(const StepParts& parts) {
  return parts.compute + parts.host + parts.update + parts.reduce + parts.exposed_transfer + parts.bubble;
}

std::variant<Explanation, Infeasible> explain(const Graph& graph, const Topology& topology, const BoundPlan& plan,
                                              const ExplainOptions& options) {
  const PredictionInputs model = model_of(graph, topology, options);
  ProgressParts parts(options.predict, options.moves ? 2 : 1);
  PredictOptions whole = parts.next();  // a path has no gap, so the step is replayed in full where that takes seconds
  whole.most_whole = whole.most_replayed;
  auto result = predict_with_intervals(graph, topology, plan, options.calibration, whole);
  if (auto* none = std::get_if<Infeasible>(&result)) return std::move(*none);
  Explanation out;
  out.prediction = std::get<Prediction>(std::move(result));
  {
    const SimulationInput input = simulation_input(model.graph, model.topology, plan, model.options);
    add_parts(out, plan, input, model.options.host_per_action);
    if (out.prediction.reckoned_microbatches == 0) add_path(out, plan, input);
  }
  if (options.moves) {
    ExplainOptions moving = options;
    moving.predict = parts.next();
    add_best_move(out, graph, topology, plan, moving, model);
  }
  for (const RankMemory& memory : out.prediction.timeline.memory) {
    out.memory.push_back({memory.rank, memory.total, std::nullopt});
    if (topology.device.memory) out.memory.back().room = *topology.device.memory - memory.total;
  }
  return out;
}

std::string explanation_text(const Explanation& e, const Screen& screen) {
  std::string out = "step " + format_seconds(e.prediction.iteration);
  if (e.prediction.samples_per_s) out += fmt::format(", {:.1f} samples per second", *e.prediction.samples_per_s);
  if (e.prediction.low && e.prediction.high)
    out +=
        fmt::format(", 90 % interval {} to {}", format_seconds(*e.prediction.low), format_seconds(*e.prediction.high));
  out += "\n" + parts_text(e, screen) + path_text(e);
  const PositionParts& slowest = e.positions[to_index(e.bottleneck)];
  out += fmt::format("bottleneck: {}, {} of work per step, {:.1f} % above the mean\n", stages_text(slowest.stages),
                     format_seconds(busy(slowest.parts)), e.imbalance * 100);
  if (const std::string idle = idle_text(e.prediction); !idle.empty()) out += idle + "\n";
  return out + move_text(e) + memory_text(e);
}

}  // namespace stagecraft

#include "partitioner/objective/dapple_solver.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <queue>
#include <set>
#include <utility>

#include "costmodel/index.h"
#include "partitioner/objective/load_problem.h"
#include "partitioner/objective/load_solver.h"

namespace stagecraft::partitioner {
namespace {

constexpr Seconds kInfinite{std::numeric_limits<double>::infinity()};
/// Divisions into stages, by first and last layer and devices, of longer lists are not tried.
constexpr double kMostStages = 4e6;
/// Rounding of sums that are taken in different orders.
constexpr double kRounding = 1e-12;

/// A division of a list.
struct Division {
  Seconds step = kInfinite;
  std::vector<int> ends, devices;
};

/// All divisions of one list.
class DappleSearch {
 public:
  DappleSearch(const DappleProblem& problem, const SearchClock& clock)
      : problem_(problem),
        clock_(clock),
        layers_(to_int(problem.layers.size())),
        stages_(std::min({problem.devices, problem.microbatches, layers_})),
        time_(problem.layers.size() + 1),
        parameters_(problem.layers.size() + 1),
        outputs_(problem.layers.size() + 1) {
    for (std::size_t i = 0; i < problem.layers.size(); ++i) {
      time_[i + 1] = time_[i] + problem.layers[i].time;
      parameters_[i + 1] = parameters_[i] + problem.layers[i].parameters;
      outputs_[i + 1] = outputs_[i] + problem.layers[i].outputs;
    }
  }

  /// The shortest division, and a bound of all: the same unless the time was up, which `stopped` says.
  Division run(Seconds& lower_bound, bool& stopped) {
    const std::vector<Seconds> blocks = all_blocks();
    struct Interval {
      Seconds bound;
      std::size_t first, last;  // blocks; of the last one, the rest is known
      Seconds rest;
      bool operator>(const Interval& other) const { return bound > other.bound; }
    };
    std::priority_queue<Interval, std::vector<Interval>, std::greater<>> open;
    const auto step_from = [&](std::size_t block, Seconds rest) {
      return time_.back() + (problem_.microbatches - 1) * blocks[block] + rest;
    };
    const auto push = [&](std::size_t first, std::size_t last, Seconds rest) {
      if (first > last || rest == kInfinite) return;
      open.push({step_from(first, rest), first, last, rest});
    };
    try {
      push(0, blocks.size() - 1, rest_of(blocks.back()));
      while (!open.empty() && open.top().bound < best_.step * (1 - kRounding)) {
        const Interval interval = open.top();
        if (interval.first == interval.last) break;  // its rest is that of a division found
        const std::size_t middle = interval.first + (interval.last - interval.first) / 2;
        const Seconds rest = rest_of(blocks[middle]);
        open.pop();
        push(interval.first, middle, rest);
        push(middle + 1, interval.last, interval.rest);
      }
    } catch (const TimeIsUp&) { stopped = true; }
    lower_bound = best_.step;
    if (stopped) lower_bound = open.empty() ? time_.back() : std::min(best_.step, open.top().bound);
    return best_;
  }

  [[nodiscard]] std::uint64_t pairs() const { return pairs_; }

 private:
  /// Of the first layers on some devices in some stages: sums of transfers, and the longest reduce that is not hidden.
  struct Way {
    Seconds sum, reduce;
    int from = 0, devices = 0;  // where the last stage begins, and its devices
    std::size_t before = 0;     // the way to there
  };

  [[nodiscard]] Seconds cut(int end) const {
    return end == layers_ ? Seconds(0) : problem_.layers[to_index(end) - 1].crossing / problem_.bandwidth;
  }
  [[nodiscard]] Seconds stage_time(int from, int end, int devices) const {
    return (time_[to_index(end)] - time_[to_index(from)]) / devices;
  }

  [[nodiscard]] std::vector<Seconds> all_blocks() const {
    std::set<Seconds> out;
    for (int from = 0; from < layers_; ++from) {
      for (int end = from + 1; end <= layers_; ++end) {
        for (int r = 1; r <= problem_.devices; ++r) out.insert(stage_time(from, end, r));
      }
    }
    for (int end = 1; end < layers_; ++end) out.insert(2 * cut(end));
    return {out.begin(), out.end()};
  }

  [[nodiscard]] std::size_t slot(int end, int devices, int stages) const {
    return (to_index(end) * to_index(problem_.devices + 1) + to_index(devices)) * to_index(stages_ + 1) +
           to_index(stages);
  }

  /// The least sum of transfers and what is left of a reduce if the block is at most that; infinite if no division is.
  Seconds rest_of(Seconds block) {
    block = block * (1 + kRounding);
    std::vector<std::vector<Way>> ways(slot(layers_, problem_.devices, stages_) + 1);
    ways[slot(0, 0, 0)] = {Way{}};
    for (int end = 1; end <= layers_; ++end) {
      if (end < layers_ && 2 * cut(end) > block) continue;
      if (clock_.is_over()) throw TimeIsUp{};
      for (int r = 1; r <= problem_.devices; ++r) {
        for (int from = end - 1; from >= 0 && stage_time(from, end, r) <= block; --from) {
          ++pairs_;
          const FractionalBytes parameters = parameters_[to_index(end)] - parameters_[to_index(from)];
          const FractionalBytes bytes = parameters + (outputs_[to_index(end)] - outputs_[to_index(from)]) / r;
          if (problem_.memory_limit && bytes > *problem_.memory_limit) break;
          const Seconds reduce = 2.0 * (r - 1) / r * parameters / problem_.bandwidth;
          for (int d = r; d <= problem_.devices; ++d) {
            for (int s = 1; s <= stages_; ++s) {
              const std::vector<Way>& before = ways[slot(from, d - r, s - 1)];
              for (std::size_t w = 0; w < before.size(); ++w) {
                add(ways[slot(end, d, s)],
                    {before[w].sum + cut(end), std::max(before[w].reduce, reduce - (s - 1) * block), from, r, w});
              }
            }
          }
        }
      }
    }
    Seconds out = kInfinite;
    for (int d = 1; d <= problem_.devices; ++d) {
      for (int s = 1; s <= stages_; ++s) {
        for (const Way& way : ways[slot(layers_, d, s)]) {
          if (way.sum + way.reduce >= out) continue;
          out = way.sum + way.reduce;
          keep(ways, d, s, way);
        }
      }
    }
    return out;
  }

  /// Adds a division unless a known one is at most as long in both times.
  static void add(std::vector<Way>& all, const Way& way) {
    const auto is_no_longer = [](const Way& a, const Way& b) { return a.sum <= b.sum && a.reduce <= b.reduce; };
    if (std::ranges::any_of(all, [&](const Way& other) { return is_no_longer(other, way); })) return;
    // In place: ways behind it refer to those before by their numbers, once all of them are known.
    std::erase_if(all, [&](const Way& other) { return is_no_longer(way, other); });
    all.push_back(way);
  }

  /// Remembers the division if it is the shortest.
  void keep(const std::vector<std::vector<Way>>& ways, int devices, int stages, Way way) {
    Division found;
    for (int end = layers_; true; way = ways[slot(end, devices, stages)][way.before]) {
      found.ends.insert(found.ends.begin(), end);
      found.devices.insert(found.devices.begin(), way.devices);
      end = way.from;
      devices -= way.devices;
      --stages;
      if (end == 0) break;
    }
    found.step = dapple_step(problem_, found.ends, found.devices);
    if (found.step < best_.step) best_ = std::move(found);
  }

  const DappleProblem& problem_;
  const SearchClock& clock_;
  int layers_;
  int stages_;                                         ///< at most
  std::vector<Seconds> time_;                          ///< of the first layers
  std::vector<FractionalBytes> parameters_, outputs_;  ///< likewise
  Division best_;
  std::uint64_t pairs_ = 0;
};

}  // namespace

std::vector<DappleProblem> dapple_problems(const Graph& graph, int devices, BytesPerSecond bandwidth, int microbatches,
                                           std::optional<Bytes> memory_limit) {
  const LayerNodes nodes = layer_nodes(graph);
  std::vector<DappleProblem> out;
  for (const std::vector<int>& order : depth_first_orders(nodes.order)) {
    DappleProblem& problem = out.emplace_back();
    problem.devices = devices;
    problem.microbatches = microbatches;
    problem.bandwidth = bandwidth;
    if (memory_limit) problem.memory_limit = fractional(*memory_limit);
    std::vector<std::size_t> place(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      place[to_index(order[i])] = i;
      const int number = nodes.layer_of_node[to_index(order[i])];
      const Layer& layer = graph.layers[to_index(number)];
      problem.layers.push_back({number,
                                layer.forward.median + layer.backward.median,
                                fractional(layer.parameter_bytes),
                                fractional(activation_bytes(layer)),
                                {}});
    }
    for (const LayerNodes::ReadOutput& output : nodes.outputs) {
      std::size_t last = 0;
      for (const int node : output.readers) last = std::max(last, place[to_index(node)]);
      for (std::size_t i = place[to_index(output.producer)]; i < last; ++i)
        problem.layers[i].crossing += fractional(output.bytes);
    }
  }
  return out;
}

Seconds dapple_step(const DappleProblem& problem, const std::vector<int>& ends, const std::vector<int>& devices) {
  Seconds all;
  Seconds block;
  Seconds transfers;
  std::vector<Seconds> reduces;
  int from = 0;
  for (std::size_t s = 0; s < ends.size(); ++s) {
    Seconds time;
    FractionalBytes parameters;
    for (; from < ends[s]; ++from) {
      time += problem.layers[to_index(from)].time;
      parameters += problem.layers[to_index(from)].parameters;
    }
    all += time;
    block = std::max(block, time / devices[s]);
    reduces.push_back(2.0 * (devices[s] - 1) / devices[s] * parameters / problem.bandwidth);
    if (s + 1 == ends.size()) break;
    const Seconds transfer = problem.layers[to_index(from) - 1].crossing / problem.bandwidth;
    transfers += transfer;
    block = std::max(block, 2 * transfer);
  }
  Seconds left;
  for (std::size_t s = 0; s < reduces.size(); ++s) left = std::max(left, reduces[s] - static_cast<double>(s) * block);
  return all + (problem.microbatches - 1) * block + transfers + left;
}

std::variant<DappleAnswer, Infeasible> solve(const std::vector<DappleProblem>& lists, const SearchLimits& limits) {
  const auto layers = static_cast<double>(lists.front().layers.size());
  const double stages = layers * layers / 2 * lists.front().devices;
  if (stages > kMostStages) {
    return Infeasible{fmt::format(
        "{:g} layers on {} devices are {:.2g} possible stages, DAPPLE's problem is solved for up to {:.2g}: take fewer "
        "devices or a graph with fewer layers",
        layers, lists.front().devices, stages, kMostStages)};
  }
  const SearchClock clock(limits);
  DappleAnswer out;
  out.lower_bound = kInfinite;
  Division best;
  const DappleProblem* of = nullptr;
  bool stopped = false;
  for (const DappleProblem& problem : lists) {
    DappleSearch search(problem, clock);
    Seconds bound;
    const Division found = search.run(bound, stopped);
    out.lower_bound = std::min(out.lower_bound, bound);
    out.effort.pairs += search.pairs();
    out.effort.nodes = to_int(problem.layers.size());
    if (found.step >= best.step) continue;
    best = found;
    of = &problem;
  }
  if (stopped) out.effort.stopped = "the time limit was reached";
  if (of == nullptr) {
    return Infeasible{stopped ? "the time limit was reached before a plan was found"
                              : "no division of the layers fits in memory: each device holds the parameters of its "
                                "stage and its part of the outputs"};
  }
  out.value = best.step;
  int from = 0;
  for (std::size_t s = 0; s < best.ends.size(); ++s) {
    DappleStage& stage = out.stages.emplace_back();
    stage.devices = best.devices[s];
    for (; from < best.ends[s]; ++from) {
      const DappleProblem::ListLayer& layer = of->layers[to_index(from)];
      stage.nodes.push_back(layer.node);
      stage.time += layer.time / stage.devices;
      stage.bytes += layer.parameters + layer.outputs / stage.devices;
    }
  }
  return out;
}

}  // namespace stagecraft::partitioner

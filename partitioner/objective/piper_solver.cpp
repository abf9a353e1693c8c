#include "partitioner/objective/piper_solver.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "partitioner/objective/load_problem.h"
#include "partitioner/objective/load_solver.h"

namespace stagecraft::partitioner {
namespace {

using interchange::Piper;
using interchange::PiperMode;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr Seconds kNever(kInfinite);
/// Memory saved and missing that count as none, as in Piper's rule.
constexpr FractionalBytes kNoBytes{1e-9};
/// The most ways to run a stage that are kept; an input with more is too large.
constexpr std::size_t kMostWays = 8'000'000;

struct TooManyWays {};

int ceiling(int a, int b) { return (a + b - 1) / b; }

/// The modes that Piper's rule takes for a stage.
struct PiperChoice {
  Seconds time;
  FractionalBytes bytes;
  std::vector<int> modes;  ///< index into PiperNode::modes[tensor_devices], for each of the stage's nodes
};

/// The times and memory of all modes, for each number of tensor-parallel devices that every node of a stage offers.
struct ModeCosts {
  std::vector<std::vector<Seconds>> time;  ///< by position in the stage, then mode
  std::vector<const std::vector<PiperMode>*> modes;
};

/// Nodes with their edges, for costs of many stages.
class Costs {
 public:
  Costs(const Piper& problem, Seconds time_unit) : problem_(problem), unit_(time_unit), edges_(problem.nodes.size()) {
    for (const interchange::PiperEdge& edge : problem.edges) {
      edges_[to_index(edge.source)].push_back({edge.destination, FractionalBytes(edge.bytes), true});
      edges_[to_index(edge.destination)].push_back({edge.source, FractionalBytes(edge.bytes), false});
    }
    for (const interchange::PiperNode& node : problem.nodes) {
      for (const auto& [devices, modes] : node.modes) {
        if (devices <= problem.devices) ++offered_[devices];
      }
    }
    for (int d = 1; d <= std::min(problem.devices, problem.microbatches); ++d) {
      if (problem.microbatches % d == 0) replicas_.push_back(d);
    }
  }

  /// Numbers of devices for which at least one node has a mode, and the possible numbers of replicas.
  [[nodiscard]] const std::map<int, int>& offered() const { return offered_; }
  [[nodiscard]] const std::vector<int>& replicas() const { return replicas_; }

  /// False if a node has no mode for so many devices. `inside` marks `nodes`.
  bool prepare(const std::vector<int>& nodes, const std::vector<bool>& inside, int tensor_devices, int replicas,
               ModeCosts& out) const {
    out.time.clear();
    out.modes.clear();
    const double d = replicas;
    for (const int node : nodes) {
      const auto& all = problem_.nodes[to_index(node)].modes;
      const auto found = all.find(tensor_devices);
      if (found == all.end()) return false;
      std::vector<Seconds>& times = out.time.emplace_back();
      out.modes.push_back(&found->second);
      for (const PiperMode& mode : found->second) {
        FractionalBytes bytes;
        for (const auto& [other, carried, is_out] : edges_[to_index(node)]) {
          if (inside[to_index(other)]) continue;
          bytes += 2 * (carried + FractionalBytes((is_out ? mode.sync_backward : mode.sync_forward).at(other)));
        }
        bytes = bytes / d + 4 * (d - 1) * FractionalBytes(mode.parameters) / d / problem_.microbatches;
        times.push_back(bytes / BytesPerSecond(problem_.bandwidth) + mode.time * unit_ / d);
      }
    }
    return true;
  }

  /// Piper's choice of modes with `in_flight` samples; absent if none fit.
  [[nodiscard]] std::optional<PiperChoice> choose(const ModeCosts& costs, int in_flight) const {
    PiperChoice out;
    const std::size_t nodes = costs.time.size();
    const auto bytes_of = [&](std::size_t i, int mode) {
      const PiperMode& one = (*costs.modes[i])[to_index(mode)];
      return FractionalBytes(one.memory_each * in_flight + one.memory_fixed);
    };
    const FractionalBytes limit(problem_.memory_limit);
    FractionalBytes least;
    for (std::size_t i = 0; i < nodes; ++i) {
      const auto fastest = std::ranges::min_element(costs.time[i]) - costs.time[i].begin();
      out.modes.push_back(to_int(fastest));
      out.bytes += bytes_of(i, to_int(fastest));
      FractionalBytes smallest(kInfinite);
      for (int mode = 0; mode < to_int(costs.time[i].size()); ++mode) smallest = std::min(smallest, bytes_of(i, mode));
      least += smallest;
    }
    if (out.bytes > limit) {
      if (least > limit) return std::nullopt;
      std::vector<std::tuple<SecondsPerByte, std::size_t, int>> changes;  // price, node, mode
      for (std::size_t i = 0; i < nodes; ++i) {
        for (int mode = 0; mode < to_int(costs.time[i].size()); ++mode) {
          const FractionalBytes saved = bytes_of(i, out.modes[i]) - bytes_of(i, mode);
          if (saved > kNoBytes)
            changes.emplace_back((costs.time[i][to_index(mode)] - costs.time[i][to_index(out.modes[i])]) / saved, i,
                                 mode);
        }
      }
      std::ranges::sort(changes);
      for (const auto& [price, i, mode] : changes) {
        const FractionalBytes saved = bytes_of(i, out.modes[i]) - bytes_of(i, mode);
        if (saved <= kNoBytes) continue;
        out.bytes -= saved;
        out.modes[i] = mode;
        if (out.bytes - limit < kNoBytes) break;
      }
    }
    for (std::size_t i = 0; i < nodes; ++i) out.time += costs.time[i][to_index(out.modes[i])];
    return out;
  }

  /// Time on all devices together that every plan spends on a node for one sample.
  [[nodiscard]] std::vector<Seconds> least_work_of_nodes() const {
    std::vector<Seconds> out;
    for (const interchange::PiperNode& node : problem_.nodes) {
      Seconds least = kNever;
      for (const auto& [devices, modes] : node.modes) {
        if (devices > problem_.devices) continue;
        for (const PiperMode& mode : modes) least = std::min(least, devices * mode.time * unit_);
      }
      out.push_back(least);
    }
    return out;
  }

 private:
  struct End {
    int other;
    FractionalBytes bytes;
    bool is_out;
  };
  const Piper& problem_;
  Seconds unit_;
  std::vector<std::vector<End>> edges_;
  std::map<int, int> offered_;
  std::vector<int> replicas_;
};

/// A way to run the stage between two down-sets (of the graph turned round, so that later stages come first).
struct Way {
  std::uint32_t below = 0;
  int devices = 0;  ///< in all
  int replicas = 0;
  int least_flight = 0;  ///< samples in flight for which this way takes `time`
  int most_flight = 0;
  Seconds time;
};

struct PiperCut {
  Seconds value = kNever;
  struct Slice {
    std::uint32_t upper = 0;
    std::uint32_t lower = 0;
    int devices = 0;
    int replicas = 0;
    int suffix = 0;  ///< replicas of this stage and those after it
  };
  std::vector<Slice> slices;  ///< first stage to last
};

/// The decisions "is there a partition whose stages take at most so long?" on one lattice.
class Decisions {
 public:
  /// Keeps ways that take less than `limit`.
  Decisions(const Piper& problem, const Costs& costs, const Lattice& lattice, Seconds limit, const SearchClock& clock)
      : problem_(problem),
        lattice_(lattice),
        least_work_(costs.least_work_of_nodes()),
        most_(std::min(problem.devices, problem.microbatches)) {
    first_.push_back(0);
    DownWalk walk(lattice);
    std::vector<bool> inside(problem.nodes.size(), false);
    std::vector<int> stage;
    ModeCosts prepared;
    const Seconds work_limit = limit * problem.devices;
    for (std::uint32_t set = 0; set < lattice.count(); ++set) {
      walk.each_subset(
          set,
          [&](int node) {
            inside[to_index(node)] = true;
            stage.push_back(node);
          },
          [&](int node) {
            inside[to_index(node)] = false;
            stage.pop_back();
          },
          [&](std::uint32_t below) {
            if ((++pairs_ & 0xFF) == 0 && clock.is_over()) throw TimeIsUp{};
            return add_ways(costs, stage, inside, below, limit, work_limit, prepared) ? Descend::Yes : Descend::No;
          });
      first_.push_back(ways_.size());
    }
  }

  [[nodiscard]] std::uint64_t pairs() const { return pairs_; }
  /// All times that a stage can take, ascending.
  [[nodiscard]] std::vector<Seconds> times() const {
    std::vector<Seconds> out;
    out.reserve(ways_.size());
    for (const Way& way : ways_) out.push_back(way.time);
    std::ranges::sort(out);
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  std::optional<PiperCut> decide(Seconds limit, const SearchClock& clock) {
    const std::size_t row = to_index(most_ + 1);
    const int none = std::numeric_limits<int>::max();
    devices_.assign(lattice_.count() * row, none);
    way_.assign(lattice_.count() * row, 0);
    devices_[0] = 0;
    for (std::uint32_t set = 1; set < lattice_.count(); ++set) {
      if (clock.is_over()) throw TimeIsUp{};
      for (std::size_t w = first_[set]; w < first_[set + 1]; ++w) {
        const Way& way = ways_[w];
        if (way.time > limit) continue;
        // ceil(suffix / replicas) within the way's range
        const int low = std::max(way.replicas, (way.least_flight - 1) * way.replicas + 1);
        const int high = to_int(std::min<std::int64_t>(most_, std::int64_t{way.most_flight} * way.replicas));
        for (int suffix = low; suffix <= high; ++suffix) {
          const int before = devices_[way.below * row + to_index(suffix - way.replicas)];
          if (before == none || before + way.devices > problem_.devices) continue;
          int& mine = devices_[set * row + to_index(suffix)];
          if (before + way.devices >= mine) continue;
          mine = before + way.devices;
          way_[set * row + to_index(suffix)] = w;
        }
      }
    }
    const std::uint32_t full = lattice_.full();
    for (int suffix = 1; suffix <= most_; ++suffix) {
      if (devices_[full * row + to_index(suffix)] == none) continue;
      PiperCut out{Seconds(0), {}};
      int left = suffix;
      for (std::uint32_t set = full; set != 0;) {
        const Way& way = ways_[way_[set * row + to_index(left)]];
        out.slices.push_back({set, way.below, way.devices, way.replicas, left});
        out.value = std::max(out.value, way.time);
        left -= way.replicas;
        set = way.below;
      }
      return out;
    }
    return std::nullopt;
  }

 private:
  /// False if every stage that contains these nodes exceeds the limit.
  bool add_ways(const Costs& costs, const std::vector<int>& stage, const std::vector<bool>& inside, std::uint32_t below,
                Seconds limit, Seconds work_limit, ModeCosts& prepared) {
    Seconds work;
    for (const int node : stage) work += least_work_[to_index(node)];
    if (work > work_limit) return false;
    for (const auto& [tensor, count] : costs.offered()) {
      for (const int replicas : costs.replicas()) {
        if (tensor * replicas > problem_.devices) break;
        if (!costs.prepare(stage, inside, tensor, replicas, prepared)) break;
        // From the most samples in flight down: what fits with more also fits with fewer.
        const int most_flight = ceiling(most_, replicas);
        Seconds best = kNever;
        for (int flight = most_flight; flight >= 1; --flight) {
          const auto choice = costs.choose(prepared, flight);
          const Seconds time = std::min(best, choice ? choice->time : kNever);
          const bool simple = choice && is_fastest(prepared, *choice);
          if (time <= limit) {
            if (time == best && !ways_.empty() && ways_.back().below == below && ways_.back().replicas == replicas &&
                ways_.back().devices == tensor * replicas) {
              ways_.back().least_flight = simple ? 1 : flight;
            } else {
              if (ways_.size() == kMostWays) throw TooManyWays{};
              ways_.push_back({below, tensor * replicas, replicas, simple ? 1 : flight, flight, time});
            }
          }
          best = time;
          if (simple) break;  // the fastest modes fit; they fit with fewer samples too
        }
      }
    }
    return true;
  }

  static bool is_fastest(const ModeCosts& costs, const PiperChoice& choice) {
    for (std::size_t i = 0; i < choice.modes.size(); ++i) {
      if (costs.time[i][to_index(choice.modes[i])] > *std::ranges::min_element(costs.time[i])) return false;
    }
    return true;
  }

  const Piper& problem_;
  const Lattice& lattice_;
  std::vector<Seconds> least_work_;  ///< by node
  int most_;                         ///< replicas of all stages
  std::uint64_t pairs_ = 0;
  std::vector<std::size_t> first_;  ///< into ways_, by set
  std::vector<Way> ways_;
  std::vector<int> devices_;  ///< the fewest, by set and replicas
  std::vector<std::size_t> way_;
};

/// The best partition of one lattice. The slowest stage takes one of finitely many times: bisects them.
class PiperSearch {
 public:
  PiperSearch(const Piper& problem, Seconds time_unit, const Lattice& lattice, const SearchClock& clock)
      : problem_(problem), costs_(problem, time_unit), lattice_(lattice), clock_(clock) {}

  Seconds lower_bound;  ///< valid even if TimeIsUp is thrown
  std::uint64_t pairs = 0;

  /// Improves `best`, a partition of another lattice or none.
  void run(PiperCut& best, std::vector<PiperStage>& stages) {
    Seconds limit = best.value;
    if (!(limit < kNever)) limit = std::max(2 * lower_bound, Seconds(1e-12));
    while (true) {
      Decisions decisions(problem_, costs_, lattice_, limit, clock_);
      pairs += decisions.pairs();
      bisect(decisions, limit, best, stages);
      if (best.value < kNever || limit > kEnough) break;
      lower_bound = std::max(lower_bound, limit);
      limit = limit * 4;
    }
    if (best.value < kNever) lower_bound = best.value;
  }

 private:
  static constexpr Seconds kEnough{1e30};

  void bisect(Decisions& decisions, Seconds limit, PiperCut& best, std::vector<PiperStage>& stages) {
    const std::vector<Seconds> times = decisions.times();
    auto low = times.begin();  // all before it are too short
    auto high = std::ranges::upper_bound(times, std::min(limit, best.value));
    while (low < high) {
      const auto middle = low + (high - low) / 2;
      auto found = decisions.decide(*middle, clock_);
      if (!found) {
        low = middle + 1;
        lower_bound = std::max(lower_bound, *middle);
        continue;
      }
      high = std::ranges::lower_bound(times, found->value);
      if (found->value < best.value) {
        stages = stages_of(*found);
        best = std::move(*found);
      }
    }
  }

  [[nodiscard]] std::vector<PiperStage> stages_of(const PiperCut& cut) const {
    std::vector<PiperStage> out;
    const int most = std::min(problem_.devices, problem_.microbatches);
    for (const PiperCut::Slice& slice : cut.slices) {
      PiperStage& stage = out.emplace_back();
      stage.nodes = lattice_.members(slice.upper, slice.lower);
      stage.replicas = slice.replicas;
      stage.tensor_devices = slice.devices / slice.replicas;
      stage.in_flight = ceiling(slice.suffix, slice.replicas);
      std::vector<bool> inside(problem_.nodes.size(), false);
      for (const int node : stage.nodes) inside[to_index(node)] = true;
      ModeCosts prepared;
      (void)costs_.prepare(stage.nodes, inside, stage.tensor_devices, stage.replicas, prepared);
      std::optional<PiperChoice> best;
      for (int flight = stage.in_flight; flight <= ceiling(most, stage.replicas); ++flight) {
        auto choice = costs_.choose(prepared, flight);
        if (choice && (!best || choice->time < best->time)) best = std::move(choice);
      }
      stage.time = best->time;
      for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
        const PiperMode& mode = (*prepared.modes[i])[to_index(best->modes[i])];
        stage.modes.push_back(mode.id);
        stage.bytes += FractionalBytes(mode.memory_each * stage.in_flight + mode.memory_fixed);
      }
    }
    return out;
  }

  const Piper& problem_;
  Costs costs_;
  const Lattice& lattice_;
  const SearchClock& clock_;
};

}  // namespace

Piper piper_problem(const Graph& graph, int devices, BytesPerSecond bandwidth, int microbatches,
                    std::optional<Bytes> memory_limit) {
  Piper out;
  out.devices = devices;
  out.bandwidth = bandwidth.value;
  out.microbatches = microbatches;
  out.memory_limit = memory_limit ? static_cast<double>(memory_limit->value) : kInfinite;
  std::vector<int> node_of_layer(graph.layers.size(), -1);
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    const Layer& layer = graph.layers[i];
    if (is_input(layer)) continue;
    node_of_layer[i] = to_int(out.nodes.size());
    interchange::PiperNode& node = out.nodes.emplace_back();
    node.id = to_int(i);
    node.name = layer.id;
    PiperMode mode;
    mode.id = "vanilla";
    mode.time = (layer.forward.median + layer.backward.median).value;
    mode.parameters = static_cast<double>(layer.parameter_bytes.value);
    mode.memory_each = static_cast<double>(activation_bytes(layer).value);
    mode.memory_fixed = 2 * mode.parameters;
    node.modes[1].push_back(mode);
  }
  if (out.nodes.empty()) throw std::invalid_argument("the graph has no layers besides its inputs");
  std::map<std::pair<int, int>, double> bytes;
  for (const Edge& edge : graph.edges) {
    const int from = node_of_layer[to_index(edge.source)];
    const int to = node_of_layer[to_index(edge.destination)];
    if (from < 0 || to < 0) continue;
    const Layer& layer = graph.layers[to_index(edge.source)];
    const Bytes sent = edge.output ? layer.outputs[to_index(*edge.output)].bytes : activation_bytes(layer);
    bytes[{from, to}] += static_cast<double>(sent.value);
  }
  for (const auto& [edge, sent] : bytes) {
    out.edges.push_back({edge.first, edge.second, sent});
    out.nodes[to_index(edge.first)].modes[1].front().sync_backward[edge.second] = 0;
    out.nodes[to_index(edge.second)].modes[1].front().sync_forward[edge.first] = 0;
  }
  return out;
}

std::variant<PiperAnswer, Infeasible> solve(const Piper& problem, Seconds time_unit, const SearchLimits& limits) {
  PiperAnswer answer;
  answer.effort.nodes = to_int(problem.nodes.size());
  Dag order{to_int(problem.nodes.size()), {}};
  for (const interchange::PiperEdge& edge : problem.edges) order.edges.emplace_back(edge.source, edge.destination);
  order = reversed(order);
  const SearchClock clock(limits);
  PiperCut best;
  Seconds work;
  for (const Seconds node : Costs(problem, time_unit).least_work_of_nodes()) work += node;
  if (!(work < kNever))
    return Infeasible{"a node has no mode for at most " + std::to_string(problem.devices) + " devices"};
  const Seconds bound = work / problem.devices;
  answer.lower_bound = bound;
  const auto improve = [&](const Lattice& lattice, bool complete) {
    PiperSearch search(problem, time_unit, lattice, clock);
    search.lower_bound = bound;
    try {
      search.run(best, answer.stages);
    } catch (const TimeIsUp&) { answer.effort.stopped = "time is up"; } catch (const TooManyWays&) {
      answer.effort.stopped = "the stages have too many ways to run";
    }
    if (!complete) return;
    answer.lower_bound = search.lower_bound;
    answer.effort.pairs = search.pairs;
  };
  for (const Dag& list : depth_first_lists(order)) {
    if (const auto lattice = Lattice::of(list, problem.nodes.size() + 1)) improve(*lattice, false);
  }
  const std::string lists = "the best cut of two depth-first orders as lists";
  if (!answer.effort.stopped.empty()) {
    answer.effort.stopped += ": " + lists;
  } else if (const auto lattice = Lattice::of(order, limits.downsets)) {
    answer.effort.downsets = lattice->count();
    improve(*lattice, true);
  } else {
    answer.effort.stopped = "more than " + std::to_string(limits.downsets) + " down-sets: " + lists;
  }
  if (answer.stages.empty())
    return Infeasible{answer.effort.stopped.empty() ? "no partition fits the devices' memory"
                                                    : "no partition was found (" + answer.effort.stopped + ")",
                      answer.effort.stopped.empty() ? ErrorKind::DoesNotFit : ErrorKind::NoPlan};
  answer.value = best.value;
  answer.lower_bound = std::min(answer.value, answer.lower_bound);
  return answer;
}

}  // namespace stagecraft::partitioner

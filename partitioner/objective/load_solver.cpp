#include "partitioner/objective/load_solver.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "partitioner/objective/load_problem.h"

namespace stagecraft::partitioner {
namespace {

constexpr Seconds kInfinite(std::numeric_limits<double>::infinity());
/// The distance of the first threshold above a lower bound, relatively; each further threshold is twice as far.
constexpr double kFirstStep = 0.01;

/// The work, memory and border of a growing set of nodes.
class GrowingStage {
 public:
  explicit GrowingStage(const LoadProblem& problem)
      : problem_(&problem),
        has_tensors_(!problem.tensors.empty()),
        cut_(to_int(problem.nodes.size()), problem.tensors) {}
  void add(int node) {
    before_.push_back(now_);
    const LoadProblem::Node& added = problem_->nodes[to_index(node)];
    now_.accelerator += added.accelerator;
    now_.cpu += added.cpu;
    now_.bytes += added.bytes;
    now_.only_cpu += added.on_accelerator ? 0 : 1;
    if (has_tensors_) cut_.add(node);
  }
  void remove() {
    now_ = before_.back();
    before_.pop_back();
    if (has_tensors_) cut_.remove_last();
  }
  void clear() {
    now_ = {};
    before_.clear();
    cut_.clear();
  }
  /// Whether a stage that contains these nodes cannot be on a CPU within `limit`.
  [[nodiscard]] bool too_much_for_cpu(Seconds limit) const { return now_.cpu > limit; }
  /// The same of an accelerator.
  [[nodiscard]] bool too_much_for_accelerators(Seconds limit) const {
    return now_.accelerator > limit || now_.only_cpu > 0 || now_.bytes > problem_->memory_limit * (1 + kLoadRounding);
  }
  [[nodiscard]] Seconds on_cpu() const { return now_.cpu; }
  [[nodiscard]] Seconds on_accelerator() const { return now_.accelerator + cut_.crossing(); }

 private:
  struct Sums {
    Seconds accelerator, cpu;
    FractionalBytes bytes;
    int only_cpu = 0;
  };
  const LoadProblem* problem_;
  bool has_tensors_;
  CutCosts cut_;
  Sums now_;
  std::vector<Sums> before_;
};

/// A stage as the difference of two down-sets.
struct Slice {
  std::uint32_t upper = 0;
  std::uint32_t lower = 0;
  int devices = 0;  ///< 0: on a CPU
};

/// How stages of a table's entry add up, and the plan of the whole.
struct Cut {
  Seconds value;
  std::vector<Slice> slices;  ///< first to last
};

/// Dynamic programming over the down-sets of one lattice.
class Table {
 public:
  Table(const LoadProblem& problem, const Lattice& lattice, bool replicated, const SearchClock& clock)
      : problem_(problem),
        lattice_(lattice),
        replicated_(replicated),
        clock_(clock),
        bounds_(bounds_of(problem)),
        walk_(lattice),
        stage_(problem),
        work_(lattice.count()),
        least_(lattice.count(), 0),
        offset_(lattice.count() + 1, 0) {
    for (std::uint32_t set = 1; set < lattice.count(); ++set) {
      const Lattice::Cover& cover = lattice.covers(set).front();
      work_[set] = work_[cover.below] + bounds_.work[to_index(cover.node)];
    }
  }

  [[nodiscard]] std::uint64_t pairs() const { return pairs_; }

  /// The best plan whose stages take at most `limit`, by the sum of their times or by the slowest; absent if there is
  /// none.
  std::optional<Cut> best(Seconds limit, bool sum, int accelerators) {
    accelerators_ = accelerators;
    limit_ = limit * (1 + kLoadRounding);
    if (!lay_out()) return std::nullopt;
    value_.assign(offset_.back(), kInfinite);
    from_.assign(offset_.back(), {});
    for (std::uint32_t set = 1; set < lattice_.count(); ++set) {
      if (offset_[set] == offset_[set + 1]) continue;
      fill(set, sum);
      for (int cpus = 0; cpus <= problem_.cpus; ++cpus) {
        const std::size_t row = row_of(set, cpus);
        const int width = width_of(set);
        for (int i = 1; i < width; ++i) {
          if (!(value_[row + to_index(i) - 1] <= value_[row + to_index(i)])) continue;
          value_[row + to_index(i)] = value_[row + to_index(i) - 1];
          from_[row + to_index(i)] = {kFewer, 0};
        }
      }
    }
    return read();
  }

 private:
  static constexpr std::uint32_t kFewer = ~std::uint32_t{0};
  /// Where an entry's value comes from: the down-set before its last stage, or kFewer for the entry with one
  /// accelerator less.
  struct From {
    std::uint32_t below = 0;
    std::int32_t devices = 0;
  };

  /// Lays out the numbers of accelerators that each down-set can have in a plan within the limit: at least as many as
  /// the work of the set needs, at most as many as the rest leaves. False if no plan is possible.
  bool lay_out() {
    constexpr double kSlack = 1e-6;
    const double by_cpus = bounds_.cpu_share * problem_.cpus;
    const bool is_limited = limit_ > Seconds(0);
    const double all = is_limited                 ? bounds_.all / limit_
                       : bounds_.all > Seconds(0) ? std::numeric_limits<double>::infinity()
                                                  : 0;
    if (all > accelerators_ + by_cpus + kSlack) return false;
    std::size_t entries = 0;
    for (std::uint32_t set = 0; set < lattice_.count(); ++set) {
      const double mine = is_limited ? work_[set] / limit_ : 0;
      const double low = std::max(0.0, std::ceil(mine - by_cpus - kSlack));
      const double high = std::min<double>(accelerators_, std::floor(accelerators_ + by_cpus - (all - mine) + kSlack));
      offset_[set] = static_cast<std::uint32_t>(entries);
      least_[set] = static_cast<std::int32_t>(low);
      if (set > 0 && low <= high) entries += static_cast<std::size_t>(high - low + 1) * to_index(problem_.cpus + 1);
      if (entries >= kFewer) throw std::length_error("the tables of the search are too large");
    }
    offset_.back() = static_cast<std::uint32_t>(entries);
    const std::uint32_t full = lattice_.full();
    return offset_[full] != offset_[full + 1];
  }

  [[nodiscard]] int width_of(std::uint32_t set) const {
    return to_int((offset_[set + 1] - offset_[set]) / static_cast<std::uint32_t>(problem_.cpus + 1));
  }
  [[nodiscard]] std::size_t row_of(std::uint32_t set, int cpus) const {
    return offset_[set] + to_index(cpus) * to_index(width_of(set));
  }

  /// Improves the entries of `set` by a last stage after `below`.
  void take(std::uint32_t set, std::uint32_t below, bool on_cpu, int devices, Seconds time, bool sum) {
    const int least = least_[set];
    const int width = width_of(set);
    const int below_least = below == 0 ? 0 : least_[below];
    const int below_width = below == 0 ? accelerators_ + 1 : width_of(below);
    if (below_width == 0) return;
    const int begin = std::max(least, below_least + devices);
    for (int cpus = on_cpu ? 1 : 0; cpus <= problem_.cpus; ++cpus) {
      const std::size_t row = row_of(set, cpus);
      const std::size_t below_row = below == 0 ? 0 : row_of(below, on_cpu ? cpus - 1 : cpus);
      for (int a = begin; a < least + width; ++a) {
        Seconds before;
        if (below != 0) before = value_[below_row + to_index(std::min(a - devices - below_least, below_width - 1))];
        const Seconds value = sum ? before + time : std::max(before, time);
        const std::size_t at = row + to_index(a - least);
        if (!(value < value_[at])) continue;
        value_[at] = value;
        from_[at] = {below, on_cpu ? 0 : devices};
      }
    }
  }

  void fill(std::uint32_t set, bool sum) {
    const int most = replicated_ ? least_[set] + width_of(set) - 1 : 1;
    const Seconds work_limit = limit_ * most;
    stage_.clear();
    walk_.each_subset(
        set, [&](int node) { stage_.add(node); }, [&](int) { stage_.remove(); },
        [&](std::uint32_t below) {
          if ((++pairs_ & 0xFFFF) == 0 && clock_.is_over()) throw TimeIsUp{};
          const bool on_cpu = problem_.cpus > 0 && !stage_.too_much_for_cpu(limit_);
          const bool on_accelerators = accelerators_ > 0 && !stage_.too_much_for_accelerators(work_limit);
          if (!on_cpu && !on_accelerators) return Descend::No;
          if (below != 0 && offset_[below] == offset_[below + 1]) return Descend::Yes;
          if (on_accelerators) {
            const Seconds time = stage_.on_accelerator();
            const int needed =
                limit_ > Seconds(0) ? static_cast<int>(std::min(std::ceil(time / limit_ - kLoadRounding), 2e9)) : 1;
            for (int devices = std::max(1, needed); devices <= most; ++devices)
              take(set, below, false, devices, time / devices, sum);
          }
          if (on_cpu) take(set, below, true, 0, stage_.on_cpu(), sum);
          return Descend::Yes;
        });
  }

  /// The plan in the table for all nodes.
  [[nodiscard]] std::optional<Cut> read() const {
    std::uint32_t set = lattice_.full();
    int cpus = 0;
    int at = width_of(set) - 1;
    for (int c = 1; c <= problem_.cpus; ++c) {
      if (value_[row_of(set, c) + to_index(at)] < value_[row_of(set, cpus) + to_index(at)]) cpus = c;
    }
    Cut out{value_[row_of(set, cpus) + to_index(at)], {}};
    if (!(out.value < kInfinite)) return std::nullopt;
    while (true) {
      const From from = from_[row_of(set, cpus) + to_index(at)];
      if (from.below == kFewer) {
        --at;
        continue;
      }
      out.slices.push_back({set, from.below, from.devices});
      if (from.below == 0) break;
      const int left = least_[set] + at - from.devices;
      if (from.devices == 0) --cpus;
      set = from.below;
      at = std::min(left - least_[set], width_of(set) - 1);
    }
    std::ranges::reverse(out.slices);
    return out;
  }

  const LoadProblem& problem_;
  const Lattice& lattice_;
  bool replicated_;
  const SearchClock& clock_;
  LoadBounds bounds_;
  DownWalk walk_;
  GrowingStage stage_;
  int accelerators_ = 0;
  Seconds limit_;
  std::uint64_t pairs_ = 0;
  std::vector<Seconds> work_;          // by set
  std::vector<std::int32_t> least_;    // accelerators of the first entry, by set
  std::vector<std::uint32_t> offset_;  // of the first entry, by set; entries by CPUs, then accelerators
  std::vector<Seconds> value_;
  std::vector<From> from_;
};

/// A plan and a bound on all plans of the same lattice.
struct Outcome {
  Seconds value = kInfinite;
  Seconds lower_bound;
  std::vector<LoadStage> stages;
};

/// Searches one lattice for the best plan of an objective.
class Optimiser {
 public:
  Optimiser(const LoadProblem& problem, const LoadObjective& objective, const Lattice& lattice,
            const SearchClock& clock)
      : problem_(problem),
        objective_(objective),
        lattice_(lattice),
        table_(problem, lattice, objective.replicated, clock) {
    for (const LoadProblem::Node& node : problem.nodes) everything_ += std::max(node.cpu, node.accelerator);
    for (const CutTensor& tensor : problem.tensors) everything_ += tensor.cost;
    everything_ += Seconds(1e-300);
  }

  [[nodiscard]] std::uint64_t pairs() const { return table_.pairs(); }
  [[nodiscard]] const Outcome& outcome() const { return best_; }

  /// Improves `known`, a plan of this or another lattice; outcome() is valid even if TimeIsUp is thrown.
  void run(Outcome known) {
    best_ = std::move(known);
    switch (objective_.combination) {
      case Combination::Slowest: {
        const Seconds low = best_.lower_bound;
        const Seconds high = best_.value;
        const auto found = slowest(problem_.accelerators, low, high, [&](Seconds bound) { best_.lower_bound = bound; });
        if (found) offer(*found);
        best_.lower_bound = best_.value;
        break;
      }
      case Combination::FlushSum:
        flush();
        break;
      case Combination::FlushEven:
        even();
        break;
    }
  }

 private:
  /// The plan on `accelerators` with the least slowest stage; absent if none is faster than `high`.
  template <class Raise>
  std::optional<Cut> slowest(int accelerators, Seconds low, Seconds high, Raise&& raise) {
    const Seconds most = std::min(high, everything_);
    double step = kFirstStep;
    Seconds threshold = std::min(low > Seconds(0) ? low * (1 + step) : everything_ * 1e-6, most);
    while (true) {
      if (auto found = table_.best(threshold, false, accelerators)) return found;
      if (threshold >= most) return std::nullopt;
      raise(std::max(low, threshold));
      step *= 2;
      threshold = std::min(low > Seconds(0) ? low * (1 + step) : threshold * 4, most);
    }
  }

  /// By falling thresholds on the slowest stage: under each, the plan with the smallest sum.
  void flush() {
    const double rest = objective_.microbatches - 1;
    const Seconds least = least_slowest(problem_, objective_.replicated);
    Seconds threshold = std::min(best_.value / objective_.microbatches, everything_);
    while (threshold >= least) {
      const auto found = table_.best(threshold, true, problem_.accelerators);
      if (!found) break;
      const std::vector<LoadStage> stages = stages_of(*found);
      Seconds longest;
      for (const LoadStage& stage : stages) longest = std::max(longest, stage.time);
      offer(*found);
      // All plans that are left have at least this sum and no stage longer than `longest`.
      const Seconds bound = found->value + rest * least;
      if (bound >= best_.value) break;
      best_.lower_bound = std::max(best_.lower_bound, std::min(best_.value, bound * (1 - kLoadRounding)));
      threshold = std::min(longest, threshold) * (1 - 4 * kLoadRounding);
      threshold = std::min(threshold, best_.value / objective_.microbatches);
    }
    best_.lower_bound = best_.value;
  }

  void even() {
    LoadProblem fewer = problem_;
    for (int stages = 1; stages <= problem_.accelerators; ++stages) {
      fewer.accelerators = stages;
      const double factor = objective_.microbatches + stages - 1;
      const Seconds low = least_slowest(fewer, false);
      if (factor * low >= best_.value) continue;
      if (const auto found = slowest(stages, low, best_.value / factor, [](Seconds) {})) offer(*found);
    }
    best_.lower_bound = best_.value;
  }

  [[nodiscard]] std::vector<LoadStage> stages_of(const Cut& cut) const {
    std::vector<LoadStage> out;
    for (const Slice& slice : cut.slices) {
      LoadStage& stage = out.emplace_back();
      stage.nodes = lattice_.members(slice.upper, slice.lower);
      stage.on_cpu = slice.devices == 0;
      stage.devices = std::max(1, slice.devices);
      stage.time = stage_time(problem_, stage.nodes, stage.on_cpu, stage.devices);
      for (const int node : stage.nodes) stage.bytes += problem_.nodes[to_index(node)].bytes;
    }
    return out;
  }

  void offer(const Cut& cut) {
    std::vector<LoadStage> stages = stages_of(cut);
    const Seconds value = value_of(objective_, stages);
    if (value >= best_.value) return;
    best_.value = value;
    best_.stages = std::move(stages);
  }

  const LoadProblem& problem_;
  const LoadObjective& objective_;
  const Lattice& lattice_;
  Table table_;
  Seconds everything_;
  Outcome best_;
};

}  // namespace

Seconds stage_time(const LoadProblem& problem, const std::vector<int>& nodes, bool on_cpu, int devices) {
  Seconds out;
  for (const int node : nodes) {
    const LoadProblem::Node& one = problem.nodes[to_index(node)];
    out += on_cpu ? one.cpu : one.accelerator;
  }
  if (on_cpu) return out;
  const auto inside = [&](int node) { return std::ranges::binary_search(nodes, node); };
  for (const CutTensor& tensor : problem.tensors) {
    const bool mine = inside(tensor.producer);
    const bool crosses = std::ranges::any_of(tensor.consumers, [&](int consumer) { return inside(consumer) != mine; });
    if (crosses) out += tensor.cost;
  }
  return out / devices;
}

Seconds value_of(const LoadObjective& objective, const std::vector<LoadStage>& stages) {
  Seconds sum;
  Seconds longest;
  for (const LoadStage& stage : stages) {
    sum += stage.time;
    longest = std::max(longest, stage.time);
  }
  switch (objective.combination) {
    case Combination::Slowest:
      return longest;
    case Combination::FlushSum:
      return sum + longest * (objective.microbatches - 1);
    case Combination::FlushEven:
      return longest * (objective.microbatches + to_int(stages.size()) - 1);
  }
  return longest;
}

std::variant<LoadAnswer, Infeasible> solve(const LoadProblem& problem, const LoadObjective& objective,
                                           const SearchLimits& limits) {
  if (objective.replicated && problem.cpus > 0) throw std::invalid_argument("stages on CPUs cannot be replicated");
  const auto only_cpu = std::ranges::find_if(problem.nodes, [](const auto& node) { return !node.on_accelerator; });
  if (problem.cpus == 0 && only_cpu != problem.nodes.end())
    return Infeasible{"node " + only_cpu->members.front() + " needs a CPU, and there is none"};
  const SearchClock clock(limits);
  LoadAnswer answer;
  answer.effort.nodes = to_int(problem.nodes.size());
  Outcome best;
  best.lower_bound = first_bound(problem, objective);
  const Seconds bound = best.lower_bound;
  // Runs the search on one lattice; false if time is up.
  const auto improve = [&](const Lattice& lattice, bool complete) {
    Optimiser optimiser(problem, objective, lattice, clock);
    bool in_time = true;
    try {
      optimiser.run(best);
    } catch (const TimeIsUp&) { in_time = false; }
    best = optimiser.outcome();
    if (!complete) best.lower_bound = bound;
    if (complete) answer.effort.pairs = optimiser.pairs();
    return in_time;
  };
  bool in_time = true;
  for (const Dag& order : depth_first_lists(problem.order)) {
    if (const auto list = Lattice::of(order, problem.nodes.size() + 1)) in_time = in_time && improve(*list, false);
  }
  if (!in_time) {
    answer.effort.stopped = "time is up: the best cut of depth-first orders as lists";
  } else if (const auto lattice = Lattice::of(problem.order, limits.downsets)) {
    answer.effort.downsets = lattice->count();
    if (!improve(*lattice, true)) answer.effort.stopped = "time is up";
  } else {
    answer.effort.stopped =
        "more than " + std::to_string(limits.downsets) + " down-sets: the best cut of two depth-first orders as lists";
  }
  if (best.stages.empty()) {
    return Infeasible{answer.effort.stopped.empty()
                          ? "no division into contiguous stages fits the devices' memory"
                          : "no plan was found within the devices' memory (" + answer.effort.stopped + ")",
                      ErrorKind::DoesNotFit};
  }
  answer.value = best.value;
  answer.lower_bound = std::min(best.value, best.lower_bound);
  answer.stages = std::move(best.stages);
  return answer;
}

}  // namespace stagecraft::partitioner

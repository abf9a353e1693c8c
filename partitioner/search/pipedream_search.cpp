#include "partitioner/search/pipedream_search.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "costmodel/index.h"
#include "partitioner/costs/byte_units.h"

namespace stagecraft::partitioner {
namespace {

constexpr Seconds kNever{std::numeric_limits<double>::infinity()};
// Allowance for rounding between a bound and a time that are computed in different order.
constexpr double kMargin = 1 + 1e-9;
constexpr Seconds kNotAsked{-1};
constexpr std::size_t kMostTableBytes = std::size_t{96} << 20;

// By value and on the numbers: through the references of std::min and std::max of Seconds, or with a conditional, g++
// 12 does not vectorise the innermost loop, and the search takes a tenth longer.
Seconds shorter(Seconds a, Seconds b) { return Seconds(std::min(a.value, b.value)); }
Seconds longer(Seconds a, Seconds b) { return Seconds(std::max(a.value, b.value)); }

/// The factors of one level's formulas, by replica count.
struct LevelCosts {
  int machines;
  double group_devices = 1;                 ///< devices of one machine of this level
  std::vector<SecondsPerByte> sync;         ///< of the parameters of a later stage
  std::vector<SecondsPerByte> sync_single;  ///< of a stage that is the only one
  std::vector<SecondsPerByte> transfer;     ///< of a boundary

  LevelCosts(const SearchLevel& level, int group, double devices, const PipedreamOptions& options)
      : machines(level.machines), group_devices(devices) {
    for (int r = 0; r <= machines; ++r) {
      const double rate = level.bandwidth.value;
      const double sent = r < 1 ? 0 : 4.0 * (r - 1) / (rate * r);
      sync.emplace_back(sent);
      sync_single.emplace_back(sent / group);
      const bool priced = options.activation_compression_ratio && r >= 1;
      transfer.emplace_back(priced ? 2 / (rate * r * *options.activation_compression_ratio) : 0);
    }
  }
};

/// Times between pairs of sets that a level requests from the level below: first the bounds up to which they matter
/// (kNotAsked: not at all), then the times themselves (infinite if above the bound or not requested).
struct PairTable {
  std::vector<int> row_of_set;  ///< -1 for unused sets
  std::vector<int> sets;
  std::vector<Seconds> values;

  std::size_t place(int from, int to) const {
    return to_index(row_of_set[to_index(from)]) * sets.size() + to_index(row_of_set[to_index(to)]);
  }
  Seconds& between(int from, int to) { return values[place(from, to)]; }
  Seconds between(int from, int to) const { return values[place(from, to)]; }
  bool knows(int set) const { return row_of_set[to_index(set)] >= 0; }
};

/// A set after which ranges from one base may be cut, or at which they may end, and the possible machine counts after
/// it.
struct Cut {
  int set;
  int low;   ///< fewer machines cannot be as fast as the bound
  int high;  ///< more leave too few for the rest
  bool target;
};

/// A set up to which the time from a base is needed, if it is at most `bound`.
struct Target {
  int set;
  Seconds bound;
};

/// PipeDream's memory rule. In doubles, as the product may exceed 64 bits.
bool within_limit(int n, int used, int replicas, Bytes bytes, const PipedreamOptions& options) {
  const double copies = (n - used + replicas - 1) / replicas;
  return copies * static_cast<double>(bytes.value) <= static_cast<double>(options.memory_limit.value);
}

/// For a stage between two cuts, including its boundaries.
Seconds later_time(const LevelCosts& costs, Seconds compute, Bytes parameters, Bytes boundary, int r) {
  return longer((compute + costs.sync[to_index(r)] * parameters) / r, costs.transfer[to_index(r)] * boundary);
}

/// Bytes across the cuts of the stage between two sets, as charged to the stage.
Bytes boundary_of(const Downsets& sets, int from, int to) {
  if (to == sets.count() - 1) return sets.boundary[to_index(from)];
  return std::max(sets.boundary[to_index(from)], sets.boundary[to_index(to)]);
}

/// Activations and parameters of the range between two sets.
Bytes memory_of(const Downsets& sets, int from, int to) {
  return sets.activation[to_index(to)] - sets.activation[to_index(from)] + sets.parameter[to_index(to)] -
         sets.parameter[to_index(from)];
}

/// True if some set lies strictly between the two; then PipeDream lets machines stay idle.
bool splittable(const Downsets& sets, int base, int set) {
  for (int between = base + 1; between < set; ++between) {
    if (sets.contains(between, base) && sets.contains(set, between)) return true;
  }
  return false;
}

class Search {
 public:
  Search(const Downsets& sets, const std::vector<SearchLevel>& levels, const PipedreamOptions& options)
      : sets_(sets), options_(options), last_(sets.count() - 1) {
    int group = 1;
    double devices = 1;
    for (const SearchLevel& level : levels) {
      levels_.emplace_back(level, group, devices, options);
      group = level.machines;
      devices *= level.machines;
    }
    tables_.resize(levels.size());  // tables_[l]: what level l requests from level l - 1; the innermost requests
                                    // nothing
  }

  /// The optimum among cuts after `allowed` sets (ascending, with the first and the last), if it is at most `bound`;
  /// infinite otherwise. False if the tables would be too large.
  bool solve(const std::vector<int>& allowed, Seconds bound, Seconds& time) {
    allowed_ = &allowed;
    pairs_ = 0;
    bound_ = bound * kMargin;
    if (!ask()) return false;
    const int top = to_int(levels_.size()) - 1;
    for (int level = 0; level < top; ++level) answer_all(level);
    time = times_from(top, 0, {{last_, bound_}});
    return true;
  }

  /// Whether the last `solve` compared too many pairs, so that its answer says nothing.
  [[nodiscard]] bool was_cut_off() const { return options_.most_pairs && pairs_ > *options_.most_pairs; }

  /// Stages of the optimum of the last `solve`, whose value `time` is finite.
  std::vector<SearchStage> stages(Seconds time) {
    stages_.clear();
    pairs_ = std::numeric_limits<std::int64_t>::min() / 2;  // is not cut off
    trace(to_int(levels_.size()) - 1, 0, last_, time * kMargin, {0});
    return std::move(stages_);
  }

 private:
  /// Cuts that matter for the ranges from `base` at `level`, ascending; bounds that need not hold are infinite.
  void find_cuts(int level, int base, const std::vector<Target>& targets) {
    const LevelCosts& costs = levels_[to_index(level)];
    const int n = costs.machines;
    bound_here_ = Seconds(0);
    for (const Target& target : targets) bound_here_ = longer(bound_here_, target.bound);
    const Seconds unit = bound_here_ * costs.group_devices;  // compute that one machine can do within the bound
    cuts_.clear();
    std::size_t next = 0;
    auto first = std::upper_bound(allowed_->begin(), allowed_->end(), base);
    for (; first != allowed_->end() && next < targets.size(); ++first) {
      const int set = *first;
      const bool target = targets[next].set == set;
      if (target) ++next;
      const Seconds behind = sets_.compute[to_index(set)] - sets_.compute[to_index(base)];
      int low = 1;
      while (low <= n && behind > low * unit) ++low;
      int high = n;
      if (!target) {
        const Seconds ahead = sets_.compute[to_index(targets[next].set)] - sets_.compute[to_index(set)];
        high = n - 1;
        while (high >= low && (ahead > (n - high) * unit || boundary_time(costs, set, n - high) > bound_here_)) --high;
      }
      if (low > high || !sets_.contains(set, base)) continue;
      if (!target && targets.size() == 1 && !sets_.contains(targets[0].set, set)) continue;
      cuts_.push_back({set, low, high, target});
    }
  }

  /// The shortest time of a transfer after `set` if the stage that is charged has at most `replicas`.
  Seconds boundary_time(const LevelCosts& costs, int set, int replicas) const {
    return costs.transfer[to_index(options_.straight_pipeline ? 1 : replicas)] * sets_.boundary[to_index(set)];
  }

  std::vector<Target> targets_of(int level, int base) const {
    if (level + 1 == to_int(levels_.size())) {
      if (base == 0) return {{last_, bound_}};
      return {};
    }
    const PairTable& table = tables_[to_index(level) + 1];
    std::vector<Target> targets;
    for (const int set : table.sets) {
      if (set > base && table.between(base, set) != kNotAsked) targets.push_back({set, table.between(base, set)});
    }
    return targets;
  }

  std::vector<int> bases_of(int level) const {
    if (level + 1 == to_int(levels_.size())) return {0};
    return tables_[to_index(level) + 1].sets;
  }

  /// Fills the tables with bounds, outermost level first.
  bool ask() {
    for (int level = to_int(levels_.size()) - 1; level >= 1; --level) {
      PairTable& table = tables_[to_index(level)];
      std::vector<char> used(to_index(last_ + 1), 0);
      for (const int base : bases_of(level)) {
        const std::vector<Target> targets = targets_of(level, base);
        if (targets.empty()) continue;
        find_cuts(level, base, targets);
        used[to_index(base)] = 1;
        for (const Cut& cut : cuts_) used[to_index(cut.set)] = 1;
      }
      table.sets.clear();
      table.row_of_set.assign(used.size(), -1);
      for (int set = 0; set <= last_; ++set) {
        if (!used[to_index(set)]) continue;
        table.row_of_set[to_index(set)] = to_int(table.sets.size());
        table.sets.push_back(set);
      }
      if (table.sets.size() * table.sets.size() * sizeof(Seconds) > kMostTableBytes / (levels_.size() - 1))
        return false;
      table.values.assign(table.sets.size() * table.sets.size(), kNotAsked);
      for (const int base : bases_of(level)) {
        const std::vector<Target> targets = targets_of(level, base);
        if (targets.empty()) continue;
        find_cuts(level, base, targets);
        ask_from(level, base);
      }
    }
    return true;
  }

  /// Marks the pairs that can become stages with the `cuts_` of `base`.
  void ask_from(int level, int base) {
    const LevelCosts& costs = levels_[to_index(level)];
    PairTable& table = tables_[to_index(level)];
    const auto mark = [&](int from, int to, int replicas) {
      if (options_.straight_pipeline) replicas = std::min(replicas, 1);
      if (replicas < 1) return;
      const Seconds bound = bound_here_ * replicas;
      if (sets_.compute[to_index(to)] - sets_.compute[to_index(from)] > bound * costs.group_devices) return;
      Seconds& known = table.between(from, to);
      known = longer(known, bound);
    };
    for (const Cut& to : cuts_) {
      mark(base, to.set, to.high);
      for (const Cut& from : cuts_) {
        if (from.set >= to.set) break;
        if (to.high > from.low && sets_.contains(to.set, from.set)) mark(from.set, to.set, to.high - from.low);
      }
    }
  }

  /// Replaces the bounds that the level above requested with times.
  void answer_all(int level) {
    PairTable& table = tables_[to_index(level) + 1];
    for (const int base : table.sets) {
      if (was_cut_off()) return;
      const std::vector<Target> targets = targets_of(level, base);
      if (targets.empty()) {
        for (const int set : table.sets) table.between(base, set) = kNever;
        continue;
      }
      times_from(level, base, targets);
      for (const int set : table.sets) table.between(base, set) = kNever;
      const int n = levels_[to_index(level)].machines;
      for (std::size_t i = 0; i < cuts_.size(); ++i) {
        if (cuts_[i].target) table.between(base, cuts_[i].set) = times_[i * to_index(n + 1) + to_index(n)];
      }
    }
  }

  Seconds work(int level, int from, int to) const {
    if (level == 0) return sets_.compute[to_index(to)] - sets_.compute[to_index(from)];
    const PairTable& table = tables_[to_index(level)];
    return table.knows(from) && table.knows(to) ? table.between(from, to) : kNever;
  }

  /// Fewest machines `used` up to and including a stage of `replicas` with which it fits in memory.
  int least_used(int n, int replicas, Bytes bytes) const {
    if (!options_.use_memory_constraint) return replicas;
    int used = replicas;
    while (used <= n && !within_limit(n, used, replicas, bytes, options_)) ++used;
    return used;
  }

  Seconds single_time(int level, int base, int set, int r) const {
    if (options_.straight_pipeline && r > 1) return kNever;
    const LevelCosts& costs = levels_[to_index(level)];
    if (least_used(costs.machines, r, memory_of(sets_, base, set)) > r) return kNever;
    const Bytes bytes = sets_.parameter[to_index(set)] - sets_.parameter[to_index(base)];
    return (work(level, base, set) + costs.sync_single[to_index(r)] * bytes) / r;
  }

  /// Fills `times_[cut * (n + 1) + r]`: the least time of a range from `base` to each cut on r machines, infinite where
  /// it does not matter. Returns the last cut's on all machines.
  Seconds times_from(int level, int base, const std::vector<Target>& targets) {
    find_cuts(level, base, targets);
    const LevelCosts& costs = levels_[to_index(level)];
    const int n = costs.machines;
    const std::size_t row = to_index(n + 1);
    times_.assign(cuts_.size() * row, kNever);
    const Seconds reach = bound_here_ * costs.group_devices;
    std::size_t first = 0;
    for (std::size_t t = 0; t < cuts_.size(); ++t) {
      const Cut to = cuts_[t];
      Seconds* mine = times_.data() + t * row;
      for (int r = to.low; r <= to.high; ++r) mine[r] = single_time(level, base, to.set, r);
      const Seconds total = sets_.compute[to_index(to.set)];
      while (first < t && total - sets_.compute[to_index(cuts_[first].set)] > (n - 1) * reach) ++first;
      pairs_ += static_cast<std::int64_t>(t - first);
      if (was_cut_off()) return kNever;
      for (std::size_t f = first; f < t; ++f) {
        const Cut from = cuts_[f];
        int most = options_.straight_pipeline ? 1 : to.high - from.low;
        if (to.high - from.low < 1) continue;
        const Seconds compute_left = total - sets_.compute[to_index(from.set)];
        if (compute_left > most * reach || !sets_.contains(to.set, from.set)) continue;
        const Seconds* theirs = times_.data() + f * row;
        const Seconds compute = work(level, from.set, to.set);
        if (compute > bound_here_ * most) continue;
        const Bytes bytes = sets_.parameter[to_index(to.set)] - sets_.parameter[to_index(from.set)];
        const Bytes boundary = boundary_of(sets_, from.set, to.set);
        for (int q = 1; q <= most; ++q) {
          const Seconds time = later_time(costs, compute, bytes, boundary, q);
          if (time > bound_here_) continue;
          int r = std::max(to.low, from.low + q);
          if (options_.use_memory_constraint) r = std::max(r, least_used(n, q, memory_of(sets_, from.set, to.set)));
          const int end = std::min(to.high, from.high + q);
          for (; r <= end; ++r) mine[r] = shorter(mine[r], longer(theirs[r - q], time));
        }
      }
      if (options_.use_fewer_machines && splittable(sets_, base, to.set)) {
        for (int r = to.low + 1; r <= to.high; ++r) mine[r] = shorter(mine[r], mine[r - 1]);
      }
    }
    if (cuts_.empty() || !cuts_.back().target) return kNever;
    return times_[(cuts_.size() - 1) * row + to_index(n)];
  }

  /// Appends the stages of the optimum from `base` to `end` at `level`. `origins`: the first device of each copy of the
  /// group in the levels above.
  void trace(int level, int base, int end, Seconds bound, const std::vector<int>& origins) {
    times_from(level, base, {{end, bound}});
    const std::vector<Cut> cuts = cuts_;
    const std::vector<Seconds> times = times_;
    const LevelCosts& costs = levels_[to_index(level)];
    const std::size_t row = to_index(costs.machines + 1);
    struct Found {
      int from;
      int to;
      int replicas;
    };
    std::vector<Found> found;  // last stage first
    std::size_t t = cuts.size() - 1;
    int r = costs.machines;
    while (true) {
      const int to = cuts[t].set;
      while (options_.use_fewer_machines && r > 1 && times[t * row + to_index(r) - 1] <= times[t * row + to_index(r)] &&
             splittable(sets_, base, to)) {
        --r;
      }
      Seconds best = single_time(level, base, to, r);
      std::size_t from_cut = t;
      int replicas = r;
      for (std::size_t f = 0; f < t; ++f) {
        if (!sets_.contains(to, cuts[f].set)) continue;
        const Seconds compute = work(level, cuts[f].set, to);
        const Bytes bytes = sets_.parameter[to_index(to)] - sets_.parameter[to_index(cuts[f].set)];
        for (int q = 1; q < r && (q == 1 || !options_.straight_pipeline); ++q) {
          if (least_used(costs.machines, q, memory_of(sets_, cuts[f].set, to)) > r) continue;
          const Seconds time = longer(times[f * row + to_index(r - q)],
                                      later_time(costs, compute, bytes, boundary_of(sets_, cuts[f].set, to), q));
          if (best > time) {
            best = time;
            from_cut = f;
            replicas = q;
          }
        }
      }
      found.push_back({from_cut == t ? base : cuts[from_cut].set, to, replicas});
      if (from_cut == t) break;
      t = from_cut;
      r -= replicas;
    }
    int machine = 0;
    for (auto stage = found.rbegin(); stage != found.rend(); ++stage) {
      std::vector<int> starts;
      for (const int end_machine = machine + stage->replicas; machine < end_machine; ++machine) {
        for (const int origin : origins) starts.push_back(origin + machine * static_cast<int>(costs.group_devices));
      }
      if (level == 0) {
        stages_.push_back({stage->from, stage->to, std::move(starts)});
      } else {
        trace(level - 1, stage->from, stage->to, work(level, stage->from, stage->to) * kMargin, starts);
      }
    }
  }

  const Downsets& sets_;
  const PipedreamOptions& options_;
  int last_;
  std::vector<LevelCosts> levels_;
  std::vector<PairTable> tables_;
  const std::vector<int>* allowed_ = nullptr;
  std::int64_t pairs_ = 0;  ///< compared
  Seconds bound_ = kNever;
  Seconds bound_here_ = kNever;
  std::vector<Cut> cuts_;
  std::vector<Seconds> times_;
  std::vector<SearchStage> stages_;
};

/// A chain of at most `most` sets between the first and the last, evenly spread in compute, small in boundary.
std::vector<int> coarse_chain(const Downsets& sets, int most) {
  const int last = sets.count() - 1;
  const Seconds step = sets.compute[to_index(last)] / most;
  std::vector<int> chain = {0};
  int set = 1;
  for (int part = 1; part <= most && set < last; ++part) {
    int best = -1;
    for (; set < last && (part == most || sets.compute[to_index(set)] <= static_cast<double>(part) * step); ++set) {
      if ((best < 0 || sets.boundary[to_index(set)] < sets.boundary[to_index(best)]) &&
          sets.contains(set, chain.back()))
        best = set;
    }
    if (best >= 0) chain.push_back(best);
  }
  chain.push_back(last);
  return chain;
}

}  // namespace

std::variant<SearchAnswer, Infeasible> pipedream_search(const Downsets& sets, const std::vector<SearchLevel>& levels,
                                                        const PipedreamOptions& options) {
  Search search(sets, levels, options);
  std::vector<int> all(to_index(sets.count()));
  for (int set = 0; set < sets.count(); ++set) all[to_index(set)] = set;
  const auto too_many = [&] {
    return Infeasible{"the graph's " + std::to_string(sets.count() - 1) + " places to cut are too many for " +
                      std::to_string(levels.size()) +
                      " levels of links; plan for one level, or use a strategy that cuts a list, such as profile"};
  };
  SearchAnswer answer;
  std::vector<int> coarse;
  // Any plan is an upper bound for the best one, and the bound prunes most of the full search.
  for (const int most : {24, 96, 384}) {
    if (most >= sets.count()) break;
    Seconds time = kNever;
    std::vector<int> chain = coarse_chain(sets, most);
    if (!search.solve(chain, answer.time, time) || search.was_cut_off()) break;
    if (time <= answer.time) coarse = std::move(chain);
    answer.time = std::min(answer.time, time);
  }
  Seconds time = kNever;
  if (!search.solve(all, answer.time, time)) return too_many();
  if (search.was_cut_off()) {
    if (coarse.empty() || !search.solve(coarse, answer.time, time)) return too_many();
  }
  answer.time = time;
  if (time < kNever) answer.stages = search.stages(time);
  return answer;
}

std::optional<Seconds> pipedream_time(const Downsets& sets, const SearchLevel& level,
                                      const std::vector<SearchStage>& stages, const PipedreamOptions& options) {
  const LevelCosts costs(level, 1, 1, options);
  int idle = level.machines;
  for (const SearchStage& stage : stages) idle -= to_int(stage.devices.size());
  if (idle < 0 || (idle > 0 && !options.use_fewer_machines)) return std::nullopt;
  Seconds slowest;
  int used = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto& [from, to, devices] = stages[s];
    const int r = to_int(devices.size());
    if (r > 1 && options.straight_pipeline) return std::nullopt;
    used += r;
    const Bytes memory = memory_of(sets, from, to);
    if (options.use_memory_constraint && !within_limit(level.machines, used, r, memory, options)) return std::nullopt;
    const Bytes parameters = sets.parameter[to_index(to)] - sets.parameter[to_index(from)];
    const Bytes boundary = s == 0 ? Bytes(0) : boundary_of(sets, from, to);
    const Seconds compute = sets.compute[to_index(to)] - sets.compute[to_index(from)];
    slowest = longer(slowest, later_time(costs, compute, parameters, boundary, r));
    // Machines stay idle after the first range that can be split: the stages after them then hold the least.
    if (idle > 0 && splittable(sets, 0, to)) {
      used += idle;
      idle = 0;
    }
  }
  if (idle > 0) return std::nullopt;
  return slowest;
}

}  // namespace stagecraft::partitioner

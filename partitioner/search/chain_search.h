#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/costs/lattice.h"
#include "partitioner/costs/pipeline_costs.h"

namespace stagecraft::partitioner {

/// The splits that a search considers.
struct SearchSpace {
  std::optional<int> stages;   ///< absent: any number
  std::vector<int> replicas;   ///< for each stage; empty: any numbers up to that of the microbatches of a step
  int chunks = 1;              ///< above 1: `replicas` are given, all the same
  std::optional<Bytes> limit;  ///< PipelineCosts::countable of a device's memory
};

/// Enumerates splits of a graph by a bound on their step. Each stage s gives the bound
///   before_s + n_s computation_s + max(reduce_s, after_s),
/// where n_s is the number of microbatches that a replica of s computes, before_s is the longest way forward through
/// the stages that s depends on, and after_s is the longest way back through these stages.
class ChainSearch {
 public:
  /// `lattice` is the lattice of the reversed costs.dag(), or of a reversed order of its nodes. `costs` and `lattice`
  /// must outlive the search. The search ends when `stop`, which it calls from time to time, returns true.
  ChainSearch(const PipelineCosts& costs, const Lattice& lattice, SearchSpace space, std::function<bool()> stop);

  /// True if the bounds of all splits of the space are proved to exceed `time`, without enumerating the splits. Absent
  /// if `stop` ended the proof.
  [[nodiscard]] std::optional<bool> refutes(Seconds time);

  /// Calls `visit` once with every split whose bound is at most `time`. `visit` returns the time for all further
  /// splits, which may be smaller. False if `stop` ended the visits. Precondition: refutes(time) was the last call and
  /// gave false.
  bool visit_splits(Seconds time, const std::function<Seconds(const Split&)>& visit);

 private:
  /// Sums over the nodes of a stage.
  struct Sums {
    Seconds forward, back, least, update;
    Bytes untied;
    StageBytes bytes;
    Seconds loading;
  };
  /// `forward` is the earliest time at which a value can be read or sent, below 0 if the value does not exist yet;
  /// `back` is the least time that follows the arrival of its gradient.
  struct Arrival {
    Seconds forward, back;
    int position = -1;  ///< whose devices have the value, with chunks
  };
  /// A stage that a split may continue with.
  struct Next {
    std::uint32_t left = 0;  ///< the nodes after this stage
    Seconds before, after;   ///< see before_s and after_s
    Sums sums;
  };

  [[nodiscard]] Seconds bound(const Sums& sums, int replicas, Seconds before, Seconds after) const;
  [[nodiscard]] int least_replicas(const Sums& sums, Seconds before, Seconds after, int from, int most) const;
  void find_ways();
  [[nodiscard]] bool returns(const CrossingValue& value) const;
  [[nodiscard]] std::size_t slot(int stages_left, std::uint32_t set) const;
  [[nodiscard]] int devices_for(int stages_done, std::uint32_t left) const;
  [[nodiscard]] bool is_too_large(const Sums& sums) const;
  void add(int node);
  void remove();
  [[nodiscard]] int next_position() const;
  void arrive(const std::vector<int>& nodes, const Next& next, int replicas);
  [[nodiscard]] bool fits_positions(const Sums& sums, std::uint32_t left, Seconds before) const;
  std::vector<Next> continuations(std::uint32_t left, int devices);
  bool go_on(std::uint32_t left, int devices);
  bool take(const Next& next, const std::vector<int>& nodes, int replicas, int devices);
  void report();
  bool should_stop();

  const PipelineCosts& costs_;
  const Lattice& lattice_;
  SearchSpace space_;
  std::function<bool()> stop_;
  DownWalk walk_;
  int devices_ = 0;
  int most_replicas_ = 1;
  std::vector<Arrival> begin_;       ///< by set: the least way to a stage that begins in the set, and the way back
  std::vector<Seconds> work_;        ///< by set, if chunks are searched: the computation of the set's nodes
  std::vector<std::int32_t> table_;  ///< the least devices for the stages that are left, by number of stages and set
  int counts_ = 0;                   ///< numbers of stages in table_
  std::uint64_t asked_ = 0;

  // The walk's stage so far, and before each of its nodes.
  Sums now_;
  Seconds before_now_, after_now_;
  struct Saved {
    Sums sums;
    Seconds before, after;
  };
  std::vector<Saved> saved_;

  // The split so far.
  Seconds time_;
  const std::function<Seconds(const Split&)>* visit_ = nullptr;
  std::vector<Arrival> arrivals_;
  std::vector<std::vector<int>> stages_;  ///< nodes
  std::vector<int> replicas_;
  std::vector<Seconds> load_;   ///< by position, with chunks
  std::vector<Seconds> start_;  ///< by position, with chunks
};

}  // namespace stagecraft::partitioner

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
  int chunks = 1;              ///< above 1: `stages` is given, and every stage has one replica
  std::optional<Bytes> limit;  ///< PipelineCosts::countable of a device's memory
};

/// Enumerates splits of a graph by a bound on their step. Each stage s bounds it by
///   (forward before s) + share * computation of s + max(reduce of s, (return to the stages before s)),
/// where what comes before is the longest way through the stages that s depends on.
class ChainSearch {
 public:
  /// `lattice` is that of the reversed costs.dag(), or of a reversed order of its nodes; both must outlive the search.
  /// `stop` is called from time to time; true ends the search.
  ChainSearch(const PipelineCosts& costs, const Lattice& lattice, SearchSpace space, std::function<bool()> stop);

  /// Whether no split of the space has a bound of at most `time`, as far as the search can tell without enumerating
  /// them. Absent if it was stopped.
  [[nodiscard]] std::optional<bool> refutes(Seconds time);

  /// Calls `visit` with every split whose bound is at most `time`, each once; `visit` may return a smaller time from
  /// then on. False if it was stopped. Precondition: refutes(time) was the last call and gave false.
  bool visit_splits(Seconds time, const std::function<Seconds(const Split&)>& visit);

 private:
  /// Sums over the nodes of a stage.
  struct Sums {
    Seconds forward, back, least, update;
    Bytes untied;
    StageBytes bytes;
  };
  /// The earliest time at which a value can be read, and the least time that follows its reader's backward; `forward`
  /// is below 0 if the value does not exist yet.
  struct Arrival {
    Seconds forward, back;
  };
  /// A stage that a split may continue with.
  struct Next {
    std::uint32_t left = 0;  ///< nodes that are not in a stage yet after it
    Seconds before, after;   ///< the forward before it, the return after it
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
  std::vector<Arrival> begin_;       ///< by set: least time to a stage that begins in it; round trip minus that
  std::vector<Seconds> work_;        ///< by set, where chunks are searched: computation of its nodes
  std::vector<std::int32_t> table_;  ///< least devices for the stages that are left, by number of stages and set
  int counts_ = 0;                   ///< numbers of stages in the table
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

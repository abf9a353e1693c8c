#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/costs/lattice.h"
#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/costs/round_trips.h"

namespace stagecraft::partitioner {

/// A lower bound of all splits with one stage per device, by dynamic programming over down-sets and devices. Beyond
/// ChainSearch it follows the heaviest path through the graph and counts
///   - the messages and the whole forwards of all stages on the path before a stage, and their way back;
///   - under 1f1b the round trips from a stage to the end of the path and back: a replica holds W microbatches at once,
///     so n of them take two round trips or more, with the work of those between them, see trips_of;
///   - with a memory limit, the microbatches that a stage holds under each number that the later ones let it hold; and
///     where the backward is split, so that this depends on the stages before it too, for each number of stages;
///   - all messages on the path that pass through the port of one device.
/// Nodes without work are left out; they may form separate stages, for which the number in flight allows.
class TripBound {
 public:
  /// `costs` must outlive it. Null if there are more than `most_sets` down-sets, or if nothing waits (see
  /// PipelineCosts::waits).
  [[nodiscard]] static std::unique_ptr<TripBound> of(const PipelineCosts& costs, std::optional<Bytes> limit,
                                                     std::size_t most_sets);
  TripBound(const TripBound&) = delete;
  TripBound& operator=(const TripBound&) = delete;

  /// Whether no split over at most `devices` can take at most `time`, as far as this bound can tell. Absent if it was
  /// stopped.
  [[nodiscard]] std::optional<bool> refutes(Seconds time, int devices, const std::function<bool()>& stop);

  /// Whether no node was left out: then visit_splits() has every split whose bound is within the time.
  [[nodiscard]] bool is_whole() const { return to_int(kept_.size()) == costs_.dag().nodes; }

  /// Calls `visit` with splits whose stages keep within `time` by this bound, each once; nodes that were left out go to
  /// the stage of one of their producers or readers. `visit` may return a smaller time from then on. False if it was
  /// stopped. Precondition: refutes(time, ...) was the last call and gave false.
  bool visit_splits(Seconds time, const std::function<Seconds(const Split&)>& visit, const std::function<bool()>& stop);

  /// After refutes() gave false: splits whose stages all keep within its time by this bound, for different numbers of
  /// devices.
  [[nodiscard]] std::vector<Split> splits() const;

 private:
  static constexpr Seconds kNever{1e100};  ///< longer than any step

  /// A dependence between kept nodes, perhaps through nodes that were left out.
  struct KeptEdge {
    int from = 0, to = 0;
    Seconds forward, back;  ///< of the message if they are in different stages
    bool returns = false;   ///< a gradient comes back
    Seconds port;           ///< for how long each of its messages occupies a port
  };
  struct Sums {
    Seconds forward, back, least, update;
    Bytes untied;
    StageBytes bytes;
    Bytes waiting;
  };
  /// What a stage takes on some number of replicas.
  struct Load {
    ReplicaRange replicas;
    Seconds computed;  ///< of the replica that runs the most microbatches
    Seconds reduced;   ///< sum of gradients and update, after its last backward
  };
  struct Begin {
    Seconds forward, both;  ///< longest way to a stage that begins in the set, and there and back
  };
  struct StageChoice {
    std::uint32_t below = 0;
    std::int32_t replicas = 0;  ///< negative: of a stage of nodes that were left out
    std::size_t next = 0;       ///< place of the stages below in ways_
  };
  /// Stages for a set, or several ways to divide it of which only bounds are known: the least round trip along the
  /// path, and the fewest and most microbatches that are in flight at the first stage, on all its replicas.
  struct Way {
    Seconds trip;
    std::int64_t least_flight = 0, most_flight = 0;
    int devices = 0;     ///< at least
    StageChoice choice;  ///< of the one with the least trip
  };
  /// What came before a set: its path's next message can arrive, and that plus what follows the backward there.
  struct Prefix {
    Seconds before, around;
  };
  struct Next {
    std::uint32_t below = 0;
    Sums sums;
  };

  TripBound(const PipelineCosts& costs, std::optional<Bytes> limit, std::vector<int> kept, std::vector<KeptEdge> edges,
            Lattice lattice);
  void find_path();
  void find_begins();
  [[nodiscard]] std::size_t places() const { return to_index(devices_ / step_ + 1); }
  [[nodiscard]] std::size_t slot(std::uint32_t set, int devices) const {
    return set * places() + to_index(devices / step_);
  }
  template <class Visit>
  bool each_pair(std::uint32_t set, const std::function<bool()>& stop, Visit&& visit);
  bool go_forward(const std::function<bool()>& stop);
  bool go_back(const std::function<bool()>& stop);
  void add_empty_stages(std::uint32_t set);
  void add_way(std::uint32_t set, const Way& way);
  [[nodiscard]] std::span<const Way> ways(std::size_t slot) const {
    return std::span(ways_).subspan(slot * most_ways_, ways_at_[slot]);
  }
  [[nodiscard]] bool fits(const Sums& sums, std::uint32_t set, std::uint32_t below, const ReplicaRange& replicas,
                          std::int64_t held, std::int64_t waiting) const;
  [[nodiscard]] std::int64_t least_held(std::uint32_t set, const ReplicaRange& replicas, const Way& later) const;
  [[nodiscard]] std::optional<bool> refutes_each_number(const std::function<bool()>& stop);
  [[nodiscard]] bool is_any_way() const;
  [[nodiscard]] Load load_of(const Sums& sums, const ReplicaRange& replicas) const;
  [[nodiscard]] bool keeps(const Sums& sums, std::uint32_t set, std::uint32_t below, const Load& load, const Way& later,
                           const Prefix& prefix, Seconds& trip) const;
  [[nodiscard]] Prefix after(const Sums& sums, std::uint32_t set, std::uint32_t below, const Load& load,
                             const Prefix& prefix) const;
  bool go_on(std::uint32_t set, int devices, const Prefix& prefix, const std::function<bool()>& stop);
  [[nodiscard]] Split split_from(const Way& way) const;
  [[nodiscard]] Split split_of(const std::vector<StageChoice>& chain) const;

  const PipelineCosts& costs_;
  std::optional<Bytes> limit_;
  std::vector<int> kept_;  ///< nodes of the reduced graph, ascending
  std::vector<KeptEdge> edges_;
  Lattice lattice_;  ///< of the reversed reduced graph: a set is what is left
  DownWalk walk_;
  int useful_devices_ = 0;  ///< more have nothing to do
  int devices_ = 0;         ///< of the latest question
  int step_ = 1;            ///< numbers of devices that are told apart
  int most_replicas_ = 1;
  std::vector<ReplicaRange> replicas_;
  bool alternates_ = false;       ///< see ScheduleEntry: what is in flight is known
  bool splits_all_ = false;       ///< all stages but the first split their backward
  std::vector<int> held_;         ///< by stage, if the bound is asked about one number of stages; else empty
  std::vector<int> path_;         ///< kept nodes of the heaviest path
  std::vector<KeptEdge> hops_;    ///< between neighbours on the path
  std::vector<int> place_;        ///< by kept node: its place on the path, or -1
  std::vector<int> path_at_;      ///< by set: the first place on the path that is left
  std::vector<Begin> begin_;      ///< by set
  std::vector<Bytes> received_;   ///< by set: least that a stage which begins in it receives per microbatch
  std::vector<Bytes> workspace_;  ///< by set: least of the last layer of a stage before it
  Seconds time_;
  std::uint64_t asked_ = 0;
  bool stopped_ = false;
  // By set and devices, in steps. Of what comes before the set, with at most that many devices: when its path's next
  // message can arrive, and the same plus what follows the backward there. Of the set itself, with about that many: up
  // to most_ways_ ways, as many as ways_at_ says, by the microbatches in flight.
  std::vector<Seconds> before_, around_;
  std::size_t most_ways_ = 1;
  std::vector<Way> ways_;
  std::vector<std::uint8_t> ways_at_;
  const std::function<Seconds(const Split&)>* visit_ = nullptr;
  std::vector<StageChoice> chain_;
  // The walk.
  Sums now_;
  std::vector<Sums> saved_;
};

}  // namespace stagecraft::partitioner

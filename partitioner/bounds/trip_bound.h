#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/costs/heaviest_path.h"
#include "partitioner/costs/lattice.h"
#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/costs/round_trips.h"

namespace stagecraft::partitioner {

/// A lower bound of all splits with one stage per device, by dynamic programming over down-sets and devices. Let P be
/// the heaviest path through the graph. Beyond ChainSearch, the bound of a stage s counts
///   - the messages and whole forwards of all stages on P before s, and the way back through these stages;
///   - if the schedule alternates: the round trips from s to the end of P and back. A replica of s holds at most W_s
///     microbatches at once, so n > W_s microbatches take at least two round trips, with the work of the microbatches
///     between these trips, see trips_of;
///   - with a memory limit: the microbatches that s holds, for each number that the stages after s allow;
///   - all messages of P that pass through the port of one device.
/// If the bound is asked about stages on devices in order, the devices of a stage are known, and with them the time to
/// sum its gradients. A message of P from a stage that ends before device d to a later one takes at least the level
/// that joins d - 1 and d, and the bound counts all messages that pass through the port of one group of devices. Nodes
/// without work are left out. Such nodes may form stages of their own, which raise W_s; the bound allows for that.
class TripBound {
 public:
  /// `costs` must outlive it. Null if there are more than `most_sets` down-sets, or if nothing waits (see
  /// PipelineCosts::waits).
  [[nodiscard]] static std::unique_ptr<TripBound> of(const PipelineCosts& costs, std::optional<Bytes> limit,
                                                     std::size_t most_sets);
  TripBound(const TripBound&) = delete;
  TripBound& operator=(const TripBound&) = delete;

  /// Asks from now on about plans that keep within `limit`. Precondition: it was made with a limit.
  void limit_to(Bytes limit) { limit_ = limit; }

  /// Whether it makes a difference that devices are in order, and the bound can ask about that.
  [[nodiscard]] bool knows_order() const { return !level_at_.empty(); }

  /// True if the bound proves that every split over at most `devices` takes longer than `time`; with `in_order`, every
  /// split on devices in order. Absent if `stop` ended the proof. Precondition of `in_order`: knows_order().
  [[nodiscard]] std::optional<bool> refutes(Seconds time, int devices, const std::function<bool()>& stop,
                                            bool in_order = false);

  /// Whether no node was left out: only then visit_splits() visits every split whose bound is within the time.
  [[nodiscard]] bool is_whole() const { return to_int(kept_.size()) == costs_.dag().nodes; }

  /// Calls `visit` once with each split whose stages keep within `time` by this bound; a node that was left out joins
  /// the stage of one of its producers or readers. `visit` returns the time for all further splits, which may be
  /// smaller. False if `stop` ended the visits. Precondition: refutes(time, ...) was the last call and gave false.
  bool visit_splits(Seconds time, const std::function<Seconds(const Split&)>& visit, const std::function<bool()>& stop);

  /// After refutes(time, ...) gave false: splits for different numbers of devices, whose stages keep within `time` by
  /// this bound.
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
    Seconds loading;
    StageWorkspace workspace;
  };
  /// What a stage takes on some number of replicas.
  struct Load {
    ReplicaRange replicas;
    Seconds computed;  ///< of the replica that runs the most microbatches
    Seconds reduced;   ///< sum of gradients and update, after its last backward
    Seconds busy;      ///< PipelineCosts::least_loading
  };
  struct Begin {
    Seconds forward, both;  ///< the longest way to a stage that begins in the set, and the same there and back
  };
  struct StageChoice {
    std::uint32_t below = 0;
    std::int32_t replicas = 0;  ///< negative: of a stage of nodes that were left out
    std::size_t next = 0;       ///< place of the stages below in ways_
  };
  /// One way to divide a set into stages, or the bounds of several ways: the least round trip along the path, and the
  /// fewest and most microbatches that are in flight at the first stage, on all replicas of that stage. With devices in
  /// order, `devices` are all from the first stage's on, so that those before the stage are known.
  struct Way {
    Seconds trip;
    std::int64_t least_flight = 0, most_flight = 0;
    int devices = 0;     ///< at least
    StageChoice choice;  ///< of the way with the least trip
  };
  /// The stages before a set: `before` is when the path's next message can arrive, `around` the same plus what follows
  /// the backward there.
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
  void find_levels();
  [[nodiscard]] PathHop hop_at(int place, int boundary) const;
  [[nodiscard]] Seconds port_wait(int place, std::int64_t share, int first, int last, int boundary) const;
  [[nodiscard]] bool is_reached(std::uint32_t set) const;
  [[nodiscard]] const std::vector<ReplicaRange>& ranges() const { return in_order_ ? each_ : replicas_; }
  void place(Load& load, const Sums& sums, int first) const;
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
                          std::int64_t held) const;
  [[nodiscard]] bool is_any_way() const;
  [[nodiscard]] Load load_of(const Sums& sums, const ReplicaRange& replicas) const;
  [[nodiscard]] bool keeps(const Sums& sums, std::uint32_t set, std::uint32_t below, const Load& load, const Way& later,
                           const Prefix& prefix, Seconds& trip) const;
  [[nodiscard]] Prefix after(const Sums& sums, std::uint32_t set, std::uint32_t below, const Load& load, int first,
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
  std::vector<ReplicaRange> replicas_, each_;  ///< each_: ranges of one number
  bool in_order_ = false;                      ///< of the latest question
  bool alternates_ = false;                    ///< see ScheduleEntry: what is in flight is known
  std::vector<int> path_;                      ///< kept nodes of the heaviest path
  std::vector<KeptEdge> hops_;                 ///< between neighbours on the path
  std::vector<std::size_t> level_at_;  ///< by device: the level that joins it and the one before; empty: of no use
  /// The path's hops over each level or one farther out, with their time at the port of a group below it.
  std::vector<std::vector<PathHop>> hops_at_;
  std::vector<int> place_;       ///< by kept node: its place on the path, or -1
  std::vector<int> path_at_;     ///< by set: the first place on the path that is left
  std::vector<Begin> begin_;     ///< by set
  std::vector<Bytes> received_;  ///< by set: least that a stage which begins in it receives per microbatch
  std::vector<Bytes> incoming_;  ///< by set: least messages to a stage that begins in it
  std::vector<Bytes> outgoing_;  ///< by set: least messages of a stage before it
  Seconds time_;
  std::uint64_t asked_ = 0;
  bool stopped_ = false;
  // Tables by set and devices, in steps of step_. before_ and around_ are the Prefix of the stages before the set, on
  // at most so many devices. ways_ has up to most_ways_ ways to divide the set on about so many devices, distinguished
  // by the microbatches in flight; ways_at_ is their number.
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

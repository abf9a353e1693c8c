#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/units.h"
#include "partitioner/bounds/path_cuts.h"
#include "partitioner/costs/byte_units.h"
#include "partitioner/costs/pipeline_costs.h"

namespace stagecraft::partitioner {

/// The stages of a split in order: their replicas, and whether each has a node of the computation_path.
struct StageOrder {
  std::vector<int> replicas;
  std::vector<bool> on_path;
  friend auto operator<=>(const StageOrder&, const StageOrder&) = default;
};

/// A lower bound of all splits whose stages are in a given order.
///
/// The replica counts determine the schedule's actions and their order; only the cuts C are open. A chain p is a
/// sequence of actions of which each waits for the one before, such as the first forward of each stage, then all
/// backwards of the last stage and the update of the last stage. Its time time_p(C) is a sum over stages of so many
/// forwards, backwards and messages, and every step takes at least time_p(C). So for any weights w_p >= 0 with sum 1,
///   step(C) >= max_p time_p(C) >= sum_p w_p time_p(C) >= min_C' sum_p w_p time_p(C'),
/// and dynamic programming along the path finds the last minimum exactly, as each term belongs to one cut. Stages
/// without a node of the path count only through the microbatches that other stages hold for them.
///
/// The best weights solve a two-player matrix game between chains and cuts (Dantzig 1951). The search adds best
/// responses, the longest chain for some cuts and the best cuts for some weights in turn, until the bound is near the
/// step of the best cuts.
class OrderBound {
 public:
  /// All arguments must outlive it.
  OrderBound(const PipelineCosts& costs, const PathCuts& cuts);

  /// True if the bound proves that every split with these stages takes longer than `time`. Absent if `stop` ended the
  /// proof.
  [[nodiscard]] std::optional<bool> refutes(Seconds time, const StageOrder& stages, const std::function<bool()>& stop);

  /// The splits with the shortest steps that were found, one for each order, the shortest first; `most` at most.
  [[nodiscard]] std::vector<Split> splits(std::size_t most) const;

 private:
  /// Times of a stage.
  enum Part : std::size_t { Forward, Back, Least, Update, Parts };
  /// The times of a stage's nodes, and the bytes of their gradients.
  struct StageCosts {
    std::array<Seconds, Parts> times;
    FractionalBytes gradients;
  };
  /// The sums of the times and bytes of all nodes before each fine cut.
  struct CostsBefore {
    std::array<std::vector<Seconds>, Parts> times;
    std::vector<FractionalBytes> gradients;
  };
  /// The time of a chain as a sum, the share of one stage: how often each part counts, a time for each byte of the
  /// stage's gradients, and how often the messages to the next stage and back count.
  struct StageShare {
    std::array<double, Parts> parts = {};
    SecondsPerByte reduce;
    double hop = 0, hop_back = 0;
    friend bool operator==(const StageShare&, const StageShare&) = default;
  };
  struct Chain {
    std::vector<StageShare> stages;
    Seconds constant;
    friend bool operator==(const Chain&, const Chain&) = default;
  };
  using Begins = std::vector<std::size_t>;  ///< fine cuts where stages begin, besides the first one

  /// An action or message of a stage.
  struct Event {
    std::array<int, 2> after = {-1, -1};  ///< the events that it waits for; -1: none
    int stage = 0;
    enum class Kind { Forward, Back, Hop, HopBack } kind = Kind::Forward;
  };
  struct Order {
    std::vector<int> replicas;  ///< of stages with a node of the path, which alone have numbers here
    std::vector<bool> loose;    ///< between this stage and the next one there are others
    bool loose_begin = false, loose_end = false;
    std::vector<Event> events;  ///< each event after those in Event::after
    std::vector<int> last;      ///< by rank: the rank's last action
    std::vector<int> stage_of_rank;
    std::vector<ReduceLine> reduces;  ///< by stage
    std::vector<Chain> chains;
    std::vector<Begins> begins;
    std::vector<std::vector<Seconds>> times;  ///< by chain and begins
    std::vector<Seconds> chain_regret, begins_regret;
    std::vector<double> chain_sum, begins_sum;  ///< weights
    Seconds low;                                ///< bound
    Seconds high{1e100};                        ///< of the best of `begins`
    std::size_t best = 0;
    int idle = 0;       ///< rounds that changed nothing
    bool done = false;  ///< the bound will not rise
  };

  [[nodiscard]] Order begun(const StageOrder& stages) const;
  [[nodiscard]] static bool add_events(Order& order, const std::vector<std::vector<Action>>& lists,
                                       const std::vector<int>& number, int microbatches);
  void improve(Order& order) const;
  bool follow(Order& order, const Begins& begins) const;
  [[nodiscard]] Begins mean_begins(const Order& order) const;
  [[nodiscard]] std::vector<StageCosts> sums(const Begins& begins) const;
  [[nodiscard]] Chain longest(const Order& order, const Begins& begins, Seconds& time) const;
  [[nodiscard]] Seconds time_of(const Chain& chain, const Begins& begins) const;
  [[nodiscard]] Seconds least(const Order& order, const Chain& chain, Begins& begins) const;
  static void play(Order& order);
  void add_chain(Order& order, Chain chain) const;
  void add_begins(Order& order, Begins begins) const;

  const PipelineCosts& costs_;
  const PathCuts& cuts_;
  CostsBefore low_, high_;               ///< the least and the most before each cut
  std::vector<Seconds> hop_, hop_back_;  ///< by fine cut
  std::size_t first_ = 1, last_ = 0;     ///< fine cuts with nodes of the path before and after them
  std::map<StageOrder, Order> orders_;
  std::size_t events_ = 0;  ///< in orders_
};

}  // namespace stagecraft::partitioner

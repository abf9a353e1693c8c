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
/// With the replicas, the schedule's actions and their order are known, but not where the cuts are. A step takes at
/// least as long as any chain of actions that wait for each other, such as the first forward of each stage, all
/// backwards of the last one and its update. That is a sum over stages: some number of forwards, backwards, messages.
/// Any weights w_p >= 0 of chains p with sum 1 give a bound: the least of sum_p w_p time_p(cuts) over all cuts, found
/// exactly by dynamic programming along the path, as each term belongs to one cut. Of stages without a node of the
/// path, only the microbatches count that others hold for them. The weights and cuts solve a two-player matrix game
/// between chains and cuts (Dantzig 1951). It is solved by adding best responses: the longest chain for some cuts, then
/// the best cuts for some weights, until the bound is near the step of the best cuts found.
class OrderBound {
 public:
  /// All arguments must outlive it.
  OrderBound(const PipelineCosts& costs, const PathCuts& cuts);

  /// Whether no such split takes at most `time`, as far as the bound can tell. Absent if it was stopped.
  [[nodiscard]] std::optional<bool> refutes(Seconds time, const StageOrder& stages, const std::function<bool()>& stop);

  /// The cuts with the shortest steps found, each for another order, the shortest first; `most` at most.
  [[nodiscard]] std::vector<Split> splits(std::size_t most) const;

 private:
  /// Times of a stage.
  enum Part : std::size_t { Forward, Back, Least, Update, Parts };
  /// The times of a stage's nodes, and the bytes of their gradients.
  struct StageCosts {
    std::array<Seconds, Parts> times;
    FractionalBytes gradients;
  };
  /// The same of all nodes before each fine cut.
  struct CostsBefore {
    std::array<std::vector<Seconds>, Parts> times;
    std::vector<FractionalBytes> gradients;
  };
  /// A chain of actions as a sum: for each stage so many times each part, a time for each byte of its gradients, and
  /// messages to the next stage and back.
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

  /// One action or message: what it waits for, and of what it is one more.
  struct Event {
    std::array<int, 2> after = {-1, -1};
    int stage = 0;
    enum class Kind { Forward, Back, Hop, HopBack } kind = Kind::Forward;
  };
  struct Order {
    std::vector<int> replicas;  ///< of stages with a node of the path, which alone have numbers here
    std::vector<bool> loose;    ///< between this stage and the next one there are others
    bool loose_begin = false, loose_end = false;
    std::vector<Event> events;  ///< each after what it waits for
    std::vector<int> last;      ///< by rank: its last action
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
  CostsBefore low_, high_;               ///< least and most
  std::vector<Seconds> hop_, hop_back_;  ///< by fine cut
  std::size_t first_ = 1, last_ = 0;     ///< fine cuts with nodes of the path before and after them
  std::map<StageOrder, Order> orders_;
  std::size_t events_ = 0;  ///< in them
};

}  // namespace stagecraft::partitioner

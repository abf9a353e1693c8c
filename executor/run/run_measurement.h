#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/span_keeper.h"
#include "costmodel/timeline.h"
#include "costmodel/timeline_order.h"
#include "executor/channel/channel.h"
#include "executor/run/check.h"

namespace stagecraft {

/// Takes a run's measurement while it goes on, again and again, each time a longer one.
using SaveMeasurement = std::function<void(const Measurement&)>;

/// What one rank of a run measures, and on rank 0 what all ranks do. Its size is bounded but for a loss and a time a
/// step, see SpanKeeper.
class RunMeasurement {
 public:
  /// `actions` is the rank's list as it runs it. All ranks pass a `save` or none; rank 0's is called, at most once in
  /// `save_every` and in so long that it takes no time that matters; with 0 as often as there is something new. `plan`
  /// and `channel` must outlive it.
  RunMeasurement(const BoundPlan& plan, const std::vector<Action>& actions, int rank, Channel& channel,
                 std::int64_t first_step, SaveMeasurement save,
                 std::chrono::milliseconds save_every = std::chrono::seconds(2));

  /// Takes the rank's next spans. Throws PeerError at the first that is not what the rank's list says.
  void add(const std::vector<Span>& spans);
  /// On rank 0: the loss of the next step.
  void add_loss(double loss);

  /// To be called by all ranks after each step of a synchronous schedule: moves what was measured to rank 0 after steps
  /// 1 to 8, then each time when the run has become an eighth longer. Rank 0 saves from time to time, so that little is
  /// lost if the run dies.
  void after_step(std::int64_t step);
  /// Rank 0 saves what it has, if the last time is long enough ago.
  void save_if_due();

  /// To be called by all ranks at the end, after `steps` steps: moves everything to rank 0, with this rank's `memory`
  /// and part of `check`, which on rank 0 becomes the sum of all parts. Gives the whole measurement on rank 0, the
  /// rank's own on others. Throws PeerError if the rank's list was not done.
  [[nodiscard]] Measurement finish(std::int64_t steps, RankMemory memory, Check& check);

 private:
  [[nodiscard]] StepTime& time_at(std::size_t place);
  [[nodiscard]] Measurement own(bool all) const;
  [[nodiscard]] Measurement whole() const;
  void take(const Measurement& part);
  void send(const Measurement& part, const Check& check);
  void receive(Check& check);
  void move(bool all, Check& check);
  [[nodiscard]] std::int64_t most_bytes() const;

  const BoundPlan& plan_;
  std::vector<Action> actions_;
  int rank_;
  Channel& channel_;
  std::int64_t first_step_;
  SaveMeasurement save_;
  std::chrono::milliseconds save_every_;
  Measurement header_;  ///< with the losses, without a timeline
  OrderCheck order_;
  SpanKeeper keeper_;
  std::vector<StepTime> times_;            ///< of all steps: this rank's, on rank 0 over all ranks as far as known
  std::size_t sent_ = 0;                   ///< steps whose times rank 0 has
  std::vector<std::vector<Span>> others_;  ///< on rank 0: kept spans by rank
  std::vector<RankMemory> memory_;         ///< on rank 0, at the end
  std::int64_t next_move_ = 1;             ///< steps done at which all ranks move what they have
  std::chrono::steady_clock::time_point next_save_{};
};

}  // namespace stagecraft

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/timeline.h"
#include "executor/channel/channel.h"
#include "executor/run/binding/check.h"

namespace stagecraft::run {

/// Called repeatedly with a run's measurement so far.
using SaveMeasurement = std::function<void(const Measurement&)>;

/// The measurement of one rank of a run, and on rank 0 of all ranks. Its size is bounded except for one loss and one
/// time per step, see SpanKeeper.
class RunMeasurement {
 public:
  /// `actions` is the rank's list as it runs it. All ranks pass a `save`, or none. Rank 0's is called at most once per
  /// `save_every` and rarely enough to take negligible time; with 0, after each gathering. `bound` and `channel` must
  /// outlive it.
  RunMeasurement(const BoundPlan& bound, const std::vector<Action>& actions, int rank, channel::Channel& channel,
                 std::int64_t first_step, SaveMeasurement save,
                 std::chrono::milliseconds save_every = std::chrono::seconds(2));

  /// Takes the rank's next spans. Throws PeerError at the first one that differs from the rank's list.
  void add(const std::vector<Span>& spans);
  /// On rank 0: the loss of the next step.
  void add_loss(double loss);

  /// Takes the time from `begin` to `end` out of the timeline: no rank worked on a step. In order.
  void pause(Seconds begin, Seconds end) { pauses_.push_back({begin, end}); }

  /// Call on all ranks after each step of a synchronous schedule: gathers the measurements on rank 0 from time to time,
  /// which saves them, so that little is lost if the run dies. A gathering makes ranks wait for each other, so the
  /// first one comes after the first step, and rank 0 puts the next one off until it takes at most 1/200 of the time
  /// since, the run is an eighth longer, and `save_every` has passed.
  void after_step(std::int64_t step);
  /// Rank 0 saves what it has, if the last save is long enough ago.
  void save_if_due();

  /// Call on all ranks at the end, after `steps` steps: moves everything to rank 0, with this rank's `memory` and
  /// `check`, which on rank 0 becomes the sum over all ranks. Returns the whole measurement on rank 0, the rank's own
  /// on the others. Throws PeerError if the rank's list was not completed.
  [[nodiscard]] Measurement finish(std::int64_t steps, RankMemory memory, Check& check);

 private:
  [[nodiscard]] StepTime& time_at(std::size_t place);
  [[nodiscard]] Measurement of_rank(bool all) const;
  [[nodiscard]] Measurement whole() const;
  void take(const Measurement& part);
  void send(const Measurement& part, const Check& check);
  void receive(Check& check);
  void move(bool all, Check& check);
  /// On rank 0: tells the others after how many steps the next gathering is. `take_answer`: on the others.
  void answer(std::int64_t steps);
  void finish_answers();
  void take_answer();
  /// Steps until the next gathering; this one, after `done` steps, began at `begin`.
  [[nodiscard]] std::int64_t steps_until_next(std::int64_t done, std::chrono::steady_clock::time_point begin) const;
  [[nodiscard]] std::int64_t most_bytes() const;
  /// `time` less all pauses before it.
  [[nodiscard]] Seconds worked(Seconds time) const;

  const BoundPlan& plan_;
  std::vector<Action> actions_;
  int rank_;
  channel::Channel& channel_;
  std::int64_t first_step_;
  SaveMeasurement save_;
  std::chrono::milliseconds save_every_;
  Measurement header_;  ///< with the losses, without a timeline
  OrderCheck order_;
  SpanKeeper keeper_;
  std::vector<StepTime> times_;  ///< of all steps: this rank's, on rank 0 over all ranks as far as known
  struct Pause {
    Seconds begin;
    Seconds end;
  };
  std::vector<Pause> pauses_;
  std::size_t sent_ = 0;                   ///< steps whose times rank 0 has
  std::vector<std::vector<Span>> others_;  ///< on rank 0: kept spans by rank
  std::vector<RankMemory> memory_;         ///< on rank 0, at the end
  std::int64_t next_move_ = 1;             ///< number of steps after which all ranks send what they have
  std::int64_t moved_ = 0;                 ///< number of steps at the last gathering, or none
  std::chrono::steady_clock::time_point moved_at_ = std::chrono::steady_clock::now();  ///< the end of that gathering
  std::vector<std::unique_ptr<channel::Sending>> answers_;  ///< on rank 0: steps until the next gathering
  std::unique_ptr<channel::Receiving> answer_;              ///< on the others
  std::chrono::steady_clock::time_point next_save_{};
};

}  // namespace stagecraft::run

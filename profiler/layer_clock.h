#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "executor/memory_tracker.h"
#include "executor/stage_program.h"

namespace stagecraft {

/// Seconds of the steady clock.
[[nodiscard]] double steady_seconds();

/// Attributes time and memory of a program's forward and backward to layers, in place: the program runs as it always
/// does. Forward lies between the observer's calls. In backward each autograd node belongs to the layer whose forward
/// made it, told by the interval of sequence numbers that the layer's forward used; a gradient accumulation belongs to
/// the layer that holds the parameter. A node's time runs until the next node begins, so that the layers' times add up
/// to the backward as a whole. For one thread, on which all of it must run.
/// One at a time on a thread.
class LayerClock : public LayerObserver {
 public:
  /// Watches `parameters`' accumulations; `layers` is the number of layers. `memory`, if given, is read at each
  /// boundary and must be counting on this thread. `now` tells the time in seconds.
  LayerClock(std::size_t layers, const std::vector<Parameter>& parameters, MemoryTracker* memory = nullptr,
             std::function<double()> now = steady_seconds);
  ~LayerClock() override;
  LayerClock(const LayerClock&) = delete;
  LayerClock& operator=(const LayerClock&) = delete;

  void begin(int layer) override;
  void end(int layer) override;
  /// To be called right before and after the backward.
  void begin_backward();
  void end_backward();
  /// Forgets the last iteration.
  void reset();

  [[nodiscard]] const std::vector<double>& forward() const { return forward_; }    ///< seconds by layer
  [[nodiscard]] const std::vector<double>& backward() const { return backward_; }  ///< seconds by layer
  [[nodiscard]] const std::vector<std::int64_t>& growth() const {
    return growth_;
  }  ///< bytes that the forward left allocated
  [[nodiscard]] const std::vector<std::int64_t>& transient() const {
    return transient_;
  }  ///< most bytes on top, both directions
  /// Backward nodes that could not be given to a layer; their time went to the layer before.
  [[nodiscard]] std::int64_t unmapped() const { return unmapped_; }

 private:
  struct Interval {
    std::uint64_t low;
    std::uint64_t high;
    int layer;
  };
  struct Hook;
  void on_node(std::uint64_t sequence);
  void switch_to(int layer);

  MemoryTracker* memory_;
  std::function<double()> now_;
  std::vector<double> forward_;
  std::vector<double> backward_;
  std::vector<std::int64_t> growth_;
  std::vector<std::int64_t> transient_;
  std::vector<Interval> intervals_;
  std::vector<std::pair<std::shared_ptr<void>, const Hook*>> hooked_;  ///< accumulators
  std::uint64_t callback_ = 0;
  bool in_backward_ = false;
  int hinted_ = -1;
  int current_ = -1;
  double since_ = 0;
  std::uint64_t sequence_ = 0;
  std::int64_t live_ = 0;
  std::int64_t unmapped_ = 0;
};

}  // namespace stagecraft

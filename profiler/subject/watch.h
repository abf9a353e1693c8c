#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "executor/device/ranges.h"
#include "executor/stage/stage_program.h"
#include "profiler/kernels/attribution.h"
#include "profiler/kernels/trace.h"

namespace stagecraft::profiler {

/// Nanoseconds, and seconds, of the steady clock.
[[nodiscard]] std::int64_t steady_ns();
[[nodiscard]] double steady_seconds();

/// Watches iterations of a program, which runs as it does unwatched. The order of calls in a step: begin_step, the
/// forward with this as its observer, begin_backward, the backward, end_backward, parts such as updates, end_step.
class Watch : public stage::LayerObserver {
 public:
  virtual void begin_step(int step) = 0;
  virtual void begin_backward() = 0;
  virtual void end_backward() = 0;
  /// Begins work that is neither forward nor backward. The watch sets the tag's step.
  virtual void begin_part(Tag tag) = 0;
  virtual void end_part() = 0;
  virtual void end_step() = 0;
  /// The shares of each step since the last call. The device must have finished all work.
  [[nodiscard]] virtual std::vector<StepShares> take() = 0;
  /// The activities from which the last take() was computed.
  [[nodiscard]] virtual const AttributedTrace& trace() const = 0;
  /// Backward nodes so far that could not be assigned to a layer; their time counts for the previous node's layer.
  [[nodiscard]] virtual std::int64_t unmapped() const = 0;
  /// While paused, nothing is watched and watching costs no time.
  virtual void pause() = 0;
  virtual void resume() = 0;
};

/// Records instants whose times are known once the device has passed them.
class Marks {
 public:
  virtual ~Marks() = default;
  virtual void mark() = 0;
  /// Time of each mark since the last call, in nanoseconds from one arbitrary origin.
  [[nodiscard]] virtual std::vector<std::int64_t> take() = 0;
};

/// Marks by a host clock: when the host got there.
[[nodiscard]] std::unique_ptr<Marks> make_host_marks(std::function<std::int64_t()> now_ns = steady_ns);
/// Marks by events on the current stream of `device`: when the device got there.
[[nodiscard]] std::unique_ptr<Marks> make_event_marks(c10::Device device);

// `ranges` holds an NVTX range for each layer's backward, open while its nodes run; empty for no ranges.

/// A watch that marks where one layer's work ends and the next layer's work begins. A layer's time lasts until other
/// work begins, so that all times add up to the step. Host marks fit programs that run on one thread and whose work is
/// done when a call returns; event marks fit work of a device.
[[nodiscard]] std::unique_ptr<Watch> make_marking_watch(const std::vector<stage::Parameter>& parameters,
                                                        std::unique_ptr<Marks> marks,
                                                        std::vector<device::RangeName> ranges = {});

/// A watch that tells `tracer` which layer runs and computes shares from what the tracer recorded. It launches a small
/// piece of work on the current stream of `device` at the start and at the end of each step, to bound the step.
/// `tracer` must outlive it.
[[nodiscard]] std::unique_ptr<Watch> make_tracing_watch(const std::vector<stage::Parameter>& parameters,
                                                        KernelTracer& tracer, c10::Device device, int last_layer,
                                                        std::vector<device::RangeName> ranges = {});

/// A time budget in seconds of the steady clock. It starts when it is built.
class TimeLimit {
 public:
  explicit TimeLimit(double seconds) : begin_(steady_seconds()), seconds_(seconds) {}
  [[nodiscard]] double spent() const { return steady_seconds() - begin_; }
  /// The time since it was built that it allows; less than what is spent ends it.
  void allow(double seconds) { seconds_ = seconds; }
  /// Negative once the time is up.
  [[nodiscard]] double left() const { return seconds_ - spent(); }

 private:
  double begin_;
  double seconds_;
};

}  // namespace stagecraft::profiler

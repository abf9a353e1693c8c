#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "executor/device/ranges.h"
#include "executor/stage/stage_program.h"
#include "profiler/kernels/attribution.h"
#include "profiler/kernels/shares.h"
#include "profiler/kernels/tracer.h"

namespace stagecraft {

/// Nanoseconds, and seconds, of the steady clock.
[[nodiscard]] std::int64_t steady_ns();
[[nodiscard]] double steady_seconds();

/// Watches iterations of a program in place: it runs as it always does. A step goes begin_step, the forward (with this
/// as its observer), begin_backward, the backward, end_backward, parts such as updates, end_step.
class Watch : public LayerObserver {
 public:
  virtual void begin_step(int step) = 0;
  virtual void begin_backward() = 0;
  virtual void end_backward() = 0;
  /// Around work that is neither forward nor backward; the tag's step is filled in.
  virtual void begin_part(Tag tag) = 0;
  virtual void end_part() = 0;
  virtual void end_step() = 0;
  /// The steps since the last call, each taken apart from its begin to its end. The device must have done all work.
  [[nodiscard]] virtual std::vector<StepShares> take() = 0;
  /// What the last take was made of.
  [[nodiscard]] virtual const AttributedTrace& trace() const = 0;
  /// Backward nodes so far that could not be given to a layer; their time went to the layer before.
  [[nodiscard]] virtual std::int64_t unmapped() const = 0;
  /// While paused nothing is watched and nothing of it costs.
  virtual void pause() = 0;
  virtual void resume() = 0;
};

/// Marks instants; what they were is told later, when the device has passed them.
class Marks {
 public:
  virtual ~Marks() = default;
  virtual void mark() = 0;
  /// Nanoseconds of each mark since the last call, from any origin but all from one.
  [[nodiscard]] virtual std::vector<std::int64_t> take() = 0;
};

/// Marks of a host clock: when the host came by.
[[nodiscard]] std::unique_ptr<Marks> make_host_marks(std::function<std::int64_t()> now_ns = steady_ns);
/// Marks on the current stream of `device`, an event each: when the device came by.
[[nodiscard]] std::unique_ptr<Marks> make_event_marks(c10::Device device);

// `ranges`, if any, holds a range for each layer's backward, open while its nodes run for tools that listen to NVTX.

/// A watch that marks where one layer's work ends and the next one's begins: a layer's time runs until somebody else's
/// begins, so that the times add up to the step as a whole. On a host clock, for a program whose work is done when its
/// calls return, on one thread; on a stream's events for a device's work.
[[nodiscard]] std::unique_ptr<Watch> make_marking_watch(const std::vector<Parameter>& parameters,
                                                        std::unique_ptr<Marks> marks,
                                                        std::vector<RangeName> ranges = {});

/// A watch that names its layers to `tracer` and takes apart what that recorded. Each step is bounded by two small
/// pieces of work on the current stream of `device` that it launches itself. `tracer` must outlive it.
[[nodiscard]] std::unique_ptr<Watch> make_tracing_watch(const std::vector<Parameter>& parameters, KernelTracer& tracer,
                                                        c10::Device device, int last_layer,
                                                        std::vector<RangeName> ranges = {});

}  // namespace stagecraft

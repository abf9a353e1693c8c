#include "executor/run/worker/span_recorder.h"

#include <utility>

#include "costmodel/index.h"
#include "executor/device/device.h"

namespace stagecraft::run {

SpanRecorder::SpanRecorder(int rank, c10::Device device, std::function<double()> now, std::size_t room)
    : rank_(rank), device_(device), clock_(device, std::move(now)) {
  spans_.reserve(room);
}

void SpanRecorder::record(const Action& action, std::int64_t step, device::DeviceClock::Moment start) {
  const device::DeviceClock::Moment end = clock_.mark();
  const Span span{rank_, to_int(step), action, Seconds(start.seconds), Seconds(end.seconds)};
  if (device_.is_cpu()) {
    spans_.push_back(span);
  } else {
    unsettled_.push_back({span, start, end});
  }
}

void SpanRecorder::settle() {
  while (!unsettled_.empty() && clock_.is_reached(unsettled_.front().end)) {
    Unsettled& next = unsettled_.front();
    next.span.start = Seconds(clock_.seconds(next.start));
    next.span.end = Seconds(clock_.seconds(next.end));
    spans_.push_back(next.span);
    unsettled_.pop_front();
  }
}

std::vector<Span> SpanRecorder::take() {
  settle();
  std::vector<Span> out;
  out.swap(spans_);
  return out;
}

std::vector<Span> SpanRecorder::take_all() {
  device::synchronize(device_);
  return take();
}

}  // namespace stagecraft::run

#include "executor/run/worker/span_recorder.h"

#include <ATen/DeviceAccelerator.h>

#include <utility>

#include "costmodel/index.h"
#include "executor/device/device.h"

namespace stagecraft::run {

DeviceClock::DeviceClock(c10::Device device, std::function<double()> now) : device_(device), now_(std::move(now)) {
  if (device_.is_cpu()) return;
  at::accelerator::synchronizeDevice(device_.index());
  base_ = mark().event;
  at::accelerator::synchronizeDevice(device_.index());
  base_seconds_ = now_();
}

DeviceClock::Moment DeviceClock::mark() {
  if (device_.is_cpu()) return {now_(), -1};
  if (idle_.empty()) {
    idle_.push_back(to_int(events_.size()));
    events_.push_back(std::make_unique<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT));
  }
  const int event = idle_.back();
  idle_.pop_back();
  events_[to_index(event)]->record(at::accelerator::getCurrentStream(device_.index()));
  return {0, event};
}

bool DeviceClock::is_reached(const Moment& moment) const {
  return moment.event < 0 || events_[to_index(moment.event)]->query();
}

double DeviceClock::seconds(const Moment& moment) {
  if (moment.event < 0) return moment.seconds;
  constexpr double kSecondsPerMillisecond = 1e-3;
  // The library returns milliseconds in single precision, which is too coarse over more than a second.
  constexpr double kLongest = 1;
  const double since = events_[to_index(base_)]->elapsedTime(*events_[to_index(moment.event)]) * kSecondsPerMillisecond;
  const double out = base_seconds_ + since;
  idle_.push_back(since > kLongest ? std::exchange(base_, moment.event) : moment.event);
  if (since > kLongest) base_seconds_ = out;
  return out;
}

SpanRecorder::SpanRecorder(int rank, c10::Device device, std::function<double()> now, std::size_t room)
    : rank_(rank), device_(device), clock_(device, std::move(now)) {
  spans_.reserve(room);
}

void SpanRecorder::record(const Action& action, std::int64_t step, DeviceClock::Moment start) {
  const DeviceClock::Moment end = clock_.mark();
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

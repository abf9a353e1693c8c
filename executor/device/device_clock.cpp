#include "executor/device/device_clock.h"

#include <ATen/DeviceAccelerator.h>

#include <utility>

#include "costmodel/index.h"

namespace stagecraft::device {

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

}  // namespace stagecraft::device

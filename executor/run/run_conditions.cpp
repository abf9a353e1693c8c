#include "executor/run/run_conditions.h"

#include "executor/channel/processor_reports.h"

namespace stagecraft::run {

RunConditions::RunConditions(int rank, channel::Channel& channel, c10::Device device, int threads)
    : channel_(channel), began_(device::processor_moment()) {
  if (rank == 0) yardstick_.emplace(device::device_yardstick(device, threads));
}

void RunConditions::begin() {
  read_yardstick();
  began_ = device::processor_moment();
}

Conditions RunConditions::finish() {
  const device::ProcessorMoment ended = device::processor_moment();
  channel_.activity().begin({.action = "gathering of results"});
  Conditions out{channel::gather_processor_use(channel_, began_, ended), {}};
  read_yardstick();
  if (yardstick_) out.yardstick = yardstick_->result();
  return out;
}

void RunConditions::read_yardstick() {
  channel_.barrier();
  if (yardstick_) yardstick_->read();
  channel_.barrier();
}

}  // namespace stagecraft::run

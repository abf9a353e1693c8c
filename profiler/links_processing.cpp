#include "profiler/links_processing.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <thread>
#include <vector>

#include "costmodel/timeline.h"

namespace stagecraft::profiler {
namespace {

constexpr int kTag = 1;
constexpr int kStartTag = channel::Channel::kControlTag + 2;
constexpr int kReportTag = channel::Channel::kControlTag + 3;
constexpr std::array kBytes = {4, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
constexpr Seconds kTimePerSize(0.15);
constexpr Seconds kAtOnce(150e-6);  // until a thread that is woken runs, and more

/// Processor time of one message at one end.
struct EndTime {
  double process = 0;  ///< of all threads
  double own = 0;      ///< of the one that calls the channel
};

double clock_s(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
EndTime time_now() { return {clock_s(CLOCK_PROCESS_CPUTIME_ID), clock_s(CLOCK_THREAD_CPUTIME_ID)}; }

void pause(Seconds time) { std::this_thread::sleep_for(std::chrono::duration<double>(time.value)); }

at::Tensor floats(Bytes bytes) {
  return at::zeros({bytes.value / static_cast<std::int64_t>(sizeof(float))}, at::TensorOptions().dtype(at::kFloat));
}

/// Both ends are here before a message.
void meet(channel::Channel& channel) {
  const at::Tensor token = at::zeros({1}, at::TensorOptions().dtype(at::kFloat));
  const int peer = 1 - channel.rank();
  if (channel.rank() == 1) (void)channel.receive({{1}, at::kFloat}, peer, kStartTag)->wait();
  channel.send(token, peer, kStartTag)->wait();
  if (channel.rank() == 0) (void)channel.receive({{1}, at::kFloat}, peer, kStartTag)->wait();
}

/// Medians over the task's messages at this end.
EndTime carry_out(channel::Channel& channel, const ProcessingTask& task) {
  const at::Tensor message = floats(task.bytes);
  const bool sends = channel.rank() == 0;
  std::vector<double> process, own;
  for (std::int64_t i = -1; i < task.messages; ++i) {  // the first makes connections and buffers
    meet(channel);
    if (sends) pause(kAtOnce);  // until the receive is posted
    const EndTime before = time_now();
    if (sends) {
      const auto sending = task.bytes > Bytes(0) ? channel.send(message, 1, kTag) : nullptr;
      pause(task.transfer * 4 + kAtOnce * 4);  // the other end waits meanwhile, which may be what moves the message
      if (sending) sending->wait();
    } else {
      const auto receiving =
          task.bytes > Bytes(0) ? channel.receive({message.sizes().vec(), at::kFloat}, 0, kTag) : nullptr;
      pause(task.transfer + kAtOnce * 3);
      if (receiving) (void)receiving->wait();
    }
    const EndTime after = time_now();
    if (i < 0) continue;
    process.push_back(after.process - before.process);
    own.push_back(after.own - before.own);
  }
  return {median(std::move(process)), median(std::move(own))};
}

}  // namespace

void receive_for_processing(channel::Channel& channel, const ProcessingTask& task) {
  const EndTime time = carry_out(channel, task);
  at::Tensor report = at::empty({3}, at::kDouble);
  auto* values = report.mutable_data_ptr<double>();
  values[0] = time.process;
  values[1] = time.own;
  values[2] = static_cast<double>(getpid());
  channel.send(report, 0, kReportTag)->wait();
}

std::optional<MessageProcessing> measure_processing(channel::Channel& channel, const LinkCurve& one_way,
                                                    const std::function<void(const ProcessingTask&)>& tell) {
  Curve times;
  for (const LinkPoint& point : one_way.points) times.points.push_back({point.bytes, point.time.median});
  EndTime idle_sender, idle_receiver;
  MessageProcessing out;
  const auto measure = [&](Bytes bytes) {
    ProcessingTask task{.bytes = bytes, .transfer = interpolate(times, bytes)};
    const Seconds once = task.transfer * 5 + kAtOnce * 6;
    task.messages = static_cast<std::int64_t>(std::clamp(std::floor(kTimePerSize / once), 7.0, 101.0));
    tell(task);
    const EndTime mine = carry_out(channel, task);
    const at::Tensor report = channel.receive({{3}, at::kDouble}, 1, kReportTag)->wait();
    const auto* values = report.const_data_ptr<double>();
    if (values[2] == static_cast<double>(getpid())) return false;
    const EndTime theirs{values[0], values[1]};
    if (bytes == Bytes(0)) {
      idle_sender = mine;
      idle_receiver = theirs;
      return true;
    }
    constexpr double kLeast = 1e-9;
    const double receiver = std::max(theirs.process - idle_receiver.process, kLeast);
    out.sender.points.push_back({bytes, Seconds(std::max(mine.process - idle_sender.process, kLeast))});
    out.receiver.points.push_back({bytes, Seconds(receiver)});
    out.thread = theirs.own - idle_receiver.own > receiver / 2 ? MessageThread::Own : MessageThread::Separate;
    return true;
  };
  if (!measure(Bytes(0))) return std::nullopt;
  for (const int bytes : kBytes) {
    if (Bytes(bytes) > one_way.points.back().bytes) break;
    (void)measure(Bytes(bytes));
  }
  return out;
}

}  // namespace stagecraft::profiler

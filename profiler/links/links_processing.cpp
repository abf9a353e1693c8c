#include "profiler/links/links_processing.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <numeric>
#include <vector>

#include "costmodel/timeline.h"

namespace stagecraft::profiler {
namespace {

constexpr int kTag = 1;
constexpr int kStartTag = channel::Channel::kControlTag + 2;
constexpr int kReportTag = channel::Channel::kControlTag + 3;
constexpr std::array kBytes = {4, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
constexpr Seconds kTimePerSize(0.3);
constexpr Seconds kAtOnce(150e-6);  // until a thread that is woken runs, and more
constexpr Seconds kBefore(1e-3);    // of computation before a message

/// Processor time of one message at one end.
struct EndTime {
  double calling = 0;  ///< of the thread that calls the channel, in its calls
  double others = 0;   ///< of the process's other threads
  [[nodiscard]] double all() const { return calling + others; }
};

double clock_s(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
/// Computes, as a rank does meanwhile.
void compute(Seconds time) {
  volatile double value = 1;
  for (const double end = steady_seconds() + time.value; steady_seconds() < end;) {
    for (int i = 0; i < 1000; ++i) value = value * 1.0000001;
  }
}

/// Counts what this thread spends in calls of the channel, and what the other threads spend meanwhile.
class EndClock {
 public:
  EndClock() : process_(clock_s(CLOCK_PROCESS_CPUTIME_ID)), thread_(clock_s(CLOCK_THREAD_CPUTIME_ID)) {}
  template <class Call>
  auto in_channel(Call call) {
    const double before = clock_s(CLOCK_THREAD_CPUTIME_ID);
    auto out = call();
    calling_ += clock_s(CLOCK_THREAD_CPUTIME_ID) - before;
    return out;
  }
  [[nodiscard]] EndTime time() const {
    const double thread = clock_s(CLOCK_THREAD_CPUTIME_ID) - thread_;
    return {calling_, std::max(clock_s(CLOCK_PROCESS_CPUTIME_ID) - process_ - thread, 0.0)};
  }

 private:
  double process_;
  double thread_;
  double calling_ = 0;
};

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

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// What this end takes for one message of the task: the median in calls, where a wait may poll for a late message; the
/// mean in other threads, where a few messages are dear (GOTCHAS.md: Gloo's thread polls while a lock is held).
EndTime carry_out(channel::Channel& channel, const ProcessingTask& task) {
  const at::Tensor message = floats(task.bytes);
  const bool sends = channel.rank() == 0;
  std::vector<double> calling, others;
  for (std::int64_t i = -1; i < task.messages; ++i) {  // the first makes connections and buffers
    meet(channel);
    if (sends) compute(kBefore);  // longer than the other end takes to post the receive
    EndClock clock;
    if (sends) {
      const auto sending = clock.in_channel([&] { return channel.send(message, 1, kTag); });
      compute(task.transfer * 4 + kAtOnce * 4);  // the other end waits meanwhile, which may be what moves the message
      (void)clock.in_channel([&] {
        sending->wait();
        return true;
      });
    } else {
      const auto receiving =
          clock.in_channel([&] { return channel.receive({message.sizes().vec(), at::kFloat}, 0, kTag); });
      compute(kBefore + task.transfer + kAtOnce * 2);
      (void)clock.in_channel([&] { return receiving->wait(); });
    }
    const EndTime time = clock.time();
    if (i < 0) continue;
    calling.push_back(time.calling);
    others.push_back(time.others);
  }
  return {median(std::move(calling)), mean(others)};
}

/// About the time of one message of a task, with the computation before and beside it.
Seconds time_of_message(Seconds transfer) { return kBefore + transfer * 5 + kAtOnce * 6; }

}  // namespace

Curve without_falls(std::vector<CurvePoint> points, const std::vector<double>& weights) {
  struct Block {
    Seconds time;
    double weight = 0;
    std::size_t points = 0;
  };
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < points.size(); ++i) {
    blocks.push_back({points[i].time, weights.at(i), 1});
    while (blocks.size() > 1 && blocks[blocks.size() - 2].time > blocks.back().time) {
      const Block last = blocks.back();
      blocks.pop_back();
      Block& block = blocks.back();
      const double weight = block.weight + last.weight;
      block = {(block.time * block.weight + last.time * last.weight) / weight, weight, block.points + last.points};
    }
  }
  auto point = points.begin();
  for (const Block& block : blocks) {
    for (std::size_t i = 0; i < block.points; ++i) (point++)->time = block.time;
  }
  return {std::move(points)};
}

void compute_beside(const ProcessingTask& task) {
  compute(time_of_message(task.transfer) * static_cast<double>(task.messages + 1));
}

void receive_for_processing(channel::Channel& channel, const ProcessingTask& task) {
  const EndTime time = carry_out(channel, task);
  at::Tensor report = at::empty({3}, at::kDouble);
  auto* values = report.mutable_data_ptr<double>();
  values[0] = time.calling;
  values[1] = time.others;
  values[2] = static_cast<double>(getpid());
  channel.send(report, 0, kReportTag)->wait();
}

std::optional<MessageProcessing> measure_processing(channel::Channel& channel, const LinkCurve& one_way,
                                                    const std::function<void(const ProcessingTask&)>& tell) {
  /// What both ends took, and rank 1's process.
  struct Ends {
    EndTime sender, receiver;
    double process = 0;
  };
  const auto measure = [&](const ProcessingTask& task) {
    tell(task);
    const EndTime sender = carry_out(channel, task);
    const at::Tensor report = channel.receive({{3}, at::kDouble}, 1, kReportTag)->wait();
    const auto* values = report.const_data_ptr<double>();
    return Ends{sender, {values[0], values[1]}, values[2]};
  };
  if (measure({.bytes = Bytes(4), .messages = 1}).process == static_cast<double>(getpid())) return std::nullopt;
  Curve times;
  for (const LinkPoint& point : one_way.points) times.points.push_back({point.bytes, point.time.median});
  constexpr double kLeast = 1e-9;
  MessageProcessing out;
  std::vector<double> weights;
  for (const int count : kBytes) {
    const Bytes bytes(count);
    if (bytes > one_way.points.back().bytes) break;
    const Seconds transfer = interpolate(times, bytes);
    const double messages = std::clamp(std::floor(kTimePerSize / time_of_message(transfer)), 7.0, 201.0);
    const Ends ends = measure({bytes, static_cast<std::int64_t>(messages), transfer});
    weights.push_back(messages);
    out.sender.points.push_back({bytes, Seconds(std::max(ends.sender.all(), kLeast))});
    out.receiver.points.push_back({bytes, Seconds(std::max(ends.receiver.all(), kLeast))});
    out.thread = ends.receiver.calling > ends.receiver.others ? MessageThread::Own : MessageThread::Separate;
  }
  out.sender = without_falls(std::move(out.sender.points), weights);
  out.receiver = without_falls(std::move(out.receiver.points), weights);
  return out;
}

}  // namespace stagecraft::profiler

#include "executor/channel/processor_reports.h"

#include <ATen/ops/empty.h>

#include <array>
#include <bit>
#include <cmath>

#include "costmodel/index.h"
#include "executor/channel/control_tags.h"

namespace stagecraft::channel {
namespace {

constexpr double kNanoseconds = 1e9;
constexpr std::int64_t kUnknown = -1;

using Words = std::array<std::int64_t, 6>;
const TensorSpec kSpec{{std::tuple_size_v<Words>}, at::kLong};

std::int64_t to_word(Seconds time) { return std::llround(time.value * kNanoseconds); }
Seconds to_seconds(std::int64_t word) { return Seconds(static_cast<double>(word) / kNanoseconds); }

at::Tensor to_tensor(const device::ProcessorReport& report) {
  const Words words{std::bit_cast<std::int64_t>(report.host),
                    std::bit_cast<std::int64_t>(report.process),
                    to_word(report.lasted),
                    to_word(report.process_time),
                    report.machine_time ? to_word(*report.machine_time) : kUnknown,
                    report.processors};
  at::Tensor out = at::empty(kSpec.shape, kSpec.dtype);
  std::copy(words.begin(), words.end(), out.mutable_data_ptr<std::int64_t>());
  return out;
}

device::ProcessorReport to_report(const at::Tensor& tensor, int rank) {
  Words words;
  std::copy_n(tensor.const_data_ptr<std::int64_t>(), words.size(), words.begin());
  constexpr std::int64_t kMostProcessors = 1 << 20;
  if (words[2] < 0 || words[3] < 0 || words[4] < kUnknown || words[5] < 1 || words[5] > kMostProcessors)
    throw meeting::PeerError("rank " + std::to_string(rank) + " sent an impossible processor time");
  device::ProcessorReport out{std::bit_cast<std::uint64_t>(words[0]),
                              std::bit_cast<std::uint64_t>(words[1]),
                              to_seconds(words[2]),
                              to_seconds(words[3]),
                              {},
                              to_int(words[5])};
  if (words[4] != kUnknown) out.machine_time = to_seconds(words[4]);
  return out;
}

}  // namespace

std::vector<ProcessorUse> gather_processor_use(Channel& channel, const device::ProcessorMoment& before,
                                               const device::ProcessorMoment& after) {
  const device::ProcessorReport report = device::processor_report(before, after);
  if (channel.rank() != 0) {
    channel.send(to_tensor(report), 0, kTimesTag)->wait();
    return {};
  }
  std::vector<device::ProcessorReport> reports{report};
  for (int rank = 1; rank < channel.ranks(); ++rank)
    reports.push_back(to_report(channel.receive(kSpec, rank, kTimesTag)->wait(), rank));
  return device::processor_use(reports);
}

}  // namespace stagecraft::channel

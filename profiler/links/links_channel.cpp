#include "profiler/links/links_channel.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "costmodel/index.h"
#include "executor/channel/channel.h"
#include "executor/channel/processor_reports.h"
#include "executor/device/machine/processor.h"
#include "executor/device/machine/yardstick.h"
#include "profiler/links/links_processing.h"
#include "profiler/links/links_report.h"

namespace stagecraft::profiler {
namespace {

using enum LinkOperation;

constexpr int kTag = 0;
constexpr int kOrderTag = channel::Channel::kControlTag;
constexpr int kSamplesTag = channel::Channel::kControlTag + 1;

/// Rank 0's order to the others: a task of links, or of processing, or neither, which is the end.
struct Order {
  LinkTask task;
  std::int64_t samples = 0;
  std::int64_t batch = 0;
  std::optional<ProcessingTask> processing = {};
};

const channel::TensorSpec kOrderSpec{{9}, at::kLong};

at::Tensor to_tensor(const Order& order) {
  const ProcessingTask processing =
      order.processing.value_or(ProcessingTask{.bytes = {}, .messages = 0, .transfer = {}});
  const std::array<std::int64_t, 9> words = {static_cast<std::int64_t>(order.task.operation),
                                             order.processing ? processing.bytes.value : order.task.bytes.value,
                                             order.task.ranks,
                                             order.task.from,
                                             order.task.to,
                                             order.samples,
                                             order.batch,
                                             processing.messages,
                                             std::llround(processing.transfer.value * 1e9)};
  at::Tensor out = at::empty(kOrderSpec.shape, kOrderSpec.dtype);
  std::copy(words.begin(), words.end(), out.mutable_data_ptr<std::int64_t>());
  return out;
}

Order to_order(const at::Tensor& tensor) {
  const auto* words = tensor.const_data_ptr<std::int64_t>();
  return {{static_cast<LinkOperation>(words[0]), Bytes(words[1]), to_int(words[2]), to_int(words[3]), to_int(words[4])},
          words[5],
          words[6],
          words[7] > 0
              ? std::optional(ProcessingTask{Bytes(words[1]), words[7], Seconds(static_cast<double>(words[8]) * 1e-9)})
              : std::nullopt};
}

/// One rank's part in measuring a channel.
class ChannelPart {
 public:
  explicit ChannelPart(channel::Channel& channel) : channel_(channel) {}

  /// Runs this rank's share of an order; returns the samples if this rank has a clock of the task, else none.
  std::vector<double> carry_out(const Order& order) {
    const Job work = work_of(order.task);
    std::vector<double> samples;
    if (!work) return samples;
    // One way is half of there and back.
    const double parts = order.task.operation == SendReceive || order.task.operation == Pairs ? 2 : 1;
    for (std::int64_t sample = 0; sample < order.samples; ++sample) {
      const double start = steady_seconds();
      for (std::int64_t i = 0; i < order.batch; ++i) work();
      samples.push_back((steady_seconds() - start) / (parts * static_cast<double>(order.batch)));
    }
    return samples;
  }

  /// The ranks that have a clock of `task`.
  static std::vector<int> clocks(const LinkTask& task) {
    if (task.operation == SendReceive) return {task.from};
    std::vector<int> out = {0};
    for (int rank = 2; task.operation == Pairs && rank < task.ranks; rank += 2) out.push_back(rank);
    return out;
  }

 private:
  using Job = std::function<void()>;

  at::Tensor floats(Bytes bytes) {
    const std::int64_t numel = bytes.value / static_cast<std::int64_t>(sizeof(float));
    if (!buffer_.defined() || buffer_.numel() < numel)
      buffer_ = at::zeros({numel}, at::TensorOptions().dtype(at::kFloat));
    return buffer_.narrow(0, 0, numel);
  }

  Job work_of(const LinkTask& task) {
    const int rank = channel_.rank();
    switch (task.operation) {
      case SendReceive:
        if (rank == task.from) return exchange(task.bytes, task.to);
        if (rank == task.to) return answer(task.bytes, task.from);
        return {};
      case Duplex:
        return rank < 2 ? exchange(task.bytes, 1 - rank) : Job();
      case Pairs:
        if (rank >= task.ranks) return {};
        return rank % 2 == 0 ? exchange(task.bytes, rank + 1) : answer(task.bytes, rank - 1);
      case AllReduce:
        return collective(task, Collective::AllReduce);
      case AllGather:
        return collective(task, Collective::AllGather);
      case ReduceScatter:
        return collective(task, Collective::ReduceScatter);
      case HostToDevice:
      case DeviceToHost:
        break;
    }
    throw std::invalid_argument("a channel does not copy between host and device");
  }

  Job exchange(Bytes bytes, int peer) {
    return [this, message = floats(bytes), peer] {
      const auto receiving = channel_.receive({message.sizes().vec(), message.scalar_type()}, peer, kTag);
      const auto sending = channel_.send(message, peer, kTag);
      (void)receiving->wait();
      sending->wait();
    };
  }

  Job answer(Bytes bytes, int peer) {
    return [this, message = floats(bytes), peer] {
      (void)channel_.receive({message.sizes().vec(), message.scalar_type()}, peer, kTag)->wait();
      channel_.send(message, peer, kTag)->wait();
    };
  }

  Job collective(const LinkTask& task, Collective kind) {
    if (channel_.rank() >= task.ranks) return {};
    channel::CollectiveCall call{.kind = kind, .values = floats(task.bytes), .tag = kTag};
    for (int member = 0; member < task.ranks; ++member) call.members.push_back(member);
    return [this, call] { channel_.start(call)->wait(); };
  }

  channel::Channel& channel_;
  at::Tensor buffer_;
};

/// Rank 0's meter: gives the others their orders and gathers their samples.
class ChannelMeter : public LinkMeter {
 public:
  explicit ChannelMeter(channel::Channel& channel) : channel_(channel), part_(channel) {}
  int ranks() const override { return channel_.ranks(); }
  bool copies() const override { return false; }
  Seconds shortest_sample() const override { return Seconds(0); }

  std::vector<double> seconds_of(const LinkTask& task, std::int64_t samples, std::int64_t batch) override {
    give({task, samples, batch});
    std::vector<double> out = part_.carry_out({task, samples, batch});
    const std::vector<int> clocks = ChannelPart::clocks(task);
    if (clocks.front() != 0) out.assign(to_index(samples), 0);
    for (const int rank : clocks) {
      if (rank == 0) continue;
      const at::Tensor theirs = channel_.receive({{samples}, at::kDouble}, rank, kSamplesTag)->wait();
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::max(out[i], theirs.const_data_ptr<double>()[i]);
    }
    return out;
  }

  void give(const Order& order) {
    const at::Tensor message = to_tensor(order);
    for (int rank = 1; rank < channel_.ranks(); ++rank) channel_.send(message, rank, kOrderTag)->wait();
  }

 private:
  channel::Channel& channel_;
  ChannelPart part_;
};

/// Loop of all ranks except 0, until rank 0 ends it.
void follow(channel::Channel& channel) {
  ChannelPart part(channel);
  while (true) {
    const Order order = to_order(channel.receive(kOrderSpec, 0, kOrderTag)->wait());
    if (order.processing) {
      if (channel.rank() == 1) {
        receive_for_processing(channel, *order.processing);
      } else {
        compute_beside(*order.processing);
      }
      continue;
    }
    if (order.samples == 0) return;
    const std::vector<double> samples = part.carry_out(order);
    const std::vector<int> clocks = ChannelPart::clocks(order.task);
    if (std::find(clocks.begin(), clocks.end(), channel.rank()) == clocks.end()) continue;
    at::Tensor message = at::empty({order.samples}, at::kDouble);
    std::copy(samples.begin(), samples.end(), message.mutable_data_ptr<double>());
    channel.send(message, 0, kSamplesTag)->wait();
  }
}

/// Measures the links, with readings of a yardstick before, between rounds, and after.
LinkMeasurement measure_with(device::YardstickMeter yardstick, LinkMeter& meter, const LinksOptions& options,
                             const std::function<void(const std::string&)>& progress) {
  yardstick.read();
  LinkMeasurement out = measure_links(meter, options, [&](const std::string& round) {
    yardstick.read_if_due();
    if (progress) progress(round);
  });
  yardstick.read();
  out.conditions.yardstick = yardstick.result();
  return out;
}

/// Ranks on each machine; throws as measure_machines does.
int ranks_per_machine(const std::vector<int>& machines) {
  const int count = machines.empty() ? 0 : machines.back() + 1;
  const int ranks = count == 0 ? 0 : to_int(machines.size()) / count;
  for (std::size_t rank = 0; rank < machines.size(); ++rank) {
    if (ranks > 0 && machines[rank] == to_int(rank) / ranks) continue;
    throw std::invalid_argument(
        fmt::format("rank {} is on machine {}; to measure the links between machines, start the same number of ranks "
                    "on each, one machine after the other",
                    rank, machines[rank]));
  }
  if (count < 2) throw std::invalid_argument("all ranks are on one machine");
  return ranks;
}

}  // namespace

LinkMeasurement measure_links(channel::Channel& channel, const LinksOptions& options, int threads,
                              const std::function<void(const std::string&)>& progress) {
  if (channel.ranks() < 2) throw std::invalid_argument("a channel of 1 rank has no links, must have at least 2");
  if (threads < 1) throw std::invalid_argument(fmt::format("the number of threads is {}, must be at least 1", threads));
  at::set_num_threads(threads);
  const device::ProcessorMoment before = device::processor_moment();
  if (channel.rank() != 0) {
    follow(channel);
    (void)channel::gather_processor_use(channel, before, device::processor_moment());
    return {.ranks = channel.ranks(), .curves = {}, .slowest_pair = {}};
  }
  ChannelMeter meter(channel);
  LinkMeasurement out = measure_with(device::device_yardstick(c10::kCPU, threads), meter, options, progress);
  out.processing = measure_processing(
      channel, out.curves.front(), [&](const ProcessingTask& task) { meter.give({.task = {}, .processing = task}); });
  meter.give({});
  out.conditions.hosts = channel::gather_processor_use(channel, before, device::processor_moment());
  return out;
}

LinkMeasurement measure_gpu_links(LinkMeter& meter, const LinksOptions& options,
                                  const std::function<void(const std::string&)>& progress) {
  const device::ProcessorMoment before = device::processor_moment();
  LinkMeasurement out = measure_links(meter, options, progress);
  const device::ProcessorReport report = device::processor_report(before, device::processor_moment());
  out.conditions.hosts = device::processor_use({&report, 1});
  return out;
}

MachineLinks measure_machines(channel::Channel& channel, const std::vector<int>& machines, const LinksOptions& options,
                              int threads, const std::function<void(const std::string&)>& progress) {
  MachineLinks out;
  out.ranks_per_machine = ranks_per_machine(machines);
  const auto measure = [&](const std::vector<int>& members, const std::string& what) {
    LinkMeasurement measured;
    if (std::ranges::find(members, channel.rank()) != members.end()) {
      channel::RankSubset subset(channel, members);
      LinksOptions half = options;
      if (out.ranks_per_machine > 1) half.most_time = options.most_time / 2;
      measured = measure_links(subset, half, threads,
                               progress ? [&](const std::string& text) { progress(what + ": " + text); }
                                        : std::function<void(const std::string&)>());
    }
    channel.barrier();
    return measured;
  };
  if (out.ranks_per_machine > 1) {
    std::vector<int> of_first(to_index(out.ranks_per_machine));
    std::iota(of_first.begin(), of_first.end(), 0);
    out.inside = measure(of_first, "inside a machine");
  }
  std::vector<int> firsts;
  for (int rank = 0; rank < channel.ranks(); rank += out.ranks_per_machine) firsts.push_back(rank);
  out.between = measure(firsts, "between machines");
  return out;
}

Topology topology_of(const MachineLinks& measured, const std::string& channel, Device device,
                     const Provenance& provenance) {
  Topology network = topology_of(measured.between, channel, device, provenance);
  network.levels.front().name = "network";
  const int machines = measured.between.ranks;
  const std::string name =
      fmt::format("{} ranks on {} hosts, {} channel", machines * measured.ranks_per_machine, machines, channel);
  if (measured.ranks_per_machine == 1) {
    network.name = name;
    return network;
  }
  Topology out = topology_of(measured.inside, channel, std::move(device), provenance);
  out.name = name;
  out.levels.push_back(network.levels.front());
  // The first machine is in both measurements.
  const std::vector<ProcessorUse>& hosts = network.conditions.hosts;
  if (!hosts.empty()) out.conditions.hosts.insert(out.conditions.hosts.end(), hosts.begin() + 1, hosts.end());
  for (const auto& [key, text] : network.provenance.notes) {
    if (key == "channel" || provenance.notes.contains(key)) continue;
    out.provenance.notes["network " + key] = text;
  }
  validate(out);
  return out;
}

}  // namespace stagecraft::profiler

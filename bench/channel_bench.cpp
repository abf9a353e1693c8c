// Compares the channels between processes of one machine, in turn within each round: half a round trip between two
// ranks, and all-reduces among two and three. UCX runs over shared memory, as it does on one machine, and over TCP.
//   channel_bench [FILE.json]

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <thread>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/timeline.h"
#include "executor/channel/channel.h"
#include "executor/channel/channel_gloo.h"
#include "executor/channel/ucx/channel_ucx.h"
#include "executor/device/machine/processor.h"
#include "executor/meeting/launch_info.h"
#include "executor/meeting/meeting_store.h"

namespace stagecraft {
namespace {

constexpr int kMostRanks = 3;
constexpr int kRounds = 9;
constexpr std::chrono::milliseconds kDeadline{60000};

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Operations per round, so that a round takes some milliseconds.
int repetitions(std::int64_t bytes) {
  return static_cast<int>(std::clamp<std::int64_t>((std::int64_t{64} << 20) / (bytes + 4096), 2, 400));
}

struct Timed {
  double seconds = 0;    ///< median of the rounds
  double processor = 0;  ///< likewise, of this process
};

/// Lets the calling thread run on these processors only.
void run_on(const std::set<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) CPU_SET(to_index(processor), &set);
  (void)sched_setaffinity(0, sizeof set, &set);
}

using Operation = std::function<void(channel::Channel&)>;

/// Times `operation` over each channel, in turn; every rank makes the same call.
std::vector<Timed> in_turn(const std::vector<std::unique_ptr<channel::Channel>>& channels, int count,
                           const Operation& operation) {
  std::vector<std::vector<double>> seconds(channels.size()), processor(channels.size());
  for (int round = -1; round < kRounds; ++round) {
    for (std::size_t i = 0; i < channels.size(); ++i) {
      channels[i]->barrier();
      const double begin = now_s(), cpu = device::process_time().value;
      for (int k = 0; k < count; ++k) operation(*channels[i]);
      const double end = now_s(), cpu_end = device::process_time().value;
      channels[i]->barrier();  // a rank that leaves for another channel does not help the others on this one
      if (round < 0) continue;
      seconds[i].push_back((end - begin) / count);
      processor[i].push_back((cpu_end - cpu) / count);
    }
  }
  std::vector<Timed> out;
  for (std::size_t i = 0; i < channels.size(); ++i) out.push_back({median(seconds[i]), median(processor[i])});
  return out;
}

/// Measures among `ranks` ranks and returns the rows of the result as JSON, on rank 0.
std::string measure(int rank, int ranks, std::uint16_t port) {
  at::set_num_threads(1);
  meeting::LaunchInfo launch;
  launch.rank = launch.local_rank = rank;
  launch.ranks = ranks;
  launch.port = port;
  launch.served = true;
  const std::vector<std::string> names{"gloo", "ucx", "ucx over tcp"};
  std::vector<std::unique_ptr<channel::Channel>> channels;
  channels.push_back(channel::make_gloo_channel(launch, kDeadline));
  channels.push_back(channel::make_ucx_channel(launch, kDeadline));
  channels.push_back(channel::make_ucx_channel(launch, kDeadline, nullptr, "tcp"));
  // Otherwise Linux often leaves two ranks on one processor for a whole round: waking each other, they are hardly ever
  // runnable at the same time. A run keeps its ranks apart, because they also compute. Threads of the channels run
  // anywhere.
  const std::set<int> processors = device::own_processors();
  if (to_int(processors.size()) >= ranks) run_on({*std::next(processors.begin(), rank)});
  std::string rows;
  const auto print = [&](const std::string& what, std::int64_t bytes, const std::vector<Timed>& times) {
    if (rank != 0) return;
    fmt::print("{:<12} {:>5} {:>10}", what, ranks, bytes);
    for (std::size_t i = 0; i < times.size(); ++i) {
      fmt::print(" {:>10.1f} us {:>8.1f} us", times[i].seconds * 1e6, times[i].processor * 1e6);
      rows += fmt::format(
          "{}\n  {{\"operation\": \"{}\", \"ranks\": {}, \"bytes\": {}, \"channel\": \"{}\", \"time_s\": {:.9f}, "
          "\"processor_s\": {:.9f}}}",
          rows.empty() ? "" : ",", what, ranks, bytes, names[i], times[i].seconds, times[i].processor);
    }
    fmt::print(" {:>7.2f}\n", times[0].seconds / times[1].seconds);
  };
  if (rank == 0) {
    fmt::print("{:<12} {:>5} {:>10}", "operation", "ranks", "bytes");
    for (const std::string& name : names) fmt::print(" {:>13} {:>11}", name, "processor");
    fmt::print(" {:>7}\n", "gloo/ucx");
  }
  for (std::int64_t bytes = 4; ranks == 2 && bytes <= std::int64_t{64} << 20; bytes *= 4) {
    const at::Tensor tensor = at::zeros({bytes / 4});
    const auto trip = [&](channel::Channel& channel) {
      const int peer = 1 - rank;
      const auto arriving = channel.receive(channel::spec_of(tensor), peer, 7);
      if (rank == 1) (void)arriving->wait();
      const auto leaving = channel.send(tensor, peer, 7);
      if (rank == 0) (void)arriving->wait();
      leaving->wait();
    };
    std::vector<Timed> times = in_turn(channels, repetitions(bytes), trip);
    for (Timed& time : times) time = {time.seconds / 2, time.processor / 2};
    print("one way", bytes, times);
  }
  std::vector<int> members;
  for (int i = 0; i < ranks; ++i) members.push_back(i);
  for (std::int64_t values = 256; values <= std::int64_t{16} << 20; values *= 4) {
    at::Tensor tensor = at::zeros({values});
    const auto reduce = [&](channel::Channel& channel) {
      channel.start({.kind = Collective::AllReduce, .values = tensor, .members = members, .tag = 9})->wait();
    };
    print("all-reduce", values * 4, in_turn(channels, repetitions(values * 16), reduce));
  }
  const auto barrier = [](channel::Channel& channel) { channel.barrier(); };
  print("barrier", 0, in_turn(channels, 200, barrier));
  for (const auto& channel : channels) channel->barrier();
  run_on(processors);
  return rows;
}

void write_results(const std::string& path, const std::string& rows) {
  char date[16];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%F", std::gmtime(&now));
  double load = 0;
  (void)getloadavg(&load, 1);
  std::ofstream(path) << fmt::format(
      "{{\"date\": \"{}\", \"processor\": \"{}\", \"processors\": {}, \"load_at_the_end\": {},\n \"rows\": [{}]}}\n",
      date, device::processor_name(), std::thread::hardware_concurrency(), load, rows);
}

}  // namespace
}  // namespace stagecraft

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  setenv("GLOO_SOCKET_IFNAME", "lo", 0);
  // The other ranks get the meeting points' ports from rank 0, which serves them, so that no thread is forked. A group
  // of two ranks comes first: with three, there are more ranks than this machine may have processors.
  int ports[stagecraft::kMostRanks][2];
  for (auto& pair : ports) {
    if (pipe(pair) != 0) return 1;
  }
  int rank = 0;
  for (int other = 1; other < stagecraft::kMostRanks && rank == 0; ++other) {
    if (fork() == 0) rank = other;
  }
  std::string rows;
  for (int ranks = 2; ranks <= stagecraft::kMostRanks; ++ranks) {
    std::uint16_t port = 0;
    if (rank > 0) {
      if (read(ports[rank][0], &port, sizeof port) != sizeof port) return 1;
      if (rank < ranks) (void)stagecraft::measure(rank, ranks, port);
      continue;
    }
    const stagecraft::meeting::StoreServer server;
    port = server.port();
    for (int other = 1; other < stagecraft::kMostRanks; ++other) {
      if (write(ports[other][1], &port, sizeof port) != sizeof port) return 1;
    }
    rows += (rows.empty() ? "" : ",") + stagecraft::measure(0, ranks, port);
  }
  if (rank > 0) return 0;
  if (argc > 1) stagecraft::write_results(argv[1], rows);
  while (wait(nullptr) > 0) {}
}

// Compares our Gloo channel with the ProcessGroupGloo beneath it: round trips of the same bytes between the same two
// processes, in turn. Also compares a one-round all-reduce with a two-round one, for two and three ranks. Gloo's
// headers have the same limits here as in executor/channel/channel_gloo.cpp.
//   gloo_bench [FILE.json]

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "costmodel/timeline.h"
#include "executor/channel/channel.h"
#include "executor/channel/channel_gloo.h"
#include "executor/launch/rendezvous.h"
#include "executor/meeting/launch_info.h"
#include "executor/meeting/meeting_store.h"

namespace stagecraft {
namespace {

constexpr int kRanks = 3;
constexpr int kRounds = 9;
constexpr std::chrono::milliseconds kDeadline{60000};

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Operations per round, chosen so that a round takes a few milliseconds.
int repetitions(std::int64_t bytes) {
  return static_cast<int>(std::clamp<std::int64_t>((std::int64_t{4} << 20) / (bytes + 4096), 2, 20));
}

struct Pair {
  double first = 0;
  double second = 0;
  double ratio = 0;  ///< median of the rounds' ratios, second over first
};

/// Median seconds of each operation, measured in turn; every rank makes the same calls.
Pair in_turn(channel::Channel& channel, int count, const std::function<void()>& first,
             const std::function<void()>& second) {
  std::vector<double> firsts, seconds, ratios;
  for (int round = -1; round < kRounds; ++round) {
    double times[2];
    for (const int which : {round & 1, 1 - (round & 1)}) {
      channel.barrier();
      times[which] = seconds_of([&] {
                       for (int i = 0; i < count; ++i) (which ? second : first)();
                     }) /
                     count;
    }
    if (round < 0) continue;
    firsts.push_back(times[0]);
    seconds.push_back(times[1]);
    ratios.push_back(times[1] / times[0]);
  }
  return {median(firsts), median(seconds), median(ratios)};
}

/// Every rank sends all values to all others; each sums them in the order of the members.
void one_round(channel::Channel& channel, at::Tensor& values, const std::vector<int>& members) {
  const at::Tensor original = values.clone();
  std::vector<std::unique_ptr<channel::Receiving>> parts;
  std::vector<std::unique_ptr<channel::Sending>> sends;
  for (const int member : members) {
    parts.emplace_back();
    if (member == channel.rank()) continue;
    parts.back() = channel.receive(channel::spec_of(original), member, 1);
    sends.push_back(channel.send(original, member, 1));
  }
  at::Tensor sum;
  for (const auto& part : parts) {
    const at::Tensor one = part ? part->wait() : original;
    if (!sum.defined()) {
      sum = one.clone();
      continue;
    }
    float* out = sum.data_ptr<float>();
    const float* in = one.const_data_ptr<float>();
    for (std::int64_t i = 0, n = sum.numel(); i < n; ++i) out[i] += in[i];
  }
  for (const auto& sending : sends) sending->wait();
  values.copy_(sum);
}

void measure(int rank, std::uint16_t port, const std::string& path) {
  at::set_num_threads(1);
  meeting::LaunchInfo launch;
  launch.rank = launch.local_rank = rank;
  launch.ranks = kRanks;
  launch.port = port;
  launch.served = true;
  const auto channel = channel::make_gloo_channel(launch, kDeadline);
  const auto options = c10d::ProcessGroupGloo::Options::create(kDeadline);
  options->threads = 1;
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  const auto raw = c10::make_intrusive<c10d::ProcessGroupGloo>(meeting::connect_store(launch, "raw", kDeadline), rank,
                                                               kRanks, options);
  std::string trips, reductions;
  if (rank == 0) fmt::print("{:>10} {:>12} {:>12} {:>7}\n", "bytes", "c10d", "ours", "ratio");
  for (std::int64_t bytes = 4; bytes <= std::int64_t{16} << 20; bytes *= 4) {
    std::vector<at::Tensor> out = {at::zeros({bytes / 4})};
    std::vector<at::Tensor> in = {at::zeros({bytes / 4})};
    const int peer = 1 - rank;
    const auto bare = [&] {
      if (rank > 1) return;
      const auto arriving = raw->recv(in, peer, 7);
      if (rank == 1) arriving->wait();
      const auto leaving = raw->send(out, peer, 7);
      if (rank == 0) arriving->wait();
      leaving->wait();
    };
    const auto ours = [&] {
      if (rank > 1) return;
      const auto arriving = channel->receive(channel::spec_of(out[0]), peer, 7);
      if (rank == 1) (void)arriving->wait();
      const auto leaving = channel->send(out[0], peer, 7);
      if (rank == 0) (void)arriving->wait();
      leaving->wait();
    };
    const Pair pair = in_turn(*channel, repetitions(bytes), bare, ours);
    if (rank != 0) continue;
    fmt::print("{:>10} {:>9.1f} us {:>9.1f} us {:>7.2f}\n", bytes, pair.first * 1e6, pair.second * 1e6, pair.ratio);
    trips += fmt::format("{}\n  {{\"bytes\": {}, \"c10d_s\": {}, \"ours_s\": {}, \"ratio\": {}}}",
                         trips.empty() ? "" : ",", bytes, pair.first, pair.second, pair.ratio);
  }
  if (rank == 0)
    fmt::print("{:>10} {:>5} {:>12} {:>12} {:>7}\n", "values", "ranks", "one round", "two rounds", "ratio");
  for (int ranks = 2; ranks <= kRanks; ++ranks) {
    std::vector<int> members;
    for (int i = 0; i < ranks; ++i) members.push_back(i);
    for (std::int64_t values = 256; values <= 1 << 20; values *= 2) {
      at::Tensor one = at::zeros({values});
      at::Tensor two = at::zeros({values});
      const Pair pair = in_turn(
          *channel, repetitions(values * 16),
          [&] {
            if (rank < ranks) one_round(*channel, one, members);
          },
          [&] {
            if (rank >= ranks) return;
            channel->start({.kind = Collective::ReduceScatter, .values = two, .members = members, .tag = 2})->wait();
            channel->start({.kind = Collective::AllGather, .values = two, .members = members, .tag = 3})->wait();
          });
      if (rank != 0) continue;
      fmt::print("{:>10} {:>5} {:>9.1f} us {:>9.1f} us {:>7.2f}\n", values, ranks, pair.first * 1e6, pair.second * 1e6,
                 pair.ratio);
      reductions += fmt::format(
          "{}\n  {{\"values\": {}, \"ranks\": {}, \"one_round_s\": {}, \"two_rounds_s\": {}, \"ratio\": {}}}",
          reductions.empty() ? "" : ",", values, ranks, pair.first, pair.second, pair.ratio);
    }
  }
  if (rank == 0 && !path.empty()) {
    char date[16];
    const std::time_t now = std::time(nullptr);
    std::strftime(date, sizeof date, "%F", std::gmtime(&now));
    double load = 0;
    (void)getloadavg(&load, 1);
    std::ofstream(path) << fmt::format("{{\"date\": \"{}\", \"processors\": {}, \"load_at_the_end\": {},\n", date,
                                       std::thread::hardware_concurrency(), load)
                        << " \"round_trips\": [" << trips << "],\n \"all_reduces\": [" << reductions << "]}\n";
  }
  channel->barrier();
}

}  // namespace
}  // namespace stagecraft

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  setenv("GLOO_SOCKET_IFNAME", "lo", 0);
  // Ranks 1 and 2 get the meeting point's port from rank 0, which serves it, so that no thread is forked.
  int ports[2];
  if (pipe(ports) != 0) return 1;
  int rank = 0;
  for (int other = 1; other < stagecraft::kRanks && rank == 0; ++other) {
    if (fork() == 0) rank = other;
  }
  std::uint16_t port = 0;
  if (rank > 0) {
    if (read(ports[0], &port, sizeof port) != sizeof port) return 1;
    stagecraft::measure(rank, port, "");
    return 0;
  }
  const stagecraft::meeting::StoreServer server;
  port = server.port();
  for (int other = 1; other < stagecraft::kRanks; ++other) {
    if (write(ports[1], &port, sizeof port) != sizeof port) return 1;
  }
  stagecraft::measure(0, port, argc > 1 ? argv[1] : "");
  while (wait(nullptr) > 0) {}
}

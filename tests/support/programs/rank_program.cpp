// One rank of a run started by rendezvous_test: rank_program CASE [PORT]. With a port, rank 0 runs the rendezvous
// server.
#include <ATen/ops/full.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "executor/channel/channel.h"
#include "executor/channel/channel_gloo.h"
#include "executor/launch/launch.h"
#include "executor/launch/rendezvous.h"
#include "executor/meeting/launch_info.h"
#include "executor/meeting/meeting_store.h"

namespace stagecraft {
namespace {

constexpr std::chrono::milliseconds kDeadline{2000};
/// Longer than the rendezvous' deadline, whose error names the cause.
constexpr std::chrono::milliseconds kChannelDeadline{10000};
/// Long enough for at least one heartbeat.
constexpr std::chrono::milliseconds kHeartbeats{700};

/// Whether the process listens on at least one socket, and only on the loopback interface.
bool listens_on_loopback_only(pid_t process) {
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) own.insert(target.substr(8, target.size() - 9));
  }
  int found = 0;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    while (std::getline(file, line)) {
      // number, local address, remote address, state, two queues, two timers, user, timeout, inode
      std::istringstream words(line);
      std::string skip, address, state, inode;
      words >> skip >> address >> skip >> state >> skip >> skip >> skip >> skip >> skip >> inode;
      if (state != "0A" || !own.contains(inode)) continue;
      ++found;
      const std::string host = address.substr(0, address.find(':'));
      if (host != "0100007F" && host != "00000000000000000000000001000000") return false;
    }
  }
  return found > 0;
}

/// Waits for a tensor that rank 1 never sends.
void wait_for_rank_1(channel::Channel& channel) { (void)channel.receive({{4}, at::kFloat}, 1, 3)->wait(); }

int run_case(const std::string& name, channel::Channel& channel, launch::Rendezvous& meeting) {
  const bool odd_one = channel.rank() == 1;
  channel.barrier();  // no rank is still connecting when one dies
  if (name == "exchange") {
    at::Tensor values = at::full({3}, channel.rank() + 1, at::kFloat);
    std::vector<int> all;
    float sum = 0;
    for (int rank = 0; rank < channel.ranks(); ++rank) {
      all.push_back(rank);
      sum += static_cast<float>(rank + 1);
    }
    channel.start({.kind = Collective::AllReduce, .values = values, .members = all, .tag = 1})->wait();
    channel.barrier();
    for (const std::string key : {"first", "first", "second"}) {
      const auto texts = meeting.exchange(key, std::to_string(channel.rank()));
      for (const int rank : all) {
        if (texts[static_cast<std::size_t>(rank)] != std::to_string(rank)) return 10;
      }
    }
    return values.equal(at::full({3}, sum, at::kFloat)) ? 0 : 11;
  }
  if (name == "last") {  // the last rank leaves long after the others
    if (channel.rank() == channel.ranks() - 1) std::this_thread::sleep_for(kHeartbeats);
    return 0;
  }
  if (name == "listen_rank") return listens_on_loopback_only(getpid()) ? 0 : 15;
  if (name == "listen") return listens_on_loopback_only(getpid()) && listens_on_loopback_only(getppid()) ? 0 : 14;
  if (name == "status") return channel.rank() == 2 ? 7 : 0;
  if (name == "terminate") {
    if (channel.rank() == 0) kill(getppid(), SIGTERM);
    while (true) pause();
  }
  if (name == "kill_unwaited") {  // no rank waits in its channel, which would notice
    if (odd_one) raise(SIGKILL);
    meeting.activity()->begin({.action = "backward", .stage = channel.rank(), .microbatch = 2});
    while (true) pause();
  }
  if (name == "absent") {
    if (!odd_one) (void)meeting.exchange("plan", "a");
    std::this_thread::sleep_for(kChannelDeadline);
  }
  if (odd_one && name == "hostile") {
    // A member that breaks the rendezvous' format: not a number, control characters, endless text.
    const auto store = meeting::connect_store(*launch::launch_from_environment(launch::process_environment()),
                                              meeting::kMeetPrefix, kDeadline);
    store->set("rank/1", std::string(100000, '\x07'));
    store->set("failure", "1 \x1b[2Jall is well\nstagecraft: rank 0 is to blame" + std::string(100000, '.'));
    std::this_thread::sleep_for(kChannelDeadline);
  }
  if (odd_one) {
    meeting.activity()->begin({.action = "forward", .stage = 1, .microbatch = 3});
    std::this_thread::sleep_for(kHeartbeats);
    if (name == "kill") raise(SIGKILL);
    if (name == "stop") raise(SIGSTOP);
    if (name == "throw") throw meeting::PeerError("the plan has 3 stages, the model 2");
    return 12;
  }
  if (channel.rank() == 0 && name == "host_killed") raise(SIGKILL);
  if (channel.rank() == 0 && name == "host_stopped") raise(SIGSTOP);
  wait_for_rank_1(channel);
  return 13;
}

int run(const std::string& name, std::uint16_t port) {
  meeting::LaunchInfo launch = *launch::launch_from_environment(launch::process_environment());
  if (port != 0) {
    launch.served = false;
    launch.port = port;
  }
  std::unique_ptr<launch::Rendezvous> meeting;
  std::unique_ptr<channel::Channel> channel;  // outlives fail(): otherwise the others would first notice its end
  try {
    meeting = launch::join(launch, kDeadline);
    channel = channel::make_gloo_channel(launch, kChannelDeadline, meeting->activity());
    const int status = run_case(name, *channel, *meeting);
    meeting->leave();
    return status;
  } catch (const meeting::PeerError& error) {
    std::fprintf(stderr, "rank %d: %s\n", launch.rank, error.what());
    if (meeting) meeting->fail(error.what());
    return launch::exit_status(error);
  }
}

}  // namespace
}  // namespace stagecraft

int main(int count, char** arguments) {
  return stagecraft::run(arguments[1], count > 2 ? static_cast<std::uint16_t>(std::atoi(arguments[2])) : 0);
}

#include "tests/support/channels/ranks.h"

#include <exception>
#include <latch>
#include <mutex>
#include <optional>
#include <thread>

#include "executor/channel/table/channels.h"
#include "executor/channel/ucx/channel_ucx.h"
#include "executor/launch/rendezvous.h"
#include "executor/meeting/meeting_store.h"
#include "tests/support/channels/launch_at.h"

namespace stagecraft {
namespace {

/// UCX over TCP: on one machine, its channel uses shared memory only.
constexpr const char* kUcxOverTcp = "ucx_tcp";

channel::ChannelKind kind_called(const std::string& name) {
  if (name != kUcxOverTcp) return channel::channel_by_name(name);
  channel::ChannelKind kind = channel::channel_by_name("ucx");
  kind.make_process = [](const channel::ChannelSetup& setup) {
    return channel::make_ucx_channel(setup.launch, setup.deadline, setup.activity, "tcp");
  };
  return kind;
}

}  // namespace

std::vector<std::string> suite_channels() {
  std::vector<std::string> out;
  for (const channel::ChannelKind& kind : channel::channels()) {
    if (kind.device == "cuda" || (kind.why_missing && !kind.why_missing().empty())) continue;
    out.push_back(kind.name);
    if (kind.name == "ucx") out.emplace_back(kUcxOverTcp);
  }
  return out;
}

std::string channel_device(const std::string& name) { return kind_called(name).device; }

void run_on_ranks(const std::string& name, int ranks, std::chrono::milliseconds deadline,
                  const std::function<void(channel::Channel&)>& body) {
  const channel::ChannelKind kind = kind_called(name);
  std::vector<std::unique_ptr<channel::Channel>> channels(static_cast<std::size_t>(ranks));
  if (kind.make_threads) channels = kind.make_threads(ranks, deadline);
  std::optional<meeting::StoreServer> server;
  if (kind.make_process) server.emplace();

  std::mutex mutex;
  std::exception_ptr first;
  std::latch all_ended(ranks);
  const auto run_rank = [&](int rank) {
    std::unique_ptr<channel::Channel>& channel = channels[static_cast<std::size_t>(rank)];
    try {
      if (kind.make_process) {
        channel = kind.make_process({.launch = testing::launch_at(*server, rank, ranks), .deadline = deadline});
      }
      body(*channel);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
      if (channel) channel->abort("another rank's body threw");
    }
    all_ended.arrive_and_wait();  // to the others, a channel destroyed early is a dead peer
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run_rank, rank);
  }
  channels.clear();
  if (first) std::rethrow_exception(first);
}

}  // namespace stagecraft
